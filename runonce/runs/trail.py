"""Who did what: a row for each action of an operator, written with what it changed, and read newest first."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - the codec reads the annotations
from typing import TYPE_CHECKING

from runonce.runs.rows import FAR_FUTURE
from runonce.stores.columns import Columns, decode, encode
from runonce.stores.protocols import Insert

if TYPE_CHECKING:
    from runonce.execution.registry import Registry

FIRST, LAST = "trail:", "trail;"


@dataclass(frozen=True, slots=True)
class Action(Columns):
    """One action, as it is kept and shown."""

    at: datetime
    by: str
    """Who, as the person or page said it; where nobody did, the host."""
    did: str
    """paused, resumed, asked, resumed run, replayed, marked done, cancelled, broke lease, purged, ..."""
    about: str
    """The job's or handler's name."""
    what: str = ""
    """The fire time, or the messages' ids."""
    why: str = ""


def insert(action: Action) -> Insert:
    """The write of an action, for the transaction of what it changes."""
    within = 999_999 - action.at.microsecond  # the newest first also of those of one second
    return Insert(f"{_key(action.at)}:{within:06d}:{uuid.uuid4().hex}", encode(action))


def note(registry: Registry, action: Action) -> None:
    """Write down an action that changes no row of a job: one call; raises StoreError."""
    registry.table.commit(registry.namespace, [insert(action)])


def actions(registry: Registry, limit: int, about: str = "") -> list[Action]:
    """The latest actions, the newest first; of one job or handler, if it is named.

    One range read. Raises StoreError.
    """
    found: list[Action] = []
    for row in registry.table.scan(registry.namespace, FIRST, LAST):
        action = decode(Action, row)
        if about in ("", action.about):
            found.append(action)
        if len(found) == limit:
            break
    return found


def older_than(before: datetime) -> tuple[str, str]:
    """The range of keys of the actions before an instant."""
    return _key(before), LAST


def _key(at: datetime) -> str:
    return f"{FIRST}{FAR_FUTURE - int(at.timestamp()):010d}"
