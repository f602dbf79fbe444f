"""What the rows say of scheduled jobs, for people: each job's status, a job's history, one run's page. Reads only.

All jobs together cost a bounded number of calls, however many there are: a range read over their rows, and where any
runs one list of the leases that are held (and the rows once more where a lease was free, for a run may have ended in
between). A run's page costs one range read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from runonce.runs.audit import unaccounted
from runonce.runs.parameters import parameters_json
from runonce.runs.rows import Failure, JobRow, Outcome, RunRow, decode_run, key_range, run_key
from runonce.runs.switched_off import switched_off
from runonce.runs.table import read_job, read_jobs, read_run
from runonce.stores.columns import from_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.hosts.discover import Discovered
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher

SLACK = timedelta(seconds=90)
"""After so long, beside the misfire grace, what is due and has not begun is late: a recovery tick comes each minute."""
REMEMBERED = timedelta(days=1)
"""For so long a job shows that a fire time failed, whatever succeeded since; an unknown one until it is decided."""
ENOUGH = 3
"""Successful runs that tell a usual duration."""

Trouble = Literal["", "failed", "late", "over its limit", "abandoned", "unreadable"]
TROUBLES: tuple[Trouble, ...] = ("", "failed", "late", "over its limit", "abandoned", "unreadable")
"""From none to the worst."""


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
    progress: Mapping[str, int]
    """Items done at its latest checkpoint, by the name of the `run.batches` loop."""
    usual_seconds: float | None
    """Median of the latest successful runs; None while there are less than three."""
    limit_seconds: float | None
    """The job's max_runtime; None where it has none, or the code does not have the job."""


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
    """abandoned, retrying, stopped, missed, asked, resumed, replayed or unsent."""
    not_before: datetime
    parameters: dict[str, Any]
    by: str = ""
    """Who asked for it: a person, or the host whose recovery tick found it."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as it stands."""

    name: str
    in_code: bool
    """False for one that storage knows and no job file defines, nor the toolkit."""
    is_known: bool
    """Whether storage knows it: some host has seen it."""
    summary: str
    schedule: str
    time_zone: str
    running: Running | None
    last: Last | None
    pending: tuple[Waiting, ...]
    joins: tuple[datetime, ...]
    more_pending: int
    """Unfinished fire times beside those in `pending`."""
    paused_at: datetime | None
    paused_why: str
    next_fire_time: datetime | None
    unreadable: str
    """Why its row could not be read, or empty; then nothing but what the code says is known."""
    late_since: datetime | None
    """Since when the oldest fire time is owed that should have begun and has not; None when none is."""
    failed_in_a_row: int
    """Fire times that ended badly since the last success."""
    last_success: datetime | None
    """When a run succeeded last."""
    failures: tuple[Failure, ...]
    """Those of the last day, and the unknown ones of any, that nobody decided about; newest 20, oldest first."""
    usual_seconds: float | None
    retries: int | None
    """How often a failed attempt is repeated; None where the code does not have the job."""
    switched_off: tuple[str, ...]
    """What keeps it from running on Azure Functions: the settings' names, with the apps'."""
    trouble: Trouble
    """The worst that is wrong with it."""


def job_statuses(dispatcher: Dispatcher, found: Discovered) -> list[JobStatus]:
    """Every job of the jobs folder or of storage: those in the worst trouble first, then by name.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    registry = dispatcher.registry
    rows, _, unreadable, _ = read_jobs(registry)
    held: set[str] = set()
    running = [row for row in rows.values() if row.running is not None]
    if running:
        held = dispatcher.stores.leases.held_in(registry.lock_name(""))
        if any(registry.lock_name(row.name) not in held for row in running):  # it may just have ended
            now_running = read_jobs(registry).rows
            for row in running:
                current = now_running.get(row.name, row)
                if (current.running, current.token) != (row.running, row.token):
                    rows[row.name] = replace(current, running=None)
    off: dict[str, list[str]] = {}
    for one in switched_off(registry):
        off.setdefault(one.name, []).append(f"{one.setting} of {one.app}")
    known = {*rows, *unreadable}
    names = sorted({*rows, *unreadable, *found.jobs})
    made = [
        _status(
            dispatcher,
            rows.get(name, JobRow(name)),
            is_known=name in known,
            unreadable=unreadable.get(name, ""),
            held=registry.lock_name(name) in held,
            off=tuple(off.get(name, ())),
        )
        for name in names
    ]
    return sorted(made, key=lambda one: (-TROUBLES.index(one.trouble), one.name))


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
    found = map(decode_run, registry.table.scan(registry.namespace, first, f"{first};"))
    return [_as_it_is(dispatcher, run) for run in found if run.fire_time == fire_time]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a run."""

    attempt: int
    """0 for the record of fire times that were skipped, which has the place of a run."""
    outcome: str
    reason: str
    error: str
    """Its traceback; empty where there was none, or no room to keep it (the newest ten are kept, and fit in a cell)."""
    host: str
    by: str
    """What started it: timer, request or hand."""
    why: str
    """Why it was started, where not because its time had come: abandoned (it was taken over), retrying, missed, ..."""
    asked_by: str
    """Who asked for it: a person, or the host whose recovery tick found it."""
    asked_at: datetime | None
    token: int
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


def began(why: str) -> str:
    """In words why an attempt began."""
    words = {
        "abandoned": "taken over, its host was gone",
        "retrying": "because the one before had failed",
        "stopped": "goes on, the one before was stopped",
        "": "asked for",
    }
    return words.get(why, why)


