"""What a person declares: queues and topics, as values or as command-line text. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Self

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/~-]*")
_TRUE = {"1": True, "true": True, "0": False, "false": False}


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

    def __post_init__(self) -> None:
        if self.lock <= 0:
            raise ValueError(f"lock={self.lock:g}: a lock must last longer than 0 s")
        if self.max_delivery < 1:
            raise ValueError(f"max_delivery={self.max_delivery}: at least one delivery is needed")
        if self.dedup < 0 or self.ttl < 0:
            raise ValueError(f"dedup={self.dedup:g}, ttl={self.ttl:g}: a duration cannot be negative")

    def _items(self) -> list[str]:
        given = {
            f.name: getattr(self, f.name) for f in fields(Settings) if getattr(self, f.name) != f.default
        }
        return [f"{name}={value:g}" for name, value in given.items()]


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
class Topic(Settings):
    """A topic and its subscriptions, such as `Topic("orders", ("billing", "shipping"), lock=30)`.

    `lock`, `max_delivery` and `dead_letter_expired` are each subscription's, `dedup` and `ttl` the topic's.
    """

    name: str
    subscriptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (self.name, *self.subscriptions):
            _check_name(name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name:subscription,subscription,lock=30`."""
        name, words, settings = _split(text)
        return cls(name, tuple(words), **settings)

    @property
    def arguments(self) -> list[str]:
        """The same declaration as command-line arguments."""
        return ["--topic", f"{self.name}:{','.join([*self.subscriptions, *self._items()])}"]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not an entity name: letters, digits and . _ - ~ / only")


def _split(text: str) -> tuple[str, list[str], dict[str, Any]]:
    """Take `name:word,key=value` apart and give each value the type its setting has."""
    name, _, rest = text.partition(":")
    words: list[str] = []
    settings: dict[str, Any] = {}
    defaults = Settings()
    types: dict[str, type] = {f.name: type(getattr(defaults, f.name)) for f in fields(Settings)}
    for item in filter(None, rest.split(",")):
        key, has_value, value = item.partition("=")
        if not has_value:
            words.append(item)
            continue
        if key not in types:
            raise ValueError(f"{text!r}: no setting {key!r}; there are {', '.join(types)}")
        try:
            settings[key] = _TRUE[value] if types[key] is bool else types[key](value)
        except (KeyError, ValueError):
            raise ValueError(f"{text!r}: {key}={value} is not a {types[key].__name__}") from None
    return name, words, settings
