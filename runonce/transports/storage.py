"""Storage queues: a message is a text, so what a text has no room for travels in an envelope around it.

Only the toolkit's own messages have one; what others send is taken as it is, Base64 or not. What is to come again is
hidden for as long. Dead letters go to `{queue}-poison`, where the Functions host puts its own: the toolkit's own
messages with their reason, those of others as they came, for body and claim tell it again.
"""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError

from runonce.errors import TransportError, TransportRefusedError
from runonce.stores.azure.errors import Answer, answer, brief
from runonce.stores.azure.queues import Queue
from runonce.stores.columns import to_text
from runonce.transports.envelope import decoded, unwrap, wrap
from runonce.transports.protocols import Backlog, Dead, Delivery, Outgoing, Receipt, Received
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runonce.messages.definition import Handler
    from runonce.stores.azure.wire import Service

POISON = "-poison"
LARGEST = 65_536
"""Bytes of a message (Azure's limit), counted after Base64."""
HEADROOM = 1024
"""Bytes that a new message leaves free, for what is noted in its envelope when it is sent back or dead-lettered."""
LONGEST_DELAY = 7 * 86_400
"""Seconds a message can be hidden (Azure's limit)."""
AT_ONCE = 32
"""Messages in one receive (Azure's limit)."""
FORBIDDEN = 403
FIRST_POLL, LONGEST_POLL = 0.1, 1.0
TAKEN_FOR = 30
LAST_YEAR = 9000
"""A message that never expires does so in the year 9999, as Azure says it."""


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except AzureError as error:
        said = f"{what}: {type(error).__name__}: {brief(error)}"
        if answer(error) is Answer.PERMANENT:
            remedy = "; give this identity the role Storage Queue Data Contributor" * (
                getattr(error, "status_code", None) == FORBIDDEN
            )
            raise TransportRefusedError(said + remedy) from error
        raise TransportError(said) from error


class StorageTransport:
    """The queues of a storage account; `visibility` is how many seconds a received message stays hidden.

    All its parts ask the same service, whose connections are not theirs to close.
    """

    def __init__(self, service: Service, visibility: int, prefix: str = "") -> None:
        self._service = service
        self._visibility = visibility
        self._prefix = prefix

    def sender(self) -> StorageSender:
        return StorageSender(self._service, self._prefix)

    def inbox(self, handler: Handler) -> StorageInbox:
        return StorageInbox(self.sender(), handler, self._visibility)

    def dead_letters(self, handler: Handler) -> StorageDeadLetters:
        return StorageDeadLetters(self.sender(), handler)

    def backlog(self, handler: Handler) -> Backlog:
        """By the queues' own approximate counts, which are right but for the last seconds."""
        sender = self.sender()
        with _translated(f"counting the messages of {handler.queue}"):
            queue = sender.queue(handler.queue)
            waiting, dead = queue.count(), sender.queue(handler.queue + POISON).count()
            first = queue.peek(1) if waiting else []
        oldest = first[0].inserted_on if first else None
        return Backlog(waiting, dead, oldest, counts_begun=True)


