"""What claiming a fire time would mean, decided from the rows alone. Pure: no I/O, no clock.

`admit` needs the job's row only and turns away what is done, so that a late replica costs one read. `plan`
says what the rows become. The caller holds the job's lease: a row that says "running" is a run whose holder
died or lost its lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from runonce.execution.options import MAX_ABANDONED
from runonce.runs.rows import AGAIN, JobRow, Outcome, Pending, RunRow
from runonce.runs.troubles import troubled
from runonce.schedules.misfire import missed
from runonce.schedules.schedule import LATE
from runonce.stores.columns import KEPT_ATTEMPTS, fitting, to_text

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.schedules.schedule import Schedule

By = Literal["timer", "request", "hand"]
ONE_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Refused:
    """The fire time is not to be run here and now, and why."""

    reason: str
    outcome: Outcome = Outcome.SKIPPED
    not_before: datetime | None = None
    """When it may be run, where that is all there is against it."""
    unsent: RunRow | None = None
    """The run that has ended, where its follow-up messages are all that is left to do."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who asks for the fire time."""

    holder: str
    host: str
    by: By
    now: datetime
    params: str = ""
    """Of the run that is asked for."""
    person: str = ""
    """Who runs it by hand."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the rows become; `refused` when they are only put in order and nothing runs."""

    job: JobRow
    run: RunRow | None
    skipped: RunRow | None = None
    refused: Refused | None = None


def within(row: JobRow, now: datetime) -> JobRow:
    """The row with no watermark in the future: a clock that was ahead must not take fire times that are to come.

    It goes back behind what may be under way now. Of what is done the runs' own rows know.
    """
    if row.watermark is None or row.watermark <= now + ONE_SECOND:
        return row
    back = now - LATE
    return replace(row, watermark=back, since=min(row.since or back, back))


def admit(row: JobRow, fire_time: datetime, who: Claimant) -> Refused | None:
    """Why the job's row alone already refuses the fire time, or None."""
    if who.by == "hand":
        return None
    if row.paused_at is not None:
        why = f" ({row.paused_why})" if row.paused_why else ""
        return Refused(f"the job is paused since {to_text(row.paused_at)}{why}; `runonce resume {row.name}`")
    pending = row.pending.get(fire_time)
    if pending is not None:
        if not pending.is_due(who.now):
            reason = f"{pending.why}, due at {to_text(pending.not_before)}"
            return Refused(reason, not_before=pending.not_before)
    elif row.watermark is not None and fire_time <= row.watermark:
        return Refused("this fire time is done, or was skipped")
    return None


def forgotten(row: JobRow, fire_time: datetime) -> str | None:
    """Why nobody can say that a fire time without a record is new, or None where its record would be there."""
    if row.history_from is None or fire_time >= row.history_from or fire_time in row.pending:
        return None
    return (
        f"its record, if there was one, is removed by now (history begins at {to_text(row.history_from)}); "
        f"`runonce replay {row.name} --at {to_text(fire_time)}` runs it"
    )


def params_for(job: ScheduledJob, row: JobRow, fire_time: datetime, by: By, params: str) -> str | Refused:
    """The parameters a fire time is claimed with."""
    waiting = row.pending.get(fire_time)
    if by == "request":
        if waiting is None and job.schedule.previous(fire_time) != fire_time:
            return Refused("no schedule names this fire time, and nobody asked for it")
        return "" if waiting is None else waiting.params
    if by == "timer" and waiting is not None and waiting.params:
        return Refused(f"it was asked for with {waiting.params}, and its own run comes after that")
    due = row.watermark is not None and fire_time > max(row.watermark, row.since or row.watermark)
    if params and due and job.schedule.previous(fire_time) == fire_time:
        return Refused("the schedule's own run of this fire time has not begun; that one comes first")
    return params


def plan(job: ScheduledJob, row: JobRow, previous: RunRow | None, fire_time: datetime, who: Claimant) -> Plan:
    """What claiming `fire_time` makes of the job's row and the run's; `previous` is the run's row as it is."""
    row = _orphaned(row)
    if previous is not None and (settled := _settled(job, row, previous, who)) is not None:
        return settled
    gone = forgotten(row, fire_time) if previous is None and who.by == "hand" else None
    if gone is not None:
        return Plan(row, None, refused=Refused(gone))
    fresh = RunRow(job=job.name, fire_time=fire_time, params=who.params)
    token = row.token + 1
    run = replace(_next_attempt(previous, fresh, who, row.pending.get(fire_time)), token=token)
    row, skipped = _advanced(job, row, fire_time, who)
    row = replace(
        row,
        token=token,
        attempt=run.attempt,
        progress=run.progress,
        running=fire_time,
        holder=who.holder,
        host=who.host,
        pending={**row.pending, fire_time: Pending("running", who.now, params=who.params)},
    )
    return Plan(row, run, skipped)


