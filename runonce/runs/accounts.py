"""Did every fire time of a span take place? What the schedule names, against what is on record. Reads only.

A job's accounts begin when the first host saw it, or where its history begins. Each version of its schedule accounts
for its own fire times, up to where it did. A fire time without a record of its own is one that a record stands for
(nobody was there, paused, the schedule changed, the job was running), one that waits, or one that is owed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from runonce.runs.rows import JobRow, Outcome, RunRow, decode_run, key_range, run_key
from runonce.runs.table import read_jobs
from runonce.runs.versions import parsed, schedule_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.schedules.schedule import Schedule

LATE = timedelta(seconds=90)
"""A run that began so long after its fire time was late."""
MOST_FINDINGS = 200
"""Fire times of one job that are named, the newest; all are counted."""

What = Literal[
    "done",
    "late",
    "retried",
    "missed",
    "skipped",
    "cancelled",
    "failed",
    "unknown",
    "running",
    "waiting",
    "owed",
]
BY_OUTCOME: Mapping[Outcome, What] = {
    Outcome.SUCCEEDED: "done",
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "unknown",
    Outcome.CANCELLED: "cancelled",
    Outcome.RUNNING: "running",
    Outcome.RETRYING: "waiting",
    Outcome.STOPPED: "waiting",
    Outcome.ABANDONED: "waiting",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fire time of which there is something to say beside that it is done."""

    fire_time: datetime
    what: What
    """missed: nobody ran it, and the misfire policy let it go. owed: nothing accounts for it, or it waits too long."""
    is_owed: bool
    """Whether somebody has to do something about it: it is owed, failed or unknown."""
    detail: str


@dataclass(frozen=True, slots=True)
class JobAudit:
    """One job's fire times of a span."""

    job: str
    in_code: bool
    since: datetime
    """From when on there was something to account for, within the span."""
    expected: int
    """Fire times that the schedule named from then on; the latest, of which a tick may still come, if they began."""
    counts: Mapping[What, int]
    """How many are what. A late or retried one is counted beside its outcome too."""
    other: int
    """Runs at instants that no schedule named, or with parameters."""
    findings: tuple[Finding, ...]
    """The newest first."""
    more: int
    """Findings beside those."""
    owed: int
    """How many findings somebody has to do something about."""
    paused: bool


