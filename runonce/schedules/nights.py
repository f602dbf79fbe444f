"""Pure: what the coming changes of clocks do to a schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from runonce.schedules.zones import changes, zone

if TYPE_CHECKING:
    from runonce.schedules.schedule import Schedule

AHEAD = timedelta(days=370)
"""How far ahead the nights are looked at on which a zone's clocks change."""
NIGHT = timedelta(hours=3)
MOST_SHOWN = 12


class Night(NamedTuple):
    """A night on which clocks change and a schedule fires."""

    text: str
    """When, and at what local times it fires."""
    oddities: tuple[str, ...]
    """What becomes of those that another night has otherwise; none where each of them is as ever."""


def nights(schedule: Schedule, now: datetime) -> list[Night]:
    """The coming ones, the soonest first; none of an interval, which takes no notice of clocks."""
    if schedule.is_interval:
        return []
    there = zone(schedule.time_zone)
    found = []
    for change in (*changes(schedule.time_zone, now.year), *changes(schedule.time_zone, now.year + 1)):
        instant = change.at.replace(tzinfo=UTC)
        if not now < instant < now + AHEAD:
            continue
        around = list(schedule.fire_times(instant - NIGHT, instant + NIGHT, limit=MOST_SHOWN))
        if around:
            times = ", ".join(f"{one.astimezone(there):%H:%M:%S}" for one in around)
            minutes = int((change.after - change.before).total_seconds() // 60)
            way = f"forward by {minutes} min" if minutes > 0 else f"back by {-minutes} min"
            day = f"{instant.astimezone(there):%A, %d %B %Y}"
            text = f"On {day} the clocks of {schedule.time_zone} go {way}; that night it fires at {times}."
            found.append(Night(text, tuple(odd for one in around if (odd := schedule.oddity(one)))))
    return found
