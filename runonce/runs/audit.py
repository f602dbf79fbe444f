"""Did every job run that should have? Pure: decided from the job rows that a recovery tick has read anyway.

A recovery tick logs a line for each job: at once and every minute while a fire time is overdue, else in each
quarter of an hour as a sign of life. An alert watches for both, lines that say "overdue" and lines that do not
come. The second notices what no job can tell of itself: that nothing runs any more. A weekly job needs no week of
logs for that, since the rows remember.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from runonce.runs.rows import JobRow, Outcome
from runonce.runs.versions import of_this_version
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.table import Jobs

log = logging.getLogger("runonce.audit")
recovery_log = logging.getLogger("runonce.recovery")

OVERDUE = timedelta(minutes=15)
"""How long after it was due a fire time may be unfinished, beside what its run itself may take."""
LONGEST_ELSEWHERE = timedelta(days=1)
"""As OVERDUE, for a run of a job whose time limit this code does not know."""
OURS = "runonce"
"""What the names of the toolkit's own jobs begin with."""
SIGN_OF_LIFE = timedelta(minutes=15)
"""How often a job that is well is logged."""
AT_ONCE = 100
"""Jobs whose signs of life may come at the same tick."""
SLACK = timedelta(seconds=60)
"""Ticks are not exactly a minute apart, least where each is an execution that pulls an image first."""

Standing = Literal["well", "failing", "overdue", "running", "paused", "new"]


@dataclass(frozen=True, slots=True)
class Audited:
    """How a job stands."""

    job: str
    state: Standing
    overdue: timedelta
    """Since when something is overdue; zero when nothing is."""
    expected: datetime | None
    """The newest fire time that should be done by now."""
    last_fire_time: datetime | None
    last_outcome: str
    last_finished_at: datetime | None


def audit(jobs: Iterable[ScheduledJob], read: Jobs, now: datetime) -> list[Audited]:
    """How each job stands, by name; one whose row cannot be read does not run, so it is overdue.

    With them those that have left the code and are not finished.
    """
    jobs = list(jobs)
    known = {job.name for job in jobs}
    removed = [audit_removed(row, now) for name, row in read.rows.items() if name not in known]
    found = [
        audit_job(job, read.rows.get(job.name, JobRow(job.name)), now, unreadable=job.name in read.unreadable)
        for job in jobs
    ]
    return sorted([*found, *(one for one in removed if one is not None)], key=lambda one: one.job)


def audit_job(job: ScheduledJob, row: JobRow, now: datetime, *, unreadable: bool = False) -> Audited:
    """How one job stands, by its row."""
    expected = job.schedule.previous(now - OVERDUE)
    overdue = timedelta()
    if not _runs_within_its_limit(job, row, now):  # for which everything else waits
        overdue = max([overdue, *_unfinished(job, row, now)])
        if expected is not None and expected > _accounted(job, row, now):
            overdue = max(overdue, now - expected)
    if unreadable and expected is not None:
        overdue = now - expected
    state: Standing = "well"
    if row.paused_at is not None:
        state, overdue = "paused", timedelta()
    elif overdue:
        state = "overdue"
    elif row.running is not None:
        state = "running"
    elif row.last_fire_time is None:
        state = "new"
    elif row.last_outcome in (Outcome.FAILED, Outcome.UNKNOWN):
        state = "failing"
    return Audited(
        job.name, state, overdue, expected, row.last_fire_time, row.last_outcome, row.last_finished_at
    )


def audit_removed(row: JobRow, now: datetime) -> Audited | None:
    """How a job stands that the code does not have: overdue while something of it is unfinished, else nothing to say.

    Nobody runs it, so somebody has to decide: `runonce cancel` or `runonce mark`, or deploy the job again.
    """
    overdue = timedelta()
    for pending in row.pending.values():
        # It may run on the hosts of another application, for as long as that allows.
        allowed = LONGEST_ELSEWHERE if pending.why == "running" else OVERDUE
        if now - pending.not_before > allowed:
            overdue = max(overdue, now - pending.not_before)
    if not overdue or row.paused_at is not None or row.name.startswith(OURS):
        return None
    return Audited(
        row.name, "overdue", overdue, None, row.last_fire_time, row.last_outcome, row.last_finished_at
    )


def _runs_within_its_limit(job: ScheduledJob, row: JobRow, now: datetime) -> bool:
    began = None if row.running is None else row.pending.get(row.running)
    if began is None:
        return False
    return job.max_runtime is None or now - began.not_before <= OVERDUE + timedelta(seconds=job.max_runtime)


def _unfinished(job: ScheduledJob, row: JobRow, now: datetime) -> Iterable[timedelta]:
    """How far each fire time that waits or runs is over its time."""
    for pending in row.pending.values():
        allowed = OVERDUE
        if pending.why == "running":
            allowed += timedelta(seconds=job.max_runtime or 0)
        if now - pending.not_before > allowed:
            yield now - pending.not_before


def _accounted(job: ScheduledJob, row: JobRow, now: datetime) -> datetime:
    """Up to when every fire time of this code's schedule was run, waits, or was skipped on record."""
    row = of_this_version(job, row, now, now)
    return max(row.watermark or now, row.since or row.watermark or now)


def unaccounted(job: ScheduledJob, row: JobRow, now: datetime, until: datetime) -> datetime | None:
    """The oldest fire time of this code's schedule up to `until` that nothing on the row accounts for."""
    return next(job.schedule.fire_times(_accounted(job, row, now), until, limit=1), None)


def line(audited: Audited, namespace: str) -> str:
    """The line that is logged, which infra/modules/alerts.bicep reads: one name=value after the other."""
    return (
        f"runonce.audit namespace={namespace} job={audited.job} state={audited.state} "
        f"overdue={int(audited.overdue.total_seconds())} expected={to_text(audited.expected) or '-'} "
        f"last={to_text(audited.last_fire_time) or '-'} outcome={audited.last_outcome or '-'} "
        f"finished={to_text(audited.last_finished_at) or '-'}"
    )


def log_heartbeat(
    jobs: Iterable[ScheduledJob],
    read: Jobs,
    now: datetime,
    *,
    namespace: str,
    interval: float,
) -> None:
    """Log what is overdue; and recovery itself and every job if its quarter of an hour began since the tick before.

    Recovery has a line of its own since an application may have no scheduled job, only handlers. Of many jobs each
    hundred has its quarters a minute later: a host that samples its log would drop some of a thousand lines at once.
    """
    before = now - timedelta(seconds=interval) - SLACK
    if _quarter(now) != _quarter(before):
        recovery_log.info("runonce.recovery namespace=%s rows=%d", namespace, len(read.rows))
    for place, audited in enumerate(audit(jobs, read, now)):
        later = timedelta(minutes=place // AT_ONCE)
        if audited.state == "overdue":
            log.warning("%s", line(audited, namespace))
        elif _quarter(now - later) != _quarter(before - later):
            log.info("%s", line(audited, namespace))


def _quarter(instant: datetime) -> int:
    return (instant - datetime.fromtimestamp(0, UTC)) // SIGN_OF_LIFE
