"""A dead man's switch: what a run leaves on the internal queue, so that it is taken over when its lease can be had.

It is one request for the run's own fire time, hidden until its lease is about to end. After each renewal it is hidden
for longer, and the run's end removes it. When its host dies nobody does, and the queue shows it at that instant to
whoever looks, and wakes a host that has been scaled to zero. Like every request it is a hint: the lease decides.
"""

from __future__ import annotations

import logging
import math
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.runs.requests import send_request

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.clock import Clock
    from runonce.execution.lease import Lease
    from runonce.stores.protocols import QueueItem, QueueStore

log = logging.getLogger("runonce.runs.switch")

AFTER = 1.0
"""Seconds that a run works before it sends one: most are shorter, and cost nothing."""
LEAD = 0.7
"""Seconds before the lease's end that the request shows: some time passes until somebody looks at the queue."""
NEARLY = 1.0
"""Seconds that whoever took it so early waits before the next try."""
AGAIN, REST = 1.0, 5.0
"""Seconds between looks at a renewal that is late, and after the queue did not answer."""
LIFE = 7 * 86_400
"""Seconds that the request lives, which no renewal can change; another one follows it."""


class Switch:
    """One run's."""

    def __init__(self, queue: QueueStore, job: str, fire_time: datetime, lease: Lease, clock: Clock) -> None:
        self._queue = queue
        self._job = job
        self._fire_time = fire_time
        self._lease = lease
        self._clock = clock
        self._first = clock.elapsed() + AFTER
        self._lock = threading.Lock()
        self._item: QueueItem | None = None

    def keep(self, over: threading.Event) -> None:
        """Keep it hidden until the run is over or its lease is lost."""
        hidden_for, wait = float("-inf"), self._first - self._clock.elapsed()
        # `held` would count as progress of the run.
        while not self._clock.wait(over, wait) and self._clock.elapsed() < self._lease.trusted_until:
            wait, end = AGAIN, self._lease.ends_at
            if end == hidden_for or not math.isfinite(end):
                continue
            # A queue hides for whole seconds, so the call is made at about the fraction at which it is to show.
            left = end - LEAD - self._clock.elapsed()
            seconds = round(left)
            if self._clock.wait(over, left - seconds):
                return
            try:
                with self._lock:
                    if not over.is_set():
                        self._hide(seconds)
            except StoreError as error:
                wait = REST
                log.warning(
                    "job %s: were its host to die, a recovery tick would find it: %s", self._job, error
                )
            else:
                hidden_for, wait = end, self._lease.renews_at + 1 - LEAD - self._clock.elapsed()

    def _hide(self, seconds: int) -> None:
        if self._item is not None:
            self._item = self._queue.hide(self._item, seconds)
        if self._item is None:  # none yet, or somebody took it, since a renewal was late
            delay = timedelta(seconds=seconds)
            self._item = send_request(
                self._queue, self._job, self._fire_time, "abandoned", delay=delay, life=LIFE
            )

    def remove(self) -> None:
        """Take it away, once the run is over; one that cannot be is found to be of a run that has ended."""
        with self._lock:
            if self._item is None:
                return
            try:
                self._queue.delete(self._item)
            except StoreError as error:
                log.debug("job %s: its switch stays behind: %s", self._job, error)