def _orphaned(row: JobRow) -> JobRow:
    """A run that the row says is running is not: we hold the lease. It stays pending, as abandoned."""
    if row.running is None:
        return row
    orphan = row.pending.get(row.running)
    if orphan is None or orphan.why != "running":
        return row
    return replace(row, pending={**row.pending, row.running: replace(orphan, why="abandoned")})


def _settled(  # noqa: PLR0911 - one answer for each way a fire time can stand
    job: ScheduledJob, row: JobRow, previous: RunRow, who: Claimant
) -> Plan | None:
    """The plan for a fire time that must not run (again), or None when it may."""
    if previous.outcome.is_final:
        pending = row.pending.get(previous.fire_time)
        by_hand = who.by == "hand" or (pending is not None and pending.why == "asked")
        again = pending is not None and pending.why in AGAIN
        if again or (by_hand and previous.outcome is Outcome.SKIPPED):
            return None
        ended = to_text(previous.finished_at and previous.finished_at.replace(microsecond=0))
        how = f"; `runonce replay {job.name} --at {to_text(previous.fire_time)}` runs it again from its beginning"
        refused = Refused(f"already {previous.outcome} at {ended}{how}")
        if pending is not None and pending.why == "unsent":
            return Plan(row, None, refused=replace(refused, unsent=previous))
        return _without(row, previous, None, refused)
    if previous.outcome is not Outcome.RUNNING:
        return None
    # The row changes hands, so that its holder, should it live after all (somebody broke its lease), writes no more.
    abandoned = replace(previous, abandoned=previous.abandoned + 1, finished_at=who.now, holder=who.holder)
    if job.on_abandoned == "hold":
        reason = f'its host {previous.host} died during attempt {previous.attempt}, and on_abandoned="hold"'
        final = replace(abandoned, outcome=Outcome.UNKNOWN, reason=reason)
        return _without(row, previous, final, Refused(reason, Outcome.UNKNOWN))
    if abandoned.abandoned - abandoned.survived >= MAX_ABANDONED:
        reason = (
            f"its host died, or could not renew its lease, during {MAX_ABANDONED} attempts without progress; the job "
            f"itself may be what kills it"
        )
        final = replace(abandoned, outcome=Outcome.FAILED, reason=reason)
        return _without(row, previous, final, Refused(reason, Outcome.FAILED))
    return None


def _without(row: JobRow, previous: RunRow, final: RunRow | None, refused: Refused) -> Plan:
    pending = {t: p for t, p in row.pending.items() if t != previous.fire_time}
    running = None if row.running == previous.fire_time else row.running
    row = replace(row, pending=pending, running=running)
    if final is not None and final.finished_at is not None:
        row = troubled(row, final.outcome, final.finished_at).ended(final)
    return Plan(row, final, refused=refused)


def _next_attempt(previous: RunRow | None, fresh: RunRow, who: Claimant, waited: Pending | None) -> RunRow:
    """The run's row for this attempt; what earlier ones achieved is kept."""
    if (
        previous is not None and previous.outcome is Outcome.SKIPPED
    ):  # nothing ever ran; its record names others too
        fresh, previous = noted(fresh, previous), None
    run = previous or fresh
    if previous is not None and previous.attempt:
        run = replace(run, attempts=fitting((*run.attempts, _closed_attempt(previous))))
        if previous.outcome is Outcome.RUNNING:
            run = replace(run, abandoned=run.abandoned + 1)
    return replace(
        run,
        outcome=Outcome.RUNNING,
        reason="",
        error="",
        attempt=run.attempt + 1,
        holder=who.holder,
        host=who.host,
        by=who.by,
        why="" if waited is None else waited.why,
        asked_by=who.person or ("" if waited is None else waited.by),
        asked_at=None if waited is None else waited.asked_at,
        started_at=who.now,
        finished_at=None,
        retry_at=None,
    )


