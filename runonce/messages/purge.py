"""Removes claims of messages that can no longer come again.

A claim's retention is never shorter than a message can wait in the queue and then be replayed (`@handler` checks
that), so no message can come to a claim that has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.messages.plan import expired
from runonce.messages.rows import State, decode_message, partition
from runonce.runs.purge import remove
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row

CLAIMS = ("claim:", "claim;")


def purge_claims(
    registry: Registry, handler: str, shard: int, now: datetime, check: Callable[[], None]
) -> int:
    """Remove the claims of one shard of a handler that expired before `now`, as `runs.purge` does; how many."""
    where = partition(registry.namespace, handler, shard)
    rows = registry.table.scan(where, *CLAIMS, before=("expires_at", to_text(now)))
    return remove(registry.table, where, (row for row in rows if not _is_worked_on(row)), check)


def _is_worked_on(row: Row) -> bool:
    """Whether it is a call that takes longer than its retention."""
    return row.values.get("state") == State.CLAIMED and not expired(decode_message(row), row)
