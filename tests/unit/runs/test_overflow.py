"""A job's unfinished fire times may be many: its row stays small, and each of them comes to its end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, bodies, has_run_row, job_row, replica, run_row, work_off

from runonce.runs import overflow
from runonce.runs.decide import Which, resume_run
from runonce.runs.definition import scheduled
from runonce.runs.operate import ask
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.runs.status import history
from runonce.runs.table import read_job
from runonce.stores.columns import encode
from runonce.stores.protocols import Delete
from runonce.testing import Workbench
from runonce.testing.faults import Boundary

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

LARGEST = 32_000
"""UTF-16 units of one column (Azure Tables)."""


FEW = 10
"""On a job's row, where another number shows the same: the first test has the real one."""


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "KEPT", FEW)


class Failing:
    """A job every ten seconds whose other side is down."""

    def __init__(self, **options: Any) -> None:
        self.down = True
        self.done: list[Any] = []

        @scheduled("*/10 * * * * *", **options)
        def call(run: Run) -> None:
            if self.down:
                raise OSError("the other side is down")
            self.done.append(run.fire_time)

        self.job: ScheduledJob = call
        self.bench = Workbench(call)
        self.host = self.bench.dispatcher
        recover(self.host)
        self.ticks = 0
        self.largest = 0

    def live(self, ticks: int) -> list[Outcome]:
        """What ten-second timers, the minute's recovery and the requests' consumer make of the time."""
        outcomes = []
        for _ in range(ticks):
            self.ticks += 1
            self.bench.clock.advance(10)
            result = self.host.tick(self.job)
            outcomes += [] if result is None else [result.outcome]
            if self.ticks % 6 == 0:
                recover(self.host)
            outcomes += [result.outcome for result in work_off(self.host)]
            cell = str(encode(job_row(self.bench, self.job))["pending"])
            self.largest = max(self.largest, len(cell.encode("utf-16-le")) // 2)
        return outcomes

    def recover(self, ticks: int) -> None:
        """The other side is well again, and all that waits has its turn within so many ticks."""
        self.down = False
        while self.outside() and ticks > 0:
            self.live(10)
            ticks -= 10
        self.live(10)

    def outside(self) -> int:
        """How many fire times have rows of their own."""
        return len(list(self.bench.stores.runs.scan("test", "pending:", "pending;")))


@pytest.mark.slow
def test_a_job_that_fails_for_hours_stays_claimable_and_its_row_small() -> None:
    """Every ten seconds with retries: many wait, the cell stays small, and no claim or record is refused."""
    made = Failing(retries=6, retry_delay=300)
    outcomes = made.live(160)
    assert set(outcomes) <= {Outcome.RETRYING, Outcome.FAILED, Outcome.SKIPPED}
    assert made.largest < LARGEST / 2
    row = job_row(made.bench, made.job)
    assert row.more == made.outside() > 100
    assert len([p for p in row.pending.values() if p.why == "retrying"]) <= overflow.KEPT + 1


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_each_of_them_comes_to_its_end() -> None:
    """When the other side is well again every fire time that still had a retry is done, once, and no row is left."""
    made = Failing(retries=6, misfire="all")
    made.live(50)
    waiting = {
        run.fire_time for run in history(made.host, made.job.name, 1000) if run.outcome is Outcome.RETRYING
    }
    assert len(waiting) > overflow.KEPT + 20
    made.recover(200)
    assert waiting <= set(made.done)
    assert len(made.done) == len(set(made.done))
    assert made.outside() == job_row(made.bench, made.job).more == 0
    assert {p.why for p in job_row(made.bench, made.job).pending.values()} <= {"missed"}


def asked(count: int) -> Failing:
    """A job that was asked for so many fire times of the day before."""
    made = Failing()
    made.down = False
    made.bench.clock.advance(86_400)
    for second in range(count):
        ask(made.host, made.job, at(1) + timedelta(seconds=10 * second))
    bodies(made.bench.stores)
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_any_number_of_fire_times_can_be_asked_for() -> None:
    """A hundred and twenty at once: each runs, although the job's row never has them all."""
    made = asked(120)
    assert len(job_row(made.bench, made.job).pending) == overflow.KEPT
    made.live(6 * 12)
    assert {at(1) + timedelta(seconds=10 * second) for second in range(120)} <= set(made.done)


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_what_is_outdated_in_the_overflow_does_no_harm() -> None:
    """A fire time that was finished by hand while it was out of the row is not run again."""
    made = asked(overflow.KEPT + 5)
    (one, *_) = [
        fire_time
        for second in range(overflow.KEPT + 5)
        if (fire_time := at(1) + timedelta(seconds=10 * second)) not in job_row(made.bench, made.job).pending
    ]
    assert made.host.execute(made.job, one, by="hand").outcome is Outcome.SUCCEEDED
    made.live(6 * 12)
    assert made.done.count(one) == 1
    assert made.outside() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_a_decision_is_never_moved_out() -> None:
    """What an operator started again stays on the row, so that it cannot come back after it has ended."""
    made = Failing()
    made.live(60)
    failed = [run.fire_time for run in history(made.host, made.job.name, 60)]
    for fire_time in failed:
        resume_run(made.host, Which("call", fire_time))
    assert made.outside() == 0
    assert len(job_row(made.bench, made.job).pending) == len(failed)


@pytest.mark.usefixtures("_few")
def test_a_tick_looks_at_them_with_one_read_and_only_when_there_are_any() -> None:
    """An idle tick stays one read; with fire times out of the row it is one more."""
    made = asked(overflow.KEPT)
    boundary = Boundary()
    host = replica(made.bench, stores=boundary.around(made.bench.stores))
    recover(host)
    boundary.calls.clear()
    recover(host)
    assert boundary.calls.count("scan") == 1
    ask(made.host, made.job, at(2))
    boundary.calls.clear()
    recover(host)
    assert boundary.calls.count("scan") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_a_lost_row_of_a_job_with_hundreds_unfinished_is_rebuilt() -> None:
    """More than fit on a row are found in the runs' rows again, and moved out at once."""
    made = Failing(retries=6)
    made.live(50)
    waiting = [run.fire_time for run in history(made.host, "call", 1000) if run.outcome is Outcome.RETRYING]
    row = made.bench.stores.runs.get("test", "job:call")
    assert row is not None
    made.bench.stores.runs.commit("test", [Delete(row.key, row.etag)])
    fresh, etag = read_job(made.host.registry, "call")
    assert etag is None
    assert len(fresh.pending) == overflow.KEPT
    assert fresh.more == made.outside()
    made.recover(200)
    assert set(waiting) <= set(made.done)
    assert all(has_run_row(made.bench, made.job, fire_time) for fire_time in waiting)
    assert run_row(made.bench, made.job, waiting[0]).outcome is Outcome.SUCCEEDED
