"""Pure: which of the fire times that nobody ran are run late, and how many are let go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.schedules.schedule import Schedule

Misfire = Literal["skip", "latest", "all"]

COUNT_LIMIT = 1000
"""Skipped fire times are counted up to here and no further: a schedule of every second that was down for a
week has missed 604,800, and walking through them would take half a minute."""


@dataclass(frozen=True, slots=True)
class Missed:
    """What to do about the fire times nobody ran."""

    to_run: tuple[datetime, ...]
    """Run these, oldest first. UTC."""
    skipped_count: int = 0
    """How many are let go, counted up to COUNT_LIMIT."""
    at_least: bool = False
    """True when there are more than `skipped_count`."""
    skipped: tuple[datetime, ...] = ()
    """The oldest of those let go (exact even if not all were counted) and the newest, none or both. UTC."""


def missed(schedule: Schedule, after: datetime, until: datetime, keep: int) -> Missed:
    """Decides about the fire times with after < t <= until, none of which was run.

    Args:
        schedule: When the job fires.
        after: Aware datetime: the last fire time that is dealt with.
        until: Aware datetime: fire times later than this are not missed yet.
        keep: How many are run, the newest ones: 0 to COUNT_LIMIT.
    """
    # From the newest backwards, so that the cost depends on the limits here and not on how long it was down.
    newest = list(islice(schedule.newest_first(after, until), keep + COUNT_LIMIT + 1))
    to_run, skipped = tuple(reversed(newest[:keep])), newest[keep:]
    if not skipped:
        return Missed(to_run)
    oldest = next(schedule.fire_times(after, until))
    return Missed(to_run, min(len(skipped), COUNT_LIMIT), len(skipped) > COUNT_LIMIT, (oldest, skipped[0]))
