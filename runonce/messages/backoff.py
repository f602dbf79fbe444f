"""How long a message waits before it is redelivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.execution.spread import spread

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_WAIT = 60.0


def backoff(times: int, *, spread: Callable[[], float] = spread) -> float:
    """Seconds before a message that came back so many times comes again: 1, 2, 4 … 60, give or take a fifth."""
    return min(LONGEST_WAIT, 2.0 ** min(max(times, 0), 10)) * (0.8 + 0.4 * spread())
