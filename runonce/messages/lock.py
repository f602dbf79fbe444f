"""A handler's lock: where it lies, waiting for it without keeping others waiting, and what fences writes under it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runonce.errors import ConflictError
from runonce.execution.lease import Lease
from runonce.execution.patience import patiently
from runonce.stores.columns import Columns, decode, encode
from runonce.stores.protocols import Insert, Replace
from runonce.transports.ids import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.execution.registry import Registry
    from runonce.execution.stop import StopSignal
    from runonce.execution.turns import Turn
    from runonce.settings import LeaseTerms
    from runonce.stores.protocols import LeaseStore

SHARDS = 16
"""Partitions of the locks' rows, a part of their address."""
POLL = 0.25
"""Seconds between tries for a lock."""


@dataclass(frozen=True, slots=True)
class LockRow(Columns):
    """What is kept of a lock: made with the first blob that is written under it."""

    name: str
    token: int = 0
    """Rises with every holder that writes a blob."""


def lock_path(namespace: str, name: str) -> str:
    """The name of a lock's lease; `name` as `reading.lock_name` makes it."""
    return f"{namespace}/lock/{name}"


def take_lock(
    leases: LeaseStore,
    path: str,
    terms: LeaseTerms,
    clock: Clock,
    *,
    wait: float,
    stop: StopSignal,
    turn: Turn | None,
) -> Lease | None:
    """Take a lock, waiting `wait` seconds for it at most, until a stop; others may have its turn meanwhile.

    None when it was held elsewhere all the time, or where too many wait already.

    Raises:
        StoreError: Whether it is held is not known.
    """
    give_up_at = clock.elapsed() + wait
    lease = Lease.acquire(leases, path, terms, clock)
    if lease is not None or turn is None:
        return lease or _wait_for(leases, path, terms, clock, give_up_at, stop)
    with turn.passed_on() as may_wait:
        if may_wait:
            lease = _wait_for(leases, path, terms, clock, give_up_at, stop)
    return lease


def _wait_for(
    leases: LeaseStore, path: str, terms: LeaseTerms, clock: Clock, give_up_at: float, stop: StopSignal
) -> Lease | None:
    while clock.elapsed() < give_up_at and stop.cause is None:
        clock.wait(stop.event, POLL)
        if (lease := Lease.acquire(leases, path, terms, clock)) is not None:
            return lease
    return None


class LockToken:
    """The fencing token of one holding of a lock, drawn when it is first asked for: two calls.

    It rises from holder to holder. Whether the lock is still held is to be asked after it was drawn, and before the
    write: then a holder that was paused in between finds the lock gone, or a newer token on the blob.
    """

    def __init__(self, registry: Registry, name: str, check: Callable[[], None]) -> None:
        self._registry = registry
        self._name = name
        self._check = check
        self._one_at_a_time = threading.Lock()
        self._token = 0

    def __call__(self) -> int:
        """The token; raises LeaseLost when the lock is not held, and StoreUnavailableError."""
        with self._one_at_a_time:
            while not self._token:
                self._token = patiently(self._registry.clock, self._draw, check=self._check)
            return self._token

    def _draw(self) -> int:
        table, hashed = self._registry.table, digest(self._name)
        # Beside the handlers' own partitions, which have a name in the middle.
        partition, key = (
            f"{self._registry.namespace}||{int(hashed[:4], 16) % SHARDS:02x}",
            f"lock:{hashed}",
        )
        read = table.get(partition, key)
        row = LockRow(name=self._name) if read is None else decode(LockRow, read)
        row = replace(row, token=row.token + 1)
        write = Insert(key, encode(row)) if read is None else Replace(key, encode(row), read.etag)
        try:
            table.commit(partition, [write])
        except ConflictError:  # a reply that was lost, or somebody who thinks that it holds the lock
            return 0
        return row.token
