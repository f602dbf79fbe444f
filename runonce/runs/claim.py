"""The claim: fire time → ours, or refused; then every write of the run, conditional on still owning it.

A claim moves the job's fencing token and the run's row in one transaction. Every later write of the run
(checkpoint, ledger entries, outcome) replaces both rows under their ETags, so it is refused once any newer
run of the job has claimed anything, however late the writer wakes up. A refusal for other reasons, such as an
operator's pause, is told apart by reading back, and the write is made again.

A lost reply is never taken for a refusal: each write carries an id, and the rows are read back.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from runonce.errors import ConflictError, Fenced, NotKeptError, StoreError, StoreUnavailableError
from runonce.execution.log import user_name
from runonce.execution.owned import Owned
from runonce.execution.patience import patiently
from runonce.runs import telling
from runonce.runs.joins import NONE, FanOut, listing, waiting
from runonce.runs.overflow import aside, spilled
from runonce.runs.plan import By, Claimant, Plan, Refused, admit, params_for, passed_over, plan, within
from runonce.runs.rows import (
    JobRow,
    Outcome,
    Pending,
    RunRow,
    decode_job,
    decode_run,
    entry_key,
    job_key,
    run_key,
)
from runonce.runs.table import find_run, read_job, record_beside, write
from runonce.runs.troubles import missing, troubled
from runonce.runs.versions import left_behind, of_this_version, together, without_long_gone
from runonce.stores.columns import to_text
from runonce.stores.protocols import MAX_TRANSACTION, Insert, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from runonce.execution.lease import Lease
    from runonce.execution.registry import Registry
    from runonce.runs.definition import ScheduledJob
    from runonce.stores.protocols import Row, Value

log = logging.getLogger("runonce.runs.claim")

T = TypeVar("T")

EARLY = timedelta(seconds=1)
"""How early a fire time may be claimed, by storage's clock."""
TRIES = 8
"""Rounds against concurrent writers (an operator, the recovery tick) before a claim gives up."""


