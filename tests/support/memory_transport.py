"""A broker in memory that keeps to the protocols of `runonce.transports`: for consumers and commands without I/O."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from runonce.transports.copies import copy_of, known_as
from runonce.transports.protocols import Backlog, Dead, Delivery, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.clock import Clock
    from runonce.errors import TransportError
    from runonce.messages.definition import Handler
    from runonce.transports.settlement import Settlement


@dataclass(eq=False)
class Held:
    """A message in a queue."""

    delivery: Delivery
    visible_at: float = 0.0
    receipt: int = 0
    reason: str = ""
    description: str = ""


@dataclass(eq=False)
class MemoryTransport:
    """Queues by name; `X/dead` has the dead letters of X. `fail` holds errors for the next calls of a method."""

    clock: Clock
    lock: float = 30.0
    queues: dict[str, list[Held]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    """What happened, as "renew m-1", to the message known by that id."""
    fail: dict[str, list[TransportError]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())

    def sender(self) -> MemorySide:
        return MemorySide(self, "")

    def inbox(self, handler: Handler) -> MemorySide:
        return MemorySide(self, handler.queue, handler)

    def dead_letters(self, handler: Handler) -> MemorySide:
        return MemorySide(self, f"{handler.queue}/dead", handler)

    def backlog(self, handler: Handler) -> Backlog:
        with self.changed:
            waiting = self.queues.get(handler.queue, [])
            oldest = min(
                (held.delivery.enqueued_at for held in waiting if held.delivery.enqueued_at), default=None
            )
            dead = len(self.queues.get(f"{handler.queue}/dead", []))
            return Backlog(len(waiting), dead, oldest, counts_begun=True)

    def bodies(self, queue: str) -> list[bytes]:
        """The bodies of what is in a queue, hidden or not."""
        with self.changed:
            return [held.delivery.body for held in self.queues.get(queue, [])]

    def wait_for(self, event: str, timeout: float = 10.0) -> None:
        """Wait until that has happened."""
        with self.changed:
            assert self.changed.wait_for(lambda: event in self.events, timeout), (event, self.events)

    def note(self, event: str, method: str) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()
            if self.fail.get(method):
                raise self.fail[method].pop(0)


class MemorySide:
    """A sender, an inbox, or dead letters."""

    any_thread = False

    def __init__(self, broker: MemoryTransport, queue: str, handler: Handler | None = None) -> None:
        self._broker = broker
        self._queue = queue
        self._handler = handler

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        broker = self._broker
        for message in messages:
            broker.note(f"send {message.sent_as or message.message_id}", "send")
            delay = 0.0 if message.at is None else (message.at - broker.clock.now()).total_seconds()
            delivery = Delivery(
                message.body,
                message.message_id,
                0,
                broker.clock.now(),
                message.correlation_id,
                message.properties,
                message.reschedules,
                sent_as=message.sent_as,
            )
            with broker.changed:
                held = Held(delivery, broker.clock.elapsed() + max(0.0, delay))
                broker.queues.setdefault(entity, []).append(held)
                broker.changed.notify_all()

    def receive(self, count: int, wait: float) -> list[Received]:
        broker = self._broker
        broker.note(f"receive {count}", "receive")
        with broker.changed:
            broker.changed.wait_for(lambda: bool(self._visible()), wait)
            found = []
            for held in self._visible()[:count]:
                held.receipt += 1
                held.visible_at = broker.clock.elapsed() + broker.lock
                held.delivery = replace(held.delivery, delivery_count=held.delivery.delivery_count + 1)
                found.append(Received(held.delivery, (held, held.receipt), broker.lock / 3))
            return found

    def _visible(self) -> list[Held]:
        now = self._broker.clock.elapsed()
        return [held for held in self._broker.queues.get(self._queue, []) if held.visible_at <= now]

    def settle(self, received: Received, settlement: Settlement) -> None:
        broker, (held, receipt) = self._broker, received.native
        assert self._handler is not None
        match settlement:
            case Reschedule(delay):
                self.send(self._queue, [copy_of(self._handler, received.delivery, delay)])
            case DeadLetter(reason, description):
                with broker.changed:
                    dead = Held(received.delivery, 0.0, 0, reason, description)
                    broker.queues.setdefault(f"{self._queue}/dead", []).append(dead)
            case Complete():
                pass
        broker.note(f"settle {known_as(received.delivery)} {type(settlement).__name__}", "settle")
        self._delete(held, receipt)

    def _delete(self, held: Held, receipt: int) -> None:
        with self._broker.changed:
            if held.receipt == receipt and held in self._broker.queues[self._queue]:
                self._broker.queues[self._queue].remove(held)
            self._broker.changed.notify_all()

    def renew(self, received: Received) -> Received | None:
        broker, (held, receipt) = self._broker, received.native
        broker.note(f"renew {known_as(received.delivery)}", "renew")
        with broker.changed:
            if held.receipt != receipt:
                return None
            held.visible_at = broker.clock.elapsed() + broker.lock
            return received

    def give_back(self, received: Received) -> None:
        held, _ = received.native
        self._broker.note(f"give back {known_as(received.delivery)}", "give_back")
        with self._broker.changed:
            held.visible_at = 0.0

    def peek(self, limit: int) -> list[Dead]:
        with self._broker.changed:
            return [self._dead(held) for held in self._broker.queues.get(self._queue, [])[:limit]]

    def take(self, limit: int) -> list[Dead]:
        return [self._dead(received.native[0]) for received in self.receive(limit, 0.0)]

    def _dead(self, held: Held) -> Dead:
        now = self._broker.clock.now()
        return Dead(held.delivery, held.reason, held.description, now, held, str(id(held)))

    def remove(self, dead: Dead) -> None:
        self._broker.note(f"remove {known_as(dead.delivery)}", "remove")
        self._delete(dead.native, dead.native.receipt)

    def put_back(self, dead: Dead) -> None:
        self._broker.note(f"put back {known_as(dead.delivery)}", "put_back")
        with self._broker.changed:
            dead.native.visible_at = 0.0

    def close(self) -> None:
        self._broker.note(f"close {self._queue or 'sender'}", "close")
