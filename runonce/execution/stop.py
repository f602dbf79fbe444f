"""The stop signal: why a run must end, told once to everything that waits for it.

A host has one, each run has its own below it. The first cause wins: a run that lost its lease and is then told
that its host stops has lost its lease.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.errors import RunInterrupted


class StopSignal:
    """Set at most once, from any thread; listeners are called in the thread that sets it."""

    def __init__(self, parent: StopSignal | None = None) -> None:
        self.event = threading.Event()
        self._cause: RunInterrupted | None = None
        # Re-entrant: a SIGTERM handler may set the signal while its own thread is inside `set` or `listen`.
        self._lock = threading.RLock()
        self._listeners: list[Callable[[RunInterrupted], None]] = []
        self._parent = parent
        self.told = False
        """Whether the body knows: it asked, or was cancelled, and its batches have not run out since."""
        self.done = False
        """Whether the body has said that its work is done all the same."""
        if parent is not None:
            parent.listen(self.set)

    @property
    def cause(self) -> RunInterrupted | None:
        """Why everything must stop, or None while it need not."""
        return self._cause

    def set(self, cause: RunInterrupted) -> None:
        """Tell everybody; a second cause is ignored."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            listeners, self._listeners = self._listeners, []
        self.event.set()
        for listener in listeners:
            listener(cause)

    def listen(self, listener: Callable[[RunInterrupted], None]) -> None:
        """Call `listener` with the cause when the signal is set; at once if it is already."""
        with self._lock:
            if self._cause is None:
                self._listeners.append(listener)
                return
            cause = self._cause
        listener(cause)

    def detach(self) -> None:
        """Stop hearing from the parent: a finished run must not stay referenced by its host."""
        if self._parent is not None:
            with self._parent._lock, contextlib.suppress(ValueError):  # noqa: SLF001 - its own class
                self._parent._listeners.remove(self.set)  # noqa: SLF001
