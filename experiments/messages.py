"""What the two experiments on messages share: a handler, workers, and its queue on Storage queues."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from experiments.effects import CLOCK, Effects
from runonce.errors import PermanentError
from runonce.execution.registry import Registry
from runonce.messages.definition import handler
from runonce.messages.sending import outgoing
from runonce.stores.azure.wire import services
from runonce.transports.protocols import Outgoing
from runonce.transports.storage import POISON, StorageTransport

if TYPE_CHECKING:
    from collections import Counter

    from experiments.lab import Lab
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import DeadLetters

CUSTOMERS = "customers/"
VISIBILITY = 30


def charging(namespace: str, effects: Effects) -> Handler:
    """A handler that charges a customer, of whom there must be a blob; each call of the provider is noted."""

    @handler(queue=f"{namespace}-charge", key="invoice", name="charge")
    def charge(message: Message) -> None:
        customer = message.json["customer"]
        if not message.blobs.exists(f"{CUSTOMERS}{customer}"):
            raise PermanentError(f"there is no customer {customer}")
        effects.append(message.key)
        message.commit({"charged": {"customer": customer}})

    return charge


class Charges:
    """The queue of an experiment, seen from outside."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.handler = charging(lab.settings.namespace, lab.effects)
        self.registry = Registry(lab.stores.claims, lab.settings.namespace, CLOCK, "the experiment")
        self._transport = StorageTransport(services(lab.settings.storage, "queue")[0], VISIBILITY)
        self.sender = self._transport.sender()

    def start(self, count: int) -> None:
        """Start workers."""
        self.lab.start("messages", count)

    def add_customer(self, number: int) -> None:
        """Have a customer."""
        path = f"{self.lab.settings.namespace}/{CUSTOMERS}{number}"
        self.lab.stores.blobs.write(path, b"", {}, etag=None, content_type="text/plain")

    def send(self, bodies: list[dict[str, Any]], times: int = 1) -> None:
        """Send each message so many times, shuffled, each time under an id of its own."""
        sent = [outgoing(self.handler, body) for body in bodies]
        copies = [Outgoing(one.body, f"{one.message_id}-{n}") for one in sent for n in range(times)]
        random.Random(1).shuffle(copies)  # noqa: S311 - an order, no secret
        self.sender.send(self.handler.queue, copies)

    def left(self) -> int:
        """Messages in the queue, hidden ones too."""
        return self._count(self.handler.queue)

    def put_aside(self) -> int:
        """Dead letters."""
        return self._count(self.handler.queue + POISON)

    def _count(self, queue: str) -> int:
        sender = self._transport.sender()
        try:
            return sender.queue(queue).count()
        finally:
            sender.close()

    def dead_letters(self) -> DeadLetters:
        """The dead letters themselves."""
        return self._transport.dead_letters(self.handler)

    def times(self) -> Counter[str]:
        """How often the provider was called for each invoice."""
        return self.lab.times()
