"""Pure: a cron expression and a time zone become fire times; no clock is read here.

A fire time is a UTC instant on a whole second. Day of month and day of week must *both* match, as the
Functions host reads them (many crons take either).

**When clocks change.** The hour field decides which of two kinds a schedule is:

- It admits every hour: an *interval* schedule. It goes by real time and fires at each instant whose local
  reading matches: in both passes of a repeated hour, and not at all for readings that were skipped.
  `0 */5 * * * *` fires every five real minutes of every night.
- It does not: a *fixed-time* schedule. A local reading that comes twice counts the first time only. One
  that is skipped moves to the first instant after the gap; whatever meets there, be it moved or due by
  itself, is one fire time. `0 30 2 * * *` fires once a day all year, in New York at 03:00 on the night
  clocks go forward. With several times in an hour the rule is the same for each: `0 */10 1-3 * * *` has a
  silent hour while 01:00-01:59 repeats.

So no night is without its job or has it twice, and an interval never stalls for an hour.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from runonce.errors import ScheduleError
from runonce.schedules import ncrontab, zones
from runonce.schedules.zones import SECOND, naive_utc

if TYPE_CHECKING:
    from collections.abc import Iterator

EARLY = SECOND
"""A timer's tick at most this long before a fire time is taken for it."""

EARLIEST = timedelta(seconds=10)
"""Where fire times lie far apart a tick may be this early, else a quarter of the way: the Functions timer can be
seconds early, and then goes on to the next occurrence (azure-webjobs-sdk-extensions, TimerListener)."""

LATE = timedelta(minutes=5)
"""A tick at most this long after a fire time is taken for it, unless told otherwise: a cold start, a busy host."""

