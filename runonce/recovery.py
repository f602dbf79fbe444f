"""The recovery tick: which fire times are unfinished and free? Each becomes a request on the internal queue.

One question covers a dead holder, a retry that is due, a fire time nobody ran, and one asked for by hand.
Idle, it is one range read. A job that is running costs one more call, to see whether its lease is held; the
lease, not a clock, says whether a holder lives.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from runonce.audit import log_heartbeat
from runonce.claim import read_job, write
from runonce.errors import ConflictError, InputError, StoreError, UnknownJobError
from runonce.plan import account_for_missed, schedule_text
from runonce.records import JobRow, Pending, decode_job, key_range
from runonce.requests import ASK_AGAIN, Request, send_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runonce.dispatch import Dispatcher
    from runonce.job import ScheduledJob
    from runonce.records import RunRow

log = logging.getLogger("runonce.recovery")

TRIES = 5
MOST_PENDING = 100
"""Unfinished fire times that can be asked for; a job's row has room for some two hundred."""


def read_jobs(dispatcher: Dispatcher) -> dict[str, tuple[JobRow, str]]:
    """Every job row of the namespace with its ETag, by name: one range read. One that is not readable is logged."""
    own = dispatcher.own
    found = {}
    for row in own.table.scan(own.partition, *key_range("job")):
        try:
            job = decode_job(row)
        except StoreError as error:
            log.error("%s", error)  # noqa: TRY400 - the message says it all
            continue
        found[job.name] = job, row.etag
    return found


def recover(dispatcher: Dispatcher) -> list[Request]:
    """Ask for what is unfinished and free, one fire time of each job at most; what was asked for.

    A job's further fire times follow when that one ends. Raises nothing: what fails now is found again at the
    next tick.
    """
    try:
        rows = read_jobs(dispatcher)
    except StoreError as error:
        log.warning("recovery: the table was out of reach, the next tick tries again: %s", error)
        return []
    log_heartbeat(
        dispatcher.jobs.values(),
        {name: row for name, (row, _) in rows.items()},
        dispatcher.clock.now(),
        namespace=dispatcher.settings.namespace,
        interval=dispatcher.settings.recovery_interval,
    )
    asked = []
    for job in dispatcher.jobs.values():
        row, etag = rows.get(job.name, (JobRow(job.name), None))
        try:
            request = _recover_job(dispatcher, job, row, etag)
        except ConflictError:
            continue  # another replica's tick, or a claim, was faster
        except StoreError as error:
            log.warning("recovery of %s: the next tick tries again: %s", job.name, error)
            continue
        if request is not None:
            log.info("recovery: asked for %s at %s (%s)", request.job, request.fire_time, request.why)
            asked.append(request)
    return asked


def _recover_job(dispatcher: Dispatcher, job: ScheduledJob, row: JobRow, etag: str | None) -> Request | None:
    now = dispatcher.clock.now()
    if row.paused_at is not None:
        return None
    if row.running is not None and dispatcher.stores.leases.held(
        f"{dispatcher.settings.namespace}/{job.name}"
    ):
        return None
    until = now - timedelta(seconds=dispatcher.settings.misfire_grace)
    counted, skipped = account_for_missed(job, row, until, now, late=True)
    fire_time = _next_to_ask(counted, now)
    if fire_time is not None:
        pending = counted.pending[fire_time]
        why = "abandoned" if pending.why == "running" else pending.why
        entry = Pending(why, pending.not_before, asked_at=now)
        counted = replace(counted, pending={**counted.pending, fire_time: entry})
    is_new = row.schedule != schedule_text(job)
    if fire_time is None and skipped is None and counted.pending == row.pending and not is_new:
        return None  # the watermark alone is not worth a write every minute
    _commit(dispatcher, counted, etag, skipped)
    if fire_time is None:
        return None
    request = Request(job.name, fire_time, counted.pending[fire_time].why)
    send_request(dispatcher.stores.requests, request.job, request.fire_time, request.why)
    return request


def _next_to_ask(row: JobRow, now: datetime) -> datetime | None:
    """The oldest fire time that is due and was not asked for lately."""
    for fire_time, pending in sorted(row.pending.items()):
        # abs: an instant to come was written by a clock that is fast, and must not hold back everybody else.
        asked_lately = pending.asked_at is not None and abs(now - pending.asked_at) < ASK_AGAIN
        if pending.is_due(now) and not asked_lately:
            return fire_time
    return None


def _commit(dispatcher: Dispatcher, row: JobRow, etag: str | None, skipped: RunRow | None) -> None:
    own = dispatcher.own
    try:
        own.table.commit(own.partition, [write(row, etag), *([write(skipped, None)] if skipped else [])])
    except ConflictError as error:
        if error.index == 0 or skipped is None:
            raise
        own.table.commit(own.partition, [write(row, etag)])  # that fire time has a record of its own already


# -- what an operator may change on a job's row ----------------------------------------------------------------


def ask(dispatcher: Dispatcher, job: ScheduledJob, fire_time: datetime) -> Request:
    """Ask the running hosts for a fire time, whichever is free first. One that waits for its retry comes now.

    Raises:
        InputError: The job has a hundred unfinished fire times already.
    """
    now = dispatcher.clock.now()

    def asked(row: JobRow) -> JobRow:
        entry = row.pending.get(fire_time) or Pending("asked", now)
        if len(row.pending) >= MOST_PENDING and fire_time not in row.pending:
            raise InputError(
                f"Job {job.name}: {len(row.pending)} fire times are unfinished already, and its row holds no more; "
                f"ask again when some are done (`runonce status {job.name}`)."
            )
        if entry.why != "running":
            entry = replace(entry, not_before=now, asked_at=now)
        return replace(row, pending={**row.pending, fire_time: entry})

    _change(dispatcher, job.name, asked)
    send_request(dispatcher.stores.requests, job.name, fire_time, "asked")
    return Request(job.name, fire_time, "asked")


def pause(dispatcher: Dispatcher, name: str, why: str = "") -> JobRow:
    """Start no more runs of the job; one that runs goes on."""
    now = dispatcher.clock.now()

    def paused(row: JobRow) -> JobRow:
        return replace(row, paused_at=row.paused_at or now, paused_why=why or row.paused_why)

    return _change(dispatcher, name, paused)


def resume(dispatcher: Dispatcher, name: str) -> JobRow:
    """Start runs again. Fire times that passed meanwhile were meant not to run, so they are not missed ones."""
    now = dispatcher.clock.now()

    def resumed(row: JobRow) -> JobRow:
        if row.paused_at is None:
            return row
        return replace(row, paused_at=None, paused_why="", watermark=max(now, row.watermark or now))

    return _change(dispatcher, name, resumed)


def _change(dispatcher: Dispatcher, name: str, change: Callable[[JobRow], JobRow]) -> JobRow:
    own = dispatcher.own
    for _ in range(TRIES):
        row, etag = read_job(own, name)
        if etag is None and name not in dispatcher.jobs:
            raise UnknownJobError(
                f"There is no job {name!r}, in the jobs folder or in the table; see `runonce list`."
            )
        changed = change(row)
        if changed == row:
            return row
        try:
            own.table.commit(own.partition, [write(changed, etag)])
        except ConflictError:
            continue
        return changed
    raise StoreError(f"Job {name}: its row changed {TRIES} times meanwhile; try again.")
