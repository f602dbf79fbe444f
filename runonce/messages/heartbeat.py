"""Signs of life for the messages being worked on: one thread for all of a process's claims.

A thread for each message would cost more than most messages do.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from runonce.errors import LeaseLost, RunInterrupted, StoreError, TimeLimitExceeded
from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.execution.stop import StopSignal
    from runonce.messages.claim import MessageClaim

log = logging.getLogger("runonce.heartbeat")

LOOK = 0.5
"""Seconds between looks at what is due."""


class Heartbeats:
    """Keeps claims alive from `watch` until they are finished, and tells their runs when that fails.

    Its thread ends with it: it knows this object weakly.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: list[tuple[float, int, MessageClaim, StopSignal, float]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._gone = threading.Event()
        weakref.finalize(self, self._gone.set)

    def watch(self, claim: MessageClaim, stop: StopSignal, limit: float) -> None:
        """Keep a claim alive; `limit` is the elapsed time at which its work must have ended."""
        with self._lock:
            self._push(claim, stop, limit)
            if self._thread is None:
                self._thread = start_thread(
                    _forever(weakref.ref(self), self._clock, self._gone), "runonce-heartbeat"
                )

    def _push(self, claim: MessageClaim, stop: StopSignal, limit: float, wait: float | None = None) -> None:
        due = min(self._clock.elapsed() + (claim.row.lease / 3 if wait is None else wait), limit)
        heapq.heappush(self._due, (due, next(self._order), claim, stop, limit))

    def beat_due(self) -> None:
        """Give the signs of life that are due by now."""
        with self._lock:
            now = self._clock.elapsed()
            ready = []
            while self._due and self._due[0][0] <= now:
                ready.append(heapq.heappop(self._due))
        for _, _, claim, stop, limit in ready:
            if not claim.finished:
                self._beat(claim, stop, limit)

    def _beat(self, claim: MessageClaim, stop: StopSignal, limit: float) -> None:
        if self._clock.elapsed() >= limit:
            # Told, and no longer kept alive: a wedged handler must not hold its message for ever.
            over_its_time(claim, stop)
            return
        wait = None
        try:
            claim.beat()
        except RunInterrupted as lost:
            stop.set(lost)
            return
        except StoreError as error:
            wait = LOOK
            log.warning("message %s: no sign of life could be given: %s", claim.row.message_id, error)
        except Exception:
            wait = LOOK
            log.exception("message %s: no sign of life could be given", claim.row.message_id)
        if not claim.held and not claim.finished:
            stop.set(LeaseLost(f"Handler {claim.row.handler}: its claim could not be kept alive."))
            return
        with self._lock:
            self._push(claim, stop, limit, wait)


def over_its_time(claim: MessageClaim, stop: StopSignal) -> None:
    """Tell a handler that it is over its max_runtime, and the log, unless it has to stop already."""
    if stop.cause is None:
        handler = claim.row.handler
        stop.set(TimeLimitExceeded(f"Handler {handler}: over its max_runtime."))
        log.error(
            "handler %s, message %s: over its max_runtime; it is told to stop, and counts as failed",
            handler,
            claim.row.message_id,
        )


def _forever(heartbeats: weakref.ref[Heartbeats], clock: Clock, gone: threading.Event) -> Callable[[], None]:
    def beat_forever() -> None:
        while (known := heartbeats()) is not None:
            known.beat_due()
            del known
            clock.wait(gone, LOOK)

    return beat_forever
