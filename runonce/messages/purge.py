"""Removes claims of messages that can no longer come again.

A claim's retention is never shorter than a message can wait in the queue and then be replayed (`@handler` checks
that), so no message can come to a claim that has gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.messages.rows import partition
from runonce.runs.purge import remove
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runonce.execution.registry import Registry

CLAIMS = ("claim:", "claim;")


def purge_claims(
    registry: Registry, handler: str, shard: int, now: datetime, check: Callable[[], None]
) -> int:
    """Remove the claims of one shard of a handler that expired before `now`, as `runs.purge` does; how many."""
    where = partition(registry.namespace, handler, shard)
    rows = registry.table.scan(where, *CLAIMS, before=("expires_at", to_text(now)))
    return remove(registry.table, where, rows, check)
