"""Pure: a schedule in the words of the two hosts, whose timers know neither time zones nor clock changes.

A schedule with a time zone becomes the smallest single UTC expression that covers every fire time. It ticks
more often than the job fires; `Schedule.snap` finds nothing due at such a tick, which costs no storage call.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import ScheduleError
from runonce.schedules import ncrontab, zones

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from runonce.schedules.schedule import Schedule

YEARS_AHEAD = 3
"""Clock changes this far ahead are covered. The expression is rebuilt at each start of a host, and a fire
time beyond it would be found by recovery."""


def functions_timer(schedule: Schedule, at: datetime) -> str:
    """The six-field NCRONTAB for a Functions timer, which goes by UTC.

    Args:
        schedule: When the job fires.
        at: Aware datetime of now: the offsets the zone uses in the three years from then on count.

    Returns:
        The expression itself if the zone is UTC all the time, else a UTC expression covering every fire time.
    """
    return " ".join(_texts(schedule, at))


def container_apps_cron(schedule: Schedule, at: datetime, *, job: str | None = None) -> str:
    """The five-field cron expression for a Container Apps job, which goes by UTC.

    Only numbers, ranges, steps and lists are used, since their reader is not documented further.

    Args:
        schedule: When the job fires.
        at: Aware datetime of now, as for `functions_timer`.
        job: Name of the job, for the error's message.

    Raises:
        ScheduleError: The schedule cannot be said in five fields; the message names the remedy.
    """
    who = "" if job is None else f"Job {job!r}: "
    seconds, *others = _utc_values(schedule, at)
    if seconds != {0}:
        raise ScheduleError(
            f"{who}schedule {schedule.expression!r} has the second {schedule.fields.texts[0]!r}, and a "
            "Container Apps job starts on whole minutes. Use second 0, or run this job on Functions."
        )
    _, _, days, _, weekdays = others
    if days != ncrontab.KINDS[3].every and weekdays != ncrontab.KINDS[5].every:
        raise ScheduleError(
            f"{who}schedule {schedule.expression!r} restricts both day-of-month and day-of-week: here both "
            "must match, on Container Apps either would do. Make one of them `*` and check it in the job, "
            "or run this job on Functions."
        )
    return " ".join(map(ncrontab.compact, others, ncrontab.KINDS[1:]))


def _texts(schedule: Schedule, at: datetime) -> Iterator[str]:
    fields = schedule.fields
    utc = _utc_values(schedule, at)
    for kind, text, own, values in zip(ncrontab.KINDS, fields.texts, fields.values, utc, strict=True):
        yield text if values == own else ncrontab.compact(values, kind)


def _utc_values(schedule: Schedule, at: datetime) -> Sequence[AbstractSet[int]]:
    """The smallest set of values for each field whose product covers every fire time in UTC.

    A product covers a fire time only if each of its sets holds that fire time's part; so each set is what
    the fire times have in that field, and nothing else.
    """
    fields = schedule.fields
    ahead = timedelta(days=366 * YEARS_AHEAD)
    until = zones.naive_utc(at, ahead)
    spans = list(zones.spans(schedule.time_zone, until - ahead, until))
    if not any(span.offset for span in spans):
        return fields.values
    wanted: list[set[int]] = [set() for _ in ncrontab.KINDS]

    def want(*parts: Iterable[int]) -> None:
        for values, part in zip(wanted, parts, strict=True):
            values.update(part)

    # By month and not by date, since the date of a change moves from year to year.
    months_at: dict[timedelta, set[int]] = {}
    for span in spans:
        months_at.setdefault(span.offset, set()).update(_months(span))
        if not schedule.is_interval and _skips(span, fields):
            # What the clocks skipped fires as they change, which may be at a minute the schedule never names.
            start = span.start
            weekday = start.isoweekday() % 7
            want([start.second], [start.minute], [start.hour], [start.day], [start.month], [weekday])
    for offset, months in months_at.items():
        dates = list(_dates(fields.month & months, fields.day))
        for shift, (hours, minutes) in _times(fields, offset).items() if dates else ():
            moved = [date + timedelta(days=shift) for date in dates]
            weekdays = {(weekday + shift) % 7 for weekday in fields.weekday}
            want(fields.second, minutes, hours, {d.day for d in moved}, {d.month for d in moved}, weekdays)
    if wanted[3] >= set(range(1, max(ncrontab.LONGEST_MONTHS[month - 1] for month in wanted[4]) + 1)):
        wanted[3] = set(ncrontab.KINDS[3].every)  # 1-30 in June is every day, and `*` restricts nothing
    return wanted


def _months(span: zones.Span) -> set[int]:
    """The months, by local time, that a span touches."""
    first, last = span.start + span.offset, span.end + span.offset - zones.SECOND
    return {month % 12 + 1 for month in range(first.year * 12 + first.month - 1, last.year * 12 + last.month)}


def _dates(months: AbstractSet[int], days: AbstractSet[int]) -> Iterator[date]:
    """Every date of a common and of a leap year with such a month and day: February ends in both ways.

    The week day is left out: in time, each date falls on all seven.
    """
    for year in (2027, 2028):
        for month in months:
            yield from (date(year, month, day) for day in days if day <= monthrange(year, month)[1])


def _times(fields: ncrontab.Fields, offset: timedelta) -> dict[int, tuple[set[int], set[int]]]:
    """The UTC hours and minutes of the fire times at an offset, by the days UTC is behind or ahead.

    No zone has had an offset with odd seconds since 1972, so the second stays as it is.
    """
    times: dict[int, tuple[set[int], set[int]]] = {}
    for hour in fields.hour:
        for minute in fields.minute:
            utc_minutes = hour * 60 + minute - offset // timedelta(minutes=1)
            shift, minute_of_day = divmod(utc_minutes, 24 * 60)
            hours, minutes = times.setdefault(shift, (set(), set()))
            hours.add(minute_of_day // 60)
            minutes.add(minute_of_day % 60)
    return times


def _skips(span: zones.Span, fields: ncrontab.Fields) -> bool:
    """Whether the clocks, as this span began, skipped a local reading that was due."""
    local, arrival = span.start + span.before, span.start + span.offset
    while local < arrival:  # whole minutes: so are all changes since 1972
        if (
            local.minute in fields.minute
            and local.hour in fields.hour
            and local.day in fields.day
            and local.month in fields.month
            and local.isoweekday() % 7 in fields.weekday
        ):
            return True
        local += timedelta(minutes=1)
    return False
