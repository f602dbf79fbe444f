"""Reading the rows that handlers committed with their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.messages.rows import SHARDS, partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.stores.protocols import TableStore, Value

EFFECTS = ("effect:", "effect;")


def read_effects(table: TableStore, namespace: str, handler: str) -> Iterator[dict[str, Value]]:
    """Every row a handler committed, as {"name": …, "key": the message's key, column: value, …}."""
    for shard in range(SHARDS):
        for row in table.scan(partition(namespace, handler, shard), *EFFECTS):
            yield dict(row.values)
