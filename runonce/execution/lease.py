"""A lease on a job's lock: taken without waiting, renewed on a thread of its own, and never believed too long.

A lock is a lease, not a guarantee. What this module promises: `held` is False before the server could have
given the lease to somebody else, and the run is told as soon as that is known. What it does not: a process
that is paused between asking `held` and writing may write late; that is what the fencing token is for.

Trust counts from the *start* of the call that last succeeded, on a clock that goes on through suspension, and
ends a margin before the lease does. Once it has ended it never comes back, not even by a renewal that would
still succeed: somebody may have held the lease in between.
"""

from __future__ import annotations

import logging
import threading
import uuid
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING

from runonce.errors import LeaseLost, StoreError, StoreUnavailableError
from runonce.execution.threads import start_thread
from runonce.stores.protocols import SessionLeases

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runonce.clock import Clock
    from runonce.execution.keeper import Keeper
    from runonce.settings import LeaseTerms
    from runonce.stores.protocols import LeaseStore

log = logging.getLogger("runonce.execution.lease")

TRIES = 2
"""Calls in one renewal round, each with the store's call time-out."""
RESOLUTION = timedelta(seconds=1)
"""Of the time in a server's answer."""
STARVED = 2.0
"""Seconds that a thread of ours may be late before it is said that something kept it from running."""
STARVING = (
    "its renewal was %.1f s late, for nothing else could run meanwhile: the process was paused, or one call of the job "
    "holds the interpreter (a long regular expression, a C extension); run that call in a process of its own"
)
STALLED = "its job made no progress for longer than its stall_after, so it was not renewed"
KEEPER_ENDED = "the process that renews it could not, or is gone"
DISCONNECTED = "the connection that held it has ended"
UNRENEWED = "its trusted time ran out before a renewal succeeded"
PAUSE = 1.0
"""Seconds between renewal rounds once one has failed."""


