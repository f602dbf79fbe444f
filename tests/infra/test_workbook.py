"""The workbook: its queries are the alerts' own, or of what telemetry measures, and Kusto's parser takes them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, at, die, replica, start
from support.messages import delivery, handling, silence
from support.telemetry import recording

from runonce.errors import LeaseLost
from runonce.runs.definition import scheduled
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock
from tests.support import kusto
from tests.support.infrastructure import Infrastructure, with_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.runs.run import Run


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """What `azd provision` would make."""
    infra: Infrastructure = with_jobs(tmp_path)
    return infra.main("both", namespace="shop-production")


def tiles(made: Any) -> dict[str, dict[str, Any]]:
    """The workbook's parts by name."""
    data = json.loads(made.one("Microsoft.Insights/workbooks").properties["serializedData"])
    assert data["version"] == "Notebook/1.0"
    return {item["name"]: item["content"] for item in data["items"]}


def test_it_belongs_to_the_workspace(made: Any) -> None:
    """It is in the workspace's own gallery and asks that workspace."""
    properties = made.one("Microsoft.Insights/workbooks").properties
    workspace = made.one("Microsoft.OperationalInsights/workspaces").id
    assert properties["sourceId"].endswith(workspace)
    assert json.loads(properties["serializedData"])["fallbackResourceIds"] == [properties["sourceId"]]


def test_what_it_shows_of_the_log_is_what_the_alerts_look_at(made: Any) -> None:
    """Each query of the log begins as an alert's does, so that both see the same lines."""
    alerts = [
        rule.properties["criteria"]["allOf"][0]["query"]
        for rule in made.of("Microsoft.Insights/scheduledQueryRules")
    ]
    for name in ("overdue", "failures", "signs-of-life"):
        query = tiles(made)[name]["query"]
        (shared,) = re.findall(r"^(.* \| parse Text with .*?) \| (?:where|project|summarize) ", query)
        assert any(shared in query for query in alerts), name


@pytest.mark.slow
def test_kustos_own_parser_accepts_every_query(azurite_launcher: Any, made: Any) -> None:
    """Each is right against the columns of the workspace's tables; a wrong column would be found."""
    queries = {name: tile["query"] for name, tile in tiles(made).items()}
    mistaken = queries["runs"].replace("sum(Sum)", "sum(Summ)")
    analysed = kusto.analyse(azurite_launcher, queries | {"mistaken": mistaken})
    assert any("Summ" in error for error in analysed.pop("mistaken")["errors"])
    assert {name: said["errors"] for name, said in analysed.items() if said["errors"]} == {}


def test_every_number_it_asks_for_is_one_that_telemetry_gives(made: Any) -> None:
    """Names of instruments and of their attributes are those that a real run, message and takeover record."""

    @scheduled("0 0 3 * * *")
    def nightly(run: Run) -> None:
        run._stop.set(LeaseLost("gone"))
        run.check()

    with recording() as recorded:
        bench = Workbench(nightly, clock=PassingClock())
        silence(bench.deliverer)
        bench.clock.advance(3 * 3600)
        die(start(bench.dispatcher, nightly, at(3)))
        bench.clock.advance(AFTER_LEASE)
        replica(bench).execute(nightly, at(3), by="request")
        bench.clock.advance(24 * 3600)
        bench.dispatcher.tick(nightly)
        bench.deliverer.deliver(handling(), delivery(b"{"))
        bench.deliverer.deliver(handling(), delivery(enqueued_at=bench.clock.now()))
        points = recorded.points()
    for name, tile in tiles(made).items():
        asked = set(
            re.findall(r'"((?:runonce|messaging)\.[a-z._]+)"', tile["query"].partition("summarize")[0])
        )
        asked -= {"runonce.audit", "runonce.recovery"}
        attributes = set(re.findall(r'About\["([^"]+)"\]', tile["query"]))
        for instrument in {one for one in asked if one not in attributes}:
            assert instrument in points, name
            assert attributes <= set(points[instrument][0][0]), (name, instrument)