def audit_since(dispatcher: Dispatcher, since: datetime, only: str = "") -> list[JobAudit]:
    """Every job's fire times since an instant, or one job's: one range read for all rows, and one for each job.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    registry = dispatcher.registry
    rows = read_jobs(registry).rows
    names = sorted({*rows, *dispatcher.jobs}) if not only else [only]
    made = []
    for name in names:
        row = rows.get(name) or JobRow(name)
        begins = max([since, *([row.history_from] if row.history_from else [])])
        # To the end of that second's keys, which go back in time; with parameters there are several.
        found = registry.table.scan(
            registry.namespace, key_range("run", name)[0], f"{run_key(name, begins)};"
        )
        runs = [decode_run(one) for one in found]
        job, now = dispatcher.jobs.get(name), dispatcher.clock.now()
        is_running = row.running is not None and dispatcher.stores.leases.held(registry.lock_name(name))
        made.append(account_for(job, row, runs, begins, now, dispatcher.grace, is_running=is_running))
    return made


def account_for(
    job: ScheduledJob | None,
    row: JobRow,
    runs: Iterable[RunRow],
    since: datetime,
    now: datetime,
    grace: timedelta,
    *,
    is_running: bool = False,
) -> JobAudit:
    """One job's fire times since an instant, from its rows alone.

    Args:
        job: The job in the code, or None.
        row: Its row.
        runs: The rows of its runs since that instant.
        since: The instant.
        now: This instant.
        grace: How long a fire time may wait for its tick.
        is_running: Whether the job's lease is held, so that its other fire times wait for their turn.
    """
    runs = list(runs)
    of_schedule = {run.fire_time: run for run in runs if not run.params}
    spans = [
        (datetime.fromisoformat(first), datetime.fromisoformat(last), kind)
        for run in runs
        for first, last, kind in run.skips
    ]
    patience = grace + LATE + timedelta(seconds=0 if job is None else job.jitter)
    named = set(_expected(job, row, since, now))  # of the latest those count that have a record already
    expected = {t for t in named if t <= now - patience or t in of_schedule}
    counts: Counter[What] = Counter()
    findings: list[Finding] = []
    for fire_time in sorted(expected, reverse=True):
        run = of_schedule.get(fire_time)
        if run is not None and run.outcome is not Outcome.SKIPPED:
            found = list(_of_run(run, patience))
        else:
            found = [_without_run(row, fire_time, spans, now, patience, is_running=is_running)]
        counts.update(one.what for one in found)
        findings += [one for one in found if one.what != "done"]
    others = [run for run in runs if run.params or run.fire_time not in expected]
    others = [run for run in others if run.outcome is not Outcome.SKIPPED]
    for run in others:
        found = [one for one in _of_run(run, patience) if one.what not in ("done", "late")]
        counts.update(one.what for one in found)
        findings += found
    findings.sort(key=lambda one: one.fire_time, reverse=True)
    begins = [start for _, start, _ in _versions(job, row, now)]
    return JobAudit(
        job=row.name,
        in_code=job is not None,
        since=max(since, min(begins, default=since)),
        expected=len(expected),
        counts=counts,
        other=len(others),
        findings=tuple(findings[:MOST_FINDINGS]),
        more=max(0, len(findings) - MOST_FINDINGS),
        owed=sum(one.is_owed for one in findings),
        paused=row.paused_at is not None,
    )


def _expected(job: ScheduledJob | None, row: JobRow, since: datetime, until: datetime) -> Iterator[datetime]:
    for schedule, start, end in _versions(job, row, until):
        yield from schedule.fire_times(max(start, since - timedelta(seconds=1)), min(end, until))


def _versions(
    job: ScheduledJob | None, row: JobRow, now: datetime
) -> Iterator[tuple[Schedule, datetime, datetime]]:
    """Each version of the schedule that the row knows: since when and up to when it accounts for its fire times."""
    live = "" if job is None else schedule_text(job)
    marks = {text: (mark.since, mark.watermark) for text, mark in row.marks.items()}
    if row.schedule and row.watermark is not None:
        marks[row.schedule] = (row.since or row.watermark, row.watermark)
    for text, (start, watermark) in marks.items():
        if (schedule := parsed(text)) is not None:
            yield schedule, start, now if text == live else watermark


def _of_run(run: RunRow, patience: timedelta) -> Iterator[Finding]:
    """What became of a run: its outcome, and beside it whether it was late or repeated."""
    what = BY_OUTCOME[run.outcome]
    decided = bool(run.decisions) and " marked failed " in run.decisions[-1]
    is_owed = what == "unknown" or (what == "failed" and not decided)
    yield Finding(run.fire_time, what, is_owed, " ".join(run.reason.split())[:200])
    began = [datetime.fromisoformat(one["started_at"]) for one in run.attempts if one.get("started_at")]
    began += [run.started_at] if run.started_at is not None else []
    if began and min(began) - run.fire_time > patience:
        yield Finding(run.fire_time, "late", False, f"began {min(began) - run.fire_time} after its time")
    if run.attempt > 1:
        replayed = f", replayed {run.generation} times" if run.generation else ""
        yield Finding(run.fire_time, "retried", False, f"{run.attempt} attempts{replayed}")


def _without_run(  # noqa: PLR0911 - one answer for each way to have none
    row: JobRow,
    fire_time: datetime,
    spans: list[tuple[datetime, datetime, str]],
    now: datetime,
    patience: timedelta,
    *,
    is_running: bool,
) -> Finding:
    """What accounts for a fire time that nobody ran."""
    for first, last, kind in spans:
        if first <= fire_time <= last:
            if kind == "missed":
                return Finding(fire_time, "missed", False, "nobody was there; its misfire policy let it go")
            why = {"paused": "paused", "changed": "the schedule changed"}.get(kind, "the job was running")
            return Finding(fire_time, "skipped", False, why)
    waiting = row.pending.get(fire_time)
    if waiting is not None:
        if is_running or now - waiting.not_before <= patience:
            return Finding(fire_time, "waiting", False, waiting.why)
        return Finding(fire_time, "owed", True, f"{waiting.why}, and nobody has taken it up")
    if row.paused_at is not None and fire_time >= row.paused_at:
        return Finding(fire_time, "skipped", False, "paused")
    if is_running and row.watermark is not None and fire_time > row.watermark:
        return Finding(fire_time, "waiting", False, "the job is running")
    return Finding(fire_time, "owed", True, "nobody ran it, and nothing on record says why")
