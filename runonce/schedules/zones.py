"""Pure: when the clocks of a time zone change, and the stretches of constant UTC offset in between.

Instants here are naive datetimes in UTC, which compare and subtract several times faster than aware ones.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from runonce.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


class Change(NamedTuple):
    """Clocks going forward or back: the first instant of the new offset, and both offsets."""

    at: datetime
    before: timedelta
    after: timedelta


class Span(NamedTuple):
    """A stretch of constant offset: `start` included, `end` not, and the offset in force before it."""

    start: datetime
    end: datetime
    before: timedelta
    offset: timedelta


def check(name: object) -> None:
    """Makes sure a time zone exists on this machine.

    Raises:
        ScheduleError: The name is not that of an IANA time zone.
    """
    if not _exists(name):
        raise ScheduleError(f"time zone {name!r} is not known. {_suggestion(name)}")


def _exists(name: object) -> bool:
    # "localtime" is a file beside the zones on some systems: another zone on every machine.
    if not isinstance(name, str) or name == "localtime":
        return False
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _suggestion(name: object) -> str:
    # Zones with a number are left out: for "UTC+3" the nearest name is "Etc/GMT+3", which is three hours
    # behind UTC and not ahead of it.
    zones = (zone for zone in zoneinfo.available_timezones() if "/" in zone and not re.search("[0-9]", zone))
    known = {zone.lower(): zone for zone in zones}
    import difflib  # noqa: PLC0415 - for an error only, and cold starts are short

    close = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.75)
    if close:
        return f'Did you mean "{known[close[0]]}"?'
    return 'Use an IANA name such as "Europe/Istanbul" or "UTC".'


def offset_at(name: str, instant: datetime) -> timedelta:
    """What the zone's clocks are ahead of UTC at an instant (naive UTC); negative west of Greenwich."""
    offset = instant.replace(tzinfo=UTC).astimezone(zoneinfo.ZoneInfo(name)).utcoffset()
    return offset or timedelta()


@lru_cache(maxsize=4096)
def changes(name: str, year: int) -> tuple[Change, ...]:
    """The clock changes of a zone in a year of UTC, in order.

    zoneinfo cannot be asked for them, so the year is sampled daily and each difference narrowed down to its
    second. Two changes that cancel out within a day would be missed; the zone database holds none less
    than three days apart.
    """
    if name == "UTC":
        return ()  # most schedules; sampling takes over a millisecond a year, at each start of a host
    found = []
    day, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)  # noqa: DTZ001 - naive UTC, see above
    before = offset_at(name, day)
    while day < end:
        after = offset_at(name, day + DAY)
        if after != before:
            low, high = day, day + DAY
            while high - low > SECOND:
                middle = low + (high - low) // 2 // SECOND * SECOND
                low, high = (middle, high) if offset_at(name, middle) == before else (low, middle)
            found.append(Change(high, before, after))
        day, before = day + DAY, after
    return tuple(found)


def spans(name: str, first: datetime, last: datetime) -> Iterator[Span]:
    """Cuts the time from `first` to `last` (naive UTC, not included) where the clocks change.

    The span holding `first` is cut there too and its `before` is its own offset, as if nothing had changed:
    whoever needs to know what a change did to the local times after it starts two days earlier.
    """
    start = first
    before = offset = offset_at(name, first)
    for year in range(first.year, last.year + 1):
        for change in changes(name, year):
            if start < change.at < last:
                yield Span(start, change.at, before, offset)
                start, before, offset = change
    if start < last:
        yield Span(start, last, before, offset)
