"""A message broker in memory with locks, delays, duplicate detection and dead letters, reached through a boundary."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runonce.errors import TransportError
from runonce.transports.copies import copy_of
from runonce.transports.protocols import Delivery, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.definition import Handler
    from runonce.testing import ManualClock
    from runonce.testing.faults import Boundary
    from runonce.transports.settlement import Settlement

LOCK = 30.0


@dataclass(eq=False)
class _Message:
    sent: Outgoing
    visible_at: float
    deliveries: int = 0
    token: int = 0


@dataclass
class MemoryBroker:
    """What the broker's own process knows; nothing here fails."""

    clock: ManualClock
    window: float = 600.0
    """Seconds in which a message with the id of an earlier one is dropped; 0 drops none."""
    most: int = 10
    """Deliveries after which a message is put aside."""
    waiting: dict[str, list[_Message]] = field(default_factory=dict)
    dead: list[tuple[Outgoing, str, str]] = field(default_factory=list)
    sent: list[tuple[str, Outgoing]] = field(default_factory=list)
    """Everything that was taken in, and everything that was dropped as a duplicate."""
    _seen: dict[tuple[str, str], float] = field(default_factory=dict)
    _tokens: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to deliver, now or later."""
        return not any(self.waiting.values())

    def put(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Take messages in."""
        now = self.clock.elapsed()
        for message in messages:
            self.sent.append((entity, message))
            name = (entity, message.message_id)
            if message.message_id and name in self._seen and now - self._seen[name] < self.window:
                continue
            self._seen[name] = now
            wait = (
                0.0 if message.at is None else 1.0
            )  # a copy's time is of the real clock, which stands still here
            self.waiting.setdefault(entity, []).append(_Message(message, now + wait))

    def take(self, entity: str) -> tuple[_Message, int] | None:
        """Lock the next message."""
        now = self.clock.elapsed()
        for message in list(self.waiting.get(entity, [])):
            if message.visible_at > now:
                continue
            if message.deliveries >= self.most:
                self.waiting[entity].remove(message)
                self.dead.append((message.sent, "MaxDeliveryCountExceeded", ""))
                continue
            message.deliveries += 1
            message.visible_at = now + LOCK
            message.token = next(self._tokens)
            return message, message.token
        return None

    def end(self, entity: str, message: _Message, token: int, *, why: tuple[str, str] | None = None) -> None:
        """Remove a locked message, or put it aside."""
        if message.token != token or message not in self.waiting.get(entity, []):
            raise TransportError("The lock was lost.")
        self.waiting[entity].remove(message)
        if why is not None:
            self.dead.append((message.sent, *why))


class BrokerSender:
    """A sender of one process."""

    def __init__(self, broker: MemoryBroker, boundary: Boundary) -> None:
        self._broker = broker
        self._boundary = boundary

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Send, across the boundary."""
        self._boundary.cross("send", lambda: self._broker.put(entity, messages), TransportError)

    def close(self) -> None:
        """Nothing is open."""


class BrokerInbox:
    """One handler's queue, for one process."""

    any_thread = False

    def __init__(self, broker: MemoryBroker, boundary: Boundary, handler: Handler) -> None:
        self._broker = broker
        self._boundary = boundary
        self._handler = handler
        self._sender = BrokerSender(broker, boundary)

    def receive(self, count: int, wait: float) -> list[Received]:
        """At most one, without waiting."""
        del count, wait
        found = self._cross("receive", lambda: self._broker.take(self._handler.queue))
        if found is None:
            return []
        message, token = found
        sent = message.sent
        delivery = Delivery(
            body=sent.body,
            message_id=sent.message_id,
            delivery_count=message.deliveries,
            correlation_id=sent.correlation_id,
            properties=sent.properties,
            reschedules=sent.reschedules,
            sent_as=sent.sent_as,
            sequence=str(id(message)),
        )
        return [Received(delivery, (message, token))]

    def settle(self, received: Received, settlement: Settlement) -> None:
        """As a real one: a copy to come later is sent before the message is removed."""
        entity = self._handler.queue
        message, token = received.native
        match settlement:
            case Complete():
                self._cross("complete", lambda: self._broker.end(entity, message, token))
            case DeadLetter(reason, description):
                why = (reason, description)
                self._cross("dead-letter", lambda: self._broker.end(entity, message, token, why=why))
            case Reschedule(delay):
                self._sender.send(entity, [copy_of(self._handler, received.delivery, delay)])
                self._cross("complete", lambda: self._broker.end(entity, message, token))

    def _cross(self, method: str, carry_out: Callable[[], Any]) -> Any:
        return self._boundary.cross(method, carry_out, TransportError)