# A 29 February on a given week day can be 40 years away (across 2100, which has none).
_HORIZON = timedelta(days=366 * 45)
_YEARS = 50
# Whatever a clock change did to local times is over by then: the largest ever was 24 hours.
_AFTERMATH = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job fires: an NCRONTAB expression of six fields, in a time zone. Build it with `parse`."""

    expression: str
    """second minute hour day-of-month month day-of-week, as written, single spaces between."""
    time_zone: str = "UTC"
    """IANA name."""

    @classmethod
    def parse(cls, expression: str, time_zone: str = "UTC", *, job: str | None = None) -> Schedule:
        """Checks an expression and a time zone.

        Args:
            expression: NCRONTAB of six fields, or of five (second 0 is meant then).
            time_zone: IANA name of the zone the expression is meant in.
            job: Name of the job, for the error's message.

        Raises:
            ScheduleError: One of them is not valid; the message names the job, the value and the remedy.
        """
        try:
            fields = ncrontab.read(expression)
            zones.check(time_zone)
        except ScheduleError as error:
            if job is None:
                raise
            raise ScheduleError(f"Job {job!r}: {error}") from None
        return cls(" ".join(fields.texts), time_zone)

    @property
    def fields(self) -> ncrontab.Fields:
        """The values each field admits (read once for each expression)."""
        return ncrontab.read(self.expression)

    @property
    def is_interval(self) -> bool:
        """True when every hour is admitted, so that the schedule goes by real time (see the module)."""
        return len(self.fields.hour) == 24  # noqa: PLR2004 - hours in a day

    def fire_times(self, after: datetime, until: datetime, *, limit: int | None = None) -> Iterator[datetime]:
        """The fire times with after < t <= until, oldest first.

        Args:
            after: Aware datetime, in any zone.
            until: Aware datetime, in any zone.
            limit: How many at most; None for all of them.

        Yields:
            Aware datetimes in UTC, on whole seconds, each once.

        Raises:
            ValueError: A datetime has no time zone.
        """
        return islice(self._forward(naive_utc(after), naive_utc(until)), limit)

    def newest_first(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The same fire times as `fire_times`, from the newest backwards: costs what is taken, however many.

        Args:
            after: Aware datetime, in any zone.
            until: Aware datetime, in any zone.

        Yields:
            Aware datetimes in UTC, on whole seconds, each once.

        Raises:
            ValueError: A datetime has no time zone.
        """
        return self._backward(naive_utc(after), naive_utc(until))

    def next(self, after: datetime) -> datetime | None:
        """The first fire time after an instant (aware); None if there is none within 45 years, or the calendar ends."""
        return next(self._forward(naive_utc(after), naive_utc(after, _HORIZON)), None)

    def previous(self, at: datetime) -> datetime | None:
        """The last fire time at or before an instant (aware); None if there is none within 45 years."""
        # Nearly every schedule has one within the month; only the others pay for a longer look.
        for reach in (timedelta(days=32), timedelta(days=400), _HORIZON):
            for fire_time in self._backward(naive_utc(at, -reach), naive_utc(at)):
                return fire_time
        return None

    def snap(self, tick: datetime, *, tolerance: timedelta | None = None) -> datetime | None:
        """The fire time a timer's tick was meant for.

        Timers fire up to some seconds early and, on a busy host, minutes late. A tick belongs to the coming
        fire time if that is at most a second away and nearer than the last one, or ten seconds away and a quarter
        of the way from the last one to it; else to the last one.

        Args:
            tick: Aware datetime at which the timer fired.
            tolerance: How late a tick may be, 5 minutes if None. A later one is left to recovery, which
                knows what was missed. With several ticks in that time (a host's timer fires more often
                than a schedule with a time zone) more than one gives the same fire time: the claim decides.

        Returns:
            A fire time in UTC, or None if nothing is due.

        Raises:
            ValueError: The tick has no time zone, or the tolerance is negative.
        """
        late = LATE if tolerance is None else tolerance
        if late < timedelta():
            raise ValueError(f"tolerance {tolerance} is negative; give how late a tick may be")
        now = naive_utc(tick)
        coming = next(self._forward(now, naive_utc(tick, EARLIEST)), None)
        # Beyond that the last one cannot be nearer than the coming one, nor beyond `late` be meant.
        last = next(self._backward(naive_utc(tick, -max(late, 4 * EARLIEST) - SECOND), now), None)
        if coming is not None and (last is None or coming - tick < tick - last):
            early = EARLIEST if last is None else min(EARLIEST, (coming - last) / 4)
            if coming - tick <= max(EARLY, early):
                return coming
        return last if last is not None and tick - last <= late else None

    def oddity(self, fire_time: datetime) -> str | None:
        """What clock changes did to a fire time, in a few words for people; None on every ordinary day."""
        instant = naive_utc(fire_time)
        if not self.is_interval:
            walk = _walk(self.expression)
            for piece in self._pieces(walk, instant - SECOND, instant):
                if piece.moved_from is not None:
                    arrival = instant + piece.offset
                    reading = _reading(piece.moved_from, unlike=arrival)
                    verb = "also stands for" if walk.at_or_after(arrival) == arrival else "moved from"
                    return f"clocks went forward: {verb} {reading}"
        local = instant.replace(tzinfo=UTC).astimezone(zones.zone(self.time_zone))
        if local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset():
            return f"clocks went back: {'second' if local.fold else 'first'} of two {_reading(local)}s"
        return None

    def _forward(self, after: datetime, until: datetime) -> Iterator[datetime]:
        walk = _walk(self.expression)
        for piece in self._pieces(walk, after, until):
            if piece.moved:
                yield piece.moved.replace(tzinfo=UTC)
            local = piece.first
            while local < piece.end and (local := walk.at_or_after(local)) < piece.end:
                yield (local - piece.offset).replace(tzinfo=UTC)
                local += SECOND

    def _backward(self, after: datetime, until: datetime) -> Iterator[datetime]:
        walk = _walk(self.expression)
        for piece in reversed(list(self._pieces(walk, after, until))):
            local = piece.end
            while local > piece.first and (local := walk.before(local)) >= piece.first:
                yield (local - piece.offset).replace(tzinfo=UTC)
            if piece.moved:
                yield piece.moved.replace(tzinfo=UTC)

    def _pieces(self, walk: _Walk, after: datetime, until: datetime) -> Iterator[_Piece]:
        """Cuts after < t <= until (naive UTC, whole seconds) where clocks change, and applies the rule."""
        opens, closes = after + SECOND, until + SECOND
        if opens >= closes:
            return
        for start, end, before, offset in zones.spans(self.time_zone, opens - _AFTERMATH, closes):
            # The readings at which this span begins, and where the span before it left off. Between the
            # two lie readings that repeat (arrival is the earlier) or that were skipped (it is the later).
            arrival, left = start + offset, start + before
            first, moved_from = arrival, None
            if not self.is_interval and left > arrival:
                first = left
            elif not self.is_interval and left < arrival and start >= opens:
                skipped = walk.at_or_after(left)
                if skipped < arrival:
                    # A reading due at the arrival itself is the same instant: begin behind it.
                    first, moved_from = arrival + SECOND, skipped
            yield _Piece(
                first=max(first, opens + offset),
                end=end + offset,
                offset=offset,
                moved=start if moved_from else None,
                moved_from=moved_from,
            )


class _Piece(NamedTuple):
    """A stretch of constant offset, with those of its local readings that count."""

    first: datetime
    """Local reading, included."""
    end: datetime
    """Local reading, not included."""
    offset: timedelta
    moved: datetime | None
    """The instant (naive UTC) standing for readings that were skipped, if any of them was due."""
    moved_from: datetime | None
    """The first of those readings."""


