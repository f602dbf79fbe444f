"""Stores in memory, for fast tests: the same behaviour as Azure's, held to it by the contract suite."""

from __future__ import annotations

import itertools
import threading
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import ConflictError
from runonce.stores.protocols import (
    ANY,
    BlobItem,
    Delete,
    Insert,
    QueueItem,
    Row,
    Stores,
    Value,
    Write,
    check_transaction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runonce.clock import Clock


def memory_stores(clock: Clock) -> Stores:
    """Fresh, empty stores that share one clock, which is their server's."""
    return Stores(
        MemoryLeases(clock), MemoryTable(clock), MemoryTable(clock), MemoryQueue(clock), MemoryBlobs()
    )


class MemoryLeases:
    """Leases that end by the given clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holders: dict[str, tuple[str, int, float]] = {}

    def _current(self, name: str) -> tuple[str, int] | None:
        holder, duration, ends = self._holders.get(name, ("", 0, float("-inf")))
        return (holder, duration) if self._clock.elapsed() < ends else None

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        with self._lock:
            current = self._current(name)
            if current is not None and current[0] != holder:
                return None
            self._holders[name] = (holder, duration, self._clock.elapsed() + duration)
            return self._clock.now().replace(microsecond=0)

    def renew(self, name: str, holder: str) -> bool:
        with self._lock:
            mine, duration, _ = self._holders.get(name, ("", 0, 0.0))
            if mine != holder:
                return False
            # Azure renews an expired lease too, as long as nobody has taken it since.
            self._holders[name] = (holder, duration, self._clock.elapsed() + duration)
            return True

    def release(self, name: str, holder: str) -> None:
        with self._lock:
            if self._holders.get(name, ("",))[0] == holder:
                del self._holders[name]

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        with self._lock:
            if self._current(name) is None:
                return False
            has_it, duration, ends = self._holders.pop(name)
            if holder is not None:
                ours = has_it == holder
                self._holders[name] = (str(uuid.uuid4()) if ours else has_it, duration, ends)
                return ours
            return True

    def held(self, name: str) -> bool:
        with self._lock:
            return self._current(name) is not None

    def held_in(self, folder: str) -> set[str]:
        with self._lock:
            inside = [
                name for name in self._holders if name.startswith(folder) and "/" not in name[len(folder) :]
            ]
            return {name for name in inside if self._current(name) is not None}


class MemoryTable:
    """Rows in a dictionary, with ETags and all-or-nothing transactions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Row]] = {}
        self._etags = (f'W/"{n}"' for n in itertools.count(1))

    def _read(self, row: Row) -> Row:
        return Row(row.key, dict(row.values), row.etag, row.timestamp, self._clock.now())

    def get(self, partition: str, key: str) -> Row | None:
        with self._lock:
            row = self._rows.get(partition, {}).get(key)
            return None if row is None else self._read(row)

    def scan(
        self,
        partition: str,
        first: str,
        last: str,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
    ) -> Iterator[Row]:
        with self._lock:
            found = [r for k, r in sorted(self._rows.get(partition, {}).items()) if first <= k < last]
            if before is not None:
                column, text = before
                found = [r for r in found if "" < str(r.values.get(column, "")) < text]
            return iter([self._read(row) for row in found[:limit]])

    def scan_partitions(
        self,
        first: str,
        last: str,
        *,
        keys: tuple[str, str] = ("", "~"),
        one_of: tuple[str, Sequence[str]] | None = None,
        since: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Row]]:
        with self._lock:
            found = [
                (partition, self._read(row))
                for partition, rows in sorted(self._rows.items())
                if first <= partition < last
                for key, row in sorted(rows.items())
                if keys[0] <= key < keys[1]
                and (one_of is None or row.values.get(one_of[0]) in one_of[1])
                and (since is None or str(row.values.get(since[0], "")) >= since[1])
            ]
        return iter(found if limit is None else found[:limit])

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        check_transaction(writes)
        with self._lock:
            rows = self._rows.setdefault(partition, {})
            for index, write in enumerate(writes):
                _check(rows.get(write.key), write, index)
            return [self._apply(rows, write) for write in writes]

    def _apply(self, rows: dict[str, Row], write: Write) -> str:
        if isinstance(write, Delete):
            del rows[write.key]
            return ""
        now = self._clock.now()
        values: Mapping[str, Value] = dict(write.values)
        rows[write.key] = Row(write.key, values, next(self._etags), now, now)
        return rows[write.key].etag


