"""A job with very many unfinished fire times, on real storage: it stays claimable, and each of them ends."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import work_off

from runonce.clock import SystemClock
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.overflow import AT_ONCE, KEPT, set_aside
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome, Pending
from runonce.runs.table import read_job, write
from runonce.stores.columns import encode

if TYPE_CHECKING:
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.run import Run
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from tests.conftest import Calls

LARGEST = 32_000
"""UTF-16 units of one column (Azure Tables)."""
FIRST = datetime(2026, 6, 1, tzinfo=UTC)


class Calling:
    """A job every two minutes whose other side may be down."""

    def __init__(self, settings: Settings, stores: Stores, **options: Any) -> None:
        self.down = True
        self.done: list[datetime] = []

        @scheduled("0 */2 * * * *", misfire="skip", **options)
        def call(run: Run) -> None:
            if self.down:
                raise OSError("the other side is down")
            self.done.append(run.fire_time)

        self.job: ScheduledJob = call
        runtime = Runtime(
            settings, found=Discovered({"call": call}), stores=stores, clock=SystemClock(), host="one"
        )
        self.host: Dispatcher = runtime.dispatcher

    def cell(self) -> int:
        """The size of the job's column of unfinished fire times."""
        row, _ = read_job(self.host.registry, "call")
        return len(str(encode(row)["pending"]).encode("utf-16-le")) // 2


@pytest.mark.slow
def test_more_failing_fire_times_than_a_row_holds_all_end(settings: Settings, azure: Stores) -> None:
    """Those that wait for a retry beyond what the row keeps have rows of their own, and run when the job can again."""
    count = KEPT + 15
    made = Calling(settings, azure, retries=5, retry_delay=1.0)
    fire_times = [FIRST + timedelta(minutes=2 * n) for n in range(count)]
    for fire_time in fire_times:
        assert made.host.execute(made.job, fire_time, by="hand").outcome is Outcome.RETRYING
    row, _ = read_job(made.host.registry, "call")
    assert row.more >= count - KEPT - 1
    assert made.cell() < LARGEST / 2
    made.down = False
    give_up_at = time.monotonic() + 60
    while len(made.done) < count and time.monotonic() < give_up_at:
        recover(made.host)
        if not work_off(made.host):
            time.sleep(0.05)  # until the next one's second is over
    assert sorted(made.done) == fire_times
    row, _ = read_job(made.host.registry, "call")
    assert row.more == 0
    assert list(azure.runs.scan(settings.namespace, "pending:", "pending;")) == []


@pytest.mark.slow
def test_a_week_of_them_costs_a_claim_and_a_tick_no_more(
    settings: Settings, azure: Stores, calls: Calls
) -> None:
    """Five thousand that wait: a run makes its five calls, a tick one range read more, and the row stays small."""
    made = Calling(settings, azure, retries=5)
    registry = made.host.registry
    assert made.host.execute(made.job, FIRST, by="hand").outcome is Outcome.RETRYING
    row, etag = read_job(registry, "call")
    due = made.host.clock.now() + timedelta(days=1)
    waiting = [
        set_aside("call", FIRST + timedelta(minutes=2 * n), Pending("retrying", due + timedelta(seconds=n)))
        for n in range(1, 5001)
    ]
    for start in range(0, len(waiting), 100):
        azure.runs.commit(settings.namespace, waiting[start : start + 100])
    azure.runs.commit(settings.namespace, [write(replace(row, more=len(waiting)), etag)])
    recover(made.host)
    calls.made.clear()
    recover(made.host)
    assert len(calls.made) <= 2, calls.made
    for number in range(AT_ONCE):
        result = made.host.execute(made.job, FIRST - timedelta(minutes=2 * (number + 1)), by="hand")
        assert result.outcome is Outcome.RETRYING, result.reason
    assert made.cell() < LARGEST / 2
    assert read_job(registry, "call")[0].more == len(waiting)
    made.down = False
    calls.made.clear()
    fire_time = FIRST - timedelta(days=1)
    assert made.host.execute(made.job, fire_time, by="hand").outcome is Outcome.SUCCEEDED
    assert len([call for call in calls.made if "/messages" not in call]) <= 6, calls.made
