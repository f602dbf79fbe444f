"""What an operator may decide about one run: go on with it, run it again, call it done or failed, cancel it.

Each decision is one transaction over the job's row and the run's, and stands on the run's row: when, who, what and
why. A decision that starts something only says so on the job's row; any host carries it out, as it does a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from runonce.errors import ConflictError, InputError, StoreError, UnknownJobError
from runonce.execution.patience import Patience
from runonce.runs.joins import waiting
from runonce.runs.overflow import aside, brought_back, spilled
from runonce.runs.plan import forgotten, noted
from runonce.runs.requests import send_request
from runonce.runs.rows import LONGEST_LAST, JobRow, Outcome, Pending, RunRow
from runonce.runs.table import read_job, read_run, write
from runonce.runs.trail import Action, insert
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runonce.runs.dispatch import Dispatcher

    Decide = Callable[[JobRow, RunRow | None], tuple[JobRow, RunRow]]


@dataclass(frozen=True, slots=True)
class Which:
    """The run that a decision is about, and who decides."""

    job: str
    fire_time: datetime
    params: str = ""
    by: str = ""
    why: str = ""

    def __str__(self) -> str:
        given = f" with {self.params}" if self.params else ""
        return f"Job {self.job}, fire time {to_text(self.fire_time)}{given}"

    @property
    def at(self) -> str:
        """The fire time as `--at` takes it."""
        return to_text(self.fire_time)


def resume_run(dispatcher: Dispatcher, which: Which) -> RunRow:
    """Let a run that ended without success go on: under its idempotency key, from its checkpoint.

    One that waits for its retry comes now. Its row as it is then; who is free first takes it up.

    Raises:
        InputError: It runs, has succeeded, or never began; the message has the remedy.
    """
    now = dispatcher.clock.now()

    def resumed(row: JobRow, run: RunRow | None) -> tuple[JobRow, RunRow]:
        waiting = row.pending.get(which.fire_time)
        _refuse_if_running(dispatcher, which, row)
        if run is None or run.outcome is Outcome.SKIPPED:
            raise InputError(f"{which} never ran; `runonce run {which.job} --at {which.at}` runs it.")
        if run.outcome is Outcome.SUCCEEDED:
            raise InputError(
                f"{which} has succeeded; `runonce replay {which.job} --at {which.at}` runs it from its beginning."
            )
        if waiting is None:
            waiting = Pending("resumed" if run.outcome.is_final else "stopped", now, params=which.params)
        waiting = replace(waiting, not_before=now, asked_at=now, by=which.by)
        run = replace(run, failures=0, abandoned=0, survived=0)
        return _pending(row, which, waiting), _decided(dispatcher, which, run, "resumed")

    return _decide(dispatcher, which, "resumed run", resumed)


def replay(dispatcher: Dispatcher, which: Which) -> RunRow:
    """Run what has ended again from its beginning, as a new generation: under another idempotency key.

    Raises:
        InputError: It is not finished, or never ran; the message has the remedy.
    """
    now = dispatcher.clock.now()

    def replayed(row: JobRow, run: RunRow | None) -> tuple[JobRow, RunRow]:
        if run is None and forgotten(row, which.fire_time) is not None:
            run = RunRow(which.job, which.fire_time, Outcome.UNKNOWN, params=which.params)
        if run is None or run.outcome is Outcome.SKIPPED:
            raise InputError(f"{which} never ran; `runonce run {which.job} --at {which.at}` runs it.")
        if not run.outcome.is_final or which.fire_time in row.pending:
            raise InputError(
                f"{which} is not finished: `runonce resume-run {which.job} --at {which.at}` goes on with it, "
                f"`runonce cancel {which.job} --at {which.at} --why …` ends it."
            )
        run = replace(run, generation=run.generation + 1, failures=0, abandoned=0, survived=0)
        run = replace(run, checkpoint="", progress={}, steps={}, outbox=(), follow_ups=0, fanned_out={})
        waiting = Pending("replayed", now, asked_at=now, params=which.params, by=which.by)
        return _pending(row, which, waiting), _decided(dispatcher, which, run, "replayed")

    return _decide(dispatcher, which, "replayed", replayed)


def send(dispatcher: Dispatcher, which: Which) -> None:
    """Ask the running hosts to carry out what was decided, now."""
    send_request(dispatcher.stores.requests, which.job, which.fire_time, "asked")


def mark(dispatcher: Dispatcher, which: Which, outcome: Literal["done", "failed"]) -> RunRow:
    """Say how a run ended, where only a person can know; nothing is run.

    Raises:
        InputError: It runs just now.
    """
    ended = Outcome.SUCCEEDED if outcome == "done" else Outcome.FAILED

    def marked(row: JobRow, run: RunRow | None) -> tuple[JobRow, RunRow]:
        _refuse_if_running(dispatcher, which, row)
        return _ended(dispatcher, which, row, run, ended, f"marked {outcome}")

    return _decide(dispatcher, which, f"marked {outcome}", marked)


def cancel(dispatcher: Dispatcher, which: Which) -> RunRow:
    """End a fire time for good: nothing takes it up again but an operator's resume-run or replay.

    A run under way loses its lease at its next renewal, at the latest at its next checkpoint, and records nothing
    any more; the job's lock stays taken until that run can have heard of it.

    Raises:
        InputError: It has ended already, or is no fire time of the job.
    """
    holder = ""

    def cancelled(row: JobRow, run: RunRow | None) -> tuple[JobRow, RunRow]:
        nonlocal holder
        waiting = row.pending.get(which.fire_time)
        if run is not None and run.outcome.is_final and (waiting is None or waiting.why == "unsent"):
            raise InputError(f"{which} has ended as {run.outcome}; there is nothing to cancel.")
        if run is None and which.fire_time not in row.pending and not _is_named(dispatcher, which):
            raise InputError(f"{which}: nobody asked for it, and the schedule does not name it.")
        holder = row.holder if _is_running(row, which) else ""
        return _ended(dispatcher, which, row, run, Outcome.CANCELLED, "cancelled")

    run = _decide(dispatcher, which, "cancelled", cancelled)
    if holder:  # its own lease, not that of whoever came after it
        dispatcher.stores.leases.break_lease(dispatcher.registry.lock_name(which.job), holder)
    return run


def unfinished(row: JobRow) -> list[tuple[datetime, str]]:
    """The fire times that can be cancelled, with their parameters: what runs, else all that waits."""
    if row.running is not None:
        return [(row.running, row.params_of(row.running))]
    return [(fire_time, pending.params) for fire_time, pending in sorted(row.pending.items())]


def _decide(dispatcher: Dispatcher, which: Which, did: str, change: Decide) -> RunRow:
    registry = dispatcher.registry
    who = which.by or registry.host
    action = insert(Action(registry.clock.now(), who, did, which.job, which.at, which.why))
    patience = Patience(registry.clock)
    while True:
        row, etag = read_job(registry, which.job)
        if etag is None and which.job not in dispatcher.jobs:
            raise UnknownJobError(
                f"There is no job {which.job!r}, in the jobs folder or in the table; see `runonce list`."
            )
        found = read_run(registry, which.job, which.fire_time, which.params)
        waiting = row.pending.get(which.fire_time)
        if waiting is not None and waiting.params != which.params and waiting.why == "running":
            raise InputError(
                f"{which}: the same fire time runs with {waiting.params or 'no parameters'}; wait until it has ended, "
                f"or cancel it."
            )
        row, others = aside(row, which.fire_time, which.params)
        row, back = brought_back(registry, row, which.fire_time, which.params)
        job, run = change(row, None if found is None else found[0])
        job, moved = spilled(job)
        writes = [write(job, etag), write(run, None if found is None else found[1])]
        try:
            registry.table.commit(registry.namespace, [*writes, *moved, *others, *back, action])
        except ConflictError:
            patience.spend(StoreError(f"{which}: its rows changed again and again for a minute; try again."))
        else:
            return run


def _is_named(dispatcher: Dispatcher, which: Which) -> bool:
    job = dispatcher.jobs.get(which.job)
    return job is not None and not which.params and job.schedule.previous(which.fire_time) == which.fire_time


def _is_running(row: JobRow, which: Which) -> bool:
    return row.running == which.fire_time and row.params_of(which.fire_time) == which.params


def _refuse_if_running(dispatcher: Dispatcher, which: Which, row: JobRow) -> None:
    if _is_running(row, which) and dispatcher.stores.leases.held(dispatcher.registry.lock_name(which.job)):
        raise InputError(
            f"{which} is running on {row.host}; `runonce cancel {which.job} --at {which.at} --why …` ends it."
        )


def _pending(row: JobRow, which: Which, waiting: Pending) -> JobRow:
    return replace(row, pending={**row.pending, which.fire_time: waiting})


def _ended(
    dispatcher: Dispatcher, which: Which, row: JobRow, run: RunRow | None, outcome: Outcome, verb: str
) -> tuple[JobRow, RunRow]:
    now = dispatcher.clock.now()
    is_running = _is_running(row, which)
    row = replace(row, pending={t: p for t, p in row.pending.items() if t != which.fire_time})
    row = row.decided(RunRow(which.job, which.fire_time, params=which.params))
    if is_running:
        row = replace(row, running=None, holder="", host="")
    if is_running or (row.last_fire_time, row.last_params) == (which.fire_time, which.params):
        row = replace(
            row,
            last_fire_time=which.fire_time,
            last_params=which.params,
            last_outcome=outcome,
            last_finished_at=now,
            last_reason=f"{verb}{_said(which)}"[:LONGEST_LAST],
            failed_in_a_row=0 if outcome is Outcome.SUCCEEDED else row.failed_in_a_row,
            last_success=now if outcome is Outcome.SUCCEEDED else row.last_success,
        )
    run = run or RunRow(which.job, which.fire_time, params=which.params)
    if run.outcome is Outcome.SKIPPED:
        run = noted(run, run)
    # No holder: whoever still works on it is refused its next write.
    run = replace(
        run,
        outcome=outcome,
        reason=f"{verb}{_said(which)}",
        holder="",
        retry_at=None,
        finished_at=run.finished_at or now,
    )
    followed = waiting(row, run) if outcome is Outcome.SUCCEEDED else row
    return followed, _decided(dispatcher, which, run, verb)


def _said(which: Which) -> str:
    return (f" by {which.by}" if which.by else "") + (f": {which.why}" if which.why else "")


def _decided(dispatcher: Dispatcher, which: Which, run: RunRow, verb: str) -> RunRow:
    why = f": {which.why}" if which.why else ""
    when = to_text(dispatcher.clock.now().replace(microsecond=0))
    return run.decided(f"{when} {verb} by {which.by or dispatcher.registry.host}{why}")
