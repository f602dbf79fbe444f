"""The rows of jobs and runs in their table: read one, read all, and the write that replaces one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from runonce.errors import ConflictError, StoreError, UnreadableRowError
from runonce.execution.patience import Patience
from runonce.runs.overflow import spilled
from runonce.runs.plan import noted
from runonce.runs.rows import (
    JobRow,
    Outcome,
    Pending,
    RunRow,
    decode_job,
    decode_run,
    job_key,
    key_range,
    run_key,
)
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert, Replace, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row


log = logging.getLogger("runonce.runs.table")


def read_job(registry: Registry, name: str) -> tuple[JobRow, str | None]:
    """The job's row and its ETag; a fresh row and None when there is none yet."""
    row = registry.table.get(registry.namespace, job_key(name))
    return (fresh_job(registry, name), None) if row is None else (decode_job(row), row.etag)


def fresh_job(registry: Registry, name: str) -> JobRow:
    """The row of a job that has none: it was never seen, or its row was lost and is rebuilt from its runs' rows.

    The fencing token goes on above every one that was given, for what was written remembers the highest; what is not
    finished is pending again.
    """
    token, pending = 0, {}
    for row in registry.table.scan(registry.namespace, *key_range("run", name)):
        run = decode_run(row)
        token = max(token, run.token)
        if not run.outcome.is_final:
            waits = run.outcome is Outcome.RETRYING and run.retry_at is not None
            pending[run.fire_time] = Pending(
                "retrying" if waits else "abandoned",
                run.retry_at or run.started_at or run.fire_time,
                params=run.params,
            )
    more = (
        sum(1 for _ in registry.table.scan(registry.namespace, *key_range("pending", name))) if token else 0
    )
    job = JobRow(name, token=token, pending=pending, more=more)
    while True:  # hardly ever any: a job with many unfinished runs whose row is gone
        job, inserts = spilled(job)
        if not inserts:
            return job
        registry.table.commit(registry.namespace, inserts)


def read_run(
    registry: Registry, name: str, fire_time: datetime, params: str = ""
) -> tuple[RunRow, str] | None:
    """The row of a fire time's run and its ETag, or None."""
    found = find_run(registry, name, fire_time, params)
    return None if found is None else (found[0], found[1].etag)


def find_run(
    registry: Registry, name: str, fire_time: datetime, params: str = ""
) -> tuple[RunRow, Row] | None:
    """The row of a fire time's run, and as it was read, or None."""
    row = registry.table.get(registry.namespace, run_key(name, fire_time, params))
    return None if row is None else (decode_run(row), row)


def write(row: JobRow | RunRow, etag: str | None) -> Write:
    """The write that makes the row so, if it still is what it was."""
    key = job_key(row.name) if isinstance(row, JobRow) else run_key(row.job, row.fire_time, row.params)
    return Insert(key, encode(row)) if etag is None else Replace(key, encode(row), etag)


class Jobs(NamedTuple):
    """The job rows of a namespace, by job."""

    rows: dict[str, JobRow]
    etags: dict[str, str]
    unreadable: dict[str, str]
    """Why a row could not be read, by job. Such a row is left alone; what is due of its job stays due."""
    server_now: datetime | None
    """When the server answered, by its own clock; None where there was no row."""


def read_jobs(registry: Registry) -> Jobs:
    """Every job row of the namespace: one range read. One that cannot be read is logged, and the others are given."""
    rows: dict[str, JobRow] = {}
    etags: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    read_at: datetime | None = None
    first, last = key_range("job")
    for row in registry.table.scan(registry.namespace, first, last):
        name, read_at = row.key.removeprefix(first), row.read_at
        try:
            rows[name] = decode_job(row)
        except UnreadableRowError as error:
            log.error("%s", error)  # noqa: TRY400 - the message says it all
            unreadable[name] = str(error)
        else:
            etags[name] = row.etag
    return Jobs(rows, etags, unreadable, read_at)


def change_job(
    registry: Registry,
    name: str,
    change: Callable[[JobRow, bool], JobRow],
    record: Callable[[JobRow], RunRow | None] = lambda _: None,
    also: Callable[[], Sequence[Write]] = tuple,
) -> JobRow:
    """Change a job's row, however often somebody else is faster; the row as it is then.

    Args:
        registry: Where the rows are.
        name: The job.
        change: Is given the row, and whether there is one yet. May be called several times.
        record: Is given the row as it was; a run's row to write with the change, where there is none yet.
        also: What to write with the change, asked after it.

    Raises:
        StoreError: Storage did not answer, or the row changed every time for a minute.
    """
    patience = Patience(registry.clock)
    while True:
        row, etag = read_job(registry, name)
        changed = change(row, etag is not None)
        if changed == row:
            return row
        try:
            changed, moved = spilled(changed)
            commit_with(registry, changed, etag, record(row), [*moved, *also()])
        except ConflictError:
            patience.spend(
                StoreError(f"Job {name}: its row changed again and again for a minute; try again.")
            )
        else:
            return changed


def commit_with(
    registry: Registry, row: JobRow, etag: str | None, record: RunRow | None, others: Sequence[Write] = ()
) -> None:
    """Write a job's row and others, and with them the record of what was skipped.

    Raises:
        ConflictError: The job's row, or another, has changed.
    """
    try:
        records = [] if record is None else [write(record, None)]
        registry.table.commit(registry.namespace, [write(row, etag), *records, *others])
    except ConflictError as error:
        if error.index != 1 or record is None:
            raise
        beside = record_beside(registry, record)
        registry.table.commit(registry.namespace, [write(row, etag), beside, *others])


def record_beside(registry: Registry, record: RunRow) -> Write:
    """The write of what was skipped where that fire time may have a row of its own: kept with that one's attempts."""
    found = read_run(registry, record.job, record.fire_time)
    return write(record, None) if found is None else write(noted(found[0], record), found[1])
