from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runonce.errors import ScheduleError
from runonce.schedules import ncrontab
from runonce.schedules.host_cron import container_apps_cron, functions_timer
from runonce.schedules.schedule import Schedule

NOW = datetime(2025, 1, 1, tzinfo=UTC)
NEW_YORK, ISTANBUL, KOLKATA = "America/New_York", "Europe/Istanbul", "Asia/Kolkata"

TRANSLATIONS = [
    ("0 30 3 * Jan Mon-Fri", "UTC", "0 30 3 * Jan Mon-Fri"),
    ("0 0 3 30,31 4,2 *", "Africa/Abidjan", "0 0 3 30,31 4,2 *"),
    # Three hours ahead all year; midnight there is the evening of the day before.
    ("0 0 3 * * *", ISTANBUL, "0 0 0 * * *"),
    ("0 0 0 * * *", ISTANBUL, "0 0 21 * * *"),
    ("0 0 0 * * mon", ISTANBUL, "0 0 21 * * 0"),
    ("0 0 0 * * sun", ISTANBUL, "0 0 21 * * 6"),
    ("0 0 0,12 * * mon", ISTANBUL, "0 0 9,21 * * 0,1"),
    ("0 0 0 1 * *", ISTANBUL, "0 0 21 28-31 * *"),
    ("0 0 0 1 1 *", ISTANBUL, "0 0 21 31 12 *"),
    ("0 0 0 1 3 *", ISTANBUL, "0 0 21 28,29 2 *"),
    ("0 0 0 2-8 5 *", ISTANBUL, "0 0 21 1-7 5 *"),
    # Half an hour: minutes move too.
    ("0 0 3 * * *", KOLKATA, "0 30 21 * * *"),
    ("0 15,45 8 * * *", KOLKATA, "0 15,45 2,3 * * *"),
    ("0 */5 * * * *", KOLKATA, "0 */5 * * * *"),
    ("30 0 * * * *", KOLKATA, "30 30 * * * *"),
    # Two offsets in a year, and the end of the gap where the time falls into it.
    ("0 30 3 * * *", NEW_YORK, "0 30 7,8 * * *"),
    ("0 30 2 * * *", NEW_YORK, "0 0,30 6,7 * * *"),
    ("20 30 2 * * *", NEW_YORK, "0,20 0,30 6,7 * * *"),
    ("0 30 22 * * fri", NEW_YORK, "0 30 2,3 * * 6"),
    ("0 0 20 * * fri", NEW_YORK, "0 0 0,1 * * 6"),
    ("0 30 19 31 * *", NEW_YORK, "0 30 0,23 1,31 1-5,7,8,10 *"),
    # A month of one offset only.
    ("0 0 3 * 6 *", NEW_YORK, "0 0 7 * 6 *"),
    ("0 0 3 * dec *", NEW_YORK, "0 0 8 * dec *"),
    ("0 0 * 1 * *", NEW_YORK, "0 0 * 1,2 * *"),
    ("0 15 2 * * *", "Australia/Lord_Howe", "0 15-45/15 15 * * *"),
]


@pytest.mark.parametrize(("expression", "zone", "timer"), TRANSLATIONS)
def test_the_functions_timer_is_as_small_as_it_can_be(expression: str, zone: str, timer: str) -> None:
    """The UTC expression has the hours, minutes and days the zone needs, and no more."""
    assert functions_timer(Schedule.parse(expression, zone), NOW) == timer


def test_offsets_a_zone_has_given_up_do_not_count() -> None:
    """Only what the zone does from now on widens the timer: Turkey ended summer time in 2016."""
    schedule = Schedule.parse("0 0 3 * * *", ISTANBUL)
    assert functions_timer(schedule, datetime(2014, 1, 1, tzinfo=UTC)) == "0 0 0,1 * * *"
    assert functions_timer(schedule, datetime(2017, 1, 1, tzinfo=UTC)) == "0 0 0 * * *"


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 30 2 * * sun", NEW_YORK),
        ("0 10,40 0,23 1,8,9 * *", "America/Havana"),
        ("0 15 2 * * tue,sat", "Australia/Lord_Howe"),
        ("0 0 9 1,15 * *", "Pacific/Auckland"),
        ("0 45 23 * 5,6 *", "Europe/London"),
    ],
)
def test_each_value_of_the_timer_is_there_for_a_fire_time(expression: str, zone: str) -> None:
    """Over three years, every second, minute, hour, day, month and week day of the timer is used by one."""
    schedule = Schedule.parse(expression, zone)
    begin = datetime(2026, 1, 1, tzinfo=UTC)  # so that a leap day is among them
    timer = Schedule.parse(functions_timer(schedule, begin))
    used = zip(*(parts(t) for t in schedule.fire_times(begin, begin + timedelta(days=1096))), strict=True)
    for kind, values, seen in zip(ncrontab.KINDS, timer.fields.values, used, strict=True):
        assert values in (set(seen), kind.every)


