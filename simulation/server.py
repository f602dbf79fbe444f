"""Storage as its server sees it: memory stores that tell of every write that is carried out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runonce.stores.memory import MemoryBlobs, MemoryLeases, MemoryQueue, MemoryTable
from runonce.stores.protocols import Replace, Row, Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from runonce.clock import Clock
    from runonce.stores.protocols import QueueItem, Write
    from simulation.checks import Checks

ANY = "*"
"""An ETag that fits every row, as in HTTP; the toolkit never uses it, its mutants do."""


class WatchedTable(MemoryTable):
    """Shows each transaction with the rows as they were."""

    def __init__(self, clock: Clock, checks: Checks) -> None:
        super().__init__(clock)
        self._checks = checks

    def _read(self, row: Row) -> Row:
        self._checks.read(row)
        return super()._read(row)

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

    def __init__(self, clock: Clock, checks: Checks) -> None:
        super().__init__(clock)
        self._checks = checks
        self.broken: set[str] = set()
        self.revoked: set[str] = set()
        """Those that nobody else may have before their term ends."""

    def until(self, name: str) -> tuple[str, float]:
        """Who had it last, and the elapsed time until which it is or was his."""
        holder, _, ends = self._holders.get(name, ("", 0, 0.0))
        return holder, ends

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        self._checks.leases_changed = True
        return super().acquire(name, holder, duration)

    def renew(self, name: str, holder: str) -> bool:
        self._checks.leases_changed = True
        return super().renew(name, holder)

    def release(self, name: str, holder: str) -> None:
        self._checks.leases_changed = True
        super().release(name, holder)

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        self._checks.leases_changed = True
        current = (self._current(name) or (None,))[0]
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
    """Says how many messages wait, and when one will."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.came: Callable[[], None] = lambda: None
        """Told of each message that is sent, or hidden for another time."""

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> QueueItem:
        sent = super().send(body, delay=delay, time_to_live=time_to_live)
        self.came()
        return sent

    def hide(self, item: QueueItem, seconds: int) -> QueueItem | None:
        hidden = super().hide(item, seconds)
        self.came()
        return hidden

    def visible(self) -> int:
        """Messages that somebody could take now."""
        now = self._clock.now()
        return sum(item.visible_at <= now < item.expires_at for item in self._items)

    def shows_in(self) -> float | None:
        """Seconds until there is one that somebody could take; None where there is none at all."""
        now = self._clock.now()
        left = [item.visible_at for item in self._items if item.expires_at > max(now, item.visible_at)]
        return max(0.0, (min(left) - now).total_seconds()) if left else None


class Server:
    """The storage account."""

    def __init__(self, clock: Clock, checks: Checks) -> None:
        self.leases = WatchedLeases(clock, checks)
        self.table = WatchedTable(clock, checks)
        self.claims = WatchedTable(clock, checks)
        self.queue = WatchedQueue(clock)
        self.stores = Stores(self.leases, self.table, self.claims, self.queue, WatchedBlobs(checks))