class StorageSender:
    """Sends to queues, which are made on first use."""

    def __init__(self, service: Service, prefix: str) -> None:
        self._service = service
        self._prefix = prefix

    def queue(self, name: str) -> Queue:
        """A handler's queue, whose name in the account has the prefix."""
        return Queue(self._service, self._prefix + name)

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        for text, delay in [
            self._as_sent(entity, message) for message in messages
        ]:  # none before all are found fit
            self.put(entity, text, delay)

    def _as_sent(self, entity: str, message: Outgoing) -> tuple[str, float]:
        """A message's text, and for how long it is hidden; raises TransportRefusedError."""
        delay = 0.0 if message.at is None else max(0.0, (message.at - _now()).total_seconds())
        if delay > LONGEST_DELAY:
            raise TransportRefusedError(
                f"queue {entity}: a Storage queue holds a message back for 7 days at most, and {message.at} is "
                f"later; use Service Bus for it."
            )
        original = None if message.original is None else message.original()
        text, largest = wrap(message), LARGEST if message.reschedules else LARGEST - HEADROOM
        if len(text) > largest and original is not None:  # another sender's, which fits only as it came
            text, largest = original.decode(), LARGEST
        if len(text) > largest:
            raise TransportRefusedError(
                f"queue {entity}: the message takes {len(text)} bytes in Base64, over {largest}; put the data in a "
                f"blob and send its name, or use Service Bus."
            )
        return text, delay

    def put(self, queue: str, text: str, delay: float = 0.0) -> None:
        """Send a text as it is."""
        to = self.queue(queue)
        with _translated(f"sending to {to.name}"):
            to.send(text, hidden=_whole(delay), lives=-1)

    def remove(self, queue: str, receipt: Receipt) -> bool:
        """Delete a message in hand; False when its receipt is no longer the latest."""
        with _translated(f"deleting a message of {queue}"):
            return self.queue(queue).delete(receipt.message_id, receipt.pop_receipt)

    def show(self, queue: str, receipt: Receipt, after: float) -> bool:
        """Let it come again after some seconds, and take its new receipt; False likewise."""
        seconds = min(LONGEST_DELAY, _whole(after))
        with _translated(f"sending back a message of {queue}"):
            shown = self.queue(queue).update(receipt.message_id, receipt.pop_receipt, hidden=seconds)
        if shown is None:
            return False
        receipt.pop_receipt, receipt.is_ours = shown, True
        return True

    def close(self) -> None:
        pass  # see StorageTransport


def _receipt(native: Any) -> Receipt:
    return Receipt(str(native.id), str(native.pop_receipt))


def _whole(seconds: float) -> int:
    return round(seconds + 0.5) if seconds > 0 else 0


class StorageInbox:
    """One handler's queue."""

    any_thread = True

    def __init__(self, sender: StorageSender, handler: Handler, visibility: int) -> None:
        self._handler = handler
        self._queue = handler.queue
        self._visibility = visibility
        self._sender = sender
        self._closed = threading.Event()

    def receive(self, count: int, wait: float) -> list[Received]:
        pause = FIRST_POLL
        while True:
            found = self._receive(min(count, AT_ONCE))
            if found or wait <= 0:
                return found
            self._closed.wait(min(pause, wait))
            wait -= pause
            pause = min(pause * 2, LONGEST_POLL)

    def _receive(self, count: int) -> list[Received]:
        with _translated(f"receiving from {self._queue}"):
            found = self._sender.queue(self._queue).receive(count, hidden=self._visibility)
        return [Received(self._delivery(m), m, self._visibility / 3) for m in found]

    def _delivery(self, native: Any) -> Delivery:
        delivery, _ = _delivery(native, self._handler)
        # It is sent back by hiding it, which only its own count tells.
        return replace(delivery, reschedules=delivery.reschedules + delivery.delivery_count - 1)

    def settle(self, received: Received, settlement: Settlement) -> None:
        native = received.native
        match settlement:
            case DeadLetter():
                put_aside(self._sender, self._queue, received.delivery, settlement)
            case Reschedule(delay):
                self._hide(native, delay)
                return
            case Complete():
                pass
        self._sender.remove(self._queue, _receipt(native))

    def renew(self, received: Received) -> Received | None:
        native = received.native
        with _translated(f"renewing a message of {self._queue}"):
            receipt = self._sender.queue(self._queue).update(
                native.id, native.pop_receipt, hidden=self._visibility
            )
        if receipt is None:  # deleted, or received by somebody else since
            return None
        native.pop_receipt = receipt
        return Received(received.delivery, native, self._visibility / 3)

    def give_back(self, received: Received) -> None:
        self._hide(received.native, 0.0)

    def _hide(self, native: Any, delay: float) -> None:
        """Let a message come again after a delay; one that somebody else has by now is theirs."""
        if native.expires_on is not None:  # it cannot be hidden for longer than it lives
            delay = max(0.0, min(delay, (native.expires_on - _now()).total_seconds() - 2))
        self._sender.show(self._queue, _receipt(native), delay)

    def close(self) -> None:
        self._closed.set()


