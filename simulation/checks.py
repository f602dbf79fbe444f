"""What must hold in every world, after every step, and where it is told what broke it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from runonce.execution.lease import Lease
    from runonce.stores.protocols import BlobItem, Row
    from simulation.server import WatchedLeases
    from simulation.world import SimHost, World


class Checks(ABC):
    """The invariants of one world, and what broke them."""

    world: World[Any, Any]

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.checked: Counter[str] = Counter()
        self.cut_off: Counter[Hashable] = Counter()
        """How often storage took all the time that a stopping host had to record the end of a run, or of a message."""
        self.leases_changed = False
        """Since the last look at them: one is trusted anew, or the server has changed one."""
        self.held: dict[str, list[tuple[SimHost, Lease]]] = {}
        """Leases that were acquired and may be trusted still, by lock."""

    @abstractmethod
    def committed(self, rows: Mapping[str, Row], before: Mapping[str, Row | None]) -> None:
        """Look at what one transaction changed."""

    def read(self, row: Row) -> None:  # noqa: B027 - messages look at no reads
        """A row is read by whoever runs now."""

    @abstractmethod
    def blob_written(self, before: BlobItem | None, after: BlobItem) -> None:
        """Look at a blob that was written over."""

    @abstractmethod
    def unaccounted(self) -> list[str]:
        """What is neither done once nor named by a record that says why not."""

    @abstractmethod
    def ended(self) -> None:
        """The accounting, once everything has been whole for long enough."""

    @property
    @abstractmethod
    def leases(self) -> WatchedLeases:
        """The server's."""

    def violated(self, invariant: str, what: str) -> None:
        """Remember it, and let time end here."""
        self.violations.append(f"{invariant}: {what}")
        self.world.note("violation", self.violations[-1])
        self.world.sim.stop()

    def acquired(self, host: SimHost, lease: Lease) -> None:
        """Watch a lease from now on."""
        self.held.setdefault(lease.name, []).append((host, lease))
        self.leases_changed = True

    def after_step(self) -> None:
        """At no moment do two trust the lease of one lock, and nobody trusts one that is not his.

        What time alone does is known beforehand: trust that ends no later than the lease is good until either changes.
        """
        if not self.leases_changed:
            return
        self.leases_changed, now = False, self.world.sim.now
        for name, entries in self.held.items():
            if entries:
                self._one_lock(name, entries, now)

    def _one_lock(self, name: str, entries: list[tuple[SimHost, Lease]], now: float) -> None:
        leases, trusted = self.leases, 0
        holder, ends = leases.until(name)
        for entry in entries:
            host, lease = entry
            if host.dead or lease._closed.is_set() or lease._lost is not None:
                self.held[name] = [other for other in self.held[name] if other is not entry]
                continue
            until = lease._trusted_until
            if now < until and lease.holder not in leases.broken:
                trusted += 1
                self.checked["trust ends before the lease"] += 1
                if lease.holder not in leases.revoked and (lease.holder != holder or ends < until):
                    self.violated(
                        "trust ends before the lease",
                        f"{host.name} trusts a lease that is not its own, or for longer than it has it",
                    )
        if trusted:
            self.checked["one trusted holder"] += 1
            if trusted > 1:
                self.violated("one trusted holder", f"{trusted} at once")
