"""What the toolkit needs of storage: four small protocols, each with a memory and an Azure implementation.

Every call may raise `StoreUnavailableError`, which always means *unknown*: the request may have been carried
out. Callers read back; implementations never retry on their own, so that one call is one request and a
deadline holds. `StoreError` is a refusal that trying again will not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from runonce.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

Value = str | int | float | bool
"""What a column of a row may hold. Instants are kept as ISO 8601 text, structures as JSON text."""


class LeaseLook(Protocol):
    """Which leases are held."""

    def held(self, name: str) -> bool:
        """Whether anybody holds the lease now, as the server sees it."""
        ...

    def held_in(self, folder: str) -> set[str]:
        """The names in a folder ("shop/", but not in folders inside it) whose lease is held: a call for thousands."""
        ...


class LeaseStore(LeaseLook, Protocol):
    """A named, timed lock. On Azure a lease on a zero-byte blob, which is made on first use.

    `holder` is a fresh UUID for each acquisition (it is the lease id), `duration` whole seconds, 15 to 60.
    """

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        """Take the lease: when, by the server's clock (1 s resolution); None when somebody else holds it."""
        ...

    def renew(self, name: str, holder: str) -> bool:
        """Start the holder's term anew; False when the lease is no longer the holder's."""
        ...

    def release(self, name: str, holder: str) -> None:
        """Give the lease up. Silent when it is not the holder's (any more): that is what release wants."""
        ...

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        """End the lease at once, whoever holds it; False when nobody does.

        With a holder, only if that one has it: it can renew no more, and the lock stays taken to the end of its term.
        """
        ...


@runtime_checkable
class SessionLeases(LeaseStore, Protocol):
    """Leases that end with the connection of the process that acquired them, as soon as that ends."""

    def gone(self, name: str, holder: str) -> bool:
        """Whether the connection of a lease that this process acquired is known to have ended; no call."""
        ...

    def orphaned(self, folder: str) -> list[str]:
        """The names in a folder whose holder's connection has ended while the lease ran; each is told once."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was read."""

    key: str
    values: Mapping[str, Value]
    etag: str
    timestamp: datetime
    """When the server last wrote it, by the server's clock."""
    read_at: datetime
    """When the server answered, by the server's clock (1 s resolution)."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Write a row that must not exist."""

    key: str
    values: Mapping[str, Value]


ANY = "*"
"""The ETag that every row has: for a write that only wants the row to exist."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Write a row, all columns, if it is still as it was when `etag` was read."""

    key: str
    values: Mapping[str, Value]
    etag: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a row if it is still as it was when `etag` was read."""

    key: str
    etag: str


Write = Insert | Replace | Delete

MAX_TRANSACTION = 100
"""Writes in one entity group transaction, and they may weigh 4 MiB together (Azure Tables' limits)."""


def check_transaction(writes: Sequence[Write]) -> None:
    """Return if the writes can be one transaction.

    Raises:
        StoreError: They cannot: none, too many, or two to one row.
    """
    if not 0 < len(writes) <= MAX_TRANSACTION or len({write.key for write in writes}) != len(writes):
        raise StoreError(f"A transaction takes 1 to {MAX_TRANSACTION} writes, each to another row.")


class TableStore(Protocol):
    """Rows in partitions; writes to one partition are atomic together."""

    def get(self, partition: str, key: str) -> Row | None:
        """Read one row."""
        ...

    def scan(
        self,
        partition: str,
        first: str,
        last: str,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
    ) -> Iterable[Row]:
        """Rows with first <= key < last, by key, at most `limit`.

        With `before`, (column, text), only those whose column is not empty and less than the text.
        """
        ...

    def scan_partitions(
        self,
        first: str,
        last: str,
        *,
        keys: tuple[str, str] = ("", "~"),
        one_of: tuple[str, Sequence[str]] | None = None,
        since: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterable[tuple[str, Row]]:
        """The rows of the partitions first <= name < last, with their partitions, in order; for people's looks.

        Args:
            first: The first partition.
            last: One past the last.
            keys: Only rows with keys[0] <= key < keys[1].
            one_of: (column, texts): only those whose column has one of the texts.
            since: (column, text): only those whose column is the text or more.
            limit: At most so many.
        """
        ...

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        """Carry out all writes or none; the new ETags, in order ("" for a delete).

        Raises:
            ConflictError: A condition did not hold; nothing was written.
        """
        ...


@dataclass(frozen=True, slots=True)
class QueueItem:
    """A message as it was sent or received: hidden from others until its visibility runs out."""

    id: str
    receipt: str
    body: str
    dequeue_count: int


class QueueStore(Protocol):
    """A plain queue of short texts (the toolkit's own requests)."""

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> QueueItem:
        """Put a message, visible after `delay` seconds, gone after `time_to_live` seconds."""
        ...

    def hide(self, item: QueueItem, seconds: int) -> QueueItem | None:
        """Hide a message that was sent or received for `seconds` from now; None when it is gone or somebody else's."""
        ...

    def receive(self, *, visibility: int) -> QueueItem | None:
        """Take the next message and hide it for `visibility` seconds; None when there is none."""
        ...

    def delete(self, item: QueueItem) -> None:
        """Remove such a message; silent when it is gone or was handed to somebody else."""
        ...


@dataclass(frozen=True, slots=True)
class BlobItem:
    """A blob's content with what a conditional write needs."""

    data: bytes
    etag: str
    metadata: Mapping[str, str] = field(default_factory=dict)


class BlobStore(Protocol):
    """Named byte strings, for jobs' inputs and outputs."""

    def read(self, name: str) -> BlobItem | None:
        """The whole blob, or None when there is none."""
        ...

    def head(self, name: str) -> BlobItem | None:
        """The blob without its content (`data` is empty), or None when there is none."""
        ...

    def write(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, etag: str | None, content_type: str
    ) -> str:
        """Write if the blob is still as it was (`etag`), or does not exist (None); the new ETag.

        Raises:
            ConflictError: The blob changed, or exists.
        """
        ...

    def delete(self, name: str, *, etag: str) -> None:
        """Delete the blob if it is still as it was when `etag` was read.

        Raises:
            ConflictError: The blob changed, or is gone.
        """
        ...

    def names(self, prefix: str) -> Iterable[str]:
        """The names that start so, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The storage of one namespace, as the toolkit is handed it."""

    leases: LeaseStore
    runs: TableStore
    claims: TableStore
    requests: QueueStore
    blobs: BlobStore
