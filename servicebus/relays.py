"""Entities nobody receives from: what becomes ready in one goes on to others at once. A scheduled message waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebus.errors import Refused
from servicebus.queue import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servicebus.broker import Broker
    from servicebus.entities import Settings
    from servicebus.message import Message

    Filter = Callable[[Message], bool]

_MOST_HOPS = 4
_TOO_MANY_HOPS = Refused(
    "MaxTransferHopCountExceeded",
    f"The maximum number of allowed hops when forwarding between queues is {_MOST_HOPS}.",
)


class Relay(MessageQueue):
    """What topics and forwarding entities have in common."""

    no_receivers: str
    """Why a receiver is refused."""


class MessageTopic(Relay):
    """Copies every message to each subscription whose filter lets it pass."""

    def __init__(
        self,
        broker: Broker,
        path: str,
        settings: Settings,
        subscriptions: Sequence[tuple[MessageQueue, Filter]],
    ) -> None:
        super().__init__(broker, path, settings)
        self.no_receivers = f"{path} is a topic: receive from a subscription."
        self._subscriptions = subscriptions

    @property
    def size(self) -> int:
        """What it takes of its quota, its subscriptions included, in bytes."""
        return super().size + sum(subscription.size for subscription, _ in self._subscriptions)

    def _make_ready(self, message: Message) -> None:
        with self._broker.store.transaction():
            self._remove(message)
            for subscription, passes in self._subscriptions:
                if passes(message):
                    subscription.arrive(message.copy())


class Forwarder(Relay):
    """A queue, subscription or dead-letter queue that hands every message to another entity."""

    def __init__(
        self, broker: Broker, path: str, settings: Settings, dead_letters: MessageQueue | None = None
    ) -> None:
        super().__init__(broker, path, settings, dead_letters)
        self.no_receivers = "Cannot create a message receiver on an entity with auto-forwarding enabled."
        self.target = settings.forward.lower()

    def _make_ready(self, message: Message) -> None:
        target = self._broker.entities[self.target]
        try:
            if message.hops >= _MOST_HOPS:
                raise _TOO_MANY_HOPS
            target.check_room([message])
        except Refused as refusal:  # a dead letter that cannot go on stays where it is
            if self.dead_letters:
                self._bury(message, refusal.condition, refusal.text)
            return
        with self._broker.store.transaction():
            self._remove(message)
            copy = message.copy()
            copy.hops += 1
            target.arrive(copy)
