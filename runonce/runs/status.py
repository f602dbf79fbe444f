"""What the rows say, for people: each job's status and a job's history. Reads only.

One range read for all jobs; one read more for a job that is running or whose last run did not succeed, and one
look at its lease for a job that is running.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runonce.runs.parameters import parameters_json
from runonce.runs.rows import JobRow, Outcome, RunRow, decode_run, key_range, run_key
from runonce.runs.table import read_job, read_jobs, read_run

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.hosts.discover import Discovered
    from runonce.runs.dispatch import Dispatcher


@dataclass(frozen=True, slots=True)
class Running:
    """A run that has begun and not ended."""

    fire_time: datetime
    parameters: dict[str, Any]
    attempt: int
    host: str
    since: datetime | None
    lease_held: bool
    """False when it is abandoned: its host died or lost the lease, and a recovery tick will take it over."""


@dataclass(frozen=True, slots=True)
class Last:
    """The run that ended last."""

    fire_time: datetime
    outcome: str
    reason: str
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A fire time that waits for its next attempt."""

    fire_time: datetime
    why: str
    """abandoned, retrying, stopped, missed, asked, resumed or replayed."""
    not_before: datetime
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it stands."""

    name: str
    in_code: bool
    """False for one that storage knows and no job file defines, nor the toolkit."""
    summary: str
    schedule: str
    time_zone: str
    running: Running | None
    last: Last | None
    pending: tuple[Waiting, ...]
    paused_at: datetime | None
    paused_why: str
    next_fire_time: datetime | None
    unreadable: str
    """Why its row could not be read, or empty; then nothing but what the code says is known."""


def job_statuses(dispatcher: Dispatcher, found: Discovered) -> list[JobStatus]:
    """Every job of the jobs folder or of storage, by name.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    rows, _, unreadable, _ = read_jobs(dispatcher.registry)
    names = sorted({*rows, *unreadable, *found.jobs})
    return [_status(dispatcher, rows.get(name, JobRow(name)), unreadable.get(name, "")) for name in names]


def history(dispatcher: Dispatcher, name: str, limit: int) -> list[RunRow]:
    """A job's latest fire times that ran or were skipped, the newest first.

    A row that says "running" although nobody holds the lease is given as abandoned, which it is.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    registry = dispatcher.registry
    rows = registry.table.scan(registry.namespace, *key_range("run", name), limit=limit)
    return [_as_it_is(dispatcher, decode_run(row)) for row in rows]


def runs_at(dispatcher: Dispatcher, name: str, fire_time: datetime) -> list[RunRow]:
    """The runs of one fire time, one for each set of parameters; as `history` gives them.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    registry = dispatcher.registry
    first = run_key(name, fire_time)
    rows = registry.table.scan(registry.namespace, first, f"{first};")
    found = [decode_run(row) for row in rows]
    return [_as_it_is(dispatcher, run) for run in found if run.fire_time == fire_time]


def _as_it_is(dispatcher: Dispatcher, run: RunRow) -> RunRow:
    if run.outcome is not Outcome.RUNNING:
        return run
    running = _running(dispatcher, read_job(dispatcher.registry, run.job)[0])
    if running is not None and running.lease_held and running.fire_time == run.fire_time:
        return run
    found = read_run(
        dispatcher.registry, run.job, run.fire_time, run.params
    )  # it may have ended since it was read
    run = run if found is None else found[0]
    return replace(run, outcome=Outcome.ABANDONED) if run.outcome is Outcome.RUNNING else run


def _status(dispatcher: Dispatcher, row: JobRow, unreadable: str) -> JobStatus:
    job = dispatcher.jobs.get(row.name)
    pending = (
        Waiting(fire_time, entry.why, entry.not_before, parameters_json(entry.params))
        for fire_time, entry in sorted(row.pending.items())
        if fire_time != row.running
    )
    return JobStatus(
        name=row.name,
        in_code=job is not None,
        summary="" if job is None else job.summary,
        schedule="" if job is None else job.schedule.expression,
        time_zone="" if job is None else job.schedule.time_zone,
        running=_running(dispatcher, row),
        last=_last(dispatcher, row),
        pending=tuple(pending),
        paused_at=row.paused_at,
        paused_why=row.paused_why,
        next_fire_time=None if job is None else job.schedule.next(dispatcher.clock.now()),
        unreadable=unreadable,
    )


def _running(dispatcher: Dispatcher, row: JobRow) -> Running | None:
    if row.running is None:
        return None
    held = dispatcher.stores.leases.held(dispatcher.registry.lock_name(row.name))
    found = read_run(
        dispatcher.registry, row.name, row.running, row.params_of(row.running)
    )  # after the lease: a run ends before it releases
    run = RunRow(row.name, row.running) if found is None else found[0]
    if run.outcome is not Outcome.RUNNING:
        return None  # it ended just now
    return Running(row.running, parameters_json(run.params), run.attempt, row.host, run.started_at, held)


def _last(dispatcher: Dispatcher, row: JobRow) -> Last | None:
    if row.last_fire_time is None:
        return None
    reason = ""
    if row.last_outcome != Outcome.SUCCEEDED:
        found = read_run(dispatcher.registry, row.name, row.last_fire_time, row.last_params)
        # By now it may be running again; then the reason is that of its latest closed attempt.
        if found is not None:
            attempts = found[0].attempts
            reason = found[0].reason or (attempts[-1].get("reason", "") if attempts else "")
    return Last(row.last_fire_time, row.last_outcome, reason, row.last_finished_at)
