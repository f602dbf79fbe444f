"""Service Bus: queues, and topics with subscriptions that forward to queues.

The SDK's clients are for one thread at a time (its own documentation), so every inbox has a connection of its
own and the shared sender a lock. A link costs about half a second to open, so they are kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessageState
from azure.servicebus.exceptions import MessageLockLostError, MessageSizeExceededError, ServiceBusError

from runonce.errors import TransportError
from runonce.transports.bus_messages import add_to, cut
from runonce.transports.bus_originals import ServiceBusOriginals
from runonce.transports.bus_receiver import (
    Receiver,
    open_client,
    received_by,
    translated,
)
from runonce.transports.copies import copy_of
from runonce.transports.protocols import Backlog, Dead, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure.servicebus import (
        ServiceBusClient,
        ServiceBusReceivedMessage,
        ServiceBusReceiver,
        ServiceBusSender,
    )

    from runonce.messages.definition import Handler
    from runonce.settings import ServiceBusConnection

OPENING = 5.0
"""Seconds a fresh receiver gets for its first messages: opening the link counts into the wait."""
LONGEST_UNRENEWED = 20.0
"""Seconds after which a lock is renewed at the latest, however long it lasts by our clock."""
NEVER = datetime.max.replace(tzinfo=UTC)
SHORTEST = 0.05
"""Seconds a receive waits at least; the SDK takes 0 for an error."""
PEEKED = 100
"""Messages that are counted of each entity."""

logging.getLogger("azure.servicebus").setLevel(logging.WARNING)


class ServiceBusTransport:
    """A Service Bus namespace."""

    def __init__(self, connection: ServiceBusConnection, prefix: str = "") -> None:
        self._connection = connection
        self._prefix = prefix

    def sender(self) -> ServiceBusSenders:
        return ServiceBusSenders(self._connection, self._prefix)

    def inbox(self, handler: Handler) -> ServiceBusInbox:
        return ServiceBusInbox(self._connection, handler, self._prefix)

    def dead_letters(self, handler: Handler) -> ServiceBusDeadLetters:
        return ServiceBusDeadLetters(self._connection, handler, self._prefix)

    def backlog(self, handler: Handler) -> Backlog:
        """By peeking at the first hundred of each: counting needs rights that a worker does not have."""
        sources = [(self._prefix + name, of) for name, of in handler.sources]
        waiting = [m for source in sources for m in _peeked(self._connection, source, dead=False)]
        dead = [m for source in sources for m in _peeked(self._connection, source, dead=True)]
        there = [m.enqueued_time_utc for m in waiting if m.state is ServiceBusMessageState.ACTIVE]
        oldest = min((at for at in there if at is not None), default=None)
        more = max(len(waiting), len(dead)) >= PEEKED
        return Backlog(len(waiting), len(dead), oldest, counts_begun=True, at_least=more)

    def originals(self) -> ServiceBusOriginals:
        return ServiceBusOriginals(self._connection)


def _peeked(
    connection: ServiceBusConnection, source: tuple[str, str | None], *, dead: bool
) -> list[ServiceBusReceivedMessage]:
    receiver = Receiver(connection, source, dead=dead)
    try:
        return list(
            receiver.call(
                "peeking into",
                lambda r: r.peek_messages(max_message_count=PEEKED, sequence_number=1, timeout=20),
            )
        )
    finally:
        receiver.close()


class ServiceBusSenders:
    """One sender for each entity, opened on first use and opened anew after an error."""

    def __init__(self, connection: ServiceBusConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._lock = threading.Lock()
        self._client: ServiceBusClient | None = None
        self._senders: dict[str, ServiceBusSender] = {}

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Send to a queue or topic; raises TransportError."""
        with self._lock, translated(f"sending to {self._prefix}{entity}"):
            try:
                self._send(self._sender(entity), messages)
            except MessageSizeExceededError:
                raise  # of that message; the link is fine
            except (AzureError, OSError):
                self._close()  # a broken link does not mend itself
                raise

    def _sender(self, entity: str) -> ServiceBusSender:
        if self._client is None:
            self._client = open_client(self._connection)
        if entity not in self._senders:
            name = self._prefix + entity  # a topic's address is of the same form
            self._senders[entity] = self._client.get_queue_sender(name)
        return self._senders[entity]

    def _send(self, sender: ServiceBusSender, messages: Sequence[Outgoing]) -> None:
        """In as few batches as their sizes allow."""
        batch = sender.create_message_batch()
        for message in messages:
            try:
                add_to(batch, message)
            except MessageSizeExceededError:
                if len(batch) == 0:
                    raise
                sender.send_messages(batch)
                batch = sender.create_message_batch()
                add_to(batch, message)
        sender.send_messages(batch)

    def close(self) -> None:
        """Let the connection go."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for link in (*self._senders.values(), self._client):
            if link is not None:
                with contextlib.suppress(ServiceBusError, OSError, ValueError):
                    link.close()
        self._senders, self._client = {}, None


class ServiceBusInbox:
    """One handler's queue, and the subscription beside it where that does not forward."""

    any_thread = False

    def __init__(self, connection: ServiceBusConnection, handler: Handler, prefix: str) -> None:
        self._handler = handler
        self._receivers = [Receiver(connection, (prefix + name, of)) for name, of in handler.sources]
        self._sender = ServiceBusSenders(connection, prefix)

    def receive(self, count: int, wait: float) -> list[Received]:
        found: list[Received] = []
        for receiver in self._receivers:
            if count > len(found):
                found += self._receive(receiver, count - len(found), wait / len(self._receivers))
        self._receivers.reverse()  # neither waits for the other to be empty
        return found

    def _receive(self, receiver: Receiver, count: int, wait: float) -> list[Received]:
        patience = max(wait, SHORTEST) if receiver.is_open else max(wait, OPENING)
        messages = receiver.call(
            "receiving from", lambda r: r.receive_messages(max_message_count=count, max_wait_time=patience)
        )
        return [Received(received_by(receiver, m), (receiver, m), _held(m)) for m in messages]

    def settle(self, received: Received, settlement: Settlement) -> None:
        receiver, native = received.native
        match settlement:
            case Complete():
                receiver.call("completing a message of", lambda r: r.complete_message(native))
            case DeadLetter(reason, description):
                receiver.call(
                    "dead-lettering a message of",
                    lambda r: r.dead_letter_message(
                        native, reason=cut(reason), error_description=cut(description)
                    ),
                )
            case Reschedule(delay):
                self._sender.send(self._handler.queue, [copy_of(self._handler, received.delivery, delay)])
                receiver.call("completing a message of", lambda r: r.complete_message(native))

    def renew(self, received: Received) -> Received | None:
        receiver, native = received.native
        try:
            receiver.call("renewing a message of", lambda r: r.renew_message_lock(native))
        except TransportError as error:
            if isinstance(error.__cause__, MessageLockLostError):
                return None
            raise
        return Received(received.delivery, received.native, _held(native))

    def give_back(self, received: Received) -> None:
        receiver, native = received.native
        receiver.call("abandoning a message of", lambda r: r.abandon_message(native))

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
        self._sender.close()


