"""What must hold for messages: at their handlers' begin, at every write, and of all of them at the end."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from runonce.execution.blobs import OWNER, TOKEN
from runonce.messages.rows import State, decode_message, effect_key, place
from runonce.transports.ids import fingerprint
from simulation.baton import simulator
from simulation.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.messages.rows import MessageRow
    from runonce.stores.protocols import BlobItem, Row
    from simulation.broker import Held
    from simulation.messages import MessageHost, MessageWorld
    from simulation.server import WatchedLeases
    from simulation.world import SimHost

_fingerprint = cache(fingerprint)
AHEAD = 600.0
"""Seconds: a message that a host with a wrong clock has put off for longer is told as waiting."""


class MessageChecks(Checks):
    """The invariants of messages."""

    world: MessageWorld

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, MessageRow] = {}
        self._tried: dict[int, set[bytes]] = {}

    @property
    def leases(self) -> WatchedLeases:
        return self.world.server.leases

    def tried(self, order: int, body: bytes) -> None:
        """A body that somebody began to send."""
        self._tried.setdefault(order, set()).add(body)

    # -- when a handler begins, and what it sends -----------------------------------------------------------------

    def begins(self, message: Message, host: MessageHost) -> None:
        """What is done never starts again, and only its claim's holder begins."""
        self.checked["what is done stays done"] += 1
        row = self.row(self.world.handlers[message.handler], message.key)
        if row is None or row.state is not State.CLAIMED or row.token != message.fencing_token:
            self.violated(
                "what is done stays done",
                f"{message.handler} {message.key} #{message.attempt} begins on {host.name}: {row and row.state}",
            )

    def sent(self, host: SimHost, call: str, given: tuple[Any, ...]) -> None:
        """A handler that writes holds its lock, by all it knows."""
        message = self.world.in_hand.get(simulator().task)  # type: ignore[arg-type]
        if message is None:
            return
        claim = message._own().claim
        is_claims = call == "commit" and any(write.key.startswith("claim:") for write in given[1])
        if claim.lock is not None and (call == "write" or is_claims):
            self.checked["a lock is asked before a write"] += 1
            if not claim.lock.held:
                self.violated(
                    "a lock is asked before a write", f"{host.name} writes {message.key} without it"
                )

    # -- at each write ------------------------------------------------------------------------------------------

    def committed(self, rows: Mapping[str, Row], before: Mapping[str, Row | None]) -> None:
        for key, old in before.items():
            if key.startswith("claim:") and old is not None:
                self._changed(old, self._decoded(old), self._decoded(rows[key]))

    def _changed(self, read: Row, old: MessageRow, new: MessageRow) -> None:
        who = f"{new.handler} {new.key} #{new.attempt} on {new.host}"
        self.checked["what is done stays done"] += 1
        if old.state is State.DONE and new.state is not State.DONE:
            self.violated("what is done stays done", f"{who} became {new.state}")
        self.checked["the token rises"] += 1
        if new.token < old.token or (new.token == old.token and new.attempt != old.attempt):
            self.violated("the token rises", f"{who}: {old.token} became {new.token}")
        if old.state is State.CLAIMED and new.holder != old.holder:
            self._taken(read, old, new)

    def _taken(self, read: Row, old: MessageRow, new: MessageRow) -> None:
        """A claim changes hands: its holder has been silent for its term, and trusts it no more."""
        who = f"{new.handler} {new.key} #{new.attempt} on {new.host}"
        self.checked["a claim is taken once it has ended"] += 1
        silent = (self.world.clock.now() - read.timestamp).total_seconds()
        if silent <= old.lease:
            self.violated("a claim is taken once it has ended", f"{who} after {silent:.1f} s from {old.host}")
        for task, message in self.world.in_hand.items():
            claim = message._own().claim
            if claim.row.holder == old.holder and claim.held and not task.process.dead:
                self.violated("trust ends before the claim", f"{who}, and {task.process.name} handles it")

    def blob_written(self, before: BlobItem | None, after: BlobItem) -> None:
        self.checked["fenced writes go forward"] += 1
        same = before is not None and before.metadata[OWNER] == after.metadata[OWNER]
        if before is not None and same and int(after.metadata[TOKEN]) < int(before.metadata[TOKEN]):
            self.violated("fenced writes go forward", f"token {after.metadata} after {before.metadata}")

    # -- at the end ---------------------------------------------------------------------------------------------

    def unaccounted(self) -> list[str]:
        return list(self._unaccounted())

    def _unaccounted(self) -> Iterator[str]:
        world = self.world
        for order in range(world.case.orders):
            bodies = world.sent.get(order, {})
            if not bodies:
                yield f"order {order} is not sent yet"
            for name in ("billing", "shipping"):
                yield from self._of(world.handlers[name], str(order), bodies)
            row = self.row(world.handlers["billing"], str(order))
            if row is not None and row.state is State.DONE:
                for item in range(world.case.items):
                    mail = f"{order}-{item}"
                    body = f'{{"mail":"{mail}"}}'.encode()
                    yield from self._of(world.handlers["mail"], mail, (body,))

    def _of(self, handler: Handler, key: str, bodies: Iterable[bytes]) -> Iterator[str]:
        """What is not accounted for of the messages of one key."""
        queue, row = self.world.broker.queues.get(handler.queue, []), self.row(handler, key)
        dead = {held.sent.body for held in self.world.broker.dead.get(handler.queue, [])}
        who = f"{handler.name} {key}"
        if any(self._comes(held) for held in queue if held.sent.body in bodies):
            yield f"{who} is in its queue"
            return
        for body in bodies:
            told, purged = _fingerprint(body), (handler.name, body) in self.world.purged
            if body in dead or purged or any(held.sent.body == body for held in queue):
                continue
            if row is None:
                yield f"{who} {body!r} is nowhere"
            elif told not in (row.fingerprint, *row.superseded):
                yield f"{who} {body!r} is nowhere, its key is {row.state} of another"
            elif told == row.fingerprint and row.state is not State.DONE:
                yield f"{who} {body!r} is {row.state}, and nobody has the message"

    def _comes(self, held: Held) -> bool:
        return held.visible_at <= self.world.clock.elapsed() + AHEAD

    def ended(self) -> None:
        self.checked["every message is accounted for"] += 1
        for line in self.unaccounted()[:5]:
            self.violated("every message is accounted for", line)
        for row in self._rows():
            self._judge_end(row)
            if row.handler == "shipping":
                self.checked["an effect and its record are one"] += 1
                if self.has_effect(row.key) is not (row.state is State.DONE):
                    self.violated("an effect and its record are one", f"{row.key} is {row.state}")
        for key in self.world.left_in_hand():
            self.violated("what a killed worker had is shown", f"nobody has looked after {key}")

    def _judge_end(self, row: MessageRow) -> None:
        case, who = self.world.case, f"{row.handler} {row.key}"
        if row.state in (State.FAILED, State.UNKNOWN) and not row.reason:
            self.violated("a record says why", f"{who} is {row.state} without a reason")
        if row.state is State.UNKNOWN and case.on_abandoned != "hold":
            self.violated("a record says why", f"{who} is unknown: {row.reason}")
        if case.calm:
            self.checked["a stop is no death"] += 1
            deaths = row.abandoned - self.cut_off[row.handler, row.key]
            if deaths > 0 or (row.failures and row.state is State.DONE):
                self.violated("a stop is no death", f"{who}: {row.abandoned} deaths, {row.failures} failures")

    def has_effect(self, order: str) -> bool:
        """Whether an order's shipping has committed its row."""
        entity = self.world.handlers["shipping"].entity
        where, key = place(self.world.settings.namespace, entity, "shipping", order)
        return effect_key(key, "shipped") in self.world.server.claims.rows(where)

    # -- the rows as the server has them ------------------------------------------------------------------------

    def row(self, handler: Handler, key: str) -> MessageRow | None:
        """The claim of a message."""
        return self._row(*place(self.world.settings.namespace, handler.entity, handler.name, key))

    def _row(self, partition: str, key: str) -> MessageRow | None:
        row = self.world.server.claims.rows(partition).get(key)
        return None if row is None else self._decoded(row)

    def _rows(self) -> Iterator[MessageRow]:
        for partition in self.world.server.claims.partitions():
            for key, row in self.world.server.claims.rows(partition).items():
                if key.startswith("claim:"):
                    yield self._decoded(row)

    def _decoded(self, row: Row) -> MessageRow:
        if row.etag not in self._read:
            self._read[row.etag] = decode_message(row)
        return self._read[row.etag]