def attempts(run: RunRow) -> list[Attempt]:
    """Every attempt at a run that its row still knows, the oldest first; the last is the latest."""
    earlier = [
        Attempt(
            attempt=int(one.get("attempt") or 0),
            outcome=one.get("outcome", ""),
            reason=one.get("reason", ""),
            error=one.get("error", ""),
            host=one.get("host", ""),
            by=one.get("by", ""),
            why=one.get("why", ""),
            asked_by=one.get("asked_by", ""),
            asked_at=from_text(one.get("asked_at", "")),
            token=int(one.get("token") or 0),
            started_at=from_text(one.get("started_at", "")),
            finished_at=from_text(one.get("finished_at", "")),
        )
        for one in run.attempts
    ]
    latest = Attempt(
        run.attempt,
        run.outcome,
        run.reason,
        run.error,
        run.host,
        run.by,
        run.why,
        run.asked_by,
        run.asked_at,
        run.token,
        run.started_at,
        run.finished_at,
    )
    return [*earlier, latest]


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run of which nobody knows whether it took effect; a person decides: resume-run, replay or mark."""

    job: str
    fire_time: datetime
    params: str
    """As on the run's row: JSON, or empty."""
    since: datetime


def held_runs(statuses: list[JobStatus]) -> list[HeldRun]:
    """The runs that wait for a person's decision, oldest first; of each job the newest 20."""
    found = [
        HeldRun(one.name, failure.fire_time, failure.params, failure.at)
        for one in statuses
        for failure in one.failures
        if failure.outcome is Outcome.UNKNOWN
    ]
    return sorted(found, key=lambda held: held.since)


def _as_it_is(dispatcher: Dispatcher, run: RunRow) -> RunRow:
    if run.outcome is not Outcome.RUNNING:
        return run
    registry = dispatcher.registry
    row, _ = read_job(registry, run.job)
    held = dispatcher.stores.leases.held(registry.lock_name(run.job))
    if held and row.running == run.fire_time:
        return run
    found = read_run(registry, run.job, run.fire_time, run.params)  # it may have ended since it was read
    run = run if found is None else found[0]
    return replace(run, outcome=Outcome.ABANDONED) if run.outcome is Outcome.RUNNING else run


def _status(
    dispatcher: Dispatcher,
    row: JobRow,
    *,
    is_known: bool,
    unreadable: str,
    held: bool,
    off: tuple[str, ...],
) -> JobStatus:
    job, now = dispatcher.jobs.get(row.name), dispatcher.clock.now()
    running = _running(row, job, held=held)
    pending = tuple(
        Waiting(fire_time, entry.why, entry.not_before, parameters_json(entry.params), entry.by)
        for fire_time, entry in sorted(row.pending.items())
        if fire_time != row.running
    )
    failures = tuple(
        one for one in row.failures if one.outcome is Outcome.UNKNOWN or now - one.at < REMEMBERED
    )
    late_since = None
    if row.paused_at is None and not (running and running.lease_held) and not unreadable:
        late_since = _late_since(dispatcher, job, row, pending, now)
    last = None
    if row.last_fire_time is not None:
        last = Last(row.last_fire_time, row.last_outcome, row.last_reason, row.last_finished_at)
    return JobStatus(
        name=row.name,
        in_code=job is not None,
        is_known=is_known,
        summary="" if job is None else job.summary,
        schedule="" if job is None else job.schedule.expression,
        time_zone="" if job is None else job.schedule.time_zone,
        running=running,
        last=last,
        pending=pending,
        joins=tuple(datetime.fromisoformat(at) for at, _ in row.joins),
        more_pending=row.more,
        paused_at=row.paused_at,
        paused_why=row.paused_why,
        next_fire_time=None if job is None else job.schedule.next(now),
        unreadable=unreadable,
        late_since=late_since,
        failed_in_a_row=row.failed_in_a_row,
        last_success=row.last_success,
        failures=failures,
        usual_seconds=_usual(row),
        retries=None if job is None else job.retry.retries,
        switched_off=off,
        trouble=_trouble(
            unreadable, running, last, late=late_since is not None, failed=bool(failures), now=now
        ),
    )


def _trouble(
    unreadable: str, running: Running | None, last: Last | None, *, late: bool, failed: bool, now: datetime
) -> Trouble:
    if unreadable:
        return "unreadable"
    if running is not None and not running.lease_held:
        return "abandoned"
    limit = None if running is None else running.limit_seconds
    if running and running.since and limit is not None and (now - running.since).total_seconds() > limit:
        return "over its limit"
    if late:
        return "late"
    ended_badly = last is not None and last.outcome in (Outcome.FAILED, Outcome.UNKNOWN)
    return "failed" if failed or ended_badly else ""


def _running(row: JobRow, job: ScheduledJob | None, *, held: bool) -> Running | None:
    if row.running is None:
        return None
    entry = row.pending.get(row.running)
    return Running(
        fire_time=row.running,
        parameters=parameters_json(row.params_of(row.running)),
        attempt=row.attempt,
        host=row.host,
        since=None if entry is None else entry.not_before,
        lease_held=held,
        progress=row.progress,
        usual_seconds=_usual(row),
        limit_seconds=None if job is None else job.max_runtime,
    )


def _usual(row: JobRow) -> float | None:
    return median(row.took) if len(row.took) >= ENOUGH else None


def _late_since(
    dispatcher: Dispatcher,
    job: ScheduledJob | None,
    row: JobRow,
    pending: tuple[Waiting, ...],
    now: datetime,
) -> datetime | None:
    """Since when the oldest is owed of what waits, and of the fire times that nothing on the row accounts for."""
    owed = [one.not_before for one in pending if now - one.not_before > SLACK]
    if job is not None:
        patience = dispatcher.grace + SLACK + timedelta(seconds=job.jitter)
        owed += [t for t in (unaccounted(job, row, now, now - patience),) if t is not None]
    return min(owed, default=None)
