"""The recovery tick: which fire times are unfinished and free? Each becomes a request on the internal queue.

One question covers a dead holder, a retry that is due, a fire time nobody ran, and one asked for by hand.
Idle, it is one range read. A job that is running costs one more call, to see whether its lease is held; the
lease, not a clock, says whether a holder lives.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, StoreError, StoreUnavailableError
from runonce.runs import telling
from runonce.runs.audit import log_heartbeat
from runonce.runs.joins import follow
from runonce.runs.overflow import returned
from runonce.runs.plan import account_for_missed, within
from runonce.runs.requests import ASK_AGAIN, Request, send_request
from runonce.runs.rows import Pending
from runonce.runs.table import commit_with, fresh_job, read_job, read_jobs
from runonce.runs.troubles import missing
from runonce.runs.versions import left_behind, of_this_version, schedule_text, together, without_gone
from runonce.schedules.schedule import LATE
from runonce.schedules.zones import SECOND

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.rows import JobRow, RunRow
    from runonce.runs.table import Jobs
    from runonce.stores.protocols import SessionLeases

log = logging.getLogger("runonce.runs.recovery")

TRIES = 5


def recover(dispatcher: Dispatcher, *, starting: bool = False) -> list[Request]:
    """Ask for what is unfinished and free, one fire time of each job at most; what was asked for.

    A job's further fire times follow when that one ends. Raises nothing: what fails now is found again at the
    next tick.

    Args:
        dispatcher: The host's.
        starting: Whether the host has just started: a fire time that fell into the restart has no tick any more,
            so it does not wait for the misfire grace.
    """
    try:
        jobs = _read(dispatcher)
    except StoreError as error:
        log.warning("recovery: the table was out of reach, the next tick tries again: %s", error)
        return []
    if jobs.server_now is not None:
        dispatcher.server_clock.note(jobs.server_now)
    now = dispatcher.clock.now() if jobs.server_now is None else min(jobs.server_now, dispatcher.clock.now())
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
            request = _recover_job(
                dispatcher,
                job,
                row,
                jobs.etags.get(job.name),
                (now, jobs.server_now or now),
                starting=starting,
            )
        except ConflictError:
            continue  # another replica's tick, or a claim, was faster
        except StoreError as error:
            log.warning("recovery of %s: the next tick tries again: %s", job.name, error)
            continue
        if request is not None:
            log.info("recovery: asked for %s at %s (%s)", request.job, request.fire_time, request.why)
            asked.append(request)
    for name, row in jobs.rows.items():
        if row.joins and name in dispatcher.jobs and dispatcher.follow_ups is not None:
            follow(dispatcher.registry, dispatcher.follow_ups, row)
    return asked


def ask_for_orphans(dispatcher: Dispatcher, leases: SessionLeases) -> bool:
    """Ask for the runs whose lease ended with its holder's connection; whether there were some. One call, mostly.

    Raises:
        StoreError: The lease server or storage did not answer; a recovery tick finds what is left.
    """
    folder, asked = dispatcher.registry.lock_name(""), False
    for path in leases.orphaned(folder):
        name = path.removeprefix(folder)
        row, _ = read_job(dispatcher.registry, name)
        if row.running is not None:
            log.warning(
                "job %s: the connection of its lease's holder has ended; asked for %s", name, row.running
            )
            send_request(dispatcher.stores.requests, name, row.running, "abandoned")
            asked = True
    return asked


def _read(dispatcher: Dispatcher) -> Jobs:
    """The rows of all jobs. Only an answer with a row in it tells storage's time, so the first row is made before."""
    jobs = read_jobs(dispatcher.registry)
    if jobs.server_now is None and dispatcher.jobs:
        with contextlib.suppress(ConflictError):  # another host's was first
            row = fresh_job(dispatcher.registry, next(iter(dispatcher.jobs)))
            commit_with(dispatcher.registry, row, None, None)
        jobs = read_jobs(dispatcher.registry)
    return jobs


def _recover_job(
    dispatcher: Dispatcher,
    job: ScheduledJob,
    before: JobRow,
    etag: str | None,
    instants: tuple[datetime, datetime],
    *,
    starting: bool,
) -> Request | None:
    """The first instant is the earlier of the server's clock and this host's: what is missed is missed by both.

    The other is the server's: what is beyond it is to come, and up to it a schedule that is no more had fire times.
    """
    now, server_now = instants
    if before.paused_at is not None:
        return None
    before, moved = returned(dispatcher.registry, before, now)
    if before.running is not None and dispatcher.stores.leases.held(dispatcher.registry.lock_name(job.name)):
        if moved:  # they follow when that run has ended
            commit_with(dispatcher.registry, before, etag, None, moved)
        return None
    is_new = schedule_text(job) not in (before.schedule, *before.marks)
    first_seen = now - min(dispatcher.age, dispatcher.grace)
    row = of_this_version(job, within(before, server_now), first_seen, first_seen - LATE)
    counted, skipped = _counted(dispatcher, job, row, now, starting=starting)
    changed = left_behind(job, before, counted, now - dispatcher.grace, server_now)
    counted, closed = without_gone(job, counted, now - dispatcher.grace, server_now)
    counted, missed = missing(row, counted, skipped, now - dispatcher.grace, now)
    fire_time = _next_to_ask(counted, now)
    if fire_time is not None:
        pending = counted.pending[fire_time]
        why = "abandoned" if pending.why == "running" else pending.why
        person = pending.by if why in ("asked", "resumed", "replayed") else ""
        entry = replace(pending, why=why, asked_at=now, by=person or dispatcher.registry.host)
        counted = replace(counted, pending={**counted.pending, fire_time: entry})
    skipped = together(skipped, changed, closed)
    if not (fire_time or skipped or moved or is_new) and counted.pending == row.pending:
        return None  # the watermark alone is not worth a write every minute
    try:
        commit_with(dispatcher.registry, counted, etag, skipped, moved)
    except StoreUnavailableError:  # it may have been carried out, and then nobody else would tell
        telling.missed(dispatcher.registry, before, counted, missed)
        raise
    telling.missed(dispatcher.registry, before, counted, missed)
    if fire_time is None:
        return None
    request = Request(job.name, fire_time, counted.pending[fire_time].why)
    send_request(dispatcher.stores.requests, request.job, request.fire_time, request.why)
    return request


def _counted(
    dispatcher: Dispatcher, job: ScheduledJob, row: JobRow, now: datetime, *, starting: bool
) -> tuple[JobRow, RunRow | None]:
    """The row with what was missed: by the grace, in which a tick may still come; at a host's start by now."""
    grace = dispatcher.grace + timedelta(seconds=job.jitter)
    newest = job.schedule.previous(now) if starting else None
    accounted = row.watermark and max(row.watermark, row.since or row.watermark)
    if newest and accounted and newest > max(accounted, now - grace):
        row, skipped = account_for_missed(job, row, newest - SECOND, now)
        pending = {newest: Pending("missed", now), **row.pending}
        return replace(row, watermark=newest, pending=pending), skipped
    if job.misfire == "skip" and not starting:
        grace = max(grace, LATE + timedelta(seconds=job.jitter))
    return account_for_missed(job, row, now - grace, now, late=True)


def _next_to_ask(row: JobRow, now: datetime) -> datetime | None:
    """The oldest fire time that is due and was not asked for lately."""
    for fire_time, pending in sorted(row.pending.items()):
        # abs: an instant to come was written by a clock that is fast, and must not hold back everybody else.
        asked_lately = pending.asked_at is not None and abs(now - pending.asked_at) < ASK_AGAIN
        if pending.is_due(now) and not asked_lately:
            return fire_time
    return None
