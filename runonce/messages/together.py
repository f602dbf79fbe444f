"""The claims of several messages, those of a partition in one transaction: taken together, marked done together.

Each stays a row of its own. What the table refuses, or does not answer, is left to be done one by one, which knows how
to find out: so a message that is somebody else's keeps no other back.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runonce.errors import ConflictError, StoreError
from runonce.execution.owned import Owned
from runonce.messages.claim import MessageClaim, Settled, arrival_of, claim_message
from runonce.messages.plan import first
from runonce.messages.rows import MessageRow, place
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runonce.execution.registry import Registry
    from runonce.messages.claim import Delivered
    from runonce.messages.definition import Handler

Claimed = MessageClaim | Settled | Exception


def claim_all(
    registry: Registry, handler: Handler, delivered: Sequence[Delivered], lease: int
) -> list[Claimed]:
    """For each message its claim, how it is settled instead, or why neither is known."""
    claimed: dict[int, Claimed] = {}
    unsure: set[int] = set()
    if len(delivered) > 1:
        delivered = [replace(one, holder=str(uuid.uuid4())) for one in delivered]
        for partition, numbers in _new(registry, handler, delivered).items():
            new = {number: delivered[number] for number in numbers}
            unsure |= _insert(registry, handler, partition, new, lease, claimed)
    for number, one in enumerate(delivered):
        if number not in claimed:
            try:
                known = replace(one, redelivered=True) if number in unsure else one
                claimed[number] = claim_message(registry, handler, known, lease)
            except Exception as error:  # noqa: BLE001 - it is told for its message
                claimed[number] = error
    return [claimed[number] for number in range(len(delivered))]


def _new(registry: Registry, handler: Handler, delivered: Sequence[Delivered]) -> dict[str, list[int]]:
    """Those that nobody is known to have claimed, by partition; of two with one key the first."""
    places: dict[tuple[str, str], int] = {}
    for number, one in enumerate(delivered):
        if not one.redelivered:
            places.setdefault(place(registry.namespace, handler.entity, handler.name, one.key), number)
    partitions: dict[str, list[int]] = {}
    for (partition, _), number in places.items():
        partitions.setdefault(partition, []).append(number)
    return {partition: numbers for partition, numbers in partitions.items() if len(numbers) > 1}


def _insert(
    registry: Registry,
    handler: Handler,
    partition: str,
    delivered: Mapping[int, Delivered],
    lease: int,
    claimed: dict[int, Claimed],
) -> set[int]:
    """Claim messages of one partition; those whose rows have to be read, for they are there or nobody knows."""
    rows: dict[int, tuple[str, MessageRow]] = {}
    for number, one in delivered.items():
        row = replace(first(handler, one.key, arrival_of(registry, one, lease)), write_id=one.holder)
        rows[number] = place(registry.namespace, handler.entity, handler.name, one.key)[1], row
    while rows:
        started = registry.clock.elapsed()
        try:
            etags = registry.table.commit(partition, [Insert(key, encode(row)) for key, row in rows.values()])
        except ConflictError as refused:
            del rows[list(rows)[refused.index]]
        except StoreError:
            break
        else:
            for (number, (key, row)), etag in zip(rows.items(), etags, strict=True):
                claimed[number] = MessageClaim(registry, handler, (partition, key), row, etag, started)
            break
    return set(delivered) - set(claimed)


def done_all(
    registry: Registry, handler: Handler, claims: Mapping[MessageClaim, Sequence[Mapping[str, Any]]]
) -> None:
    """Mark messages done, each with its follow-ups; one that is not done afterwards has to be marked by itself."""
    partitions: dict[str, dict[Owned[tuple[MessageRow]], Callable[..., tuple[MessageRow]]]] = {}
    for claim, outbox in claims.items():
        partition, _ = place(registry.namespace, handler.entity, handler.name, claim.row.key)
        change = claim.as_done(outbox)
        partitions.setdefault(partition, {})[claim] = lambda rows, change=change: (change(rows[0]),)
    for changes in partitions.values():
        if len(changes) > 1:
            Owned.commit_together(changes)
