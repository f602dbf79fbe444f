"""A broker as its server sees it (locks, delays, duplicate detection, dead letters), and a host's way to it.

It does what Service Bus documents of queues, of topics whose subscriptions forward to a queue, and of dead-letter
queues; how it differs is in docs/tested.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runonce.errors import TransportError
from runonce.transports import copies
from runonce.transports.protocols import Backlog, Dead, Delivery, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from runonce.clock import Clock
    from runonce.errors import RunonceError
    from runonce.messages.definition import Handler
    from runonce.transports.settlement import Settlement

TAKEN = 30.0
"""Seconds that a dead letter is kept from others, at most."""


@dataclass(eq=False)
class Held:
    """A message in a queue."""

    sent: Outgoing
    number: int
    enqueued_at: datetime
    visible_at: float
    deliveries: int = 0
    receipt: int = 0
    """Of its latest delivery; another one settles nothing."""
    reason: str = ""
    description: str = ""

    def delivery(self) -> Delivery:
        """As it is received now."""
        sent = self.sent
        return Delivery(
            sent.body,
            sent.message_id,
            self.deliveries,
            self.enqueued_at,
            sent.correlation_id,
            sent.properties,
            sent.reschedules,
            sent_as=sent.sent_as,
            sequence=str(self.number),
            dead=sent.dead,
        )


class Broker:
    """The server: nothing here fails, and its clock is right."""

    most: float = 10
    """Deliveries after which a message is put aside."""

    def __init__(
        self,
        clock: Clock,
        topics: Mapping[str, Sequence[str]],
        window: float,
        *,
        lock: float = 30.0,
        shows: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self.clock = clock
        self._lock = lock
        """Seconds that a received message is kept from others."""
        self._shows = shows
        """Told of each queue when something can be received from it."""
        self._topics = topics
        self._window = window
        """Seconds in which a message with an id that was seen is dropped."""
        self._seen: dict[tuple[str, str], float] = {}
        self._numbers = 0
        self.queues: dict[str, list[Held]] = {}
        self.dead: dict[str, list[Held]] = {}

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Take messages in; a topic gives one to each of its queues."""
        for message in messages:
            if self._is_new(entity, message.message_id):
                for queue in self._topics.get(entity, (entity,)):
                    self._put(queue, message)

    def _is_new(self, entity: str, message_id: str) -> bool:
        now, known = self.clock.elapsed(), (entity, message_id)
        is_known = message_id and now - self._seen.get(known, float("-inf")) < self._window
        if not is_known:
            self._seen[known] = now
        return not is_known

    def _put(self, queue: str, message: Outgoing) -> None:
        self._numbers += 1
        delay = 0.0 if message.at is None else (message.at - self.clock.now()).total_seconds()
        visible_at = self.clock.elapsed() + max(0.0, delay)
        held = Held(message, self._numbers, self.clock.now(), visible_at)
        self.queues.setdefault(queue, []).append(held)
        self._shows(queue, visible_at)

    def waits(self, queue: str) -> bool:
        """Whether anything can be received now."""
        now = self.clock.elapsed()
        return any(held.visible_at <= now for held in self.queues.get(queue, ()))

    def receive(self, queue: str, count: int, *, dead: bool = False) -> list[tuple[Held, int, Delivery]]:
        """Lock up to so many; one that was delivered too often is put aside instead."""
        now, waiting = self.clock.elapsed(), (self.dead if dead else self.queues).get(queue, [])
        found: list[tuple[Held, int, Delivery]] = []
        for held in [held for held in waiting if held.visible_at <= now]:
            if len(found) == count:
                break
            if held.deliveries >= self.most and not dead:
                self._put_aside(queue, held, "MaxDeliveryCountExceeded", "")
                continue
            held.deliveries += 1
            held.receipt += 1
            held.visible_at = now + (min(TAKEN, self._lock) if dead else self._lock)
            self._shows(queue, held.visible_at)
            found.append((held, held.receipt, held.delivery()))
        return found

    def settle(
        self, queue: str, held: Held, receipt: int, why: tuple[str, str] | None = None, *, dead: bool = False
    ) -> None:
        """Remove a locked message, or put it aside; raises TransportError once its lock is lost."""
        self._check(held, receipt)
        if why is not None:
            self._put_aside(queue, held, *why)
        else:
            (self.dead if dead else self.queues)[queue].remove(held)
        held.receipt += 1

    def renew(self, queue: str, held: Held, receipt: int) -> bool:
        """Lock it for another term; False once its lock is lost."""
        try:
            self._check(held, receipt)
        except TransportError:
            return False
        held.visible_at = self.clock.elapsed() + self._lock
        self._shows(queue, held.visible_at)
        return True

    def give_back(self, queue: str, held: Held, receipt: int) -> None:
        """Let it be received at once; raises as `settle`."""
        self._check(held, receipt)
        held.visible_at = self.clock.elapsed()
        held.receipt += 1
        self._shows(queue, held.visible_at)

    def lose_locks(self) -> None:
        """As after a failover."""
        for queue, helds in (*self.queues.items(), *self.dead.items()):
            for held in helds:
                if held.receipt and held.visible_at <= self.clock.elapsed() + self._lock:
                    held.receipt += 1
                    held.visible_at = min(held.visible_at, self.clock.elapsed())
            self._shows(queue, self.clock.elapsed())

    def _check(self, held: Held, receipt: int) -> None:
        if held.receipt != receipt or held.visible_at <= self.clock.elapsed():
            raise TransportError("The lock was lost.")

    def _put_aside(self, queue: str, held: Held, reason: str, description: str) -> None:
        self.queues[queue].remove(held)
        held.reason, held.description, held.visible_at = reason, description, self.clock.elapsed()
        self.dead.setdefault(queue, []).append(held)


