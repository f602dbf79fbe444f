"""Which hosts live: a row each, in a partition of their own, that says when they were last there.

Each recovery tick checks in. The rows are for people, and nothing is decided by them: a run's lease says whether its
holder lives, and its switch brings it to another host.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from runonce.errors import ConflictError, StoreError
from runonce.stores.columns import UNREADABLE, compact, from_text, to_text, typed, unreadable
from runonce.stores.protocols import ANY, Delete, Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row, Value

log = logging.getLogger("runonce.runs.presence")

CHECK_IN = 7.0
"""Seconds between two signs of life."""
MISSED = timedelta(seconds=CHECK_IN + 3)
"""Without one for so long, by storage's clock of whole seconds, a host is missed."""
EACH_TICK = 60.0
"""Seconds between two signs of life where only the recovery tick gives them; such a host may miss one."""
FORGOTTEN = timedelta(days=1)
"""After so long without one nobody needs a host's row any more."""
MOST_JOBS = 500
"""Jobs that are named on the row; it has room for those."""
FIRST, LAST = "host:", "host;"


def partition(namespace: str) -> str:
    """Where the rows of a namespace's hosts are: no range read over its jobs meets them."""
    return f"{namespace}:hosts"


@dataclass(frozen=True, slots=True)
class Host:
    """What a host says of itself, for people."""

    name: str
    kind: str
    """local, functions, or tick: what starts it anew for each recovery tick, as Container Apps and cron do."""
    version: str
    started: datetime | None
    jobs: tuple[str, ...]
    """Those it knows, the toolkit's own included; 500 at most."""
    last_seen: datetime
    """By storage's clock."""
    seen_ago: timedelta
    is_alive: bool
    """Whether it checked in when it should have."""
    leads: bool = False
    """Whether it is the one that runs timers and recovery, where the others stand by and have no row."""


def hosts(registry: Registry) -> list[Host]:
    """The hosts of the namespace, those alive first: one range read. One that ended by itself is not among them.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    found = [_host(row) for row in registry.table.scan(partition(registry.namespace), FIRST, LAST)]
    return sorted(found, key=lambda host: (not host.is_alive, host.name))


def _host(row: Row) -> Host:
    value, silent = row.values.get, row.read_at - row.timestamp
    try:
        return Host(
            name=str(value("name", "")),
            kind=str(value("kind", "local")),
            version=str(value("version", "")),
            started=from_text(str(value("started", ""))),
            jobs=typed(json.loads(str(value("jobs", "[]"))), tuple[str, ...]),
            last_seen=row.timestamp,
            seen_ago=silent,
            leads=value("leads") is True,
            is_alive=silent <= max(MISSED, timedelta(seconds=2 * float(value("every", EACH_TICK)))),
        )
    except UNREADABLE as error:
        raise unreadable(row, error) from error


class OwnRow:
    """A row that one process writes again and again, and that others take away when they miss that one."""

    def __init__(self, registry: Registry, key: str, etag: str | None = None) -> None:
        self._table, self._partition = registry.table, partition(registry.namespace)
        self.key = key
        self._etag = etag

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
    """This host's row, and those of the others.

    Args:
        registry: Where the rows are.
        jobs: The names of the jobs that this host knows.
        started: Since when it runs.
        kind: As `Host.kind`.
        every: Seconds between its recovery ticks.
        name: Of the host; default is the registry's.
        leads: As `Host.leads`.
    """

    def __init__(
        self,
        registry: Registry,
        jobs: Iterable[str],
        started: datetime,
        *,
        kind: Literal["local", "functions", "tick"] = "local",
        every: float = EACH_TICK,
        name: str = "",
        leads: bool = False,
    ) -> None:
        self._name = name or registry.host
        before = ANY if kind == "tick" else None  # the row of the tick before is mostly there
        self._row = OwnRow(registry, row_key(FIRST, self._name), before)
        self._about: dict[str, Value] = {
            "name": self._name,
            "kind": kind,
            "every": every,
            "version": _version(),
            "started": to_text(started),
            "jobs": compact(sorted(jobs)[:MOST_JOBS]),
            "leads": leads,
        }

    def check_in(self) -> None:
        """Say that this host lives: one call.

        Raises:
            StoreUnavailableError: Storage did not answer; the next time says it again.
        """
        self._row.write(self._about)

    def say(self) -> None:
        """The same where nothing hangs on it: trouble with storage is logged, and the next time says it again."""
        try:
            if not self._row.write(self._about):  # such as over the row of this host's life before
                self._row.write(self._about)
        except StoreError as error:
            log.debug("no sign of life, trying again: %s", error)

    def leave(self) -> None:
        """Take the row away: a host that ends is not missed. Raises as `check_in`."""
        self._row.remove()


def forget(registry: Registry) -> int:
    """Take the rows away of hosts that nobody has heard of for a day; how many. Raises as `check_in`."""
    at, removed = partition(registry.namespace), 0
    for row in list(registry.table.scan(at, FIRST, LAST)):
        if row.read_at - row.timestamp > FORGOTTEN:
            with suppress(ConflictError):  # it is there again
                registry.table.commit(at, [Delete(row.key, row.etag)])
                removed += 1
    return removed


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only hosts that check in ask

    try:
        return version("runonce")
    except PackageNotFoundError:  # run from a checkout
        return ""


def row_key(kind: str, name: str) -> str:
    """The key of a row of one kind, such as "host:", for a host or an app of that name."""
    return kind + quote(name, safe=" :").replace("%", "=")
