"""The module against a second, slow reading of the same rule, on random schedules around clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runonce.schedules.schedule import Schedule

ZONES = (
    "America/New_York",
    "Europe/Istanbul",
    "Europe/London",
    "Australia/Lord_Howe",
    "America/Havana",
    "Asia/Kolkata",
    "Pacific/Auckland",
    "UTC",
)
BEGIN, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
MINUTE = timedelta(minutes=1)

quick = settings(derandomize=True, deadline=None, database=None, max_examples=35)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    bounds = st.tuples(number, number).map(sorted)
    step = st.integers(1, high - low)
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.lists(number, min_size=1, max_size=4).map(lambda values: ",".join(map(str, values))),
        bounds.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        step.map(lambda every: f"*/{every}"),
        st.tuples(bounds, step).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
        st.tuples(number, step).map(lambda both: f"{both[0]}/{both[1]}"),
    )


# Few seconds and mostly any date: else a window of days would mostly be empty, or full.
seconds = st.sampled_from(["0", "0", "0", "7,30"])
minutes, any_days, months, weekdays = (field(*RANGES[index]) for index in (1, 3, 4, 5))
days = any_days.filter(lambda text: min(tiny_set(text, 1, 31)) <= 29)  # a day that every month has, or nearly
hours = st.one_of(st.just("*"), st.sampled_from(["0", "1", "2", "1-3", "0,23", "*/2", "1-23"]), field(0, 23))
dates = st.one_of(st.just("* * *"), st.just("* * *"), st.tuples(days, months, weekdays).map(" ".join))
expressions = st.tuples(seconds, minutes, hours, dates).map(" ".join)
zones = st.sampled_from(ZONES)


@cache
def change_days(zone: str) -> list[datetime]:
    """Midday before each clock change of the two years, or a day of no account if there is none."""
    noon = BEGIN + timedelta(hours=12)
    found = [noon + timedelta(days=number) for number in range(730)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in found]
    return [day for day, (now, then) in zip(found, pairwise(offsets), strict=False) if now != then] or [noon]


@st.composite
def windows(draw: st.DrawFn, zone: str) -> tuple[datetime, datetime]:
    """Up to a day, half of them around a clock change; bounds on any second."""
    start = draw(
        st.one_of(
            st.sampled_from(change_days(zone)).map(lambda day: day - timedelta(hours=12)),
            st.integers(0, 730).map(lambda number: BEGIN + timedelta(days=number)),
        )
    )
    after = start + timedelta(seconds=draw(st.integers(0, 86_400)))
    return after, after + timedelta(seconds=draw(st.integers(0, 86_400)))


@cache
def tiny_set(text: str, low: int, high: int) -> frozenset[int]:
    """A cron field in one line per form; the module's reader is not used."""
    values: set[int] = set()
    for item in text.split(","):
        base, _, step = item.partition("/")
        ends = [low, high] if base == "*" else [int(end) for end in base.split("-")]
        first, last = ends[0], ends[-1] if "-" in base or base == "*" or not step else high
        values |= {value for value in range(first, last + 1) if (value - first) % int(step or 1) == 0}
    return frozenset(values)


