"""What happens to fire times that come while the job runs, and runs that are spread over the time after theirs."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, job_row, recovered, replica, run_row, start

from runonce.errors import DefinitionError, HostStopping
from runonce.runs.audit import audit_job
from runonce.runs.definition import scheduled
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.testing import Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

MINUTE = timedelta(minutes=1)


def every_minute(ran: list[datetime], **options: Any) -> ScheduledJob:
    @scheduled("0 * * * * *", **options)
    def often(run: Run) -> None:
        ran.append(run.fire_time)

    return often


def after_a_long_run(**options: Any) -> tuple[Workbench, ScheduledJob, list[datetime]]:
    """A run of 03:00 that took until 03:05:30, and what a healthy host did after it."""
    ran: list[datetime] = []
    job = every_minute(ran, max_runtime=None, **options)
    bench = Workbench(job)
    recover(bench.dispatcher)
    bench.clock.advance(3 * 3600 - 60)
    bench.run(job, at(2, 59))
    bench.clock.advance(60)
    started = start(bench.dispatcher, job, at(3))
    bench.stores.leases.acquire("test/often", started.lease.holder, 600)  # nobody is there to renew it
    started.lease._trusted_until = float("inf")
    bench.clock.advance(330)
    for minute in range(1, 6):
        assert not replica(bench).execute(job, at(3, minute), by="timer").ran
    assert bench.dispatcher.finish(started, None).outcome is Outcome.SUCCEEDED
    ran.clear()
    recovered(replica(bench), bench.clock, rounds=1)
    return bench, job, ran


@pytest.mark.slow
def test_fire_times_that_come_while_it_runs_are_skipped_when_asked_to() -> None:
    """overlap="skip": none of them runs afterwards, the run's record says so, and the audit has nothing to say."""
    bench, job, ran = after_a_long_run(overlap="skip", misfire="all")
    assert [fire_time for fire_time in ran if at(3) < fire_time <= at(3, 5)] == []
    reason = run_row(bench, job, at(3)).reason
    assert "5 fire time(s) from 2026-01-01T03:01:00Z to 2026-01-01T03:05:00Z passed over" in reason
    assert 'overlap="skip"' in reason
    assert audit_job(job, job_row(bench, job), bench.clock.now()).overdue == timedelta()


@pytest.mark.slow
def test_fire_times_that_come_while_it_runs_wait_otherwise() -> None:
    """overlap="wait", the default: misfire says which of them run after it."""
    _, _, ran = after_a_long_run(misfire="all")
    assert set(ran) >= {at(3, minute) for minute in range(1, 6)}


def test_a_stopped_run_skips_nothing() -> None:
    """It goes on elsewhere; what came meanwhile is settled when it has ended."""
    ran: list[datetime] = []
    job = every_minute(ran, overlap="skip")
    bench = Workbench(job)
    recover(bench.dispatcher)
    bench.clock.advance(3 * 3600)
    started = start(bench.dispatcher, job, at(3))
    before = job_row(bench, job).watermark
    started.stop.set(HostStopping())
    assert bench.dispatcher.finish(started, HostStopping()).outcome is Outcome.STOPPED
    assert job_row(bench, job).watermark == before


def test_jitter_delays_the_start_and_not_the_fire_time() -> None:
    """The body begins some seconds after its fire time, which it still has; always the same ones, within the limit."""
    began: list[tuple[datetime, datetime]] = []

    @scheduled("0 0 * * * *", jitter=60)
    def spread(run: Run) -> None:
        began.append((run.fire_time, bench.clock.now()))

    bench = Workbench(spread, clock=PassingClock())
    for hour in range(1, 9):
        assert bench.run(spread, at(hour)).outcome is Outcome.SUCCEEDED
    delays = [started - fire_time for fire_time, started in began]
    assert [fire_time for fire_time, _ in began] == [at(hour) for hour in range(1, 9)]
    assert all(timedelta() <= delay < MINUTE for delay in delays)
    assert len({round(delay.total_seconds()) for delay in delays}) > 4
    seconds = [delay.total_seconds() for delay in delays]
    assert seconds == pytest.approx([spread.delay(at(hour)) for hour in range(1, 9)], abs=0.001)


@pytest.mark.slow
def test_jitter_spreads_jobs_that_fire_together() -> None:
    """Jobs of one schedule begin at different instants, on every replica at the same."""

    def body(run: Run) -> None: ...

    made = [scheduled("0 0 * * * *", name=f"job_{n}", jitter=60)(body) for n in range(20)]
    delays = [job.delay(at(3)) for job in made]
    assert len({int(delay) for delay in delays}) > 10
    assert delays == [job.delay(at(3)) for job in made]


def test_a_run_that_waits_for_its_jitter_is_not_missed() -> None:
    """Recovery gives it its grace and the jitter before it asks somebody else."""

    @scheduled("0 0 * * * *", jitter=300)
    def spread(run: Run) -> None: ...

    bench = Workbench(spread)
    recover(bench.dispatcher)
    bench.clock.advance(3600 + 290)
    assert recover(replica(bench)) == []
    bench.clock.advance(60)
    assert [request.fire_time for request in recover(replica(bench))] == [at(1)]


def test_a_host_that_stops_does_not_wait_for_the_jitter() -> None:
    """A stop ends the waiting, and nothing is begun."""

    @scheduled("0 0 * * * *", jitter=300)
    def spread(run: Run) -> None: ...

    bench = Workbench(spread)
    bench.clock.advance(3600)
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(bench.run(spread, at(1))))
    waiting.start()
    bench.stop.set(HostStopping())
    waiting.join(10)
    assert [result.ran for result in results] == [False]


@pytest.mark.parametrize("schedule", ["0 0,50,59 * * * *", "0 0,59 0,23 * * *"])
def test_jitter_is_shorter_than_the_shortest_time_between_fire_times(schedule: str) -> None:
    """Where the gaps differ the smallest counts, or a run would begin after the next fire time's and be skipped."""
    with pytest.raises(DefinitionError, match="shorter than the 60 s between its fire times"):

        @scheduled(schedule, jitter=61)
        def uneven(run: Run) -> None: ...


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"overlap": "queue"}, r"overlap='queue' is not one of \"wait\", \"skip\""),
        ({"jitter": -1}, r"jitter=-1 must be seconds from 0 to 300"),
        ({"jitter": 301}, r"jitter=301 must be seconds from 0 to 300"),
        ({"jitter": True}, r"jitter=True must be seconds"),
        ({"jitter": 60}, r"jitter=60 must be shorter than the 60 s between its fire times"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    """The error names the job, the value and what would do."""
    with pytest.raises(DefinitionError, match=rf"Job 'often'.*{problem}"):
        every_minute([], **options)
