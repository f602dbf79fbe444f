"""A queue: where a message waits, is locked, settled, deferred, and at last is gone or dead.

A message is ready (may be delivered), locked (one receiver has it), scheduled (not before its time) or
deferred (only by its sequence number). A subscription and a dead-letter queue are queues too.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from servicebus import limits
from servicebus.duplicates import SeenIds
from servicebus.errors import Dropped, Refused, Silenced, not_found, quota_exceeded
from servicebus.locks import Lock, LockTable
from servicebus.message import Message, State
from servicebus.timers import now

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from servicebus.broker import Broker
    from servicebus.entities import Settings
    from servicebus.values import Raw

_RESERVE = 1000  # sequence numbers noted as used at once: one write in a thousand instead of one a message


class Outcome(StrEnum):
    """What a receiver does with a message it holds."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"  # given back unread, which counts as no delivery


class Consumer(Protocol):
    """A receiver's link, as a queue sees it."""

    waiting: bool
    deletes: bool

    @property
    def has_credit(self) -> bool:
        """Whether it is connected and asks for more."""

    def send(self, message: bytes, lock: Lock | None) -> None:
        """Hand a message over."""

    def cut(self) -> None:
        """Cut its connection."""


class MessageQueue:
    """One queue, its locks and its receivers."""

    def __init__(
        self, broker: Broker, path: str, settings: Settings, dead_letters: MessageQueue | None = None
    ) -> None:
        self.path = path
        self.name = name = path.lower()
        self.dead_letters = dead_letters
        self._broker = broker
        self._settings = settings
        self._messages: dict[int, Message] = {}
        self._ready: list[int] = []  # a heap of sequence numbers; some may be gone by the time they come up
        self._locks = LockTable(settings.lock, broker.timers, partial(self._give_back, counted=True))
        self._seen = SeenIds(broker.store, name, settings.dedup)
        self._consumers: deque[Consumer] = deque()
        self._dispatching = False
        self._next_number = self._reserved = broker.store.reserved(name)

    def load(self) -> None:
        """Take up what an earlier broker left, once every entity is there."""
        for message in self._broker.store.messages(self.name):
            self._messages[message.sequence_number] = message
            self._place(message)

    def counts(self) -> dict[str, int]:
        """How many messages are in which state; locked ones are counted apart from the ready ones."""
        states = [message.state for message in self._messages.values() if message.lock is None]
        return {
            "active": states.count(State.ACTIVE),
            "scheduled": states.count(State.SCHEDULED),
            "deferred": states.count(State.DEFERRED),
            "locked": len(self._locks),
        }

    @property
    def size(self) -> int:
        """What it takes of its quota, dead letters included, in bytes."""
        dead = self.dead_letters.size if self.dead_letters else 0
        return dead + sum(message.size for message in self._messages.values())

    # What senders ask for

    def publish(self, encoded: Iterable[bytes]) -> list[int]:
        """Take messages in, all or (if one cannot be read) none; a duplicate's number is 0."""
        messages: list[Message] = []
        for raw in encoded:
            limits.check_size(len(raw))
            messages.append(Message.sent(raw))
            limits.check(messages[-1])
        self.check_room(messages)
        return [0 if self._seen.again(m.message_id) else self._accept(m) for m in messages]

    def check_room(self, messages: Iterable[Message]) -> None:
        """Refuse messages that its quota has no room for."""
        quota = self._settings.quota
        if quota and (size := self.size) + sum(message.size for message in messages) > quota:
            raise quota_exceeded(self.path, size, quota)

    def cancel(self, numbers: Iterable[int]) -> None:
        """Remove scheduled messages, all or none."""
        for message in self._find(numbers, State.SCHEDULED):
            self._remove(message)

    # What receivers ask for

    def attach(self, consumer: Consumer) -> None:
        """Deliver to this receiver as long as it has credit."""
        consumer.waiting = True
        self._consumers.append(consumer)

    def peek(self, start: int, count: int) -> list[bytes]:
        """Show messages in any state without locking them."""
        numbers = sorted(number for number in self._messages if number >= start)[:count]
        return [self._messages[number].encode(with_state=True) for number in numbers]

    def receive_deferred(self, numbers: Iterable[int], *, delete: bool) -> list[tuple[bytes, Lock | None]]:
        """Hand out deferred messages, all or none."""
        found: list[tuple[bytes, Lock | None]] = []
        for message in self._find(numbers, State.DEFERRED):
            lock = None if delete else self._locks.take(self, message)
            found.append((message.encode(lock.until if lock else None), lock))
            if delete:
                self._remove(message)
        return found

    def renew(self, tokens: Iterable[uuid.UUID]) -> list[float]:
        """Start the locks' time again, all or none; returns when they end."""
        locks = [self._locks.held(token) for token in tokens]
        for lock in locks:
            self._locks.renew(lock)
        return [lock.until for lock in locks]

    def settle(
        self,
        tokens: Iterable[uuid.UUID],
        outcome: Outcome,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[Raw, Raw] | None = None,
    ) -> None:
        """Decide about locked messages, all or none; properties are merged into those the messages have."""
        for lock in [self._locks.held(token) for token in dict.fromkeys(tokens)]:
            message = lock.message
            if properties and outcome is not Outcome.COMPLETE:
                message.merge(properties)
                self._broker.store.add(self.name, message)
            if outcome is Outcome.COMPLETE:
                self._locks.free(lock)
                self._remove(message)
            elif outcome is Outcome.DEAD_LETTER:
                self._locks.free(lock)
                self._bury(message, reason, description)
            elif outcome is Outcome.DEFER:
                self._locks.free(lock)
                message.state = State.DEFERRED
                message.delivery_count += 1
                self._broker.store.update(self.name, message)
            else:
                self._give_back(lock, counted=outcome is Outcome.ABANDON)

    def lose_locks(self) -> None:
        """Let every lock end at once."""
        with self._broker.store.transaction():
            self._locks.lose()

    # Inside

    def _find(self, numbers: Iterable[int], state: State) -> list[Message]:
        found: list[Message] = []
        for number in dict.fromkeys(numbers):
            message = self._messages.get(number)
            if message is None or message.lock or message.state is not state:
                raise not_found(f"{self.name} has no {state.name.lower()} message {number}.")
            found.append(message)
        return found

    def _accept(self, message: Message) -> int:
        moment = now()
        if message.scheduled_for > moment:
            message.state, message.due = State.SCHEDULED, message.scheduled_for
        message.enqueued = moment
        lifetime = min(filter(None, (message.time_to_live, self._settings.ttl)), default=None)
        message.expires = None
        if lifetime:
            message.live(lifetime)
            message.expires = max(moment, message.due) + lifetime
        self.keep(message)
        return message.sequence_number

    def arrive(self, message: Message) -> None:
        """Take in a copy that another entity passes on."""
        if not self._seen.again(message.message_id):
            self._accept(message)

    def keep(self, message: Message) -> None:
        """Number a message and store it as it is."""
        if self._next_number >= self._reserved:
            self._reserved = self._next_number + _RESERVE
            self._broker.store.reserve(self.name, self._reserved)
        message.sequence_number, self._next_number = self._next_number, self._next_number + 1
        self._messages[message.sequence_number] = message
        self._broker.store.add(self.name, message)
        self._place(message)

    def _place(self, message: Message) -> None:
        """Wait for the message's time, or make it ready."""
        if message.state is State.SCHEDULED:
            self._broker.timers.at(message.due, partial(self._come_due, message))
            return
        if message.state is State.ACTIVE:
            self._make_ready(message)
        if message.expires:
            self._broker.timers.at(message.expires, partial(self._expire, message))

    def _make_ready(self, message: Message) -> None:
        """Let the message be delivered; a relay does something else here."""
        heapq.heappush(self._ready, message.sequence_number)
        self._dispatch_soon()

    def _come_due(self, message: Message) -> None:
        if self._messages.get(message.sequence_number) is not message:
            return  # cancelled
        with self._broker.store.transaction():  # to the end of the queue, under a new number
            self._remove(message)
            message.state, message.enqueued = State.ACTIVE, message.due
            self.keep(message)

    def _expire(self, message: Message) -> None:
        here = self._messages.get(message.sequence_number) is message
        if not here or message.lock or message.state is State.SCHEDULED:
            return  # a locked message gets its turn when the lock ends: see _take and _give_back
        if self._settings.dead_letter_expired and self.dead_letters:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    def _remove(self, message: Message) -> None:
        del self._messages[message.sequence_number]
        self._broker.store.remove(self.name, message)

    def _bury(self, message: Message, reason: str | None, description: str | None) -> None:
        """Move to the dead-letter queue; in that queue itself, to its end."""
        with self._broker.store.transaction():
            self._remove(message)
            message.explain(self.path, reason, description)
            (self.dead_letters or self).keep(message)

    def _give_back(self, lock: Lock, *, counted: bool) -> None:
        """The lock is over and the message not settled: `counted` makes that a failed delivery."""
        message = lock.message
        self._locks.free(lock)
        message.delivery_count += counted
        if counted and self.dead_letters and message.delivery_count >= self._settings.max_delivery:
            text = f"Message could not be consumed after {message.delivery_count} delivery attempts."
            self._bury(message, "MaxDeliveryCountExceeded", text)
            return
        if counted:
            self._broker.store.update(self.name, message)
        if message.state is State.ACTIVE:
            self._make_ready(message)
        elif message.expires and message.expires <= now():
            self._expire(message)

    # Delivery

    def _dispatch_soon(self) -> None:
        # Not at once: the operation that made a message ready is first committed and answered.
        if not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def dispatch(self) -> None:
        """Hand ready messages to receivers with credit, one each in turn."""
        self._dispatching = False
        while self._consumers:
            consumer = self._consumers[0]
            if not consumer.has_credit:
                consumer.waiting = False
                self._consumers.popleft()
                continue
            message = self._take()
            if message is None:
                return
            self._consumers.rotate(-1)
            self._deliver(message, consumer)

    def _take(self) -> Message | None:
        """The first message that may be delivered now."""
        while self._ready:
            message = self._messages.get(heapq.heappop(self._ready))
            if message is None or message.lock or message.state is not State.ACTIVE:
                continue
            if message.expires and message.expires <= now():
                self._expire(message)
                continue
            return message
        return None

    def _deliver(self, message: Message, consumer: Consumer) -> None:
        try:
            with self._broker.operation("deliver", self.name):
                lock = None if consumer.deletes else self._locks.take(self, message)
                if lock is None:
                    self._remove(message)
        except (Dropped, Refused, Silenced) as fault:
            if message.sequence_number in self._messages and message.lock is None:
                heapq.heappush(self._ready, message.sequence_number)
            if isinstance(fault, Dropped):
                consumer.cut()
            return
        consumer.send(message.encode(lock.until if lock else None), lock)
