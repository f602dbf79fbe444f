"""Pure: when the clocks of a time zone change, and the stretches of constant UTC offset in between.

Instants here are naive datetimes in UTC, which compare and subtract several times faster than aware ones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from io import BytesIO
from pkgutil import get_data
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from runonce.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
_EDGE = datetime.min + DAY  # noqa: DTZ901 - naive UTC, see above
FIRST = _EDGE + 3 * DAY
LAST = datetime.max.replace(microsecond=0) - 4 * DAY  # noqa: DTZ901
"""Fire times come in between, so that no local time and no look around a change of clocks leaves the calendar."""


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
    """Makes sure there is such a time zone.

    Raises:
        ScheduleError: The name is not that of an IANA time zone, or the zones are not installed.
    """
    if name == "UTC":
        return
    if not names():
        raise ScheduleError(
            f"time zone {name!r} cannot be looked up, for the package tzdata is not installed. Install it "
            f"(`pip install tzdata`); runonce reads no other zone data, so that all hosts agree."
        )
    if not isinstance(name, str) or name not in names():
        raise ScheduleError(f"time zone {name!r} is not known. {_suggestion(name)}")


def _suggestion(name: object) -> str:
    import difflib  # noqa: PLC0415 - for an error only, and cold starts are short

    from runonce.schedules.windows_zones import IANA  # noqa: PLC0415 - as above

    asked = " ".join(str(name).split()).lower()
    if asked in IANA and asked != "utc":
        return f'That is its name on Windows; use the IANA name "{IANA[asked]}".'
    if right := next((zone for zone in names() if zone.lower() == asked), None):
        return f'Did you mean "{right}"?'
    # Zones with a number are left out: for "UTC+3" the nearest name is "Etc/GMT+3", which is three hours
    # behind UTC and not ahead of it.
    known = {zone.lower(): zone for zone in names() if "/" in zone and not re.search("[0-9]", zone)}
    close = difflib.get_close_matches(asked, known, cutoff=0.75)
    if close:
        return f'Did you mean "{known[close[0]]}"?'
    return 'Use an IANA name such as "Europe/Istanbul" or "UTC".'


@cache
def names() -> frozenset[str]:
    """The names of all time zones; none where tzdata is not installed."""
    return frozenset((_data("zones") or b"").decode().split())


@cache
def zone(name: str) -> tzinfo:
    """A time zone, from the pinned tzdata alone; raises as `check`.

    `ZoneInfo(name)` would ask the machine's own data first, and two hosts with different data name two instants
    for one local time.
    """
    check(name)
    data = None if name == "UTC" else _data(f"zoneinfo/{name}")
    return UTC if data is None else ZoneInfo.from_file(BytesIO(data), key=name)


def _data(file: str) -> bytes | None:
    try:
        return get_data("tzdata", file)
    except ImportError:
        return None


def naive_utc(moment: datetime, shift: timedelta = timedelta()) -> datetime:
    """An aware datetime, so much later, as an instant of this module: cut to the second, from FIRST to LAST."""
    if moment.utcoffset() is None:
        raise ValueError(f"{moment!r} has no time zone; pass an aware datetime, such as one in UTC")
    try:
        naive = moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        naive = FIRST if moment.year == FIRST.year else LAST
    naive = max(FIRST, min(naive, LAST))
    return (naive + max(FIRST - naive, min(shift, LAST - naive))).replace(microsecond=0)


def offset_at(name: str, instant: datetime) -> timedelta:
    """What the zone's clocks are ahead of UTC at an instant (naive UTC); negative west of Greenwich."""
    return instant.replace(tzinfo=UTC).astimezone(zone(name)).utcoffset() or timedelta()


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
    day = max(datetime(year, 1, 1), _EDGE)  # noqa: DTZ001 - naive UTC, see above
    end = LAST if year == LAST.year else datetime(year + 1, 1, 1)  # noqa: DTZ001
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
