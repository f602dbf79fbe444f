"""The random part of delays, so that replicas do not march in step; a test bench takes the middle of it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_even = 0
"""How many blocks want the middle."""


def spread() -> float:
    """From 0 to 1."""
    return 0.5 if _even else random.random()  # noqa: S311 - no secret


@contextmanager
def evenly() -> Iterator[None]:
    """Within the block every delay is the middle one, in all threads."""
    global _even  # noqa: PLW0603 - what is asked for in any thread
    _even += 1
    try:
        yield
    finally:
        _even -= 1
