"""Things to do at a time: one heap, one wake-up of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Clock:
    """The one clock of the broker, whose times clients are told."""

    apart = 0.0
    """Seconds it is ahead of the machine's, on request: Azure's clock is not the client's either."""


CLOCK = Clock()


def now() -> float:
    """Seconds since 1970."""
    return time.time() + CLOCK.apart  # noqa: TID251 - a separate process, and this is the one place that reads it


class Timers:
    """Callbacks by due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        self._wake: asyncio.TimerHandle | None = None
        self._paused = False

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back once `when` has come; a callback whose reason is gone must see that itself."""
        entry = (when, next(self._tie), callback)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self.rearm()

    def pause(self) -> None:
        """Let nothing fall due until `resume`."""
        self._paused = True
        self.rearm()

    def resume(self) -> None:
        """Do what fell due meanwhile, and go on."""
        self._paused = False
        self.rearm()

    def rearm(self) -> None:
        """Wake up when the next is due by the clock as it is now."""
        if self._wake:
            self._wake.cancel()
        self._wake = None
        if self._heap and not self._paused:
            delay = max(0.0, self._heap[0][0] - now())
            self._wake = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        moment = now()
        while self._heap and self._heap[0][0] <= moment:
            _, _, callback = heapq.heappop(self._heap)
            try:
                callback()
            except Exception:  # noqa: BLE001 - Python's own exit code 1 means here that a run failed
                _log.exception("a timer failed")
        self.rearm()
