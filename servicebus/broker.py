"""The broker: its entities by name, and the one place every client's operation passes through."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from servicebus import filters
from servicebus.entities import Queue, Settings, Subscription, Topic
from servicebus.faults import Faults
from servicebus.queue import MessageQueue
from servicebus.relays import Forwarder, MessageTopic
from servicebus.store import Store
from servicebus.timers import CLOCK, Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from servicebus.connection import Connection
    from servicebus.relays import Filter

DEAD_LETTER = "/$DeadLetterQueue"


class Broker:
    """Everything the connections share. Names compare without regard to case and are kept in lower case."""

    def __init__(
        self,
        entities: Iterable[Queue | Topic],
        *,
        path: Path | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.store = Store(path)
        self.timers = Timers()
        self.faults = Faults()
        self.keys = dict(keys or {})
        self.connections: set[Connection] = set()
        self.entities: dict[str, MessageQueue] = {}
        self.operations: Counter[str] = Counter()
        self.paused = False
        for entity in entities:
            if isinstance(entity, Queue):
                self._add_queue(entity.name, entity)
            else:
                self._add_topic(entity)
        for each in self.entities.values():
            if isinstance(each, Forwarder) and each.target not in self.entities:
                raise ValueError(f"{each.path} forwards to {each.target!r}, which is not declared")
        for each in self.entities.values():
            each.load()

    def _add_queue(self, path: str, settings: Settings) -> MessageQueue:
        last = Settings(lock=settings.lock, forward=settings.forward_dead_letters)
        dead_letters = self._queue(path + DEAD_LETTER, last, None)
        queue = self._queue(path, settings, dead_letters)
        self._register(queue)
        self._register(dead_letters)
        return queue

    def _queue(self, path: str, settings: Settings, dead_letters: MessageQueue | None) -> MessageQueue:
        kind = Forwarder if settings.forward else MessageQueue
        return kind(self, path, settings, dead_letters)

    def _add_topic(self, topic: Topic) -> None:
        subscriptions: list[tuple[MessageQueue, Filter]] = []
        for each in topic.subscriptions:
            settings = (Subscription(each) if isinstance(each, str) else each).under(topic)
            queue = self._add_queue(f"{topic.name}/Subscriptions/{settings.name}", settings)
            subscriptions.append((queue, filters.compiled(settings.filter)))
        self._register(MessageTopic(self, topic.name, topic, subscriptions))

    def _register(self, entity: MessageQueue) -> None:
        if entity.name in self.entities:
            raise ValueError(f"{entity.name} is declared twice")
        self.entities[entity.name] = entity

    @contextmanager
    def operation(self, name: str, entity: str) -> Iterator[None]:
        """One operation of a client: applied whole or not at all, counted, and where faults strike."""
        self.faults.meet("before", name, entity)
        with self.store.transaction():
            yield
        self.operations[name] += 1
        self.faults.meet("after", name, entity)

    def pause(self) -> None:
        """Read nothing, answer nothing, let nothing fall due: a broker that hangs."""
        self.paused = True
        self.timers.pause()
        for connection in self.connections:
            connection.pause()

    def resume(self) -> None:
        """Go on where `pause` stopped."""
        self.paused = False
        self.timers.resume()
        for connection in self.connections:
            connection.resume()

    def cut(self) -> None:
        """Cut every connection."""
        for connection in list(self.connections):
            connection.abort()

    def detach(self, entity: str | None = None) -> None:
        """Detach every sender and receiver of an entity, or of all, as Azure does with links that are idle."""
        for connection in list(self.connections):
            connection.detach(entity and entity.lower())

    def lose_locks(self, entity: str | None = None) -> None:
        """Forget the locks of an entity, or of all, as when Azure moves it to another machine."""
        if entity is not None and entity.lower() not in self.entities:
            raise ValueError(f"there is no entity {entity!r}")
        for name, queue in self.entities.items():
            if entity is None or entity.lower() == name:
                queue.lose_locks()

    def clock(self, seconds: float) -> None:
        """Set the broker's clock this far apart from the machine's."""
        CLOCK.apart = seconds
        self.timers.rearm()

    def counts(self) -> dict[str, dict[str, int]]:
        """How many messages each entity has in which state."""
        return {name: entity.counts() for name, entity in self.entities.items()}