def _check(row: Row | None, write: Write, index: int) -> None:
    if isinstance(write, Insert):
        if row is not None:
            raise ConflictError(f"Row {write.key} exists.", index=index, exists=True)
    elif row is None or write.etag not in (ANY, row.etag):
        raise ConflictError(f"Row {write.key} changed or is gone.", index=index)


@dataclass
class _Queued:
    id: str
    body: str
    visible_at: datetime
    expires_at: datetime
    receipt: str = ""
    dequeue_count: int = 0


class MemoryQueue:
    """Messages in a list."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._items: list[_Queued] = []

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> QueueItem:
        now = self._clock.now()
        shown, gone = now + timedelta(seconds=delay), now + timedelta(seconds=time_to_live)
        one = _Queued(str(uuid.uuid4()), body, shown, gone, str(uuid.uuid4()))
        with self._lock:
            self._items.append(one)
        return QueueItem(one.id, one.receipt, body, 0)

    def hide(self, item: QueueItem, seconds: int) -> QueueItem | None:
        now = self._clock.now()
        with self._lock:
            for one in self._items:
                if (one.id, one.receipt) == (item.id, item.receipt) and one.expires_at > now:
                    one.visible_at, one.receipt = now + timedelta(seconds=seconds), str(uuid.uuid4())
                    return replace(item, receipt=one.receipt)
        return None

    def receive(self, *, visibility: int) -> QueueItem | None:
        now = self._clock.now()
        with self._lock:
            self._items = [item for item in self._items if item.expires_at > now]
            for item in self._items:
                if item.visible_at <= now:
                    item.visible_at = now + timedelta(seconds=visibility)
                    item.receipt = str(uuid.uuid4())
                    item.dequeue_count += 1
                    return QueueItem(item.id, item.receipt, item.body, item.dequeue_count)
            return None

    def delete(self, item: QueueItem) -> None:
        with self._lock:
            self._items = [i for i in self._items if (i.id, i.receipt) != (item.id, item.receipt)]


class MemoryBlobs:
    """Blobs in a dictionary, with ETags."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, BlobItem] = {}
        self._etags = (f'"0x{n:X}"' for n in itertools.count(1))

    def read(self, name: str) -> BlobItem | None:
        return self._blobs.get(name)

    def head(self, name: str) -> BlobItem | None:
        item = self._blobs.get(name)
        return None if item is None else BlobItem(b"", item.etag, item.metadata)

    def write(
        self,
        name: str,
        data: bytes,
        metadata: Mapping[str, str],
        *,
        etag: str | None,
        content_type: str,  # noqa: ARG002 - nobody asks memory for it
    ) -> str:
        with self._lock:
            current = self._blobs.get(name)
            if (current.etag if current else None) != etag:
                raise ConflictError(f"Blob {name} changed or exists.", exists=etag is None)
            self._blobs[name] = BlobItem(data, next(self._etags), dict(metadata))
            return self._blobs[name].etag

    def delete(self, name: str, *, etag: str) -> None:
        with self._lock:
            current = self._blobs.get(name)
            if current is None or current.etag != etag:
                raise ConflictError(f"Blob {name} changed or is gone.")
            del self._blobs[name]

    def names(self, prefix: str) -> Iterator[str]:
        return iter(sorted(name for name in self._blobs if name.startswith(prefix)))
