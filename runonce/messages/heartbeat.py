"""Signs of life for the messages being worked on, and their limits: one thread that looks for all of a process.

A thread for each message would cost more than most messages do. Each sign of life is given in a thread of its own, so
that a table that answers slowly keeps no other claim waiting.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import weakref
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runonce.errors import LeaseLost, RunInterrupted, StoreError, TimeLimitExceeded
from runonce.execution.terms import WAITING
from runonce.execution.threads import in_thread, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.execution.stop import StopSignal
    from runonce.execution.terms import Terms
    from runonce.messages.claim import MessageClaim

log = logging.getLogger("runonce.heartbeat")

LOOK = 0.5
"""Seconds between looks at what is due."""
NEVER = float("inf")


@dataclass(eq=False, slots=True)
class _Watched:
    claim: MessageClaim
    stop: StopSignal
    of: Callable[[], Terms]
    let_go: Callable[[], object]
    beat_at: float

    def due(self, now: float) -> float:
        terms = self.of()
        if terms is WAITING:  # other terms may begin at any moment
            return min(self.beat_at, now + LOOK)
        return min(self.beat_at, terms.deadline if now < terms.deadline else terms.let_go)


class Heartbeats:
    """Keeps claims alive from `watch` until they are finished, and tells their runs when that or their time fails.

    Its thread ends with it: it knows this object weakly.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: list[tuple[float, int, _Watched]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._gone = threading.Event()
        weakref.finalize(self, self._gone.set)

    def watch(
        self, claim: MessageClaim, stop: StopSignal, of: Callable[[], Terms], let_go: Callable[[], object]
    ) -> None:
        """Keep a claim alive, and its work to its terms of that moment; `let_go` is called if it goes on after them."""
        self._push(_Watched(claim, stop, of, let_go, self._clock.elapsed() + claim.row.lease / 3))
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(
                    _forever(weakref.ref(self), self._clock, self._gone), "runonce-heartbeat"
                )

    def _push(self, one: _Watched) -> None:
        due = one.due(self._clock.elapsed())
        if due < NEVER:
            with self._lock:
                heapq.heappush(self._due, (due, next(self._order), one))

    def beat_due(self) -> None:
        """Do what is due by now: signs of life, and the end of what has worked for too long."""
        with self._lock:
            now = self._clock.elapsed()
            ready = []
            while self._due and self._due[0][0] <= now:
                ready.append(heapq.heappop(self._due)[2])
        beats = []
        for one in ready:
            if one.claim.finished:
                continue
            terms = one.of()
            if now >= terms.let_go:
                in_thread(one.let_go, "runonce-let-go")
                continue
            if now >= terms.deadline:
                over_its_time(one.claim, one.stop)
            if now >= one.beat_at:
                beats.append(in_thread(lambda one=one: self._beat(one), "runonce-beat"))  # type: ignore[misc]
            else:
                self._push(one)
        wait(beats, LOOK)  # mostly they are through at once; one that is not holds up nothing

    def _beat(self, one: _Watched) -> None:
        claim, pause = one.claim, one.claim.row.lease / 3
        try:
            claim.beat()
        except RunInterrupted as lost:
            one.stop.set(lost)
            pause = NEVER
        except StoreError as error:
            pause = LOOK
            log.warning("message %s: no sign of life could be given: %s", claim.row.message_id, error)
        except Exception:
            pause = LOOK
            log.exception("message %s: no sign of life could be given", claim.row.message_id)
        if claim.finished:
            return
        if not claim.held:
            one.stop.set(LeaseLost(f"{claim.who}: its claim could not be kept alive."))
            pause = NEVER
        one.beat_at = self._clock.elapsed() + pause
        self._push(one)


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