def _held(native: ServiceBusReceivedMessage) -> float:
    """When to renew its lock: half of what is left, by our clock; soon enough for most locks if that is wrong.

    Whether it has ended is for the broker to say: the SDK would, by our clock, and then settle nothing.
    """
    until = native.locked_until_utc
    native._expiry = NEVER  # noqa: SLF001 - what the SDK goes by
    if until is None:
        return 10.0
    left = (until - datetime.now(UTC)).total_seconds()  # noqa: TID251 - the broker's instant, for a wait only
    return min(LONGEST_UNRENEWED, max(0.5, left / 2))


class ServiceBusDeadLetters:
    """The dead-letter queues of a handler's entities."""

    def __init__(self, connection: ServiceBusConnection, handler: Handler, prefix: str) -> None:
        self._receivers = [
            Receiver(connection, (prefix + name, of), dead=True) for name, of in handler.sources
        ]

    def peek(self, limit: int) -> list[Dead]:
        found: list[Dead] = []
        for receiver in self._receivers:
            page = self._peek(
                receiver, limit - len(found), 1
            )  # with 0 the SDK goes on from where it looked last
            while page and len(found) < limit:
                found += [_dead(receiver, m) for m in page]
                after = max(m.sequence_number or 0 for m in page) + 1
                page = self._peek(receiver, limit - len(found), after)
        return found

    def _peek(self, receiver: Receiver, limit: int, after: int) -> list[ServiceBusReceivedMessage]:
        def peek(opened: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
            return opened.peek_messages(max_message_count=min(100, limit), sequence_number=after, timeout=20)

        return list(receiver.call("peeking into the dead letters of", peek)) if limit > 0 else []

    def take(self, limit: int) -> list[Dead]:
        found: list[Dead] = []
        for receiver in self._receivers:
            if (count := limit - len(found)) > 0:
                found += self._take(receiver, count)
        return found

    def _take(self, receiver: Receiver, count: int) -> list[Dead]:
        patience = 1.0 if receiver.is_open else OPENING
        messages = receiver.call(
            "receiving the dead letters of",
            lambda r: r.receive_messages(max_message_count=count, max_wait_time=patience),
        )
        return [_dead(receiver, m) for m in messages]

    def remove(self, dead: Dead) -> None:
        receiver, native = dead.native
        receiver.call("removing a dead letter of", lambda r: r.complete_message(native))

    def put_back(self, dead: Dead) -> None:
        receiver, native = dead.native
        receiver.call("putting back a dead letter of", lambda r: r.abandon_message(native))

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()


def _dead(receiver: Receiver, native: ServiceBusReceivedMessage) -> Dead:
    delivery = received_by(receiver, native)
    _held(native)
    reason, description = native.dead_letter_reason, native.dead_letter_error_description
    if delivery.dead is not None:  # the broker knows only how often it was delivered
        reason, description = delivery.dead
    return Dead(
        delivery=delivery,
        reason=str(reason or ""),
        description=str(description or ""),
        dead_at=None,
        native=(receiver, native),
        place=f"{receiver.source[1] or ''}/{native.sequence_number}",
    )
