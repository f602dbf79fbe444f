"""What a person declares: queues, topics, subscriptions, as values or command-line text. Standard library only."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from servicebus import filters

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/~-]*")
_TRUE = {"1": True, "true": True, "0": False, "false": False}
_FILTER = re.compile(r"(?:^|,)filter=")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How an entity treats its messages; durations are seconds."""

    lock: float = 60.0
    """How long a received message stays invisible to others."""
    max_delivery: int = 10
    """Failed deliveries after which a message moves to the dead-letter queue."""
    dedup: float = 0.0
    """How long a message id is remembered; 0 turns duplicate detection off."""
    ttl: float = 0.0
    """The longest a message may live; 0 means no limit."""
    dead_letter_expired: bool = False
    """Whether an expired message moves to the dead-letter queue instead of vanishing."""
    quota: int = 0
    """The most bytes it holds, its dead letters and its subscriptions included; 0 means no limit."""
    forward: str = ""
    """The queue or topic every message goes on to; nobody can receive from an entity that forwards."""
    forward_dead_letters: str = ""
    """The queue or topic every dead letter goes on to."""

    def __post_init__(self) -> None:
        if not 0 < self.lock < math.inf:
            raise ValueError(f"lock={self.lock:g}: a lock must last longer than 0 s, and end")
        if self.max_delivery < 1:
            raise ValueError(f"max_delivery={self.max_delivery}: at least one delivery is needed")
        if not (0 <= self.dedup < math.inf and 0 <= self.ttl < math.inf):
            raise ValueError(f"dedup={self.dedup:g}, ttl={self.ttl:g}: a duration is 0 or more seconds")
        if self.quota < 0:
            raise ValueError(f"quota={self.quota}: a size cannot be negative")
        for target in filter(None, (self.forward, self.forward_dead_letters)):
            _check_name(target)

    def _items(self) -> list[str]:
        given = {name: value for name, value in self._given().items() if name in _SETTINGS}
        return [f"{name}={_plain(value)}" for name, value in given.items()]

    def _given(self) -> dict[str, Any]:
        """The settings that are not the default."""
        return {f.name: getattr(self, f.name) for f in fields(Settings) if getattr(self, f.name) != f.default}


_SETTINGS: dict[str, type] = {f.name: type(f.default) for f in fields(Settings)}


