"""What the alerts look for in the log is what the code writes there."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from runonce import PermanentError, Run, scheduled
from runonce.runs.audit import audit_job, line
from runonce.runs.dispatch import Dispatcher
from runonce.runs.table import read_job
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock

if TYPE_CHECKING:
    from tests.support.infrastructure import Infrastructure


@scheduled("0 0 * * * *", name="closed_books")
def closed_books(run: Run) -> None:
    """Fails."""
    if run.fire_time.hour % 2 == 0:
        raise PermanentError("the books are closed")


@pytest.fixture
def dispatcher() -> Dispatcher:
    clock = ManualClock()
    settings = Settings("shop-production", StorageConnection())
    return Dispatcher({"closed_books": closed_books}, memory_stores(clock), settings, clock, host="test")


def query(infra: Infrastructure, name: str) -> str:
    rules = infra.main("both", namespace="shop-production").of("Microsoft.Insights/scheduledQueryRules")
    (found,) = [r for r in rules if r.name == f"alert-{name}"]
    return found.properties["criteria"]["allOf"][0]["query"]


def test_a_failed_run_is_found(
    sample: Infrastructure, dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    """The query for failed runs finds the line of a run that failed for good, and none of a run that succeeded."""
    pattern = re.compile(re.search(r'matches regex @"([^"]+)"', query(sample, "failed-runs"))[1])  # type: ignore[index]
    for hours, found in ((0, True), (1, False)):
        caplog.clear()
        fire_time = dispatcher.clock.now().replace(hour=2, minute=0, second=0, microsecond=0)
        with caplog.at_level(logging.INFO):
            dispatcher.execute(closed_books, fire_time - timedelta(days=1, hours=hours), by="timer")
        assert any(pattern.search(record.getMessage()) for record in caplog.records) is found


def parsed(text: str, pattern: str) -> dict[str, str]:
    """What KQL's parse operator would take out of a text: literals in quotes, then a column up to the next one."""
    parts = re.findall(r'"([^"]*)"\s*(?:(\w+):\w+)?', pattern)
    made = "".join(re.escape(literal) + (f"(?P<{column}>.*?)" if column else "") for literal, column in parts)
    found = re.search(made + "$", text)
    assert found is not None
    return found.groupdict()


def test_the_audit_line_is_read(sample: Infrastructure, dispatcher: Dispatcher) -> None:
    """The queries take each figure out of the audit line, and look in the right namespace."""
    fire_time = dispatcher.clock.now().replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=1)
    dispatcher.execute(closed_books, fire_time, by="timer")
    row, _ = read_job(dispatcher.registry, "closed_books")
    written = line(audit_job(closed_books, row, dispatcher.clock.now()), "shop-production")
    for name in ("missed-runs", "no-sign-of-life", "failed-runs"):
        text = query(sample, name)
        marker, pattern = re.search(r'contains "([^"]+)" \| parse Text with \* (.*?) \|| $', text).groups()  # type: ignore[union-attr]
        assert marker in written
        columns = parsed(written, pattern.partition(" |")[0].partition(")")[0])
        assert columns["Job"] == "closed_books"
        assert columns["State"] == "well"
        assert columns["Overdue"] == "0"
        assert columns["Outcome"] == "failed"
        assert columns["Finished"].endswith("Z")
