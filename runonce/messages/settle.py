"""What happens to a message: the settlements, and how long a message waits before it comes again."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runonce.messages.rows import digest

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_WAIT = 60.0
LONGEST_ID = 128
"""Characters in a Service Bus MessageId (its own limit)."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The message has had its effect, now or earlier; remove it."""

    duplicate: bool = False
    result: Any = None
    """What the handler returned, now or (with keep_result) when it ran."""


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


Settlement = Complete | Reschedule | DeadLetter


def backoff(times: int, *, spread: Callable[[], float] = random.random) -> float:
    """Seconds before a message that came back so many times comes again: 1, 2, 4 … 60, give or take a fifth."""
    return min(LONGEST_WAIT, 2.0 ** min(times, 10)) * (0.8 + 0.4 * spread())


def copy_id(message_id: str, times: int) -> str:
    """The id of a message's next copy. It must differ: duplicate detection drops a copy that reuses one."""
    if times > 1:  # then it is the id of a copy
        message_id = re.sub(r"~r\d+$", "", message_id)
    return suffixed(message_id, f"~r{times}")


def suffixed(message_id: str, suffix: str) -> str:
    """An id with something after it, within the broker's limit; two ids never become the same one."""
    room = LONGEST_ID - len(suffix)
    if (
        len(message_id) > room
    ):  # cut off, ids that differ at their end would be one, and the broker drop a message
        hashed = digest(message_id)
        message_id = message_id[: room - len(hashed) - 1] + "~" + hashed
    return message_id + suffix
