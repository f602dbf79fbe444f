"""The claim row of a message, as a value: what is in it, where it lies, how it is written down. No I/O.

Keys of messages are anything (slashes, 500 characters), which tables refuse in theirs, so a row lies under a
hash of them. The hash also spreads the rows over partitions, so that one busy handler is not one hot one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - the codec reads the annotations
from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003 - as above
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from runonce.errors import NotKeptError
from runonce.stores.columns import Columns, decode, fitting, json_text, to_text, units
from runonce.transports.ids import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row

SHARDS = 4
"""Partitions of a handler's claims, a part of their address. A partition takes 2,000 writes a second (Azure Tables'
target) and a message makes two: so 4,000 messages a second, twice what a Storage queue gives. More would only spread
the claims that are written together."""
KEPT = 20
"""Generations that a row remembers."""
LARGEST_OUTBOX = 30_000
"""Characters of JSON that the follow-ups of one message may take; a table's text column ends at 32 Ki."""


class State(StrEnum):
    """Where a message's claim stands."""

    CLAIMED = "claimed"
    RELEASED = "released"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MessageRow(Columns):
    """The claim and record of one message of one handler."""

    handler: str
    entity: str
    key: str
    state: State = State.CLAIMED
    reason: str = ""
    dead_as: str = ""
    """The short name it was dead-lettered under, where its state does not say that."""
    error: str = ""
    holder: str = field(default="", metadata={"was": "owner"})
    write_id: str = ""
    token: int = field(default=0, metadata={"was": "epoch"})
    """Rises with every claim of the message: its fencing token."""
    attempt: int = 0
    failures: int = 0
    abandoned: int = 0
    """How often its host died on it."""
    survived: int = 0
    """How many of these deaths lie behind its last progress."""
    generation: int = 0
    """How often it was begun anew: by an operator's replay, or after it failed by a corrected body."""
    fingerprint: str = ""
    """Of the body, so that one key with two bodies is noticed."""
    superseded: tuple[str, ...] = ()
    """Fingerprints of the bodies that failed before the one it has now."""
    message_id: str = ""
    host: str = ""
    lease: int = 0
    """Seconds after its last write, by the server's clock, that the claim is given up."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    retry_at: datetime | None = None
    expires_at: datetime | None = None
    checkpoint: str = ""
    progress: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, Any] = field(default_factory=dict, metadata={"write": json_text})
    """Results of the steps that are done, by their names."""
    follow_ups: int = 0
    """How many follow-up messages were committed with checkpoints; the next one's ordinal."""
    outbox: tuple[Mapping[str, Any], ...] = ()
    """Follow-up messages, to be sent again with the same ids if the message comes again."""
    replays: tuple[str, ...] = ()
    """When it was begun anew."""
    attempts: tuple[Mapping[str, str], ...] = ()
    """Earlier attempts, oldest first: as many of the newest as a cell has room for."""
    returned: str = ""
    """What a function returned that is called once for each key: JSON."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt; another one after an operator's replay."""
        replayed = f":{self.generation}" if self.generation else ""
        return f"{self.handler}:{digest(self.entity, self.handler, self.key)[:32]}{replayed}"


def anew(row: MessageRow, fingerprint: str, now: datetime) -> MessageRow:
    """The row of a message that is to be handled once more, as a new generation of it.

    With another body it begins from nought: what was done of the other one says nothing about this one.
    """
    again = replace(
        row,
        state=State.RELEASED,
        generation=row.generation + 1,
        dead_as="",
        failures=0,
        abandoned=0,
        survived=0,
        retry_at=None,
        expires_at=None,
        replays=(*row.replays, to_text(now))[-KEPT:],
    )
    if fingerprint == row.fingerprint:
        return again
    earlier = tuple(other for other in (*row.superseded, row.fingerprint) if other != fingerprint)
    return replace(
        again,
        fingerprint=fingerprint,
        superseded=earlier[-KEPT:],
        checkpoint="",
        progress={},
        steps={},
        follow_ups=0,
    )


def closed(row: MessageRow) -> tuple[Mapping[str, str], ...]:
    """The earlier attempts when another one begins; the older ones without their tracebacks where they are long."""
    latest = {
        "attempt": str(row.attempt),
        "outcome": "abandoned" if row.state is State.CLAIMED else str(row.state),
        "host": row.host,
        "started_at": to_text(row.started_at),
        "finished_at": to_text(row.finished_at),
        "reason": row.reason[:200],
        "error": row.error,
        "token": str(row.token),
    }
    return fitting((*row.attempts, latest))


def place(namespace: str, entity: str, handler: str, key: str) -> tuple[str, str]:
    """Partition and row key of a message's claim."""
    hashed = digest(entity, handler, key)
    return partition(namespace, handler, int(hashed[:4], 16) % SHARDS), f"claim:{hashed}"


def partition(namespace: str, handler: str, shard: int) -> str:
    """The partition of a shard of a handler's claims."""
    return f"{namespace}|{handler}|{shard:02x}"


def of_calls(claims: Registry) -> Registry:
    """Where the claims of functions' calls are: beside those of messages, where nobody takes them for a handler's."""
    return replace(claims, namespace=f"{claims.namespace}:once")


def effect_key(claim_key: str, name: str) -> str:
    """The key of a row that a handler commits with its claim."""
    return f"effect:{claim_key.removeprefix('claim:')}:{digest(name)[:32]}"


def decode_message(row: Row) -> MessageRow:
    """The claim row that was read.

    Raises:
        UnreadableRowError: It is of a newer format, or was edited by hand.
    """
    return decode(MessageRow, row)


def check_outbox(handler: str, outbox: Sequence[Mapping[str, Any]]) -> None:
    """NotKeptError when the follow-ups do not fit on the claim's row."""
    if (size := units(json.dumps(list(outbox), ensure_ascii=False))) > LARGEST_OUTBOX:
        raise NotKeptError(
            f"Handler {handler}: its follow-up messages take {size} characters together, over {LARGEST_OUTBOX}; put "
            f"the data in a blob and send its name."
        )