def parts(instant: datetime) -> tuple[int, ...]:
    return (*instant.timetuple()[5:2:-1], instant.day, instant.month, instant.isoweekday() % 7)


ZONES = (
    NEW_YORK,
    ISTANBUL,
    "Europe/London",
    "Australia/Lord_Howe",
    "America/Havana",
    KOLKATA,
    "Pacific/Auckland",
    "UTC",
)
# Days at which a clock changes in one of the zones, or a month or a year does, over two years.
NOTABLE_DAYS = {
    1: [1],
    3: [1, 8, 9, 29, 30],
    4: [5, 6],
    5: [1],
    9: [28],
    10: [4, 5, 26],
    11: [1, 2],
    12: [31],
}
NOTABLE = [
    date(year, month, day) for year in (2025, 2026) for month, days in NOTABLE_DAYS.items() for day in days
]


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    some = st.lists(st.integers(low, high), min_size=1, max_size=3).map(
        lambda found: ",".join(map(str, found))
    )
    return st.one_of(some, st.just("*"))


expressions = st.tuples(
    st.sampled_from(["0", "20"]),
    st.lists(st.integers(0, 59), min_size=1, max_size=3).map(lambda found: ",".join(map(str, found))),
    numbers(0, 23),
    numbers(1, 28),
    numbers(1, 12),
    numbers(0, 6),
).map(" ".join)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, database=None, max_examples=35)
@given(
    expression=expressions,
    zone=st.sampled_from(ZONES),
    days=st.lists(st.sampled_from(NOTABLE), min_size=6, max_size=6, unique=True),
)
def test_every_fire_time_is_a_tick_of_the_timer(expression: str, zone: str, days: list[date]) -> None:
    """Whatever the schedule and the zone, its fire times over two years all lie on the timer's ticks."""
    schedule = Schedule.parse(expression, zone)
    ticks = Schedule.parse(functions_timer(schedule, NOW)).fields.values
    midnights = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days)
    windows = (schedule.fire_times(day, day + timedelta(days=1), limit=8) for day in midnights)
    following = schedule.fire_times(NOW, datetime(2027, 1, 1, tzinfo=UTC), limit=8)
    for fire_time in chain(following, *windows):
        assert all(part in values for part, values in zip(parts(fire_time), ticks, strict=True)), fire_time


@pytest.mark.parametrize(
    ("expression", "zone", "cron"),
    [
        ("0 30 3 * * *", "UTC", "30 3 * * *"),
        ("0 0/15 * * * *", "UTC", "*/15 * * * *"),
        ("0 5/15 9-17 * January,Mar Monday-Friday", "UTC", "5-50/15 9-17 * 1,3 1-5"),
        ("0 0 3 1-31 * sun", "UTC", "0 3 * * 0"),
        ("0 0 3 * * *", ISTANBUL, "0 0 * * *"),
        ("0 30 2 * * *", NEW_YORK, "0,30 6,7 * * *"),
        ("0 0 3 * 6 mon", NEW_YORK, "0 7 * 6 1"),
    ],
)
def test_the_container_apps_form_has_five_fields_of_numbers(expression: str, zone: str, cron: str) -> None:
    """Names become numbers, the second goes, and a zone is widened as for the Functions timer."""
    assert container_apps_cron(Schedule.parse(expression, zone), NOW) == cron


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("30 0 3 * * *", "Use second 0"),
        ("* * * * * *", "Use second 0"),
        ("0,30 * * * * *", "Use second 0"),
        ("0 0 0 13 * fri", "Make one of them `*`"),
        ("0 0 0 */2 * */2", "Make one of them `*`"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK])
def test_what_five_fields_cannot_say_is_refused(expression: str, remedy: str, zone: str) -> None:
    """A schedule the Container Apps reader would misread is refused with job, value and remedy."""
    with pytest.raises(ScheduleError) as refused:
        container_apps_cron(Schedule.parse(expression, zone), NOW, job="nightly")
    message = str(refused.value)
    assert "Job 'nightly'" in message
    assert repr(expression) in message
    assert remedy in message
    assert "on Functions" in message
