"""Which hosts live: a row each, in a partition of their own, that says when they were last there.

A host that checks in every few seconds is missed long before the minute's recovery tick, so that whoever misses it
can wait for the leases it held and ask for its runs at the instant they end. Nothing is decided by these rows: the
lease says whether a holder lives, and a host that comes back late writes its row anew.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

from runonce.errors import ConflictError
from runonce.stores.columns import compact, to_text
from runonce.stores.protocols import Delete, Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row, Value

CHECK_IN = 7.0
"""Seconds between two signs of life."""
MISSED = timedelta(seconds=CHECK_IN + 3)
"""Without one for so long, by storage's clock of whole seconds, a host is missed."""
MOST_JOBS = 500
"""Jobs that are named on the row; it has room for those."""
FIRST, LAST = "host:", "host;"


def partition(namespace: str) -> str:
    """Where the rows of a namespace's hosts are: no range read over its jobs meets them."""
    return f"{namespace}:hosts"


@dataclass(frozen=True, slots=True)
class Seen:
    """A host's row, as it was read."""

    name: str
    since: timedelta
    """How long ago the host checked in, by storage's clock."""
    etag: str

    @property
    def is_missed(self) -> bool:
        """Whether it should have checked in again."""
        return self.since > MISSED


class OwnRow:
    """A row that one process writes again and again, and that others take away when they miss that one."""

    def __init__(self, registry: Registry, key: str) -> None:
        self._table, self._partition = registry.table, partition(registry.namespace)
        self.key = key
        self._etag: str | None = None

    def write(self, values: Mapping[str, Value]) -> bool:
        """Write it, mostly in one call; False where that has to be done once more.

        Raises:
            StoreUnavailableError: Storage did not answer; the next time says it again.
        """
        write = Insert(self.key, values) if self._etag is None else Replace(self.key, values, self._etag)
        try:
            (self._etag,) = self._table.commit(self._partition, [write])
        except ConflictError:  # somebody missed us meanwhile and took the row away, or an answer was lost
            row = self._table.get(self._partition, self.key)
            self._etag = None if row is None else row.etag
            return False
        return True

    def remove(self) -> None:
        """Take it away, where it was written. Raises as `write`."""
        if self._etag is not None:
            with suppress(ConflictError):  # somebody else did
                self._table.commit(self._partition, [Delete(self.key, self._etag)])
            self._etag = None


class Presence:
    """This host's row, and those of the others."""

    def __init__(self, registry: Registry, jobs: Iterable[str], started: datetime) -> None:
        self._registry = registry
        self._partition = partition(registry.namespace)
        self._row = OwnRow(registry, row_key(FIRST, registry.host))
        self._about: dict[str, Value] = {
            "name": registry.host,
            "version": _version(),
            "started": to_text(started),
            "jobs": compact(sorted(jobs)[:MOST_JOBS]),
        }

    def check_in(self) -> None:
        """Say that this host lives: one call.

        Raises:
            StoreUnavailableError: Storage did not answer; the next time says it again.
        """
        self._row.write(self._about)

    def leave(self) -> None:
        """Take the row away: a host that ends is not missed. Raises as `check_in`."""
        self._row.remove()

    def others(self) -> list[Seen]:
        """The other hosts: one call. Raises as `check_in`."""
        rows = self._registry.table.scan(self._partition, FIRST, LAST)
        return [_seen(row) for row in rows if row.key != self._row.key]

    def gone(self, host: Seen) -> bool:
        """Take the row of a missed host away; False when another host was faster, or it is there again."""
        try:
            self._registry.table.commit(self._partition, [Delete(row_key(FIRST, host.name), host.etag)])
        except ConflictError:
            return False
        return True


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only hosts that check in ask

    try:
        return version("runonce")
    except PackageNotFoundError:  # run from a checkout
        return ""


def row_key(kind: str, name: str) -> str:
    """The key of a row of one kind, such as "host:", for a host or an app of that name."""
    return kind + quote(name, safe=" :").replace("%", "=")


def _seen(row: Row) -> Seen:
    return Seen(str(row.values.get("name", "")), row.read_at - row.timestamp, row.etag)
