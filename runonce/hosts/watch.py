"""Signs of life, and looking for those of others: a host that vanished is replaced when its leases end.

The first host to miss another one takes that one's row away, and so is the one that waits: it looks at each lease the
missed host held, once a second, and asks for the run when it is free. The minute's recovery tick is the net under it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.execution.threads import start_thread
from runonce.runs.presence import CHECK_IN, MISSED, Presence
from runonce.runs.recovery import recover
from runonce.runs.table import read_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.dispatch import Dispatcher

log = logging.getLogger("runonce.hosts.watch")

LOOK = 1.0
"""Seconds between looks at a lease that is about to end."""
SOONEST = 1.0
"""Seconds between looks at the other hosts, at least."""


class Watch:
    """One host's watch over the others."""

    def __init__(self, dispatcher: Dispatcher, asked: Callable[[], None]) -> None:
        self._dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._stopping = dispatcher.stop.event
        self._asked = asked
        """Called when there is something in the internal queue."""
        self.presence = Presence(dispatcher.registry, dispatcher.jobs, self._clock.now())

    def run(self) -> None:
        """Check in every few seconds, and look after hosts that do not, until the host stops."""
        due = self._clock.elapsed()
        wait = 0.0
        while not self._clock.wait(self._stopping, wait):
            try:
                if self._clock.elapsed() >= due:
                    due = self._clock.elapsed() + CHECK_IN
                    self.presence.check_in()
                wait = min(due - self._clock.elapsed(), self._look())
            except StoreError as error:
                log.debug("no sign of life, trying again: %s", error)
                wait = CHECK_IN

    def leave(self) -> None:
        """Say that this host ends by itself."""
        try:
            self.presence.leave()
        except StoreError as error:
            log.debug("the host's row stays until somebody misses it: %s", error)

    def _look(self) -> float:
        """Look after missed hosts; the seconds until one could be missed next."""
        soonest = CHECK_IN
        for host in self.presence.others():
            if not host.is_missed:
                soonest = min(soonest, (MISSED - host.since).total_seconds())
            elif self.presence.gone(host):
                log.warning("%s has not been heard of for %.0f s", host.name, host.since.total_seconds())
                start_thread(partial(self._replace, host.name), "runonce-replace")
        return max(SOONEST, soonest)

    def _replace(self, name: str) -> None:
        """Ask for the runs of a host that vanished as soon as their leases have ended."""
        dispatcher = self._dispatcher
        until = self._clock.elapsed() + dispatcher.settings.lease.duration + LOOK
        try:
            rows = read_jobs(dispatcher.registry).rows.values()
            locks = {
                dispatcher.registry.lock_name(row.name) for row in rows if row.running and row.host == name
            }
            while locks and self._clock.elapsed() < until and not self._stopping.is_set():
                free = {lock for lock in locks if not dispatcher.stores.leases.held(lock)}
                if free and recover(dispatcher):
                    self._asked()
                locks -= free
                if locks:
                    self._clock.wait(self._stopping, LOOK)
        except StoreError as error:
            log.warning("the next recovery tick asks for the runs of %s: %s", name, error)
