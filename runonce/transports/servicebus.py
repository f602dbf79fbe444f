"""Service Bus: queues, and topics with subscriptions.

The SDK's clients are for one thread at a time (its own documentation), so every inbox has a connection of its
own and the shared sender a lock. A link costs about half a second to open, so they are kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageLockLostError, MessageSizeExceededError, ServiceBusError

from runonce.errors import TransportError
from runonce.stores.azure.clients import credential
from runonce.transports.copies import copy_of
from runonce.transports.protocols import Dead, Delivery, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure.servicebus import ServiceBusSender

    from runonce.messages.definition import Handler
    from runonce.settings import ServiceBusConnection

RESCHEDULES, ONLY_FOR, SENT_AS = "runonce-reschedules", "runonce-only-for", "runonce-sent-as"
"""Application properties of the toolkit's own copies."""
OPENING = 5.0
"""Seconds a fresh receiver gets for its first messages: opening the link counts into the wait."""
RETRIES: dict[str, Any] = {"retry_total": 2, "retry_backoff_factor": 0.2, "retry_backoff_max": 5}
"""The SDK's own tries in one call; above them, consumers try again for ever and messages come again."""
LONGEST_REASON = 4096
"""Characters of a dead letter's reason and description (Service Bus' own limit)."""

logging.getLogger("azure.servicebus").setLevel(logging.WARNING)


def _client(connection: ServiceBusConnection) -> ServiceBusClient:
    if connection.connection_string is not None:
        return ServiceBusClient.from_connection_string(connection.connection_string, **RETRIES)
    signs_in = credential(connection.client_id)
    return ServiceBusClient(connection.fully_qualified_namespace, signs_in, **RETRIES)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (ServiceBusError, OSError, ValueError) as error:
        raise TransportError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error


class ServiceBusTransport:
    """A Service Bus namespace."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._connection = connection

    def sender(self) -> ServiceBusSenders:
        return ServiceBusSenders(self._connection)

    def inbox(self, handler: Handler) -> ServiceBusInbox:
        return ServiceBusInbox(self._connection, handler)

    def dead_letters(self, handler: Handler) -> ServiceBusDeadLetters:
        return ServiceBusDeadLetters(self._connection, handler)


class ServiceBusSenders:
    """One sender for each entity, opened on first use and opened anew after an error."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._client: ServiceBusClient | None = None
        self._senders: dict[str, ServiceBusSender] = {}

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Send to a queue or topic; raises TransportError."""
        with self._lock, _translated(f"sending to {entity}"):
            try:
                self._send(self._sender(entity), [_native(message) for message in messages])
            except MessageSizeExceededError:
                raise  # of that message; the link is fine
            except ServiceBusError:
                self._close()  # a broken link does not mend itself
                raise

    def _sender(self, entity: str) -> ServiceBusSender:
        if self._client is None:
            self._client = _client(self._connection)
        if entity not in self._senders:
            self._senders[entity] = self._client.get_queue_sender(
                entity
            )  # a topic's address is of the same form
        return self._senders[entity]

    def _send(self, sender: ServiceBusSender, messages: list[ServiceBusMessage]) -> None:
        """In as few batches as their sizes allow."""
        batch = sender.create_message_batch()
        for message in messages:
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                if len(batch) == 0:
                    raise
                sender.send_messages(batch)
                batch = sender.create_message_batch()
                batch.add_message(message)
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


def _native(message: Outgoing) -> ServiceBusMessage:
    properties: dict[Any, Any] = dict(message.properties)
    if message.reschedules:
        properties[RESCHEDULES] = message.reschedules
    if message.only_for:
        properties[ONLY_FOR] = message.only_for
    if message.sent_as:
        properties[SENT_AS] = message.sent_as
    return ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        application_properties=properties,
        correlation_id=message.correlation_id or None,
        scheduled_enqueue_time_utc=message.at,
    )


def delivery_of(native: ServiceBusReceivedMessage) -> Delivery:
    """A received message as a delivery; the SDK counts deliveries from 0."""
    properties = {_text(k): _text(v) for k, v in (native.application_properties or {}).items()}
    own = take_own(properties)
    return Delivery(
        body=_body(native),
        message_id=str(native.message_id or ""),
        delivery_count=(native.delivery_count or 0) + 1,
        enqueued_at=native.enqueued_time_utc,
        correlation_id=str(native.correlation_id or ""),
        properties=properties,
        sequence=str(native.sequence_number or ""),
        **own,
    )


def take_own(properties: dict[str, Any]) -> dict[str, Any]:
    """Take the toolkit's own properties out, as a delivery's: how often it was sent back, whom for, as what."""
    times, only_for, sent_as = (properties.pop(name, None) for name in (RESCHEDULES, ONLY_FOR, SENT_AS))
    return {
        "reschedules": times if isinstance(times, int) else 0,
        "only_for": only_for if isinstance(only_for, str) else "",
        "sent_as": sent_as if isinstance(sent_as, str) else "",
    }


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _body(native: ServiceBusReceivedMessage) -> bytes:
    body = native.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    try:
        return b"".join(body)
    except TypeError:  # an AMQP value or sequence: not bytes, so whatever reads it refuses it by its text
        return str(native).encode()


class _Receiver:
    """A receiver of one entity, opened on first use and opened anew after an error."""

    def __init__(self, connection: ServiceBusConnection, handler: Handler, *, dead: bool = False) -> None:
        self._connection = connection
        self._handler = handler
        self._dead = dead
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def call(self, what: str, call: Callable[[ServiceBusReceiver], Any]) -> Any:
        with _translated(f"{what} {self._handler.entity}"):
            try:
                return call(self._open())
            except MessageLockLostError:
                raise  # of that message; the link is fine
            except (ServiceBusError, OSError, ValueError):
                self.close()
                raise

    @property
    def is_open(self) -> bool:
        return self._receiver is not None

    def _open(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._client = _client(self._connection)
            sub_queue = ServiceBusSubQueue.DEAD_LETTER if self._dead else None
            if self._handler.subscription is None:
                self._receiver = self._client.get_queue_receiver(self._handler.queue, sub_queue=sub_queue)
            else:
                self._receiver = self._client.get_subscription_receiver(
                    self._handler.queue, self._handler.subscription, sub_queue=sub_queue
                )
        return self._receiver

    def close(self) -> None:
        for link in (self._receiver, self._client):
            if link is not None:
                with contextlib.suppress(ServiceBusError, OSError, ValueError):
                    link.close()
        self._receiver = self._client = None


class ServiceBusInbox:
    """One handler's queue or subscription."""

    def __init__(self, connection: ServiceBusConnection, handler: Handler) -> None:
        self._handler = handler
        self._receiver = _Receiver(connection, handler)
        self._sender = ServiceBusSenders(connection)

    def receive(self, count: int, wait: float) -> list[Received]:
        patience = wait if self._receiver.is_open else max(wait, OPENING)
        messages = self._receiver.call(
            "receiving from", lambda r: r.receive_messages(max_message_count=count, max_wait_time=patience)
        )
        return [Received(delivery_of(m), m, _renew_in(m)) for m in messages]

    def settle(self, received: Received, settlement: Settlement) -> None:
        native = received.native
        match settlement:
            case Complete():
                self._receiver.call("completing a message of", lambda r: r.complete_message(native))
            case DeadLetter(reason, description):
                self._receiver.call(
                    "dead-lettering a message of",
                    lambda r: r.dead_letter_message(
                        native, reason=reason[:LONGEST_REASON], error_description=description[:LONGEST_REASON]
                    ),
                )
            case Reschedule(delay):
                self._sender.send(self._handler.queue, [copy_of(self._handler, received.delivery, delay)])
                self._receiver.call("completing a message of", lambda r: r.complete_message(native))

    def renew(self, received: Received) -> Received | None:
        try:
            self._receiver.call("renewing a message of", lambda r: r.renew_message_lock(received.native))
        except TransportError as error:
            if isinstance(error.__cause__, MessageLockLostError):
                return None
            raise
        return Received(received.delivery, received.native, _renew_in(received.native))

    def give_back(self, received: Received) -> None:
        self._receiver.call("abandoning a message of", lambda r: r.abandon_message(received.native))

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