def claim(  # noqa: C901 - one loop whose steps are read in order
    registry: Registry,
    job: ScheduledJob,
    fire_time: datetime,
    lease: Lease,
    *,
    by: By,
    age: timedelta = timedelta(),
    grace: timedelta = timedelta(),
    params: str = "",
) -> Claim | Refused:
    """Claim a fire time for the holder of the job's lease.

    `age` is for how long this host has known the job, `grace` for how long a fire time may wait for its tick.

    Two calls when the fire time is new, three when it was tried before (its row holds the checkpoint), and one more
    that confirms the lease before a run whose end nobody recorded is taken for a dead one's.

    Raises:
        LeaseLost: The lease can no longer be trusted. Nothing runs; the fire time stays due.
        StoreUnavailableError: The table did not answer in time. Nothing runs; the fire time stays due.
    """
    if fire_time > lease.granted_by + EARLY:
        return Refused(
            f"it is not due before {to_text(fire_time)}, and by storage's clock it is {to_text(lease.granted_by)}",
            not_before=registry.clock.now() + (fire_time - lease.granted_by),
        )
    server_now = lease.server_now()
    first_seen = server_now - min(age, grace)
    person = user_name() if by == "hand" else ""
    who = Claimant(lease.holder, registry.host, by, registry.clock.now(), person=person)
    unknown = False
    look_at_run = by == "hand"
    beside = False  # whether the record of what was skipped found a row in its place
    news: tuple[JobRow, Plan, datetime | None] | None = None  # what the latest write was to record
    taken_over: float | None = None

    def read(call: Callable[[], T]) -> T:
        # What may be ours already is not left lying: its host would count as dead.
        return patiently(registry.clock, call, check=lease.check) if unknown else call()

    for _ in range(TRIES):
        before, etag = read(lambda: read_job(registry, job.name))
        row = of_this_version(
            job, within(before, lease.server_now()), first_seen, min(first_seen, fire_time) - EARLY
        )
        if not unknown and (refused := admit(row, fire_time, who)):
            return refused
        if isinstance(known := params_for(job, row, fire_time, by, params), Refused):
            return known
        row, others = aside(row, fire_time, known)
        who = replace(who, params=known)
        look = look_at_run or fire_time in row.pending
        previous = read(partial(find_run, registry, job.name, fire_time, known)) if look else None
        if unknown and previous is not None and previous[0].holder == lease.holder and etag is not None:
            _tell(registry, news)  # it was carried out, maybe as a verdict on a dead run; its reply was lost
            return (
                Refused(previous[0].reason, previous[0].outcome)
                if previous[0].outcome.is_final
                else Claim(registry, job, lease, (row, previous[0]), (etag, previous[1].etag), taken_over)
            )
        _confirm(lease, before)
        planned = plan(job, row, None if previous is None else previous[0], fire_time, who)
        marked, missed = missing(row, planned.job, planned.skipped, server_now - grace, who.now)
        marked, left = _left(job, before, marked, planned, (server_now - grace, lease.server_now()))
        row, moved = spilled(marked)
        planned = replace(planned, job=row)
        taken_over, news = _taken_over(previous), (before, planned, missed)
        writes = _claim_writes(planned, etag, None if previous is None else previous[1].etag)
        skipped = together(planned.skipped, left)
        if skipped is not None:
            beside_it = partial(record_beside, registry, skipped)
            writes.append(read(beside_it) if beside else write(skipped, None))
        lease.check()  # a replica that was paused since it acquired must not take the run from its successor
        try:
            etags = registry.table.commit(registry.namespace, [*writes, *moved, *others])
        except StoreUnavailableError as error:
            lease.check()
            log.warning("claim of %s at %s: no answer, reading back: %s", job.name, fire_time, error)
            unknown = look_at_run = True
            continue
        except ConflictError as error:
            look_at_run = True  # the run's row may be there although the job's row does not know it
            beside = beside or error.index > 1
            continue
        _tell(registry, news)
        if planned.refused is not None or planned.run is None:
            return planned.refused or Refused("nothing to do")
        return Claim(registry, job, lease, (planned.job, planned.run), (etags[0], etags[1]), taken_over)
    raise StoreUnavailableError(
        f"Job {job.name}, fire time {fire_time}: its rows changed {TRIES} times while being claimed; "
        f"it stays due and the next recovery tick tries again."
    )


def _confirm(lease: Lease, row: JobRow) -> None:
    """Before another's run is taken for a dead one's: a person may have broken our lease since, and that one began."""
    if row.running is not None and row.holder != lease.holder:
        lease.confirm()


def _left(
    job: ScheduledJob, before: JobRow, row: JobRow, planned: Plan, instants: tuple[datetime, datetime]
) -> tuple[JobRow, RunRow | None]:
    """The row, and the record of what other versions of the schedule left: the one before it, or those long gone."""
    left = left_behind(job, before, row, *instants)
    if left is not None or planned.refused is not None:
        return row, left
    return without_long_gone(job, row, *instants)


def _claim_writes(planned: Plan, job_etag: str | None, run_etag: str | None) -> list[Write]:
    writes = [write(planned.job, job_etag)]
    if planned.run is not None:
        writes.append(write(planned.run, run_etag))
    return writes


def _taken_over(previous: tuple[RunRow, Row] | None) -> float | None:
    """Seconds since the last write of the attempt before, where that is not known to have ended: its host died."""
    if previous is None or previous[0].outcome is not Outcome.RUNNING:
        return None
    return (previous[1].read_at - previous[1].timestamp).total_seconds()


def _tell(registry: Registry, news: tuple[JobRow, Plan, datetime | None] | None) -> None:
    if news is None:
        return
    before, planned, missed = news
    telling.missed(registry, before, planned.job, missed)
    if planned.run is not None and planned.refused is not None:
        telling.recorded(registry, planned.run, before.troubles, planned.job.troubles)


