"""Fan-out and join: which messages of a run are not done yet, and what follows once all of them are.

Each write of a run that keeps such messages keeps a row that lists them, in the same transaction. Whether one is done
its claim tells, and nothing else: no counter could be wrong after a death. The recovery tick goes through the lists in
order, takes out what is done, and removes the rows; when a run that has succeeded has none left, the handlers that wait
are sent a message whose id is the same however often that happens.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from runonce.errors import ConflictError, RunonceError
from runonce.runs.rows import JobRow, Outcome, RunRow, run_key
from runonce.runs.table import change_job, find_run
from runonce.stores.columns import (
    LONGEST_COLUMN,
    UNREADABLE,
    compact,
    instant,
    to_text,
    typed,
    units,
    unreadable,
)
from runonce.stores.protocols import Delete, Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Row

log = logging.getLogger("runonce.runs.joins")

KEPT_JOINS = 300
"""Runs on a job's row whose messages are waited for."""
LONGEST = 10.0
"""Seconds that a recovery tick looks for messages that are done; the next one goes on."""


class FanOut(NamedTuple):
    """Messages of a run to handlers that others wait for."""

    totals: Mapping[str, int]
    """How many there have been, by handler."""
    new: Mapping[str, Sequence[str]]
    """Those that no write has listed yet, by handler."""


NONE = FanOut({}, {})


class Joined(Protocol):
    """What is known of messages, and who waits for them."""

    def not_done(self, handler: str, members: Sequence[str], until: float) -> Sequence[str]:
        """From the first that is not done on; also what there was no time for. Raises StoreError."""
        ...

    def join(self, run: RunRow) -> None:
        """Send whoever waits for a run's messages its own.

        Raises as `FollowUps.send`, and UnknownJobError where nobody does here: another version, or another app, knows.
        """
        ...


def listing(run: RunRow, fan_out: FanOut) -> Insert | None:
    """The row that lists the new ones."""
    if not fan_out.new:
        return None
    key = f"{_prefix(run)}{uuid.uuid4().hex}"
    return Insert(key, {"job": run.job, "members": compact(fan_out.new)})


def _prefix(run: RunRow) -> str:
    key = run_key(run.job, run.fire_time, run.params).removeprefix("run:")
    return f"join:{key}:{run.generation}:"


def waiting(row: JobRow, run: RunRow) -> JobRow:
    """The job's row when that run has succeeded."""
    if not run.fanned_out:
        return row
    one = (to_text(run.fire_time), run.params)
    joins = (*(other for other in row.joins if other != one), one)
    while len(joins) > KEPT_JOINS or units(compact(joins)) > LONGEST_COLUMN:
        log.error(
            "job %s: the messages of %s are waited for no more, with so many later runs",
            row.name,
            joins[0][0],
        )
        joins = joins[1:]
    return replace(row, joins=joins)


def follow(registry: Registry, joined: Joined, job: JobRow) -> None:
    """Look which messages of a job's runs are done by now, and send what follows on all of them."""
    until = registry.clock.elapsed() + LONGEST
    for at, params in job.joins:
        try:
            found = find_run(registry, job.name, instant(at), params)
            if found is not None:
                run = found[0]
                if run.outcome is not Outcome.SUCCEEDED or _waits(registry, joined, run, until):
                    continue  # it is replayed, or some are not done
                joined.join(run)
            change_job(registry, job.name, lambda row, _, one=(at, params): _without(row, one))  # type: ignore[misc]
        except (RunonceError, ValueError, OverflowError) as error:  # or a column that was edited
            log.warning(
                "job %s: what follows on the messages of %s waits for the next tick: %s", job.name, at, error
            )


def _without(row: JobRow, one: tuple[str, str]) -> JobRow:
    return replace(row, joins=tuple(other for other in row.joins if other != one))


def _waits(registry: Registry, joined: Joined, run: RunRow, until: float) -> bool:
    """Whether some message of the run is not done; the lists lose those that are."""
    prefix = _prefix(run)
    waits = False
    for row in list(registry.table.scan(registry.namespace, prefix, prefix[:-1] + ";")):
        try:
            listed = typed(json.loads(str(row.values["members"])), Mapping[str, tuple[str, ...]])
        except UNREADABLE as error:
            raise unreadable(row, error) from error
        left = {name: tuple(joined.not_done(name, members, until)) for name, members in listed.items()}
        left = {name: members for name, members in left.items() if members}
        waits |= bool(left)
        if left != listed:
            waits |= not _shorten(registry, row, left)
    return waits


def _shorten(registry: Registry, row: Row, left: Mapping[str, Sequence[str]]) -> bool:
    change = (
        Replace(row.key, {**row.values, "members": compact(left)}, row.etag)
        if left
        else Delete(row.key, row.etag)
    )
    try:
        registry.table.commit(registry.namespace, [change])
    except ConflictError:  # another replica's tick was faster
        return False
    return True
