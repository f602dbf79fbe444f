"""Both transports, each on the real thing, behind one way to look at a queue from outside.

`pipes(azurite)` and `bus_pipes(broker)` make one; every test takes a handler of its own from it.
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from runonce.messages.definition import handler
from runonce.settings import ServiceBusConnection, StorageConnection
from runonce.stores.azure.wire import services
from runonce.transports.protocols import Outgoing
from runonce.transports.servicebus import ServiceBusTransport
from runonce.transports.storage import POISON, StorageTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runonce.messages.definition import Handler
    from runonce.transports.protocols import DeadLetters, Inbox, Received, Sender, Transport
    from servicebus.launcher import Broker

LOCK = 3
"""Seconds a received message stays hidden in these tests."""
PATIENCE = 15.0


def make_handler(queue: str, body: Callable[..., Any] | None = None, **options: Any) -> Handler:
    """A handler of a queue that nobody has to run."""

    def handle(message: Any) -> None:
        """Do nothing."""

    options.setdefault("key", "id")
    return handler(queue=queue, name=options.pop("name", "handle"), **options)(body or handle)


class Pipe:
    """A transport under test, its parts opened once and closed at the end."""

    kind = ""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._opened = ExitStack()
        self._sender: Sender | None = None

    def queue(self) -> str:
        """The name of a queue no other test uses."""
        raise NotImplementedError

    def count(self, entity: str) -> int:
        """Messages there, hidden and scheduled ones too."""
        raise NotImplementedError

    def dead_count(self, entity: str) -> int:
        """Messages among its dead letters."""
        raise NotImplementedError

    @property
    def sender(self) -> Sender:
        """One sender, kept."""
        if self._sender is None:
            self._sender = self.closing(self.transport.sender())
        return self._sender

    def inbox(self, to: Handler) -> Inbox:
        """A new inbox."""
        return self.closing(self.transport.inbox(to))

    def dead_letters(self, of: Handler) -> DeadLetters:
        """A new look at the dead letters."""
        return self.closing(self.transport.dead_letters(of))

    def closing(self, part: Any) -> Any:
        """Close it at the end of the test."""
        self._opened.callback(part.close)
        return part

    def send(self, to: Handler, *bodies: bytes, **options: Any) -> list[str]:
        """Send a message for each body; their ids."""
        messages = [Outgoing(body, f"m-{uuid.uuid4().hex[:12]}", **options) for body in bodies]
        self.sender.send(to.target, messages)
        return [message.message_id for message in messages]

    def close(self) -> None:
        """Close everything that was opened, and forget the sender."""
        self._opened.close()
        self._sender = None


class StoragePipe(Pipe):
    """Storage queues on Azurite."""

    kind = "storage"

    def __init__(self, connection_string: str, visibility: int = LOCK) -> None:
        self.connection_string = connection_string
        super().__init__(
            StorageTransport(services(StorageConnection(connection_string), "queue")[0], visibility)
        )

    def queue(self) -> str:
        return f"q-{uuid.uuid4().hex[:12]}"

    def client(self, queue: str) -> QueueClient:
        """The SDK's own client, for what others send."""
        return QueueClient.from_connection_string(self.connection_string, queue)

    def count(self, entity: str) -> int:
        with self.client(entity) as client:
            try:
                return int(client.get_queue_properties().approximate_message_count or 0)
            except ResourceNotFoundError:
                return 0

    def dead_count(self, entity: str) -> int:
        return self.count(entity + POISON)


class BusPipe(Pipe):
    """Service Bus on the local broker, through the real SDK."""

    kind = "servicebus"

    def __init__(self, broker: Broker, queues: Iterable[str], sender: Sender | None = None) -> None:
        self.broker = broker
        self._queues = iter(queues)
        super().__init__(ServiceBusTransport(ServiceBusConnection(broker.connection_string)))
        self._sender = sender  # whoever opened it closes it

    def queue(self) -> str:
        return next(self._queues)

    def count(self, entity: str) -> int:
        return sum(self.broker.counts(entity.replace("/", "/Subscriptions/")).values())

    def dead_count(self, entity: str) -> int:
        return sum(self.broker.counts(f"{entity.replace('/', '/Subscriptions/')}/$DeadLetterQueue").values())


def receive(inbox: Inbox, count: int = 1, patience: float = PATIENCE) -> list[Received]:
    """Exactly so many messages, however many calls that takes."""
    found: list[Received] = []
    give_up_at = time.monotonic() + patience
    while len(found) < count:
        found += inbox.receive(count - len(found), 1.0)
        assert time.monotonic() < give_up_at, f"{len(found)} of {count} messages came within {patience:g} s"
    return found


def none_come(inbox: Inbox, seconds: float = 0.3) -> bool:
    """Whether nothing comes for that long; the inbox must have been used before."""
    return inbox.receive(10, seconds) == []