class Lease:
    """One holding of one lock, good for one run; make it with `Lease.acquire`."""

    def __init__(self, store: LeaseStore, name: str, terms: LeaseTerms, clock: Clock) -> None:
        self.name = name
        self.holder = str(uuid.uuid4())
        self._store = store
        self._terms = terms
        self._clock = clock
        self._trusted_until = -inf
        self._renew_until = inf
        self._lost: LeaseLost | None = None
        self._granted_at: datetime | None = None
        self._asked_at = self._answered_at = 0.0
        self._losing = threading.Lock()
        self._closed = threading.Event()
        self._ended = threading.Event()
        """Closed or lost: nothing is left to renew or to watch."""
        self._thread: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self.renewed_late = 0.0
        """Seconds that the latest of its renewals began behind its time."""
        self._on_lost: Callable[[LeaseLost], None] = lambda _: None

    @classmethod
    def acquire(cls, store: LeaseStore, name: str, terms: LeaseTerms, clock: Clock) -> Lease | None:
        """Take the lease without waiting; None when somebody else holds it.

        It is not renewed before `keep` is called.

        Raises:
            StoreUnavailableError: The store did not answer, twice. Should it have granted the lease all the same, or
                do so yet, it is given back as soon as the store answers again.
        """
        lease = cls(store, name, terms, clock)
        started = lease._asked_at = clock.elapsed()
        try:
            lease._granted_at = store.acquire(name, lease.holder, terms.duration)
        except StoreUnavailableError:
            # The grant may have been made and its reply lost. Asking again as the same holder tells; trust
            # still counts from the first call, the earliest moment the lease can have begun.
            try:
                lease._granted_at = store.acquire(name, lease.holder, terms.duration)
            except StoreUnavailableError:
                start_thread(lease._give_back, f"runonce-give-back-{name}")
                raise
        lease._answered_at = clock.elapsed()
        if lease._granted_at is None:
            return None
        lease._trusted_until = started + terms.duration - terms.margin
        return lease

    @property
    def granted_by(self) -> datetime:
        """When the server granted the lease, by its clock: its answer named a second, so it was before the next."""
        assert self._granted_at is not None  # noqa: S101 - `acquire` gives nobody a lease without it
        return self._granted_at + RESOLUTION

    def server_now(self) -> datetime:
        """The time by that clock now, never behind it and at most a second and `doubt` ahead."""
        return self.granted_by + timedelta(seconds=self._clock.elapsed() - self._asked_at)

    @property
    def doubt(self) -> timedelta:
        """How far ahead of it that may be, besides a second: for how long the server may have known of the call."""
        return timedelta(seconds=self._answered_at - self._asked_at)

    def _give_back(self) -> None:
        """Release what may have been granted after we had given up: nobody would use it, and nobody else could."""
        until = self._clock.elapsed() + self._terms.duration
        while self._clock.elapsed() < until:
            try:
                self._store.release(self.name, self.holder)
            except StoreError:
                self._clock.wait(self._closed, PAUSE)
            else:
                return

    def resume(self, holder: str, trusted_until: float) -> None:
        """Go on with what another process has acquired."""
        self.holder = holder
        self._trusted_until = trusted_until

    @property
    def trusted_until(self) -> float:
        """The elapsed time (see `Clock`) until which the lease is believed."""
        return self._trusted_until if self._keeper is None else self._keeper.trusted_until

    @property
    def ends_at(self) -> float:
        """The elapsed time at which it ends, unless it is renewed before."""
        return self.trusted_until + self._terms.margin

    @property
    def renews_at(self) -> float:
        """The elapsed time at which it is to be renewed next."""
        return self.ends_at - self._terms.duration + self._terms.renewal

    @property
    def held(self) -> bool:
        """Whether the lease can be trusted at this instant."""
        if self._keeper is not None:
            self._keeper.progress(self._clock.elapsed())
        return self._lost is None and self._clock.elapsed() < self.trusted_until

    def check(self) -> None:
        """Return if the lease is held.

        Raises:
            LeaseLost: It is not.
        """
        if self.held:
            return
        self._lose("its trusted time ran out")
        released = f"The lease on {self.name} was released: the run is over. Write nothing more."
        raise LeaseLost(released if self._lost is None else str(self._lost))

    def confirm(self) -> None:
        """Renew once: a person may have broken the lease since, and no renewal has told yet.

        Raises:
            LeaseLost: It is no longer ours.
            StoreUnavailableError: The store did not answer, so nobody can say.
        """
        if not self._renewal_round():
            self.check()
            raise StoreUnavailableError(f"the lease on {self.name} could not be confirmed")

    def tell(self, on_lost: Callable[[LeaseLost], None]) -> None:
        """Have `on_lost` called as `keep` does, which has to follow before `renews_at`."""
        self._on_lost = on_lost

    def keep(self, on_lost: Callable[[LeaseLost], None], keeper: Keeper | None = None) -> None:
        """Renew until `release`; `on_lost` is called once, from whichever thread finds out, if that fails.

        With a keeper its process renews, and releases.
        """
        self.tell(on_lost)
        self._keeper = keeper
        if keeper is None:
            self._thread = start_thread(self._renew_forever, f"runonce-renew-{self.name}")
        start_thread(self._watch, f"runonce-watch-{self.name}")

    def renew_until(self, elapsed: float) -> None:
        """Let the lease lapse after that elapsed time: a wedged run must not hold its lock forever."""
        self._renew_until = elapsed

    def release(self) -> None:
        """Stop renewing and give the lease up; harmless when it is lost already.

        Raises nothing for a store that does not answer: the lease then ends by itself.
        """
        self._closed.set()
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=10)  # at most one round of renewal is under way
        if self._lost is None and self._trusted_until == -inf:
            return
        # Before the call: from its first instant on somebody else may hold the lease.
        self._trusted_until = -inf
        keeper, self._keeper = self._keeper, None
        if (keeper is not None and keeper.close()) or self._lost is not None:
            return
        try:
            self._store.release(self.name, self.holder)
        except StoreError as error:
            log.warning(
                "lease %s: not released, it ends by itself in %d s: %s",
                self.name,
                self._terms.duration,
                error,
            )

    def _watch(self) -> None:
        """Say "lost" on time: the thread that renews may be stuck in a call (a name look-up has no time-out)."""
        sessions = self._store if isinstance(self._store, SessionLeases) else None
        longest = inf if self._keeper is None and sessions is None else PAUSE
        while not self._clock.wait(self._ended, min(longest, self.trusted_until - self._clock.elapsed())):
            if sessions is not None and sessions.gone(self.name, self.holder):
                self._lose(DISCONNECTED)
                return
            late = self._clock.elapsed() - self.trusted_until
            if self._keeper is not None and late >= 0:
                self._lose(STALLED if self._keeper.stalled else KEEPER_ENDED)
                return
            if late >= 0:
                self._lose(STARVING % late if late > STARVED else UNRENEWED)
                return

    def _renew_forever(self) -> None:
        due = self.renews_at
        while not self._clock.wait(self._ended, due - self._clock.elapsed()):
            late = self._clock.elapsed() - due
            self.renewed_late = max(self.renewed_late, late)
            if late > STARVED:
                log.warning("lease %s: %s", self.name, STARVING % late)
            if self._clock.elapsed() >= self._renew_until:
                due = inf
                continue
            due = self.renews_at if self._renewal_round() else self._clock.elapsed() + PAUSE

    def _renewal_round(self) -> bool:
        """Whether a call succeeded."""
        for _ in range(TRIES):
            started = self._clock.elapsed()
            if started >= self._trusted_until or self._closed.is_set():
                return False
            try:
                renewed = self._store.renew(self.name, self.holder)
            except StoreError as error:  # no answer, or none that says who holds it: try until trust ends
                log.warning("lease %s: renewal failed, trying again: %s", self.name, error)
                continue
            if not renewed:
                self._lose("the store says it is no longer ours")
                return False
            if self._clock.elapsed() >= self._trusted_until:
                return False  # the answer came after trust had ended, see the module's docstring
            self._trusted_until = started + self._terms.duration - self._terms.margin
            return True
        return False

    def _lose(self, why: str) -> None:
        with self._losing:  # the run's own check and the renewal may find out at the same instant
            if self._lost is not None or self._closed.is_set():
                return
            self._lost = LeaseLost(f"The lease on {self.name} is lost: {why}. Write nothing more.")
            self._ended.set()
        log.error("lease %s: lost, %s", self.name, why)
        self._on_lost(self._lost)
