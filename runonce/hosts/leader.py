"""Which of several replicas leads: it runs timers, recovery and requests, and the others stand by.

A saving and never the guarantee. Every run has its lease and its claim all the same, so that a leader which was paused
and wakes, or two that lead for a moment, repeat nothing. Versions whose jobs differ have a leader each, or a new job
would not run before the last replica of the old version has gone.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.execution.lease import Lease
from runonce.settings import LeaseTerms
from runonce.transports.ids import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.clock import Clock
    from runonce.execution.stop import StopSignal
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.stores.protocols import LeaseStore

log = logging.getLogger("runonce.leader")

SHORTEST = 15
"""Seconds of a blob lease (Azure)."""


def lock_of(jobs: Iterable[ScheduledJob]) -> str:
    """What those compete for that have the same jobs; no job can be called so."""
    known = sorted(f"{job.name} {job.schedule.expression} {job.schedule.time_zone}" for job in jobs)
    return f"runonce-leader-{digest(*known)[:12]}"


def terms_of(terms: LeaseTerms) -> LeaseTerms:
    """A leader's lease: so much shorter than a run's that its end and the look which finds it are within that one."""
    duration = max(SHORTEST, int(terms.duration - terms.renewal))
    margin = min(terms.margin, duration / 3)
    return LeaseTerms(duration, (duration - margin) / 2, margin)


class Leader:
    """Finds out again and again whether this host leads: a call in each renewal period while it does not.

    Args:
        leases: Where the lease is.
        name: Of the lock.
        terms: Of a run's lease.
        clock: The host's.
        stop: The host's; it leads no longer then, and gives the lease back at once.
    """

    def __init__(
        self, leases: LeaseStore, name: str, terms: LeaseTerms, clock: Clock, stop: StopSignal
    ) -> None:
        self._leases, self._name = leases, name
        self._terms, self._look_every = terms_of(terms), terms.renewal
        self._clock = clock
        self._stop = stop
        self._over = threading.Event()
        self._lease: Lease | None = None
        self.turn = threading.Event()
        """Set while this host leads, and for good once it stops: for those who wait to begin."""
        self.off = threading.Event()
        """Set while it does not, and for good once it stops: for those who wait to end."""
        self.off.set()
        stop.listen(self._stopped)

    def _stopped(self, _: object) -> None:
        for event in (self._over, self.turn, self.off):
            event.set()

    @property
    def leads(self) -> bool:
        """Whether this host leads at this instant."""
        lease = self._lease
        return lease is not None and lease.held

    def run(self) -> None:
        """Lead, or stand by, until the host stops."""
        while self._stop.cause is None:
            lease = self._ask()
            if lease is None:
                self._clock.wait(self._over, self._look_every)
                continue
            self._lead(lease)

    def _ask(self) -> Lease | None:
        try:
            return Lease.acquire(self._leases, self._name, self._terms, self._clock)
        except StoreError as error:
            log.warning("who leads is not known, asking again: %s", error)
            return None

    def _lead(self, lease: Lease) -> None:
        lease.keep(lambda _: self._over.set())
        self._lease = lease
        self.off.clear()
        self.turn.set()
        log.info("this host leads: it runs timers and recovery")
        self._over.wait()
        self._lease = None
        self.off.set()
        if self._stop.cause is None:
            self.turn.clear()
            self._over.clear()
            log.warning("this host leads no longer")
        lease.release()


def leader_of(dispatcher: Dispatcher) -> Leader:
    """Of a host that runs these jobs."""
    name = dispatcher.registry.lock_name(lock_of(dispatcher.jobs.values()))
    return Leader(
        dispatcher.stores.leases, name, dispatcher.settings.lease, dispatcher.clock, dispatcher.stop
    )