def put_aside(sender: StorageSender, queue: str, delivery: Delivery, dead: DeadLetter) -> None:
    """Put a message into the poison queue: with its reason, or another sender's in its own form."""
    original = None if delivery.original is None else delivery.original()
    if original is not None and dead.on_claim:
        sender.put(queue + POISON, original.decode())
        return
    message = Outgoing(
        delivery.body,
        delivery.message_id,
        correlation_id=delivery.correlation_id,
        properties=delivery.properties,
        reschedules=delivery.reschedules,
        sent_as=delivery.sent_as,
        original=delivery.original,
    )
    # A body that all but fills a message leaves the reason less room, or none.
    whole = dead.description
    shorter = [whole if len(whole) <= length else whole[: length - 1] + "…" for length in (4000, 200)]
    forms = [
        wrap(message, reason=dead.reason, description=description, dead_at=to_text(_now()))
        for description in (*shorter, "")
    ]
    as_it_came = (original or base64.b64encode(delivery.body)).decode()
    forms = [form for form in (*forms, wrap(message)) if len(form) <= LARGEST]
    sender.put(queue + POISON, next(iter(forms), as_it_came))


def _delivery(native: Any, handler: Handler) -> tuple[Delivery, Mapping[str, Any]]:
    count = int(native.dequeue_count or 1)
    try:
        return unwrap(
            str(native.content),
            message_id=str(native.id),
            delivery_count=count,
            enqueued_at=native.inserted_on,
            encoding=handler.queue_encoding,
        )
    except Exception as error:  # noqa: BLE001 - one message must not keep the others of its page back
        unreadable = f"of a form that cannot be read ({type(error).__name__})"
        text = str(native.content).encode()
        return Delivery(
            b"", str(native.id), count, native.inserted_on, unreadable=unreadable, original=lambda: text
        ), {}


class StorageDeadLetters:
    """The poison queue of a handler's queue."""

    def __init__(self, sender: StorageSender, handler: Handler) -> None:
        self._handler = handler
        self._queue = handler.queue + POISON
        self._sender = sender

    def peek(self, limit: int) -> list[Dead]:
        """At most 32: a Storage queue shows no more of itself without receiving."""
        with _translated(f"peeking into {self._queue}"):
            found = self._sender.queue(self._queue).peek(min(limit, AT_ONCE))
        return [_dead(m, self._handler) for m in found]

    def take(self, limit: int) -> list[Dead]:
        taken: list[Dead] = []
        with _translated(f"receiving from {self._queue}"):
            while len(taken) < limit:
                count = min(limit - len(taken), AT_ONCE)
                found = self._sender.queue(self._queue).receive(count, hidden=TAKEN_FOR, make=False)
                taken += [_dead(m, self._handler) for m in found]
                if len(found) < count:
                    break
        return taken

    def remove(self, dead: Dead) -> None:
        self._sender.remove(self._queue, _receipt(dead.native))

    def put_back(self, dead: Dead) -> None:
        self._sender.show(self._queue, _receipt(dead.native), 0.0)

    def close(self) -> None:
        pass  # see StorageTransport


def _dead(native: Any, handler: Handler) -> Dead:
    delivery, envelope = _delivery(native, handler)
    reason, description = (str(envelope.get(name, "")) for name in ("reason", "description"))
    if not reason:
        description = "it came without a reason, as the Functions host puts it here after its last delivery"
        if decoded(str(native.content).encode()) is None:
            description += "; it is no Base64, which host.json's messageEncoding says it must be"
    expires = native.expires_on
    kept = expires is None or expires.year > LAST_YEAR
    return Dead(
        delivery, reason, description, native.inserted_on, native, str(native.id), None if kept else expires
    )


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - instants for the broker, which decide nothing