def slow_fire_times(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """Walks every real minute from three hours before, looking at the clock on the wall.

    A fixed time fires when the clock shows a reading it has not shown before, or has just jumped over it.
    """
    sets = [tiny_set(text, *bounds) for text, bounds in zip(expression.split(), RANGES, strict=True)]
    tz = ZoneInfo(zone)

    def due(wall: datetime) -> bool:
        parts = (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7)
        return all(part in values for part, values in zip(parts, sets[1:], strict=True))

    interval = len(sets[2]) == 24
    minute = after.replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    highest = minute.astimezone(tz).replace(tzinfo=None) - MINUTE
    fired = set()
    while minute <= until:
        if minute.minute % 15 == 0:  # no clock changes anywhere else
            offset = minute.astimezone(tz).utcoffset() or timedelta()
        wall = minute.replace(tzinfo=None) + offset
        new = wall > highest
        if not interval and new:
            jumped = highest + MINUTE
            while jumped < wall:
                if due(jumped):
                    fired.add(minute)
                jumped += MINUTE
        highest = max(highest, wall)
        if (interval or new) and due(wall):
            fired |= {minute + timedelta(seconds=second) for second in sets[0]}
        minute += MINUTE
    return sorted(fire_time for fire_time in fired if after < fire_time <= until)


@pytest.mark.slow
@settings(quick, max_examples=100)
@given(data=st.data(), expression=expressions, zone=zones)
def test_fire_times_are_those_of_a_clock_watched_minute_by_minute(
    data: st.DataObject, expression: str, zone: str
) -> None:
    """For any schedule, zone and window the module finds what watching the wall clock finds, both ways."""
    after, until = data.draw(windows(zone))
    schedule = Schedule.parse(expression, zone)
    expected = slow_fire_times(expression, zone, after, until)
    # The order and the ends are what can go wrong; thousands in between only cost time.
    assert list(schedule.fire_times(after, until, limit=60)) == expected[:60]
    newest = schedule.newest_first(after, until)
    assert [fire_time for fire_time, _ in zip(newest, range(60), strict=False)] == expected[::-1][:60]


@pytest.mark.slow
@quick
@given(data=st.data(), expression=expressions, zone=zones)
def test_cutting_a_window_anywhere_changes_nothing(data: st.DataObject, expression: str, zone: str) -> None:
    """Asked in two halves, as hosts that restart do, the fire times are the same, ascending and unique."""
    after, until = data.draw(windows(zone))
    until = min(until, after + timedelta(hours=4))
    middle = after + (until - after) * data.draw(st.floats(0, 1))
    schedule = Schedule.parse(expression, zone)
    whole = list(schedule.fire_times(after, until))
    assert [*schedule.fire_times(after, middle), *schedule.fire_times(middle, until)] == whole
    assert all(earlier < later for earlier, later in pairwise(whole))
    assert all(fire_time.microsecond == 0 and fire_time.tzinfo is UTC for fire_time in whole)


@pytest.mark.slow
@quick
@given(data=st.data(), expression=expressions, zone=zones)
def test_next_and_previous_are_neighbours(data: st.DataObject, expression: str, zone: str) -> None:
    """From any fire time, the next one's previous (an instant earlier) is that fire time again."""
    after, _ = data.draw(windows(zone))
    schedule = Schedule.parse(expression, zone)
    first = schedule.next(after)
    assert first is not None
    second = schedule.next(first)
    assert schedule.previous(first) == first
    assert second is not None
    assert schedule.previous(second - timedelta(microseconds=1)) == first


@pytest.mark.slow
@quick
@given(
    data=st.data(), expression=expressions, zone=zones, early=st.integers(0, 400_000), late=st.integers(0, 60)
)
def test_a_tick_near_a_fire_time_finds_it(
    data: st.DataObject, expression: str, zone: str, early: int, late: int
) -> None:
    """A tick under half a second early, or late but before the next one is nearer, is the fire time's own."""
    after, _ = data.draw(windows(zone))
    schedule = Schedule.parse(expression, zone)
    fire_time = schedule.next(after)
    assert fire_time is not None
    assert schedule.snap(fire_time - timedelta(microseconds=early)) == fire_time
    coming = schedule.next(fire_time)
    tick = fire_time + timedelta(seconds=late)
    if coming is None or coming - tick > timedelta(seconds=1):
        assert schedule.snap(tick) == fire_time


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 30 1 * * *", "America/New_York"),
        ("0 30 1 * * *", "Europe/London"),
        ("0 15 2 * * *", "Australia/Lord_Howe"),
        ("0 0 0 * * *", "America/Havana"),
    ],
)
def test_a_daily_job_runs_once_on_each_of_two_years_days(expression: str, zone: str) -> None:
    """No local day of two years is without its run, and none has two, whatever the clocks do."""
    tz = ZoneInfo(zone)
    days = [
        fire_time.astimezone(tz).date()
        for fire_time in Schedule.parse(expression, zone).fire_times(BEGIN, END)
    ]
    assert len(days) >= 730
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


@pytest.mark.parametrize("zone", ZONES)
def test_an_interval_is_even_over_clock_changes(zone: str) -> None:
    """Every ten minutes is ten real minutes apart through each clock change of two years."""
    schedule = Schedule.parse("0 */10 * * * *", zone)
    for day in change_days(zone):
        found = list(schedule.fire_times(day, day + timedelta(days=1)))
        assert len(found) == 144
        assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(minutes=10)}