@dataclass(frozen=True)
class Queue(Settings):
    """A queue, such as `Queue("send-invoice", lock=30)`."""

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_name(self.name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name:lock=30,max_delivery=10`."""
        name, words, settings = _split(text)
        if words:
            raise ValueError(f"{text!r}: {words[0]!r} is not a setting; write name:setting=value,…")
        return cls(name, **settings)

    @property
    def arguments(self) -> list[str]:
        """The same declaration as command-line arguments."""
        return ["--queue", f"{self.name}:{','.join(self._items())}"]


@dataclass(frozen=True)
class Subscription(Settings):
    """A subscription that needs more than a name, such as `Subscription("billing", forward="orders.billing")`.

    `lock`, `max_delivery`, `dead_letter_expired` and `forward_dead_letters` are the topic's unless given here;
    duplicates and the quota are the topic's business.
    """

    name: str
    filter: str | dict[str, Any] = field(default="", kw_only=True)
    """Which messages it gets: SQL such as `"sys.Label = 'paid' AND total > 5"`, or a correlation filter such as
    `{"subject": "paid", "properties": {"country": "NO"}}`. Without one it gets every message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_name(self.name)
        if self.dedup or self.quota:
            raise ValueError(f"{self.name}: dedup and quota are settings of the topic, not of a subscription")
        filters.compiled(self.filter)

    @classmethod
    def parse(cls, text: str) -> tuple[str, Self]:
        """Read `topic/name:forward=orders.billing,filter=total > 5`; the filter is last and may hold commas."""
        path, _, rest = text.partition(":")
        topic, _, name = path.rpartition("/")
        if not topic:
            raise ValueError(f"{text!r}: write topic/subscription:setting=value,…")
        rest, *wanted = _FILTER.split(rest, maxsplit=1)
        _, words, settings = _split(f"{name}:{rest}")
        if words:
            raise ValueError(f"{text!r}: {words[0]!r} is not a setting; write the filter last, as filter=…")
        chosen: Any = "".join(wanted)
        if chosen.startswith("{"):
            try:
                chosen = json.loads(chosen)
            except ValueError as error:
                raise ValueError(f"{text!r}: the correlation filter is not JSON: {error}") from None
        return topic, cls(name, filter=chosen, **settings)

    def arguments(self, topic: str) -> list[str]:
        """The same declaration as command-line arguments."""
        chosen = self.filter if isinstance(self.filter, str) else json.dumps(self.filter)
        items = self._items() + ([f"filter={chosen}"] if chosen else [])
        return ["--subscription", f"{topic}/{self.name}:{','.join(items)}"]

    def under(self, topic: Topic) -> Subscription:
        """With what it leaves to its topic."""
        names = ("lock", "max_delivery", "dead_letter_expired", "forward_dead_letters")
        inherited = {name: getattr(topic, name) for name in names}
        return replace(self, **(inherited | self._given()))


@dataclass(frozen=True)
class Topic(Settings):
    """A topic and its subscriptions, such as `Topic("orders", ("billing", Subscription("audit", ttl=60)), lock=30)`.

    `dedup`, `ttl` and `quota` are the topic's own, the others each subscription's.
    """

    name: str
    subscriptions: tuple[str | Subscription, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_name(self.name)
        if self.forward:
            raise ValueError(f"{self.name}: a topic cannot forward, its subscriptions can")
        for each in self.subscriptions:
            if isinstance(each, str):
                _check_name(each)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name:subscription,subscription,lock=30`."""
        name, words, settings = _split(text)
        return cls(name, tuple(words), **settings)

    @property
    def arguments(self) -> list[str]:
        """The same declaration as command-line arguments."""
        names = [each for each in self.subscriptions if isinstance(each, str)]
        arguments = ["--topic", f"{self.name}:{','.join([*names, *self._items()])}"]
        for each in self.subscriptions:
            if isinstance(each, Subscription):
                arguments += each.arguments(self.name)
        return arguments


def declared(
    queues: Iterable[str], topics: Iterable[str], subscriptions: Iterable[str]
) -> list[Queue | Topic]:
    """What the texts of a command line declare; ValueError when one cannot be read."""
    by_name = {topic.name.lower(): topic for topic in map(Topic.parse, topics)}
    for text in subscriptions:
        name, subscription = Subscription.parse(text)
        topic = by_name.get(name.lower())
        if topic is None:
            raise ValueError(f"{text!r}: there is no topic {name!r}; declare it with --topic {name}")
        by_name[name.lower()] = replace(topic, subscriptions=(*topic.subscriptions, subscription))
    return [*map(Queue.parse, queues), *by_name.values()]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not an entity name: letters, digits and . _ - ~ / only")


def _plain(value: str | float) -> str:
    """A setting's value with every digit it has."""
    return value if isinstance(value, str) else repr(int(value) if value == int(value) else value)


def _split(text: str) -> tuple[str, list[str], dict[str, Any]]:
    """Take `name:word,key=value` apart and give each value the type its setting has."""
    name, _, rest = text.partition(":")
    words: list[str] = []
    settings: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, has_value, value = item.partition("=")
        if not has_value:
            words.append(item)
            continue
        if key not in _SETTINGS:
            raise ValueError(f"{text!r}: no setting {key!r}; there are {', '.join(_SETTINGS)}")
        try:
            settings[key] = _TRUE[value] if _SETTINGS[key] is bool else _SETTINGS[key](value)
        except (KeyError, ValueError):
            raise ValueError(f"{text!r}: {key}={value} is not a {_SETTINGS[key].__name__}") from None
    return name, words, settings
