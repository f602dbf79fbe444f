"""Where unfinished fire times go that are too many for their job's row: rows of their own, by when they are due.

A row's cell is bounded, and a job that fails for a week is not. The job's row keeps those that are due soonest; the
others are moved out in the transaction that adds one, and come back with the recovery tick when they are due. Such a
row is a hint: what its run's row says decides, so one that is outdated does no harm.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TC003 - the codec reads the annotations
from typing import TYPE_CHECKING, cast

from runonce.runs.rows import JobRow, Pending, Unfinished, key_range
from runonce.stores.columns import Columns, decode, encode
from runonce.stores.protocols import Delete, Insert, Write

if TYPE_CHECKING:
    from runonce.execution.registry import Registry

KEPT = 50
"""Fire times on a job's row that wait, beside one that runs, those that were missed and operators' decisions."""
AT_ONCE = 45
"""Rows moved in one transaction, and as many may have to make room for them."""
MOVED: tuple[Unfinished, ...] = ("retrying", "stopped", "abandoned", "asked", "unsent")


@dataclass(frozen=True, slots=True)
class PendingRow(Columns):
    """An unfinished fire time: `pending:{job}:{due at}:{any}`."""

    job: str
    fire_time: datetime
    why: str
    not_before: datetime
    params: str = ""
    by: str = ""


def spilled(row: JobRow) -> tuple[JobRow, list[Insert]]:
    """The row with no more fire times than it keeps, and the rows for the others, those that are due last."""
    by_due = sorted(
        (pending.not_before, fire_time) for fire_time, pending in row.pending.items() if pending.why in MOVED
    )
    surplus = [fire_time for _, fire_time in by_due[KEPT:]][-AT_ONCE:]
    if not surplus:
        return row, []
    pending = {fire_time: entry for fire_time, entry in row.pending.items() if fire_time not in surplus}
    inserts = [set_aside(row.name, fire_time, row.pending[fire_time]) for fire_time in surplus]
    return replace(row, pending=pending, more=row.more + len(surplus)), inserts


def aside(row: JobRow, fire_time: datetime, params: str) -> tuple[JobRow, list[Insert]]:
    """The row without what is unfinished of a fire time with other parameters, and that one's row meanwhile.

    A job's row has room for one set of them; the other comes back when this one has ended and it is due.
    """
    waiting = row.pending.get(fire_time)
    if waiting is None or waiting.params == params:
        return row, []
    waiting = replace(waiting, why="abandoned" if waiting.why == "running" else waiting.why)
    pending = {t: p for t, p in row.pending.items() if t != fire_time}
    running = None if row.running == fire_time else row.running
    row = replace(row, pending=pending, running=running, more=row.more + 1)
    return row, [set_aside(row.name, fire_time, waiting)]


def returned(registry: Registry, row: JobRow, now: datetime) -> tuple[JobRow, list[Write]]:
    """The row with those of its fire times that are due by now, and the writes that move them; one range read."""
    if not row.more:
        return row, []
    first, last = key_range("pending", row.name)[0], _key(row.name, now)
    pending, deletes = dict(row.pending), []
    for found in registry.table.scan(registry.namespace, first, last, limit=AT_ONCE):
        one = decode(PendingRow, found)
        if one.fire_time in pending and pending[one.fire_time].params != one.params:
            continue  # one set of parameters at a time
        entry = Pending(cast("Unfinished", one.why), one.not_before, params=one.params, by=one.by)
        pending.setdefault(one.fire_time, entry)
        deletes.append(Delete(found.key, found.etag))
    if not deletes:
        return row, []
    row, inserts = spilled(replace(row, pending=pending, more=max(0, row.more - len(deletes))))
    return row, [*deletes, *inserts]


def brought_back(
    registry: Registry, row: JobRow, fire_time: datetime, params: str
) -> tuple[JobRow, list[Delete]]:
    """The row with what is unfinished of a fire time with these parameters, if it was moved out; one range read."""
    if not row.more or fire_time in row.pending:
        return row, []
    rows = registry.table.scan(registry.namespace, *key_range("pending", row.name))
    found = [(decode(PendingRow, one), one) for one in rows]
    mine = [(one, at) for one, at in found if (one.fire_time, one.params) == (fire_time, params)]
    if not mine:
        return row, []
    one = mine[0][0]
    entry = Pending(cast("Unfinished", one.why), one.not_before, params=params, by=one.by)
    row = replace(row, pending={**row.pending, fire_time: entry}, more=max(0, row.more - len(mine)))
    return row, [Delete(at.key, at.etag) for _, at in mine]


def set_aside(name: str, fire_time: datetime, pending: Pending) -> Insert:
    """The row of an unfinished fire time."""
    values = encode(PendingRow(name, fire_time, pending.why, pending.not_before, pending.params, pending.by))
    return Insert(f"{_key(name, pending.not_before)}:{uuid.uuid4().hex}", values)


def _key(name: str, due: datetime) -> str:
    return f"pending:{name}:{int(due.timestamp()):010d}"