class Way(Protocol):
    """What lies between a host and the broker; `wire` has the one on which things go wrong."""

    cut: bool

    def call(self, name: str, carry_out: Callable[[], Any], *, error: type[RunonceError]) -> Any:
        """Carry out a call."""
        ...

    def idle(self, queue: str, seconds: float) -> None:
        """Wait so long for what may come to a queue."""
        ...


class SimTransport:
    """A host's transport."""

    def __init__(self, broker: Broker, wire: Way, clock: Clock, *, any_thread: bool) -> None:
        self.broker = broker
        self.wire = wire
        self.clock = clock
        self.any_thread = any_thread
        self.gives_back = False
        """Whether what is handled is given back instead of completed, as a Functions host does while it stops."""

    def sender(self) -> SimLink:
        return SimLink(self)

    def inbox(self, handler: Handler) -> SimLink:
        return SimLink(self, handler)

    def dead_letters(self, handler: Handler) -> SimDeadLetters:
        return SimDeadLetters(self, handler)

    def backlog(self, handler: Handler) -> Backlog:
        waiting, dead = (of.get(handler.queue, []) for of in (self.broker.queues, self.broker.dead))
        oldest = min((held.enqueued_at for held in waiting), default=None)
        return Backlog(len(waiting), len(dead), oldest)


class SimLink:
    """A sender, or an inbox: it settles in the order of the real one's calls."""

    def __init__(self, transport: SimTransport, handler: Handler | None = None) -> None:
        self._transport = transport
        self._broker = transport.broker
        self._handler = handler
        self.queue = "" if handler is None else handler.queue
        self.any_thread = transport.any_thread

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        self._call("send", lambda: self._broker.send(entity, messages))

    def receive(self, count: int, wait: float) -> list[Received]:
        wire = self._transport.wire
        if not (wire.cut or self._broker.waits(self.queue)):
            # A call that waits for what may come. Whoever waits goes on when it does, and makes the call that counts.
            wire.idle(self.queue, wait)
            return []
        found = self._call("receive", lambda: self._broker.receive(self.queue, count))
        return [self._received(*one) for one in found]

    def _received(self, held: Held, receipt: int, delivery: Delivery) -> Received:
        return Received(delivery, (held, receipt), self._renew_in(held))

    def _renew_in(self, held: Held) -> float:
        """By the host's clock, which may be wrong, as the real one."""
        clock = self._transport.clock
        ahead = (clock.now() - self._broker.clock.now()).total_seconds()
        return min(60.0, max(0.5, (held.visible_at - clock.elapsed() - ahead) / 2))

    def settle(self, received: Received, settlement: Settlement) -> None:
        held, receipt = received.native
        assert self._handler is not None  # noqa: S101 - an inbox has one
        match settlement:
            case Complete() if self._transport.gives_back:
                self.give_back(received)
            case Complete():
                self._call("complete", lambda: self._broker.settle(self.queue, held, receipt))
            case DeadLetter(reason, description):
                why = (reason, description)
                self._call("dead-letter", lambda: self._broker.settle(self.queue, held, receipt, why))
            case Reschedule(delay):
                self.send(self.queue, [copies.copy_of(self._handler, received.delivery, delay)])
                self._call("complete", lambda: self._broker.settle(self.queue, held, receipt))

    def renew(self, received: Received) -> Received | None:
        held, receipt = received.native
        is_ours = self._call("renew message", lambda: self._broker.renew(self.queue, held, receipt))
        return Received(received.delivery, received.native, self._renew_in(held)) if is_ours else None

    def give_back(self, received: Received) -> None:
        self._call("give back", lambda: self._broker.give_back(self.queue, *received.native))

    def close(self) -> None:
        pass

    def _call(self, name: str, carry_out: Callable[[], Any]) -> Any:
        return self._transport.wire.call(name, carry_out, error=TransportError)


class SimDeadLetters:
    """A handler's dead letters."""

    def __init__(self, transport: SimTransport, handler: Handler) -> None:
        self._wire = transport.wire
        self._broker = transport.broker
        self.queue = handler.queue

    def peek(self, limit: int) -> list[Dead]:
        def found() -> list[Dead]:
            return [
                self._dead(held, 0, held.delivery()) for held in self._broker.dead.get(self.queue, [])[:limit]
            ]

        return list(self._wire.call("peek", found, error=TransportError))

    def take(self, limit: int) -> list[Dead]:
        taken = self._wire.call(
            "take", lambda: self._broker.receive(self.queue, limit, dead=True), error=TransportError
        )
        return [self._dead(*one) for one in taken]

    @staticmethod
    def _dead(held: Held, receipt: int, delivery: Delivery) -> Dead:
        # Of one whose reason it carries itself, the broker knows only how often it was delivered.
        reason, description = delivery.dead or (held.reason, held.description)
        return Dead(delivery, reason, description, None, (held, receipt), str(held.number))

    def remove(self, dead: Dead) -> None:
        held, receipt = dead.native
        self._wire.call(
            "remove",
            lambda: self._broker.settle(self.queue, held, receipt, dead=True),
            error=TransportError,
        )

    def put_back(self, dead: Dead) -> None:
        self._wire.call(
            "put back", lambda: self._broker.give_back(self.queue, *dead.native), error=TransportError
        )

    def close(self) -> None:
        pass
