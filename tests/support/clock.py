"""A manual clock that knows who waits for it, so that a test moves it only when everybody has seen the last move."""

from __future__ import annotations

import threading

from runonce.testing import ManualClock

PATIENCE = 10.0


class SteppedClock(ManualClock):
    """`settle` returns once a thread waits for a later time, having dealt with everything up to now."""

    def __init__(self, waiters: int = 1) -> None:
        super().__init__()
        self.waiters = waiters
        self._until: dict[int, float] = {}

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """As before, and known to be waiting."""
        thread = threading.get_ident()
        with self._moved:  # re-entrant, and given up while waiting
            self._until[thread] = self._elapsed + seconds
            self._moved.notify_all()
            try:
                return super().wait(event, seconds)
            finally:
                self._until.pop(thread, None)

    def settle(self, waiting: int | None = None) -> None:
        """Wait until so many threads (`waiters`, if None) wait for a time that has not come yet."""
        wanted = self.waiters if waiting is None else waiting
        with self._moved:
            settled = self._moved.wait_for(
                lambda: sum(until > self._elapsed for until in self._until.values()) >= wanted, PATIENCE
            )
        assert settled, "nobody waits for the clock"

    def step(self, seconds: float) -> None:
        """Move on, and wait until whoever that woke waits again."""
        self.settle()
        self.advance(seconds)
        self.settle()
