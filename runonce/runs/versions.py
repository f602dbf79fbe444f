"""Versions of a job's schedule that live side by side, or follow each other: each accounts for its own fire times.

Pure, as `plan` is. The job's row has a mark for each: how far its fire times are accounted for, and since when.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from runonce.errors import ScheduleError
from runonce.runs.plan import Skip, passed_over
from runonce.runs.rows import KEPT_MARKS, JobRow, Mark, RunRow
from runonce.schedules.misfire import COUNT_LIMIT
from runonce.schedules.schedule import Schedule

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob

GONE = timedelta(minutes=15)
"""A schedule whose fire time has waited for so long beyond the grace is of a version that has no host any more."""


def schedule_text(job: ScheduledJob) -> str:
    """The schedule as it is kept on the job's row."""
    return f"{job.schedule.expression} {job.schedule.time_zone}"


def of_this_version(job: ScheduledJob, row: JobRow, first_seen: datetime, watermark: datetime) -> JobRow:
    """The row with the marks of the schedule that this host's code has.

    Two versions with two schedules may live at once (slots, a rolling deployment); each accounts for its own fire
    times, so one that is new begins when its first host saw it, and the other's marks stay as they are. What lies
    between the new one's `watermark` and that instant is not missed, but a tick may still claim it.
    """
    text = schedule_text(job)
    if row.schedule == text:
        return row
    marks = _all_marks(row)
    mine = marks.pop(text, None) or Mark(watermark, first_seen)
    kept = sorted(marks.items(), key=lambda item: item[1].watermark)[-KEPT_MARKS:]
    return replace(row, schedule=text, watermark=mine.watermark, since=mine.since, marks=dict(kept))


def passed_over_by_all(row: JobRow, now: datetime, why: str) -> RunRow | None:
    """The same for every version of the schedule that the row knows, in one record."""
    return together(
        *(_left(row, text, mark, now, now, "paused", why) for text, mark in _all_marks(row).items())
    )


def left_behind(
    job: ScheduledJob, before: JobRow, row: JobRow, until: datetime, now: datetime
) -> RunRow | None:
    """What the schedule before left behind, where the job's, that `row` is of, is one that nobody had seen yet."""
    marks = _all_marks(before)
    if row.schedule in marks or before.schedule not in marks:
        return None
    why = f"the schedule changed from {before.schedule} to {row.schedule}"
    return _left(row, before.schedule, marks[before.schedule], until, now, "changed", why, job.schedule)


def without_gone(
    job: ScheduledJob, row: JobRow, until: datetime, now: datetime
) -> tuple[JobRow, RunRow | None]:
    """The row without the marks of versions that have no host any more, and the record of what they left.

    The hosts of a version that is there run its fire times, or find by the grace that they missed them (`until` is that
    long ago), unless a run keeps them from it. Should one come back, its account begins anew.
    """
    if not row.marks:
        return row, None
    marks, records = {}, []
    for text, mark in row.marks.items():
        record = None
        if _has_waited(row, text, mark, until - GONE):
            why = f"the schedule changed from {text} to {row.schedule}"
            record = _left(row, text, mark, now, now, "changed", why, job.schedule)
        if record is None:
            marks[text] = mark
        else:
            records.append(record)
    return replace(row, marks=marks), together(*records)


def without_long_gone(
    job: ScheduledJob, row: JobRow, until: datetime, now: datetime
) -> tuple[JobRow, RunRow | None]:
    """The same for a claim, once recovery has had as long again: it may find the job at work each time it looks."""
    return without_gone(job, row, until - GONE, now)


def _has_waited(row: JobRow, text: str, mark: Mark, since: datetime) -> bool:
    """Whether a version has a fire time that nobody has accounted for since then, nor was kept from it by a run."""
    schedule = parsed(text)
    due = None if schedule is None else schedule.next(max(mark.watermark, mark.since))
    if due is None:
        return False
    began, ended = row.last_fire_time or due, row.last_finished_at or due
    return (max(due, ended) if began <= due else due) <= since


def together(*records: RunRow | None) -> RunRow | None:
    """One record in the place of several; None where there is none."""
    there = [record for record in records if record is not None]
    if not there:
        return None
    newest = max(there, key=lambda record: record.fire_time)
    skips = tuple(skip for record in there for skip in record.skips)
    return replace(newest, reason="; ".join(record.reason for record in there), skips=skips)


def _left(
    row: JobRow,
    text: str,
    mark: Mark,
    until: datetime,
    now: datetime,
    kind: Skip,
    why: str,
    new: Schedule | None = None,
) -> RunRow | None:
    """The record of what a version has not accounted for; its place is no fire time that is still to be run."""
    schedule, after = parsed(text), max(mark.watermark, mark.since)
    if schedule is None:
        return None
    record = passed_over(replace(row, watermark=after, since=after), schedule, until, now, kind, why)

    def is_free(t: datetime) -> bool:
        named = new is not None and row.watermark is not None and t > row.watermark and new.previous(t) == t
        return t not in row.pending and not named

    place = next(filter(is_free, islice(schedule.newest_first(after, until), COUNT_LIMIT)), None)
    return None if record is None or place is None else replace(record, fire_time=place)


def _all_marks(row: JobRow) -> dict[str, Mark]:
    marks = dict(row.marks)
    if row.schedule and row.watermark is not None:
        marks[row.schedule] = Mark(row.watermark, row.since or row.watermark)
    return marks


def parsed(text: str) -> Schedule | None:
    """The schedule kept on a row; None where there was none, or only another version can read it."""
    expression, _, zone = text.rpartition(" ")
    try:
        return Schedule.parse(expression, zone)
    except ScheduleError:
        return None
