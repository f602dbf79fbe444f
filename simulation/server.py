"""Storage as its server sees it: memory stores that tell of every write that is carried out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runonce.stores.memory import MemoryBlobs, MemoryLeases, MemoryQueue, MemoryTable
from runonce.stores.protocols import Replace, Row, Stores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runonce.clock import Clock
    from runonce.stores.protocols import Write
    from simulation.checks import Checks

ANY = "*"
"""An ETag that fits every row, as in HTTP; the toolkit never uses it, its mutants do."""


class WatchedTable(MemoryTable):
    """Shows each transaction with the rows as they were."""

    def __init__(self, clock: Clock, checks: Checks) -> None:
        super().__init__(clock)
        self._checks = checks

    def rows(self, partition: str) -> Mapping[str, Row]:
        """The rows as they are, without a call."""
        return self._rows.get(partition, {})

    def partitions(self) -> list[str]:
        """Their names."""
        return list(self._rows)

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        rows = self.rows(partition)
        before = {write.key: rows.get(write.key) for write in writes}
        etags = super().commit(partition, [self._with_etag(partition, write) for write in writes])
        self._checks.committed(self.rows(partition), before)
        return etags

    def _with_etag(self, partition: str, write: Write) -> Write:
        row = self.rows(partition).get(write.key)
        if isinstance(write, Replace) and write.etag == ANY and row is not None:
            return replace(write, etag=row.etag)
        return write


class WatchedLeases(MemoryLeases):
    """Remembers whose lease an operator took."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.broken: set[str] = set()
        self.revoked: set[str] = set()
        """Those that nobody else may have before their term ends."""

    def holder(self, name: str) -> str | None:
        """Who holds it now."""
        current = self._current(name)
        return None if current is None else current[0]

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        current = self.holder(name)
        if current is not None and holder is not None:
            self.revoked.add(holder)
        elif current is not None:  # and with it one that was revoked a moment ago
            self.broken |= {current} | self.revoked
        return super().break_lease(name, holder)


class WatchedBlobs(MemoryBlobs):
    """Shows each blob that is written over."""

    def __init__(self, checks: Checks) -> None:
        super().__init__()
        self._checks = checks

    def write(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, etag: str | None, content_type: str
    ) -> str:
        before = self._blobs.get(name)
        written = super().write(name, data, metadata, etag=etag, content_type=content_type)
        self._checks.blob_written(before, self._blobs[name])
        return written


class WatchedQueue(MemoryQueue):
    """Says how many messages wait."""

    def visible(self) -> int:
        """Messages that somebody could take now."""
        now = self._clock.now()
        return sum(item.visible_at <= now < item.expires_at for item in self._items)


class Server:
    """The storage account."""

    def __init__(self, clock: Clock, checks: Checks) -> None:
        self.leases = WatchedLeases(clock)
        self.table = WatchedTable(clock, checks)
        self.claims = WatchedTable(clock, checks)
        self.queue = WatchedQueue(clock)
        self.stores = Stores(self.leases, self.table, self.claims, self.queue, WatchedBlobs(checks))