class _Walk:
    """Steps through the local readings of an expression: croniter says once what its fields admit.

    Day of month and day of week have to match both, which croniter does too when it is told so; asked for each step it
    parses the expression anew and tries day after day.
    """

    def __init__(self, fields: ncrontab.Fields) -> None:
        # Imported here because it takes dateutil along: 65 ms that a cold start need not wait for.
        from croniter import croniter  # noqa: PLC0415

        plain = " ".join(
            ncrontab.compact(values, kind) for values, kind in zip(fields.values, ncrontab.KINDS, strict=True)
        )
        *admitted, seconds = croniter.expand(plain, second_at_beginning=True)[0]  # which it gives last
        self._seconds, self._minutes, self._hours, self._days, self._months, self._weekdays = (
            sorted(kind.every) if values == ["*"] else sorted(map(int, values))
            for values, kind in zip((seconds, *admitted), ncrontab.KINDS, strict=True)
        )
        self._latest: tuple[tuple[int, int], list[int]] = (0, 0), []
        """The month that was asked for last, of which most questions are, and its days."""
        self._first = time(self._hours[0], self._minutes[0], self._seconds[0])
        self._last = time(self._hours[-1], self._minutes[-1], self._seconds[-1])

    def at_or_after(self, local: datetime) -> datetime:
        """The first reading not before this one; the end of time if there is none for 50 years."""
        days = self._days_of(local.year, local.month) if local.month in self._months else []
        if local.day in days and (found := self._time_from(local.time())):
            return datetime.combine(local, found)
        if (place := bisect_right(days, local.day)) < len(days):
            return datetime.combine(local.replace(day=days[place]), self._first)
        for year in range(local.year, min(local.year + _YEARS, MAXYEAR) + 1):
            for month in self._months:
                if (year, month) > (local.year, local.month) and (days := self._days_of(year, month)):
                    return datetime.combine(date(year, month, days[0]), self._first)
        return datetime.max  # noqa: DTZ901 - naive

    def before(self, local: datetime) -> datetime:
        """The last reading before this one; the beginning of time if there is none for 50 years."""
        days = self._days_of(local.year, local.month) if local.month in self._months else []
        if local.day in days and (found := self._time_before(local.time())):
            return datetime.combine(local, found)
        if place := bisect_left(days, local.day):
            return datetime.combine(local.replace(day=days[place - 1]), self._last)
        for year in range(local.year, max(local.year - _YEARS, MINYEAR) - 1, -1):
            for month in reversed(self._months):
                if (year, month) < (local.year, local.month) and (days := self._days_of(year, month)):
                    return datetime.combine(date(year, month, days[-1]), self._last)
        return datetime.min  # noqa: DTZ901 - naive

    def _days_of(self, year: int, month: int) -> list[int]:
        """The days of a month that match by date and by day of the week (0 is Sunday)."""
        of, days = self._latest
        if of != (year, month):
            weekday, length = monthrange(year, month)
            days = [day for day in self._days if day <= length and (weekday + day) % 7 in self._weekdays]
            self._latest = (year, month), days  # in one, for other threads ask too
        return days

    def _time_from(self, at: time) -> time | None:
        """The first time of a day not before this one."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        if at.hour in hours:
            if at.minute in minutes and (place := bisect_left(seconds, at.second)) < len(seconds):
                return time(at.hour, at.minute, seconds[place])
            if (place := bisect_right(minutes, at.minute)) < len(minutes):
                return time(at.hour, minutes[place], seconds[0])
        if (place := bisect_right(hours, at.hour)) < len(hours):
            return time(hours[place], minutes[0], seconds[0])
        return None

    def _time_before(self, at: time) -> time | None:
        """The last time of a day before this one."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        if at.hour in hours:
            if at.minute in minutes and (place := bisect_left(seconds, at.second)):
                return time(at.hour, at.minute, seconds[place - 1])
            if place := bisect_left(minutes, at.minute):
                return time(at.hour, minutes[place - 1], seconds[-1])
        if place := bisect_left(hours, at.hour):
            return time(hours[place - 1], minutes[-1], seconds[-1])
        return None


@lru_cache(maxsize=1024)
def _walk(expression: str) -> _Walk:
    return _Walk(ncrontab.read(expression))


def _reading(local: datetime, unlike: datetime | None = None) -> str:
    """02:30, with seconds if there are any, and with the date if it is not that of the other reading."""
    text = local.strftime("%H:%M:%S" if local.second else "%H:%M")
    return text if unlike is None or local.date() == unlike.date() else f"{local:%Y-%m-%d} {text}"
