"""What claims and queues say of handlers, for people: each handler's status, its history, one key's, its dead letters.

Reads only, and needs no handler's code: a handler that is not in the code is known by its claims. The claims that are
not done are one range read for all handlers together. What is asked of a broker is said beside each figure: a Storage
queue counts its messages but shows only 32 of them, so beyond those its dead letters are told by their claims.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from runonce.messages.definition import handler as define
from runonce.messages.plan import expired
from runonce.messages.rows import MessageRow, State, decode_message, place
from runonce.stores.columns import from_text, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Backlog, Dead

CLAIMS = ("claim:", "claim;")
OPEN = (State.CLAIMED, State.RELEASED, State.FAILED, State.UNKNOWN)
"""States of claims that are not done."""
WINDOWS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7))
"""How far back a handler's history is looked for, until there is enough of it."""

Trouble = Literal["", "dead letters", "held", "broken"]


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of one handler that are not done."""

    handler: str
    entity: str
    running: tuple[MessageRow, ...] = ()
    """Worked on now."""
    abandoned: tuple[MessageRow, ...] = ()
    """Whose host has given no sign of life; the broker delivers them again."""
    retrying: tuple[MessageRow, ...] = ()
    held: tuple[MessageRow, ...] = ()
    """Of which nobody knows whether they took effect."""
    failed: tuple[MessageRow, ...] = ()
    """That failed for good and whose dead letters are neither replayed nor purged."""


def open_claims(registry: Registry, handler: str = "") -> dict[str, Claims]:
    """The claims that are not done, by handler: one range read over all handlers, or over the one that is named.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    found: dict[str, dict[str, list[MessageRow]]] = {}
    entities: dict[str, str] = {}
    rows = registry.table.scan_partitions(
        *_partitions(registry, handler), keys=CLAIMS, one_of=("state", [str(state) for state in OPEN])
    )
    for _, read in rows:
        row = decode_message(read)
        if row.state in (State.FAILED, State.UNKNOWN) and row.expires_at is not None:
            continue  # its dead letter was removed
        kind = {
            State.CLAIMED: "abandoned" if expired(row, read) else "running",
            State.RELEASED: "retrying",
            State.UNKNOWN: "held",
            State.FAILED: "failed",
        }[row.state]
        found.setdefault(row.handler, {}).setdefault(kind, []).append(row)
        entities[row.handler] = row.entity
    return {
        name: Claims(name, entities[name], **{kind: tuple(rows) for kind, rows in kinds.items()})
        for name, kinds in sorted(found.items())
    }


def known_handlers(registry: Registry) -> dict[str, str]:
    """The handlers that have claims, with their entities: one call for each, whatever the number of claims."""
    first, last = _partitions(registry, "")
    found: dict[str, str] = {}
    while rows := list(registry.table.scan_partitions(first, last, keys=CLAIMS, limit=1)):
        row = decode_message(rows[0][1])
        found[row.handler] = row.entity
        first = f"{registry.namespace}|{row.handler}}}"  # past its last shard
    return found


