"""What an operator may change on a job's row: ask for a fire time, pause, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runonce.errors import InputError, UnknownJobError
from runonce.runs.overflow import aside, set_aside
from runonce.runs.plan import Refused, forgotten, params_for
from runonce.runs.requests import Request, send_request
from runonce.runs.rows import JobRow, Pending
from runonce.runs.table import change_job
from runonce.runs.trail import Action, insert
from runonce.runs.versions import passed_over_by_all
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.rows import RunRow
    from runonce.stores.protocols import Write


def ask(
    dispatcher: Dispatcher, job: ScheduledJob, fire_time: datetime, params: str = "", by: str = ""
) -> Request:
    """Ask the running hosts for a fire time, whichever is free first. One that waits for its retry comes now.

    Raises:
        InputError: The fire time is older than its history, or its own run comes before one with parameters.
    """
    now = dispatcher.clock.now()
    others: list[Write] = []

    def asked(row: JobRow) -> JobRow:
        if (gone := forgotten(row, fire_time)) is not None:
            raise InputError(f"Job {job.name}, fire time {to_text(fire_time)}: {gone}.")
        if isinstance(known := params_for(job, row, fire_time, "hand", params), Refused):
            raise InputError(f"Job {job.name}, fire time {to_text(fire_time)}: {known.reason}.")
        waiting = row.pending.get(fire_time)
        if waiting is not None and waiting.params != params and waiting.why == "running":
            others[:] = [set_aside(job.name, fire_time, Pending("asked", now, params=params, by=by))]
            return replace(row, more=row.more + 1)
        row, others[:] = aside(row, fire_time, params)
        entry = row.pending.get(fire_time) or Pending("asked", now, params=params)
        if entry.why != "running":
            entry = replace(entry, not_before=now, asked_at=now, by=by)
        return replace(row, pending={**row.pending, fire_time: entry})

    _change(dispatcher, Action(now, by, "asked", job.name, to_text(fire_time)), asked, also=others)
    send_request(dispatcher.stores.requests, job.name, fire_time, "asked")
    return Request(job.name, fire_time, "asked")


def pause(dispatcher: Dispatcher, name: str, why: str = "", by: str = "") -> JobRow:
    """Start no more runs of the job; one that runs goes on."""
    now = dispatcher.clock.now()
    said = ", ".join(part for part in (why, by and f"by {by}") if part)

    def paused(row: JobRow) -> JobRow:
        return replace(row, paused_at=row.paused_at or now, paused_why=said or row.paused_why)

    return _change(dispatcher, Action(now, by, "paused", name, why=why), paused)


def resume(dispatcher: Dispatcher, name: str, why: str = "", by: str = "") -> JobRow:
    """Start runs again. Fire times that passed meanwhile were meant not to run: they go on record as skipped."""
    now = dispatcher.clock.now()

    def resumed(row: JobRow) -> JobRow:
        if row.paused_at is None:
            return row
        marks = {text: replace(mark, watermark=max(now, mark.watermark)) for text, mark in row.marks.items()}
        return replace(
            row, paused_at=None, paused_why="", watermark=max(now, row.watermark or now), marks=marks
        )

    def passed(row: JobRow) -> RunRow | None:
        if row.paused_at is None:
            return None
        why = f" ({row.paused_why})" if row.paused_why else ""
        return passed_over_by_all(row, now, f"paused from {to_text(row.paused_at)}{why}")

    return _change(dispatcher, Action(now, by, "resumed", name, why=why), resumed, passed)


def _change(
    dispatcher: Dispatcher,
    action: Action,
    change: Callable[[JobRow], JobRow],
    record: Callable[[JobRow], RunRow | None] = lambda _: None,
    also: Sequence[Write] = (),
) -> JobRow:
    name = action.about
    action = replace(action, by=action.by or dispatcher.registry.host)

    def changed(row: JobRow, is_known: bool) -> JobRow:
        if not is_known and name not in dispatcher.jobs:
            raise UnknownJobError(
                f"There is no job {name!r}, in the jobs folder or in the table; see `runonce list`."
            )
        return change(row)

    return change_job(dispatcher.registry, name, changed, record, lambda: [insert(action), *also])
