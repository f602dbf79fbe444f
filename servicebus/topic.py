"""A topic: every message is copied to each subscription, which is a queue of its own.

There are no rules: each subscription gets everything. A scheduled message waits in the topic until it is due.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from servicebus.queue import MessageQueue

if TYPE_CHECKING:
    from servicebus.broker import Broker
    from servicebus.entities import Settings
    from servicebus.message import Message


class MessageTopic(MessageQueue):
    """A queue nobody receives from: what becomes ready goes to the subscriptions at once."""

    def __init__(
        self, broker: Broker, name: str, settings: Settings, subscriptions: tuple[MessageQueue, ...]
    ) -> None:
        self.subscriptions = subscriptions
        super().__init__(broker, name, settings)

    def _make_ready(self, message: Message) -> None:
        with self._broker.store.transaction():
            self._remove(message)
            for subscription in self.subscriptions:
                subscription.keep(replace(message, annotations=dict(message.annotations)))
