"""What tests of the flow share: replicas on the same stores, a death, a look at the rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runonce.errors import HostStopping
from runonce.hosts.purge import NAME
from runonce.runs.decide import Which, replay
from runonce.runs.dispatch import Dispatcher, Started
from runonce.runs.recovery import recover
from runonce.runs.requests import Request, read_request
from runonce.runs.table import read_job, read_run

if TYPE_CHECKING:
    from runonce.execution.stop import StopSignal
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.result import Result
    from runonce.runs.rows import JobRow, RunRow
    from runonce.runs.run import Run
    from runonce.stores.protocols import Stores
    from runonce.testing import ManualClock, Workbench

AFTER_LEASE = 61.0
"""Seconds after which no lease is left."""
AFTER_REQUEST = 121.0
"""Seconds after which a request is gone and asked for again."""


def at(hour: int, minute: int = 0, second: int = 0, *, day: int = 1) -> datetime:
    """An instant of January 2026, when the benches' clocks begin."""
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


def replica(
    bench: Workbench,
    *jobs: ScheduledJob,
    host: str = "other",
    stores: Stores | None = None,
    clock: ManualClock | None = None,
    stop: StopSignal | None = None,
) -> Dispatcher:
    """Another host of the bench's jobs (or of these), on the bench's stores."""
    own = {name: job for name, job in bench.dispatcher.jobs.items() if name != NAME}
    known = {job.name: job for job in jobs} or own
    return Dispatcher(
        known, stores or bench.stores, bench.settings, clock or bench.clock, host=host, stop=stop
    )


def start(dispatcher: Dispatcher, job: ScheduledJob, fire_time: datetime) -> Started:
    """Begin a run, which must succeed."""
    started = dispatcher.begin(job, fire_time, by="timer")
    assert isinstance(started, Started), started
    return started


def stop_at(run: Run) -> None:
    """The run is told that its host stops, and ends here; the host itself goes on, for the rest of the test."""
    run._stop.set(HostStopping())
    run.check()


def replayed(dispatcher: Dispatcher, job: ScheduledJob, fire_time: datetime) -> Result:
    """An operator's replay, carried out here."""
    replay(dispatcher, Which(job.name, fire_time))
    return dispatcher.execute(job, fire_time, by="hand")


def die(started: Started) -> None:
    """Its process is gone: nobody renews the lease or records anything; on the server nothing changes."""
    started.over.set()
    started.lease._closed.set()
    started.lease._trusted_until = float("-inf")


def job_row(bench: Workbench, job: ScheduledJob) -> JobRow:
    """The job's row as it is kept."""
    return read_job(bench.dispatcher.registry, job.name)[0]


def run_row(bench: Workbench, job: ScheduledJob, fire_time: datetime) -> RunRow:
    """The run's row as it is kept; it must be there."""
    found = read_run(bench.dispatcher.registry, job.name, fire_time)
    assert found is not None
    return found[0]


def has_run_row(bench: Workbench, job: ScheduledJob, fire_time: datetime) -> bool:
    """Whether there is a record of that fire time."""
    return read_run(bench.dispatcher.registry, job.name, fire_time) is not None


def bodies(stores: Stores) -> list[str]:
    """Take every message out of the internal queue."""
    found = []
    while (item := stores.requests.receive(visibility=30)) is not None:
        stores.requests.delete(item)
        found.append(item.body)
    return found


def requests(bench: Workbench) -> list[Request]:
    """Take every request out of the internal queue."""
    return [read_request(body) for body in bodies(bench.stores)]


def work_off(dispatcher: Dispatcher) -> list[Result]:
    """Handle requests until there are none left."""
    results = []
    while waiting := bodies(dispatcher.stores):
        results += [result for body in waiting if (result := dispatcher.handle_request(body)) is not None]
    return results


def recovered(dispatcher: Dispatcher, clock: ManualClock, rounds: int = 6) -> list[Result]:
    """What a healthy host does from here on: recovery ticks, and what they ask for, until nothing is left."""
    results = work_off(dispatcher)
    for _ in range(rounds):
        clock.advance(AFTER_REQUEST)
        recover(dispatcher)
        results += work_off(dispatcher)
    return results
