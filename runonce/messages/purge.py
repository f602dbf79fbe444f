"""The built-in job that removes claims nobody can need any more."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from runonce.errors import ConflictError
from runonce.execution.options import Retry
from runonce.messages.rows import SHARDS, partition
from runonce.runs.definition import ScheduledJob
from runonce.schedules.schedule import Schedule
from runonce.stores.columns import to_text
from runonce.stores.protocols import MAX_TRANSACTION, Delete

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.execution.registry import Registry
    from runonce.runs.run import Run

NAME = "runonce_purge"
SCHEDULE = "0 30 3 * * *"
CLAIMS = ("claim:", "claim;")


def purge_job(registry: Registry, handlers: Iterable[str]) -> ScheduledJob:
    """Once a night: the claims whose retention is over, of every handler, shard by shard.

    A claim's retention is never shorter than a message can wait in the queue and then be replayed (`@handler`
    checks that), so no message can come to a claim that has gone.
    """
    names = sorted(handlers)

    def purge(run: Run) -> None:
        """Removes claims of messages that can no longer come again."""
        for batch in run.batches([(name, shard) for name in names for shard in range(SHARDS)], size=1):
            for name, shard in batch:
                removed = purge_shard(
                    registry, partition(registry.namespace, name, shard), to_text(run.fire_time), run
                )
                if removed:
                    run.log.info("%s, shard %d: %d claims removed", name, shard, removed)

    return ScheduledJob(
        name=NAME,
        body=purge,
        schedule=Schedule.parse(SCHEDULE),
        misfire="latest",
        misfire_cap=1,
        retry=Retry(3, 600.0),
        max_runtime=3600.0,
        on_abandoned="rerun",
    )


def purge_shard(registry: Registry, where: str, now: str, run: Run | None = None) -> int:
    """Remove the claims of one partition that expired before `now`; how many."""
    removed = 0
    rows = iter(registry.table.scan(where, *CLAIMS, before=("expires_at", now)))
    while batch := [Delete(row.key, row.etag) for row in islice(rows, MAX_TRANSACTION)]:
        if run is not None:
            run.check()
        removed += _delete(registry, where, batch)
    return removed


def _delete(registry: Registry, where: str, batch: list[Delete]) -> int:
    """Delete the rows that are still as they were read; one of them may have been replayed since."""
    while batch:
        try:
            registry.table.commit(where, batch)
        except ConflictError as error:
            batch = batch[: error.index] + batch[error.index + 1 :]
        else:
            return len(batch)
    return 0
