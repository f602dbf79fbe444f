"""What a host is working on, so that a stopping one can wait for it and give up what does not end."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.clock import Clock

T = TypeVar("T")


class InFlight(Generic[T]):
    """A set of things begun and not ended; safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[T, None] = {}  # in the order in which they began
        self._beginning = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Around what may add something: `wait` waits for it, or it would begin after the host has drained."""
        with self._changed:
            self._beginning += 1
        try:
            yield
        finally:
            with self._changed:
                self._beginning -= 1
                self._changed.notify_all()

    def add(self, item: T) -> None:
        """It has begun."""
        with self._changed:
            self._items[item] = None

    def remove(self, item: T) -> None:
        """It has ended."""
        with self._changed:
            self._items.pop(item, None)
            self._changed.notify_all()

    def items(self) -> list[T]:
        """What is being worked on."""
        with self._changed:
            return list(self._items)

    def wait(self, timeout: float) -> bool:
        """Wait until nothing is, `timeout` seconds at most; False when something still is."""
        give_up_at = self._clock.elapsed() + timeout
        with self._changed:
            while self._items or self._beginning:
                left = give_up_at - self._clock.elapsed()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True