def noted(run: RunRow, skipped: RunRow) -> RunRow:
    """The run's row with the record of what was skipped, which has this fire time's place and names others too."""
    if not skipped.reason:
        return run
    # All of its reason: each fire time that it names counts.
    record = _closed_attempt(skipped) | {"reason": skipped.reason}
    skips = (*run.skips, *skipped.skips)[-KEPT_ATTEMPTS:]
    return replace(run, attempts=fitting((*run.attempts, record)), skips=skips)


def _closed_attempt(previous: RunRow) -> dict[str, str]:
    outcome = Outcome.ABANDONED if previous.outcome is Outcome.RUNNING else previous.outcome
    error = previous.error.strip().rpartition("\n")[2]
    return {
        "attempt": str(previous.attempt),
        "outcome": str(outcome),
        "host": previous.host,
        "started_at": to_text(previous.started_at),
        "finished_at": to_text(previous.finished_at),
        "reason": (previous.reason or error)[:200],
        "error": previous.error,
        "by": previous.by,
        "why": previous.why,
        "asked_by": previous.asked_by,
        "asked_at": to_text(previous.asked_at),
        "token": str(previous.token),
    }


def _advanced(
    job: ScheduledJob, row: JobRow, fire_time: datetime, who: Claimant
) -> tuple[JobRow, RunRow | None]:
    """Move the watermark up to a scheduled fire time, and account for those it passes."""
    asked = who.by != "timer" and job.schedule.previous(fire_time) != fire_time
    if who.by == "hand" or asked or (row.watermark is not None and fire_time <= row.watermark):
        return row, None  # only the schedule moves the watermark
    row, skipped = account_for_missed(job, row, fire_time - ONE_SECOND, who.now)
    return replace(row, watermark=fire_time), skipped


def account_for_missed(
    job: ScheduledJob, row: JobRow, until: datetime, now: datetime, *, late: bool = False
) -> tuple[JobRow, RunRow | None]:
    """Move the watermark to `until`; fire times in between become pending or one record of what was skipped.

    `late` says that no tick is at hand, so that with misfire="latest" the newest one missed is run itself;
    otherwise the fire time that is being claimed is the latest.
    """
    after = max(row.watermark or until, row.since or row.watermark or until)
    if until <= after:
        return replace(row, watermark=max(until, row.watermark or until)), None
    keep = {"skip": 0, "latest": int(late), "all": job.misfire_cap}[job.misfire]
    found = missed(job.schedule, after, until, keep)
    waiting = sorted({t for t, p in row.pending.items() if p.why == "missed"} | set(found.to_run))
    surplus = max(0, len(waiting) - keep)
    # A run that stopped is not missed, though the watermark may have gone back behind it.
    begun = {t for t, p in row.pending.items() if p.why != "missed"}
    dropped, kept = [t for t in waiting[:surplus] if t not in begun], waiting[surplus:]
    pending = {t: p for t, p in row.pending.items() if t not in dropped}
    for fire_time in kept:
        pending.setdefault(fire_time, Pending("missed", now))
    row = replace(row, watermark=until, pending=pending)
    skipped = sorted({*dropped, *found.skipped})
    if not skipped:
        return row, None
    count = found.skipped_count + len(set(dropped) - set(found.skipped))
    reason = (
        f"nobody ran {'at least ' if found.at_least else ''}{count} fire time(s) from {to_text(skipped[0])} to "
        f'{to_text(skipped[-1])}; misfire="{job.misfire}"'
    )
    return row, _skipped(job.name, (skipped[0], skipped[-1]), "missed", reason, now)


Skip = Literal["missed", "paused", "changed", "overlap"]
"""Why nobody ran a fire time: nobody was there, it was paused, the schedule changed, or the job was running."""


def passed_over(
    row: JobRow, schedule: Schedule, until: datetime, now: datetime, kind: Skip, why: str
) -> RunRow | None:
    """The record of the fire times that nobody will run, for a reason of a person's; None when there are none."""
    after = max(row.watermark or until, row.since or row.watermark or until)
    found = missed(schedule, after, until, 0)
    if not found.skipped:
        return None
    first, last = found.skipped
    count = f"{'at least ' if found.at_least else ''}{found.skipped_count} fire time(s)"
    between = f"from {to_text(first)} to {to_text(last)}"
    return _skipped(row.name, (first, last), kind, f"{count} {between} passed over: {why}", now)


def _skipped(job: str, span: tuple[datetime, datetime], kind: Skip, reason: str, now: datetime) -> RunRow:
    skips = ((to_text(span[0]), to_text(span[1]), kind),)
    return RunRow(job, span[1], Outcome.SKIPPED, reason, finished_at=now, skips=skips)
