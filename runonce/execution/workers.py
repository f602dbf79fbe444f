"""Threads that are used again: one that is idle takes the next piece of work, and where none is, another is started."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from typing import TYPE_CHECKING

from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("runonce.workers")

IDLE = 2.0
"""Seconds that a thread waits for more work."""


class Workers:
    """Starts each piece of work at once, in a context of its own; one that hangs keeps no other waiting."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle = 0
        self._closed = False
        self._next: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def start(self, work: Callable[[], None]) -> None:
        """Begin it in some thread; what it raises goes to the log."""
        with self._lock:
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._next.put(work)
        else:
            start_thread(lambda: self._work(work), self._name)

    def close(self) -> None:
        """Let the idle threads end, and the others when they are through."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._next.put(None)
            self._idle = 0

    def _work(self, first: Callable[[], None]) -> None:
        work: Callable[[], None] | None = first
        while work is not None:
            try:
                contextvars.copy_context().run(work)
            except BaseException:
                log.exception("%s: a thread met an error nobody expects", self._name)
            work = None  # it may hold a message's body
            with self._lock:
                if self._closed:
                    return
                self._idle += 1
            work = self._more()

    def _more(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._next.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return None  # else something has just been put there for this thread