def stand_in(name: str, entity: str) -> Handler:
    """What looks after the messages of a handler whose code is not here; it handles none."""
    topic, slash, subscription = entity.partition("/")

    def body(message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - what it is called with says nothing
        """Nothing."""

    if slash:
        return define(name=name, topic=topic, subscription=subscription)(body)
    return define(name=name, queue=entity)(body)


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """A handler as it stands."""

    name: str
    in_code: bool
    entity: str
    """Its queue, or topic/subscription."""
    waiting: int | None
    """Messages in the queue that nobody has begun; None where the broker was not asked, or does not say."""
    running: int
    abandoned: int
    """Begun by hosts that have died since; they are delivered again."""
    retrying: int
    held: int
    """Nobody knows whether they took effect: a person decides."""
    failed: int
    """Failed for good, by their claims; their dead letters are there."""
    dead: int | None
    """Dead letters, by the broker's own count; None as `waiting`."""
    at_least: bool
    """Whether there may be more than `waiting` and `dead` say."""
    oldest: datetime | None
    """Since when the oldest of what waits, runs or is retried is there."""
    unreachable: str
    """Why the broker could not be asked; empty when it was."""
    trouble: Trouble


def handler_status(
    name: str,
    entity: str,
    claims: Claims | None,
    backlog: Backlog | None,
    *,
    in_code: bool,
    unreachable: str = "",
) -> HandlerStatus:
    """A handler's status of what was read: its open claims, and what its broker said."""
    claims = claims or Claims(name, entity)
    begun = [*claims.running, *claims.abandoned, *claims.retrying]
    waiting = None
    if backlog is not None and backlog.waiting is not None:
        # A queue counts what is being handled, and what is hidden until its retry, too.
        waiting = max(0, backlog.waiting - (len(begun) if backlog.counts_begun else 0))
    oldest = [row.started_at for row in begun if row.started_at is not None]
    if backlog is not None and backlog.oldest is not None and waiting:
        oldest.append(backlog.oldest)
    dead = None if backlog is None else backlog.dead
    trouble: Trouble = "held" if claims.held else "dead letters" if claims.failed or dead else ""
    return HandlerStatus(
        name=name,
        in_code=in_code,
        entity=entity,
        waiting=waiting,
        running=len(claims.running),
        abandoned=len(claims.abandoned),
        retrying=len(claims.retrying),
        held=len(claims.held),
        failed=len(claims.failed),
        dead=dead,
        at_least=backlog is not None and backlog.at_least,
        oldest=min(oldest, default=None),
        unreachable=unreachable,
        trouble=trouble,
    )


def message_history(registry: Registry, handler: str, limit: int, now: datetime) -> list[MessageRow]:
    """What became of a handler's latest messages, the newest first.

    Goes back an hour, a day, a week, then all the way until there are enough; the table has to look through all of the
    handler's claims each time, a thousand in a call.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    rows: list[MessageRow] = []
    for window in (*WINDOWS, None):
        since = None if window is None else ("started_at", to_text(now - window))
        found = registry.table.scan_partitions(*_partitions(registry, handler), keys=CLAIMS, since=since)
        rows = [decode_message(read) for _, read in found]
        if len(rows) >= limit:
            break
    return sorted(
        rows, key=lambda row: row.started_at or datetime.min.replace(tzinfo=now.tzinfo), reverse=True
    )[:limit]


def key_history(registry: Registry, handler: str, key: str, entity: str = "") -> list[MessageRow]:
    """All that is known of a key: one claim, or one for each entity the handler has read.

    With the entity it is one read; without it the table looks through the handler's claims.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    if entity:
        read = registry.table.get(*place(registry.namespace, entity, handler, key))
        return [] if read is None else [decode_message(read)]
    found = registry.table.scan_partitions(
        *_partitions(registry, handler), keys=CLAIMS, one_of=("key", [key])
    )
    return [decode_message(read) for _, read in found]


@dataclass(frozen=True, slots=True)
class MessageAttempt:
    """One attempt at a message."""

    attempt: int
    outcome: str
    """claimed (it runs), released (it is retried), done, failed, unknown, or abandoned: its host died."""
    reason: str
    error: str
    """Its traceback; empty where there was none, or no room to keep it."""
    host: str
    token: int
    started_at: datetime | None
    finished_at: datetime | None


def attempts(row: MessageRow) -> list[MessageAttempt]:
    """Every attempt at a message that its claim still knows, the oldest first; the last is the latest."""
    earlier = [
        MessageAttempt(
            int(one.get("attempt") or 0),
            one.get("outcome", ""),
            one.get("reason", ""),
            one.get("error", ""),
            one.get("host", ""),
            int(one.get("token") or 0),
            from_text(one.get("started_at", "")),
            from_text(one.get("finished_at", "")),
        )
        for one in row.attempts
    ]
    latest = MessageAttempt(
        row.attempt, row.state, row.reason, row.error, row.host, row.token, row.started_at, row.finished_at
    )
    return [*earlier, latest]


@dataclass(frozen=True, slots=True)
class HandlerAudit:
    """What became of a handler's messages of a span."""

    handler: str
    done: int
    retried: int
    """Of those that are done, how many took more than one attempt."""
    failed: int
    """Failed for good, whenever that was: their dead letters are neither replayed nor purged."""
    held: int
    """Nobody knows whether they took effect, whenever that was."""
    waiting: int
    """Running, or to be redelivered."""

    @property
    def owed(self) -> int:
        """How many somebody has to do something about."""
        return self.failed + self.held


def audit_messages(registry: Registry, since: datetime) -> list[HandlerAudit]:
    """What became of every handler's messages since an instant; the table looks through all claims.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    done: Counter[str] = Counter()
    retried: Counter[str] = Counter()
    for _, read in registry.table.scan_partitions(
        *_partitions(registry, ""), keys=CLAIMS, since=("finished_at", to_text(since))
    ):
        row = decode_message(read)
        if row.state is State.DONE:
            done[row.handler] += 1
            retried[row.handler] += row.attempt > 1
    claims = open_claims(registry)
    return [
        HandlerAudit(
            name,
            done[name],
            retried[name],
            len(of.failed),
            len(of.held),
            len(of.running) + len(of.abandoned) + len(of.retrying),
        )
        for name in sorted({*done, *claims})
        for of in [claims.get(name) or Claims(name, "")]
    ]


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one handler that are there for one reason."""

    reason: str
    """A short name: Failed, Abandoned, Unknown, BadBody, ..."""
    what: str
    """What happened, without what is of one message alone: its id, key and figures."""
    count: int
    oldest: datetime | None
    newest: datetime | None
    ids: tuple[str, ...]
    """Of at most five of them."""


@dataclass(frozen=True, slots=True)
class DeadLettersOf:
    """A handler's dead letters, grouped."""

    handler: str
    entity: str
    count: int | None
    """How many there are by the broker's own count; None where it could not be asked."""
    at_least: bool
    """Whether the broker may have more than `count`."""
    groups: tuple[DeadGroup, ...]
    """The largest first."""
    unexplained: int
    """Those of `count` that are in no group: they have no claim, and the queue shows no more than 32 of itself."""
    unreachable: str = ""


SHOWN_IDS = 5


@dataclass(frozen=True, slots=True)
class Put:
    """A dead letter, as far as grouping needs it."""

    id: str
    key: str
    reason: str
    description: str
    at: datetime | None


def of_claim(row: MessageRow) -> Put:
    """What a claim knows of its dead letter."""
    reason = "Unknown" if row.state is State.UNKNOWN else "Failed"
    return Put(row.message_id, row.key, reason, row.reason, row.finished_at or row.started_at)


def of_dead(dead: Dead, key: str = "") -> Put:
    """What a dead letter says of itself."""
    delivery = dead.delivery
    return Put(
        delivery.sent_as or delivery.message_id,
        key,
        dead.reason,
        dead.description,
        dead.dead_at or delivery.enqueued_at,
    )


def grouped(letters: Iterable[Put]) -> tuple[DeadGroup, ...]:
    """Dead letters by their reason, the most frequent first."""
    found: dict[tuple[str, str], list[Put]] = {}
    for one in letters:
        found.setdefault((one.reason, said(one)), []).append(one)
    groups = []
    for (reason, what), ones in found.items():
        at = [one.at for one in ones if one.at is not None]
        ids = tuple(one.id for one in ones[:SHOWN_IDS])
        groups.append(DeadGroup(reason, what, len(ones), min(at, default=None), max(at, default=None), ids))
    return tuple(sorted(groups, key=lambda group: (-group.count, group.reason, group.what)))


def said(one: Put) -> str:
    """What happened, the same for all it happened to: without the message's id and key, and figures as N."""
    text = re.sub(r"^Handler \S+, message .*?: ", "", " ".join(one.description.split()))
    for own in sorted({one.id, one.key} - {""}, key=len, reverse=True):
        text = text.replace(own, "…")
    return re.sub(r"\d+", "N", text)[:200]


def _partitions(registry: Registry, handler: str) -> tuple[str, str]:
    """First and one past the last partition of a handler's claims, or of all claims of the namespace."""
    first = f"{registry.namespace}|{handler}|" if handler else f"{registry.namespace}|"
    return first, first[:-1] + "}"  # "}" is the character after "|"
