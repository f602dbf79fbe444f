"""The settlements: what a transport is asked to do with a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runonce.stores.columns import valid


@dataclass(frozen=True, slots=True)
class Complete:
    """The message has had its effect, now or earlier; remove it."""

    duplicate: bool = False
    result: Any = None
    """What the handler returned, where it ran just now."""


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Bring the message again after some seconds, without using up its deliveries."""

    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message can have no effect; put it aside with the reason."""

    reason: str
    """A short name, such as MissingKey."""
    description: str
    on_claim: bool = field(default=True, compare=False)
    """Whether its body and its claim tell this again, so that the message need not carry it."""

    def __post_init__(self) -> None:
        """An error's text may hold half a character, as of an emoji cut in two, which no broker takes."""
        for name in ("reason", "description"):
            object.__setattr__(self, name, valid(getattr(self, name)))


Settlement = Complete | Reschedule | DeadLetter
