"""Removes run rows whose history nobody keeps any more. Ledger entries and jobs' own rows stay forever.

A job's old runs are one key range at its end, so a job with a year of history costs no more than it has to remove.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, UnreadableRowError
from runonce.runs.rows import JobRow, Outcome, decode_run, key_range, run_key
from runonce.runs.table import change_job
from runonce.runs.trail import older_than
from runonce.stores.columns import to_text
from runonce.stores.protocols import MAX_TRANSACTION, Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row, TableStore

REMOVABLE = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SKIPPED, Outcome.CANCELLED)
"""Whatever else a run is, somebody has to finish it or to decide about it."""


def jobs_with_runs(registry: Registry) -> Iterator[str]:
    """The names of all jobs that have run rows, in the code or not: one read for each."""
    first, last = key_range("run")
    while found := list(registry.table.scan(registry.namespace, first, last, limit=1)):
        name = found[0].key.split(":")[1]
        yield name
        first = key_range("run", name)[1]


def purge_runs(registry: Registry, name: str, before: datetime, check: Callable[[], None]) -> int:
    """Remove a job's runs that ended before an instant and are of an earlier fire time; how many.

    Kept are those that are not finished or unknown, those that are to run (again), the latest, and the one with the
    highest fencing token, from which the job's row is rebuilt when it is lost.

    Args:
        registry: Where the rows are.
        name: The job, which may have left the code.
        before: When history begins.
        check: Called before each hundred rows are removed; what it raises ends the removal, which can be repeated.

    Raises:
        UnreadableRowError: The job's row cannot be read; nothing is removed.
        StoreError: Storage did not answer, or refused.
    """
    ends = run_key(name, before), key_range("run", name)[1]
    old = registry.table.scan(registry.namespace, *ends, before=("finished_at", to_text(before)))
    ended = (row for row in old if _is_removable(row))
    first = next(ended, None)
    if first is None:
        return 0
    # Noted before anything is removed: a run by hand must not take a fire time for new because its row is gone.
    row = change_job(registry, name, lambda row, is_known: _from(row, before) if is_known else row)
    needed = {run_key(name, t, pending.params) for t, pending in row.pending.items()}
    if row.last_fire_time is not None:
        needed.add(run_key(name, row.last_fire_time, row.last_params))
    rows = (old for old in chain([first], ended) if old.key not in needed and not _has_token(old, row.token))
    return remove(registry.table, registry.namespace, rows, check)


def forget_actions(registry: Registry, before: datetime, check: Callable[[], None]) -> int:
    """Remove the record of operators' actions before an instant, as `purge_runs`; how many."""
    rows = registry.table.scan(registry.namespace, *older_than(before))
    return remove(registry.table, registry.namespace, rows, check)


def _from(row: JobRow, before: datetime) -> JobRow:
    return replace(row, history_from=max(before, row.history_from or before))


def _has_token(row: Row, highest: int) -> bool:
    return highest > 0 and decode_run(row).token == highest


def _is_removable(row: Row) -> bool:
    try:
        return decode_run(row).outcome in REMOVABLE
    except UnreadableRowError:
        return False  # of a newer release, or edited by hand: not ours to remove


def remove(table: TableStore, partition: str, rows: Iterable[Row], check: Callable[[], None]) -> int:
    """Remove rows of one partition that are still as they were read, a hundred in one transaction; how many."""
    removed, rows = 0, iter(rows)
    while batch := [Delete(row.key, row.etag) for row in islice(rows, MAX_TRANSACTION)]:
        check()
        removed += _delete(table, partition, batch)
    return removed


def _delete(table: TableStore, partition: str, batch: list[Delete]) -> int:
    while batch:
        try:
            table.commit(partition, batch)
        except ConflictError as error:  # that one has changed or is gone since
            batch = batch[: error.index] + batch[error.index + 1 :]
        else:
            return len(batch)
    return 0
