"""What must hold for a scheduled job: at its bodies' begin, at every write, and of all its fire times at the end."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from runonce.execution.blobs import TOKEN
from runonce.runs.rows import AGAIN, Outcome, decode_job, decode_run, entry_key, run_key
from runonce.runs.versions import schedule_text
from runonce.stores.columns import to_text
from simulation.baton import simulator
from simulation.checks import Checks
from simulation.world import START

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runonce.runs.rows import JobRow, RunRow
    from runonce.runs.run import Run
    from runonce.stores.protocols import BlobItem, Row
    from simulation.baton import Process
    from simulation.jobs import JobHost, JobWorld
    from simulation.server import WatchedLeases

NAME = "job"
ROW = f"job:{NAME}"
EARLY = 3.0
"""Seconds before its time by storage's clock that a fire time may begin: one is allowed, and storage tells seconds."""
RANGE = re.compile(r"from (\S+Z|\S+\+00:00) to (\S+Z|\S+\+00:00)")


class JobChecks(Checks):
    """The invariants of a scheduled job."""

    world: JobWorld

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, Any] = {}
        self._read_at: dict[str, dict[Process, float]] = {}
        """When each host read the job's row last, by its ETag."""
        self.accounts: dict[str, list[tuple[datetime, datetime | None]]] = {}
        """From when to when the job's row had a schedule's account, by schedule."""

    @property
    def leases(self) -> WatchedLeases:
        return self.world.server.leases

    # -- at a body's begin --------------------------------------------------------------------------------------

    def begins(self, run: Run, host: JobHost) -> None:
        """A fire time that is done never starts again, and none before its time."""
        self.checked["what is done stays done"] += 1
        self.checked["nothing begins before its time"] += 1
        row = self.run(run.fire_time)
        who = f"{run.fire_time:%H:%M:%S} #{run.attempt} on {host.name}"
        own = row is not None and row.token == run.fencing_token
        broken = run._lease.holder in self.leases.broken  # by a person: no renewal has told yet
        decided = own and row is not None and (row.decisions or broken)  # a moment ago
        if row is None or (row.outcome.is_final and not decided):
            self.violated("what is done stays done", f"{who} begins, and is {row and row.outcome} already")
        early = (run.fire_time - self.world.clock.now()).total_seconds()
        if early > EARLY:
            self.violated("nothing begins before its time", f"{who} begins {early:.1f} s early")

    # -- at each write ------------------------------------------------------------------------------------------

    def committed(self, rows: Mapping[str, Row], before: Mapping[str, Row | None]) -> None:
        old_job = new_job = None
        if ROW in before:
            old_job = None if (old := before[ROW]) is None else self._decoded(old)
            new_job = self._decoded(rows[ROW])
            self._account(new_job, self._decided_at(before[ROW]))
            self._job_changed(old_job, new_job)
        for key, old in before.items():
            if key.startswith("run:"):
                was = None if old is None else self._decoded(old)
                self._run_changed(was, self._decoded(rows[key]), old_job, new_job)

    def read(self, row: Row) -> None:
        task = simulator().task
        if row.key == ROW and task is not None:
            self._read_at.setdefault(row.etag, {})[task.process] = self.world.sim.now

    def _decided_at(self, before: Row | None) -> datetime:
        """When whoever writes the job's row has read it: the write may be carried out much later."""
        task, now = simulator().task, self.world.sim.now
        read_at = {} if before is None else self._read_at.get(before.etag, {})
        if task is None or task.process not in read_at:  # a call that is carried out after its caller gave up
            return START + timedelta(seconds=min(read_at.values(), default=now))
        return START + timedelta(seconds=read_at[task.process])

    def _account(self, row: JobRow, decided_at: datetime) -> None:
        """Note whose accounts begin, and whose are closed."""
        now, open_now = self.world.clock.now(), {row.schedule, *row.marks}
        for schedule in open_now:
            account = self.accounts.setdefault(schedule, [])
            if not account or account[-1][1] is not None:
                account.append((now, None))
        for schedule, account in self.accounts.items():
            if schedule not in open_now and account[-1][1] is None:
                account[-1] = (account[-1][0], decided_at)

    def _job_changed(self, old: JobRow | None, new: JobRow) -> None:
        if old is None:
            return
        self.checked["the token rises"] += 1
        if new.token < old.token:
            self.violated("the token rises", f"{old.token} became {new.token}")
        if new.holder != old.holder and new.holder:
            self._claimed(old, new)
        self.checked["nothing claimed is forgotten"] += 1
        for fire_time in old.pending.keys() - new.pending.keys():
            run = self.run(fire_time)
            if run is not None and not run.outcome.is_final and not self._is_moved(fire_time):
                self.violated(
                    "nothing claimed is forgotten",
                    f"{fire_time:%H:%M:%S} is {run.outcome} and pending no more",
                )

    def _claimed(self, old: JobRow, new: JobRow) -> None:
        if new.token == old.token:
            self.violated("the token rises", f"two claims with {new.token}")
        self.checked["only the schedule moves the watermark"] += 1
        moved = new.schedule == old.schedule and new.watermark != old.watermark
        if moved and new.watermark is not None and not self.world.is_named(new.watermark):
            self.violated(
                "only the schedule moves the watermark", f"a claim moved it to {new.watermark:%H:%M:%S}"
            )

    def _run_changed(
        self, old: RunRow | None, new: RunRow, old_job: JobRow | None, job: JobRow | None
    ) -> None:
        who = f"{new.fire_time:%H:%M:%S} #{new.attempt} on {new.host}"
        if old is not None and old.outcome.is_final:
            self.checked["what is done stays done"] += 1
            if new.outcome is not old.outcome and not self._may_change(old, new, old_job):
                self.violated("what is done stays done", f"{who}: {old.outcome} became {new.outcome}")
        if old is not None and old.outcome is Outcome.RUNNING and new.attempt > old.attempt:
            self.checked["a restart is somebody else's"] += 1
            if new.holder == old.holder:
                self.violated("a restart is somebody else's", f"{who} took itself for dead")
        if old is not None and old.token == new.token and self._is_a_runs(old, new):
            self.checked["whoever lost its lease commits nothing"] += 1
            newest = self._decoded(self.rows()[ROW]).token
            if new.token != newest or job is None:
                self.violated(
                    "whoever lost its lease commits nothing",
                    f"{who} wrote with token {new.token}, {newest} is out",
                )
        if new.outcome is Outcome.SUCCEEDED and old is not None and self._is_a_runs(old, new):
            self.checked["what succeeded is whole"] += 1
            absent = [n for n in range(self.world.case.items) if not self._has_entry(new, n)]
            if absent:
                self.violated("what succeeded is whole", f"{who} succeeded without items {absent}")

    def _may_change(self, old: RunRow, new: RunRow, job: JobRow | None) -> bool:
        """Only an operator's word makes anything of what is done: by hand where it never ran, or a decision."""
        decided = job is not None and old.fire_time in job.pending and job.pending[old.fire_time].why in AGAIN
        return decided or old.outcome is Outcome.SKIPPED or new.decisions != old.decisions

    @staticmethod
    def _is_a_runs(old: RunRow, new: RunRow) -> bool:
        """Whether the run itself wrote this: no decision, no death that somebody found, no note beside its record."""
        untouched = (new.decisions, new.abandoned, new.attempts) == (
            old.decisions,
            old.abandoned,
            old.attempts,
        )
        return untouched and old.outcome is Outcome.RUNNING

    def _is_moved(self, fire_time: datetime) -> bool:
        """Whether it waits in a row of its own, where the job's is full."""
        return any(
            row.values["fire_time"] == to_text(fire_time)
            for key, row in self.rows().items()
            if key.startswith("pending:")
        )

    def _has_entry(self, run: RunRow, item: int) -> bool:
        return entry_key(NAME, f"{run.idempotency_key}/{item}") in self.rows()

    def blob_written(self, before: BlobItem | None, after: BlobItem) -> None:
        # A fenced blob is never written by an older run.
        self.checked["fenced writes go forward"] += 1
        if before is not None and int(after.metadata[TOKEN]) < int(before.metadata[TOKEN]):
            self.violated("fenced writes go forward", f"token {after.metadata} after {before.metadata}")

    # -- at the end ---------------------------------------------------------------------------------------------

    def unaccounted(self) -> list[str]:
        world = self.world
        runs = {run.fire_time: run for run in self._runs()}
        row = self._decoded(self.rows()[ROW]) if ROW in self.rows() else None
        skipped = list(self._skipped(runs.values()))
        left = []
        for due in sorted(set(self._due())):
            run = runs.get(due)
            if run is not None and run.outcome.is_final:
                continue
            if run is None and any(first <= due <= last for first, last in skipped):
                continue
            left.append(f"{due:%d %H:%M:%S} is {'nowhere' if run is None else run.outcome}")
        left += [
            f"{t:%d %H:%M:%S} is {run.outcome}"
            for t, run in runs.items()
            if not run.outcome.is_final and t <= world.ends
        ]
        if row is not None:
            left += [
                f"{t:%d %H:%M:%S} is pending: {p.why}" for t, p in row.pending.items() if t <= world.ends
            ]
        return sorted(set(left))

    def ended(self) -> None:
        self.checked["every fire time is accounted for"] += 1
        for line in self.unaccounted()[:5]:
            self.violated("every fire time is accounted for", line)
        for run in self._runs():
            self._judge_end(run)

    def _judge_end(self, run: RunRow) -> None:
        case, who = self.world.case, f"{run.fire_time:%H:%M:%S}"
        if run.outcome in (Outcome.FAILED, Outcome.UNKNOWN, Outcome.SKIPPED) and not run.reason:
            self.violated("a record says why", f"{who} is {run.outcome} without a reason")
        if run.outcome is Outcome.UNKNOWN and case.on_abandoned != "hold":
            self.violated("a record says why", f"{who} is unknown: {run.reason}")
        if case.calm:
            self.checked["a stop is no death"] += 1
            if run.abandoned > self.cut_off[run.fire_time] or run.outcome is Outcome.FAILED:
                self.violated(
                    "a stop is no death", f"{who}: {run.abandoned} deaths, {run.outcome}: {run.reason}"
                )

    def _due(self) -> Iterator[datetime]:
        world = self.world
        for version, job in world.versions.items():
            for since, until in self.accounts.get(schedule_text(job), ()):
                last = min(until or world.ends, world.ends, world.version_until(version))
                yield from world.fire_times(version, since + timedelta(seconds=1), last)

    def _skipped(self, runs: Any) -> Iterator[tuple[datetime, datetime]]:
        for run in runs:
            kept = [attempt["reason"] for attempt in run.attempts if attempt["outcome"] == Outcome.SKIPPED]
            for reason in (*kept, run.reason):
                for match in RANGE.finditer(reason):
                    yield datetime.fromisoformat(match[1]), datetime.fromisoformat(match[2])

    # -- the rows as the server has them ------------------------------------------------------------------------

    def rows(self) -> Mapping[str, Row]:
        """Of the one namespace."""
        return self.world.server.table.rows(self.world.settings.namespace)

    def run(self, fire_time: datetime) -> RunRow | None:
        """The record of a fire time."""
        row = self.rows().get(run_key(NAME, fire_time))
        return None if row is None else self._decoded(row)

    def _runs(self) -> list[RunRow]:
        return [self._decoded(row) for key, row in self.rows().items() if key.startswith("run:")]

    def _decoded(self, row: Row) -> Any:
        """The job's or the run's row, read once for each ETag."""
        if row.etag not in self._read:
            self._read[row.etag] = decode_job(row) if row.key == ROW else decode_run(row)
        return self._read[row.etag]
