"""Storage queues: a message is a text, so what a text has no room for travels in an envelope around it.

Only the toolkit's own messages have one; what others send is taken as it is, Base64 or not. Dead letters go to
`{queue}-poison`, where the Functions host puts its own, with their reason.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from runonce.errors import TransportError
from runonce.stores.azure.clients import QUICK, make_client
from runonce.stores.columns import to_text
from runonce.transports.copies import copy_of
from runonce.transports.protocols import Dead, Delivery, Outgoing, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runonce.messages.definition import Handler
    from runonce.settings import StorageConnection

POISON = "-poison"
LARGEST = 65_536
"""Bytes of a message (Azure's limit), counted after Base64."""
LONGEST_DELAY = 7 * 86_400
"""Seconds a message can be hidden (Azure's limit)."""
AT_ONCE = 32
"""Messages in one receive (Azure's limit)."""
FIRST_POLL, LONGEST_POLL = 0.1, 1.0
MARK = '{"runonce":'
TAKEN_FOR = 30


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except AzureError as error:
        raise TransportError(f"{what}: {type(error).__name__}: {str(error.message)[:300]}") from error


def wrap(message: Outgoing, **more: str) -> str:
    """The text of a message in its envelope, in Base64 as the Functions trigger expects."""
    envelope: dict[str, Any] = {
        "runonce": 1,
        "id": message.message_id,
        "correlation_id": message.correlation_id,
        "reschedules": message.reschedules,
        "sent_as": message.sent_as,
        "sent_at": to_text(_now()),
        **more,
    }
    try:
        envelope["body"] = message.body.decode()
    except UnicodeDecodeError:
        envelope["body64"] = base64.b64encode(message.body).decode()
    return base64.b64encode(json.dumps(envelope, ensure_ascii=False).encode()).decode()


def unwrap(
    text: str | bytes, *, message_id: str, delivery_count: int, enqueued_at: datetime | None
) -> tuple[Delivery, Mapping[str, Any]]:
    """A message's text as a delivery, with the envelope's other fields where there is one."""
    data = text if isinstance(text, bytes) else _bytes(text)
    envelope = _envelope(data)
    if envelope is None:
        return Delivery(data, message_id, delivery_count, enqueued_at), {}
    return (
        Delivery(
            body=envelope["body"].encode() if "body" in envelope else base64.b64decode(envelope["body64"]),
            message_id=envelope["id"] or message_id,
            delivery_count=delivery_count,
            enqueued_at=enqueued_at,
            correlation_id=envelope["correlation_id"],
            reschedules=envelope["reschedules"],
            sent_as=envelope.get("sent_as", ""),
        ),
        envelope,
    )


def _bytes(text: str) -> bytes:
    """What the text says: many senders encode it, as the Functions host does by default, and many do not."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()
    # "1234" is Base64 too; nobody encodes nothing, or text that then is no text.
    return decoded if decoded and _is_text(decoded) else text.encode()


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable() or b"\n" in data or b"\t" in data
    except UnicodeDecodeError:
        return False


def _envelope(data: bytes) -> dict[str, Any] | None:
    """The envelope, if the message is in one that is whole; anything else is somebody else's message."""
    if not data.startswith(MARK.encode()):
        return None
    try:
        envelope: dict[str, Any] = json.loads(data)
        base64.b64decode(envelope.get("body64", ""), validate=True)
        envelope.get("body", "").encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = [envelope.get("id"), envelope.get("correlation_id"), envelope.get("sent_as", "")]
    whole = all(isinstance(text, str) for text in texts) and isinstance(envelope.get("reschedules"), int)
    return envelope if whole and ("body" in envelope or "body64" in envelope) else None


class StorageTransport:
    """The queues of a storage account; `visibility` is how many seconds a received message stays hidden."""

    def __init__(self, storage: StorageConnection, visibility: int) -> None:
        self._storage = storage
        self._visibility = visibility

    def sender(self) -> StorageSender:
        return StorageSender(self._storage)

    def inbox(self, handler: Handler) -> StorageInbox:
        return StorageInbox(self._storage, handler, self._visibility)

    def dead_letters(self, handler: Handler) -> StorageDeadLetters:
        return StorageDeadLetters(self._storage, handler)


class StorageSender:
    """Sends to queues, which are made on first use."""

    def __init__(self, storage: StorageConnection) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._clients: dict[str, QueueClient] = {}

    def client(self, queue: str) -> QueueClient:
        """The SDK's client of a queue."""
        with self._lock:
            if queue not in self._clients:
                self._clients[queue] = make_client(
                    QueueClient, self._storage, "queue", QUICK, queue_name=queue
                )
            return self._clients[queue]

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            delay = 0.0 if message.at is None else (message.at - _now()).total_seconds()
            if delay > LONGEST_DELAY:
                raise TransportError(
                    f"queue {entity}: a Storage queue holds a message back for 7 days at most, and {message.at} is "
                    f"later; use Service Bus for it."
                )
            self.put(entity, wrap(message), max(0.0, delay))

    def put(self, queue: str, text: str, delay: float = 0.0) -> None:
        """Send a text as it is."""
        if len(text) > LARGEST:
            raise TransportError(
                f"queue {queue}: the message takes {len(text)} bytes in Base64, over {LARGEST}; put the data in a blob "
                f"and send its name, or use Service Bus."
            )
        client = self.client(queue)
        options = {"visibility_timeout": round(delay + 0.5) if delay > 0 else 0, "time_to_live": -1}
        with _translated(f"sending to {queue}"):
            try:
                client.send_message(text, **options)
            except ResourceNotFoundError:
                make_queue(client)
                client.send_message(text, **options)

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()


def make_queue(client: QueueClient) -> None:
    """Make a queue that may have been made meanwhile."""
    try:
        client.create_queue()
    except ResourceExistsError:
        return


class StorageInbox:
    """One handler's queue."""

    def __init__(self, storage: StorageConnection, handler: Handler, visibility: int) -> None:
        self._handler = handler
        self._queue = handler.queue
        self._visibility = visibility
        self._sender = StorageSender(storage)
        self._closed = threading.Event()

    def receive(self, count: int, wait: float) -> list[Received]:
        client = self._sender.client(self._queue)
        pause = FIRST_POLL
        while True:
            found = self._receive(client, min(count, AT_ONCE))
            if found or wait <= 0:
                return found
            self._closed.wait(min(pause, wait))
            wait -= pause
            pause = min(pause * 2, LONGEST_POLL)

    def _receive(self, client: QueueClient, count: int) -> list[Received]:
        with _translated(f"receiving from {self._queue}"):
            try:
                pages = client.receive_messages(
                    messages_per_page=count, max_messages=count, visibility_timeout=self._visibility
                )
                return [Received(_delivery(m)[0], m, self._visibility / 3) for m in pages]
            except ResourceNotFoundError:
                make_queue(client)
                return []

    def settle(self, received: Received, settlement: Settlement) -> None:
        match settlement:
            case DeadLetter(reason, description):
                put_aside(self._sender, self._queue, received.delivery, reason, description)
            case Reschedule(delay):
                self._sender.send(self._queue, [copy_of(self._handler, received.delivery, delay)])
            case Complete():
                pass
        with _translated(f"deleting a message of {self._queue}"):
            delete(self._sender.client(self._queue), received.native)

    def renew(self, received: Received) -> Received | None:
        native = received.native
        with _translated(f"renewing a message of {self._queue}"):
            try:
                again = self._sender.client(self._queue).update_message(
                    native.id, pop_receipt=native.pop_receipt, visibility_timeout=self._visibility
                )
            except HttpResponseError as error:
                if error.status_code in (400, 404):  # deleted, or received by somebody else since
                    return None
                raise
        native.pop_receipt = again.pop_receipt
        return Received(received.delivery, native, self._visibility / 3)

    def give_back(self, received: Received) -> None:
        native = received.native
        with _translated(f"giving back a message of {self._queue}"):
            try:
                self._sender.client(self._queue).update_message(
                    native.id, pop_receipt=native.pop_receipt, visibility_timeout=0
                )
            except HttpResponseError as error:
                if error.status_code not in (400, 404):
                    raise

    def close(self) -> None:
        self._closed.set()
        self._sender.close()


def put_aside(sender: StorageSender, queue: str, delivery: Delivery, reason: str, description: str) -> None:
    """Put a message into the poison queue with its reason."""
    message = Outgoing(
        delivery.body,
        delivery.message_id,
        correlation_id=delivery.correlation_id,
        reschedules=delivery.reschedules,
        sent_as=delivery.sent_as,
    )
    # A body that all but fills a message leaves the reason less room; the claim's row has all of it.
    for length in (4000, 200, 0):
        text = wrap(message, reason=reason, description=description[:length], dead_at=to_text(_now()))
        if len(text) <= LARGEST:
            break
    sender.put(queue + POISON, text)


def delete(client: QueueClient, native: Any) -> None:
    """Delete a received message; one that is gone already is what was wanted."""
    try:
        client.delete_message(native.id, pop_receipt=native.pop_receipt)
    except HttpResponseError as error:
        if error.status_code not in (400, 404):
            raise


def _delivery(native: Any) -> tuple[Delivery, Mapping[str, Any]]:
    return unwrap(
        str(native.content),
        message_id=str(native.id),
        delivery_count=int(native.dequeue_count or 1),
        enqueued_at=native.inserted_on,
    )


class StorageDeadLetters:
    """The poison queue of a handler's queue."""

    def __init__(self, storage: StorageConnection, handler: Handler) -> None:
        self._queue = handler.queue + POISON
        self._sender = StorageSender(storage)

    def peek(self, limit: int) -> list[Dead]:
        """At most 32: a Storage queue shows no more of itself without receiving."""
        with _translated(f"peeking into {self._queue}"):
            try:
                found = self._sender.client(self._queue).peek_messages(max_messages=min(limit, AT_ONCE))
            except ResourceNotFoundError:
                return []
            return [_dead(m) for m in found]

    def take(self, limit: int) -> list[Dead]:
        with _translated(f"receiving from {self._queue}"):
            try:
                pages = self._sender.client(self._queue).receive_messages(
                    messages_per_page=min(limit, AT_ONCE), max_messages=limit, visibility_timeout=TAKEN_FOR
                )
                return [_dead(m) for m in pages]
            except ResourceNotFoundError:
                return []

    def remove(self, dead: Dead) -> None:
        with _translated(f"deleting a message of {self._queue}"):
            delete(self._sender.client(self._queue), dead.native)

    def put_back(self, dead: Dead) -> None:
        native = dead.native
        with _translated(f"putting back a message of {self._queue}"):
            self._sender.client(self._queue).update_message(
                native.id, pop_receipt=native.pop_receipt, visibility_timeout=0
            )

    def close(self) -> None:
        self._sender.close()


def _dead(native: Any) -> Dead:
    delivery, envelope = _delivery(native)
    reason, description = (str(envelope.get(name, "")) for name in ("reason", "description"))
    if not reason:
        description = "put here by the Functions host after its last delivery"
    return Dead(delivery, reason, description, native.inserted_on, native, str(native.id))


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - instants for the broker, which decide nothing