def _renew_in(native: ServiceBusReceivedMessage) -> float:
    """Half of what is left of the lock, by our clock: if that is wrong, the claim still decides."""
    until = native.locked_until_utc
    if until is None:
        return 10.0
    left = (until - datetime.now(UTC)).total_seconds()  # noqa: TID251 - the broker's instant, for a wait only
    return min(60.0, max(0.5, left / 2))


class ServiceBusDeadLetters:
    """The dead-letter queue of a queue or subscription."""

    def __init__(self, connection: ServiceBusConnection, handler: Handler) -> None:
        self._receiver = _Receiver(connection, handler, dead=True)

    def peek(self, limit: int) -> list[Dead]:
        found: list[Dead] = []
        page = self._peek(limit, 1)  # with 0 the SDK goes on from where it looked last
        while page and len(found) < limit:
            found += [_dead(m) for m in page]
            page = self._peek(limit - len(found), max(m.sequence_number or 0 for m in page) + 1)
        return found

    def _peek(self, limit: int, after: int) -> list[ServiceBusReceivedMessage]:
        def peek(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
            return receiver.peek_messages(
                max_message_count=min(100, limit), sequence_number=after, timeout=20
            )

        return list(self._receiver.call("peeking into the dead letters of", peek)) if limit > 0 else []

    def take(self, limit: int) -> list[Dead]:
        patience = 1.0 if self._receiver.is_open else OPENING
        messages = self._receiver.call(
            "receiving the dead letters of",
            lambda r: r.receive_messages(max_message_count=limit, max_wait_time=patience),
        )
        return [_dead(m) for m in messages]

    def remove(self, dead: Dead) -> None:
        self._receiver.call("removing a dead letter of", lambda r: r.complete_message(dead.native))

    def put_back(self, dead: Dead) -> None:
        self._receiver.call("putting back a dead letter of", lambda r: r.abandon_message(dead.native))

    def close(self) -> None:
        self._receiver.close()


def _dead(native: ServiceBusReceivedMessage) -> Dead:
    return Dead(
        delivery=delivery_of(native),
        reason=str(native.dead_letter_reason or ""),
        description=str(native.dead_letter_error_description or ""),
        dead_at=None,
        native=native,
        place=str(native.sequence_number),
    )
