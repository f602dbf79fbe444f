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

from runonce.errors import ConflictError, StoreError
from runonce.runs.audit import log_heartbeat
from runonce.runs.plan import account_for_missed, schedule_text
from runonce.runs.requests import ASK_AGAIN, Request, send_request
from runonce.runs.rows import JobRow, Pending
from runonce.runs.table import fresh_job, read_jobs, write

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.rows import RunRow

log = logging.getLogger("runonce.runs.recovery")

TRIES = 5


def recover(dispatcher: Dispatcher) -> list[Request]:
    """Ask for what is unfinished and free, one fire time of each job at most; what was asked for.

    A job's further fire times follow when that one ends. Raises nothing: what fails now is found again at the
    next tick.
    """
    try:
        jobs = read_jobs(dispatcher.registry)
    except StoreError as error:
        log.warning("recovery: the table was out of reach, the next tick tries again: %s", error)
        return []
    log_heartbeat(
        dispatcher.jobs.values(),
        jobs,
        dispatcher.clock.now(),
        namespace=dispatcher.settings.namespace,
        interval=dispatcher.settings.recovery_interval,
    )
    asked = []
    for job in dispatcher.jobs.values():
        if job.name in jobs.unreadable:
            continue
        try:
            row = jobs.rows.get(job.name) or fresh_job(dispatcher.registry, job.name)
            request = _recover_job(dispatcher, job, row, jobs.etags.get(job.name))
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
    if row.running is not None and dispatcher.stores.leases.held(dispatcher.registry.lock_name(job.name)):
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
    registry = dispatcher.registry
    try:
        registry.table.commit(
            registry.namespace, [write(row, etag), *([write(skipped, None)] if skipped else [])]
        )
    except ConflictError as error:
        if error.index == 0 or skipped is None:
            raise
        registry.table.commit(
            registry.namespace, [write(row, etag)]
        )  # that fire time has a record of its own already