class Claim(Owned[tuple[JobRow, RunRow]]):
    """A fire time that is ours, until it is finished or somebody newer takes it."""

    def __init__(
        self,
        registry: Registry,
        job: ScheduledJob,
        lease: Lease,
        rows: tuple[JobRow, RunRow],
        etags: tuple[str, str],
        taken_over: float | None = None,
    ) -> None:
        keys = (job_key(job.name), run_key(job.name, rows[1].fire_time, rows[1].params))
        super().__init__(registry, registry.namespace, keys, rows, etags)
        self._job = job
        self._lease = lease
        self.registry = registry
        self.taken_over = taken_over
        """Seconds since the last write of an attempt whose host died, where this one follows it."""
        self.troubles_before: Mapping[str, str] = {}
        """What was wrong with the job before this run ended."""

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is wrong with the job, as the row was last written or read."""
        return self._rows[0].troubles

    @property
    def run(self) -> RunRow:
        """The run's row as it was last written or read."""
        return self._rows[1]

    def save(
        self,
        checkpoint: str,
        progress: Mapping[str, int],
        entries: Mapping[str, Mapping[str, Value]] | None = None,
        *,
        steps: Mapping[str, Any] | None = None,
        outbox: tuple[Mapping[str, Any], ...] = (),
        follow_ups: int = 0,
        fan_out: FanOut = NONE,
    ) -> None:
        """Keep a checkpoint, steps' results (None: as they are), and the ledger entries: all or nothing, one call.

        Raises:
            LeaseLost, Fenced: The run no longer owns its job; nothing was written.
            AlreadyRecordedError: One of the entries is there already; nothing was written.
            StoreUnavailableError: The table did not answer for a minute.
        """
        self._change(
            lambda row: replace(row, progress=dict(progress)),
            lambda run: replace(
                _kept(run, checkpoint, progress, steps),
                outbox=outbox,
                follow_ups=follow_ups,
                fanned_out=fan_out.totals or run.fanned_out,
            ),
            entries or {},
            listing(self.run, fan_out),
        )

    def finish(
        self,
        outcome: Outcome,
        *,
        reason: str = "",
        error: str = "",
        counted: bool = True,
        retry_at: datetime | None = None,
        entries: Mapping[str, Mapping[str, Value]] | None = None,
        outbox: tuple[Mapping[str, Any], ...] = (),
        fan_out: FanOut = NONE,
    ) -> None:
        """Record how the run ended, with the last ledger entries or not at all; raises as `save` does.

        A failure that is not `counted` uses up no retry.
        """
        now = self._registry.clock.now()
        fire_time = self.run.fire_time
        failed = counted and outcome in (Outcome.FAILED, Outcome.RETRYING)
        skips = self._job.overlap == "skip" and outcome is not Outcome.STOPPED
        over = (
            passed_over(self._rows[0], self._job.schedule, now, now, "overlap", 'overlap="skip"')
            if skips
            else None
        )
        if over is not None:
            reason = f"{reason}; {over.reason}" if reason else over.reason

        def settle_run(run: RunRow) -> RunRow:
            return replace(
                run,
                outcome=outcome,
                reason=reason,
                error=error,
                failures=run.failures + failed,
                retry_at=retry_at,
                finished_at=now,
                outbox=outbox,
                fanned_out=fan_out.totals or run.fanned_out,
                skips=(*run.skips, *(over.skips if over is not None else ())),
            )

        def settle_job(row: JobRow) -> JobRow:
            pending = {t: p for t, p in row.pending.items() if t != fire_time}
            if outcome is Outcome.RETRYING:
                pending[fire_time] = Pending("retrying", retry_at or now, params=self.run.params)
            if outcome is Outcome.STOPPED:  # the dispatcher asks at once
                pending[fire_time] = Pending("stopped", now, asked_at=now, params=self.run.params)
            if outcome.is_final and outbox:
                pending[fire_time] = Pending("unsent", now, asked_at=now, params=self.run.params)
            self.troubles_before = row.troubles
            if outcome is Outcome.SUCCEEDED:
                row = waiting(row, settle_run(self.run))
            return replace(
                troubled(row, outcome, now).ended(settle_run(self.run)),
                running=None,
                holder="",
                pending=pending,
                watermark=max(now, row.watermark or now) if skips else row.watermark,
            )

        self._change(settle_job, settle_run, entries or {}, listing(self.run, fan_out))

    def next_due(self) -> datetime | None:
        """The oldest other fire time of the job that is unfinished and due, as far as this claim knows."""
        now = self._registry.clock.now()
        due = (
            t
            for t, p in self._rows[0].pending.items()
            if p.why not in ("running", "unsent") and p.is_due(now)
        )
        return min(due, default=None)

    def passed(self) -> datetime | None:
        """The newest fire time that came while this run held the job, and that nothing accounts for yet."""
        newest = self._job.schedule.previous(self._registry.clock.now())
        row = self._rows[0]
        accounted = max(t for t in (row.watermark, row.since, self.run.fire_time) if t is not None)
        return newest if newest is not None and newest > accounted else None

    def _change(
        self,
        change_job: Callable[[JobRow], JobRow],
        change_run: Callable[[RunRow], RunRow],
        entries: Mapping[str, Mapping[str, Value]],
        listed: Insert | None,
    ) -> None:
        """One transaction over the job's row, the run's row, new entries of the ledger, and a list of messages."""
        inserts = {key: Insert(entry_key(self._job.name, key), values) for key, values in entries.items()}
        if listed is not None:
            inserts[listed.key] = listed
            if len(inserts) > MAX_TRANSACTION - 2:
                raise NotKeptError(
                    f"Job {self._job.name}: a commit that sends messages some handler waits for takes one ledger entry "
                    f"less than {len(entries)}; use smaller batches."
                )
        with self._lock:
            if self.run.outcome is not Outcome.RUNNING:
                raise Fenced(
                    f"Job {self._job.name}, fire time {self.run.fire_time}: the run has ended as {self.run.outcome} "
                    f"already; the write was refused."
                )
            self._commit(lambda rows: (change_job(rows[0]), change_run(rows[1])), inserts)

    def _check_right(self) -> None:
        self._lease.check()

    def _ours(self, read: tuple[Row | None, ...]) -> tuple[JobRow, RunRow]:
        if read[0] is None or read[1] is None:
            raise StoreError(
                f"Job {self._job.name}: its rows were deleted while it ran; nothing was recorded."
            )
        row, run = decode_job(read[0]), decode_run(read[1])
        if run.outcome is Outcome.CANCELLED and run.token == self.run.token:
            raise Fenced(
                f"Job {self._job.name}, fire time {self.run.fire_time}: {run.reason}; the write was refused."
            )
        if run.holder != self._lease.holder or row.token != self.run.token:
            raise Fenced(
                f"Job {self._job.name}, fire time {self.run.fire_time}: fencing token {self.run.token} is older "
                f"than {max(row.token, run.token)}, held on {row.host or run.host}; the write was refused and "
                f"{self._registry.host} stops."
            )
        return row, run

    def _recorded(self, key: str) -> str:
        return (
            f"Job {self._job.name}: its ledger has an entry {key!r} already, so nothing of this batch was written; "
            f"leave out what `run.ledger.keys()` has."
        )


def _kept(
    run: RunRow, checkpoint: str, progress: Mapping[str, int], steps: Mapping[str, Any] | None
) -> RunRow:
    """The row with a checkpoint. With progress the deaths count anew: what kills a host is not what lies behind it."""
    kept = replace(
        run, checkpoint=checkpoint, progress=dict(progress), steps=run.steps if steps is None else dict(steps)
    )
    return kept if kept == run else replace(kept, survived=run.abandoned)
