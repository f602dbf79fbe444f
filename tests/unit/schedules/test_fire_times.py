from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from runonce.schedules.schedule import Schedule

NEW_YORK = "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fired(expression: str, zone: str, after: str, until: str) -> list[str]:
    """The fire times as short UTC texts, once forwards and once backwards."""
    schedule = Schedule.parse(expression, zone)
    forwards = list(schedule.fire_times(utc(after), utc(until)))
    assert list(schedule.newest_first(utc(after), utc(until))) == forwards[::-1]
    return [f"{fire_time:%m-%d %H:%M}" for fire_time in forwards]


def test_fire_times_are_whole_seconds_in_utc() -> None:
    """Whatever zone or fraction the question has, the answers are UTC on whole seconds."""
    asked = datetime(2025, 1, 1, 5, 0, 0, 999_999, tzinfo=ZoneInfo("Asia/Kolkata"))
    fire_time = Schedule.parse("* * * * * *", "Asia/Kolkata").next(asked)
    assert fire_time == utc("2024-12-31 23:30:01")
    assert fire_time is not None
    assert fire_time.tzinfo is UTC


def test_after_is_left_out_and_until_is_included() -> None:
    """A window continues the one before it without a gap and without a fire time in both."""
    assert fired("0 0 * * * *", "UTC", "2025-01-01 01:00", "2025-01-01 03:00") == [
        "01-01 02:00",
        "01-01 03:00",
    ]


def test_a_window_that_is_empty_or_reversed_holds_nothing() -> None:
    """No time passes, no fire time; nor backwards."""
    assert fired("* * * * * *", "UTC", "2025-01-01 01:00", "2025-01-01 01:00") == []
    assert fired("* * * * * *", "UTC", "2025-01-01 01:00", "2025-01-01 00:00") == []


def test_limit_stops_early() -> None:
    """A limit caps how many fire times are given, from the oldest."""
    schedule = Schedule.parse("0 0 3 * * *")
    found = list(schedule.fire_times(utc("2025-01-01"), utc("2026-01-01"), limit=2))
    assert found == [utc("2025-01-01 03:00"), utc("2025-01-02 03:00")]


def test_a_naive_datetime_is_refused() -> None:
    """A time without a zone could be anywhere, so it is not guessed."""
    with pytest.raises(ValueError, match="pass an aware datetime"):
        Schedule.parse("* * * * * *").next(datetime(2025, 1, 1))  # noqa: DTZ001 - the point of the test


def test_day_of_month_and_day_of_week_must_both_match() -> None:
    """Friday the 13th is a Friday and a 13th; cron elsewhere would take either."""
    days = fired("0 0 0 13 * fri", "UTC", "2025-01-01", "2026-12-31")
    assert days == ["06-13 00:00", "02-13 00:00", "03-13 00:00", "11-13 00:00"]


def test_steps_of_both_day_fields_must_both_match_too() -> None:
    """A step that begins with a star restricts like any other list of days."""
    assert fired("0 0 0 */2 * 1", "UTC", "2025-01-01", "2025-02-10") == [
        "01-13 00:00",
        "01-27 00:00",
        "02-03 00:00",
    ]


def test_the_rarest_date_is_found_in_both_directions() -> None:
    """A 29 February on a Monday is found over decades, and over 2100, which has no leap day."""
    schedule = Schedule.parse("0 0 0 29 2 mon")
    assert schedule.next(utc("2025-01-01")) == utc("2044-02-29")
    assert schedule.previous(utc("2025-01-01")) == utc("2016-02-29")
    assert schedule.next(utc("2072-03-01")) == utc("2112-02-29")


def test_previous_includes_the_instant_itself_and_next_does_not() -> None:
    """On a fire time, `previous` is that one and `next` the one after."""
    schedule = Schedule.parse("0 0 3 * * *")
    assert schedule.previous(utc("2025-01-02 03:00")) == utc("2025-01-02 03:00")
    assert schedule.next(utc("2025-01-02 03:00")) == utc("2025-01-03 03:00")
    just_before = utc("2025-01-02 03:00") - timedelta(microseconds=1)
    assert schedule.previous(just_before) == utc("2025-01-01 03:00")
    assert schedule.next(just_before) == utc("2025-01-02 03:00")


def test_a_fixed_time_fires_once_when_clocks_go_back() -> None:
    """01:30 comes twice in New York on 2 November 2025; the job runs in the first of them only."""
    assert fired("0 30 1 * * *", NEW_YORK, "2025-11-01 12:00", "2025-11-03 12:00") == [
        "11-02 05:30",
        "11-03 06:30",
    ]


def test_a_question_asked_in_the_second_pass_gets_tomorrow() -> None:
    """A host that starts while 01:30 repeats does not take the repetition for the fire time."""
    schedule = Schedule.parse("0 30 1 * * *", NEW_YORK)
    assert schedule.next(utc("2025-11-02 06:15")) == utc("2025-11-03 06:30")
    assert schedule.previous(utc("2025-11-02 06:45")) == utc("2025-11-02 05:30")


def test_a_fixed_time_that_does_not_exist_moves_to_the_end_of_the_gap() -> None:
    """02:30 is skipped in New York on 9 March 2025; the job runs at 03:00, which is 07:00 UTC."""
    assert fired("0 30 2 * * *", NEW_YORK, "2025-03-08 00:00", "2025-03-10 12:00") == [
        "03-08 07:30",
        "03-09 07:00",
        "03-10 06:30",
    ]


def test_several_fire_times_in_the_gap_become_one() -> None:
    """All the skipped readings of a dense schedule meet at the end of the gap."""
    assert fired("0 */10 2 * * *", NEW_YORK, "2025-03-09 00:00", "2025-03-09 12:00") == ["03-09 07:00"]


def test_a_moved_fire_time_meets_the_one_due_there_anyway() -> None:
    """02:30 moves to 03:00, and with 03:00 in the schedule too there is still one run."""
    assert fired("0 0,30 2,3 * * *", NEW_YORK, "2025-03-09 00:00", "2025-03-09 12:00") == [
        "03-09 07:00",
        "03-09 07:30",
    ]


def test_a_fixed_time_schedule_is_silent_while_its_hour_repeats() -> None:
    """Every ten minutes from 1 to 3: eighteen runs on the night clocks go back, as on any other."""
    night = fired("0 */10 1-3 * * *", NEW_YORK, "2025-11-02 04:00", "2025-11-02 12:00")
    assert len(night) == 18
    assert night[5:7] == ["11-02 05:50", "11-02 07:00"]


def test_an_interval_fires_in_both_passes_of_the_repeated_hour() -> None:
    """Every half hour stays every half hour of real time when clocks go back."""
    assert fired("0 */30 * * * *", NEW_YORK, "2025-11-02 05:00", "2025-11-02 07:00") == [
        "11-02 05:30",
        "11-02 06:00",
        "11-02 06:30",
        "11-02 07:00",
    ]


def test_an_interval_goes_on_evenly_over_the_gap() -> None:
    """Every half hour stays every half hour of real time when clocks go forward."""
    assert fired("0 */30 * * * *", NEW_YORK, "2025-03-09 06:00", "2025-03-09 08:00") == [
        "03-09 06:30",
        "03-09 07:00",
        "03-09 07:30",
        "03-09 08:00",
    ]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        # Half an hour: 02:00 becomes 02:30, and in April 02:00 becomes 01:30.
        ("0 15 2 * * *", "Australia/Lord_Howe", "2025-10-04 12:00", "2025-10-05 12:00", ["10-04 15:30"]),
        ("0 45 1 * * *", "Australia/Lord_Howe", "2025-04-05 12:00", "2025-04-06 12:00", ["04-05 14:45"]),
        # At midnight: 00:00 becomes 01:00, so the day itself begins at 01:00.
        ("0 0 0 * * *", "America/Havana", "2025-03-08 12:00", "2025-03-09 12:00", ["03-09 05:00"]),
        ("0 30 0 9 3 *", "America/Havana", "2025-03-01 12:00", "2025-03-31 12:00", ["03-09 05:00"]),
        ("0 0 0 * * *", "Africa/Cairo", "2025-04-24 12:00", "2025-04-25 12:00", ["04-24 22:00"]),
        # Back to 23:00 of the day before: still once, and on the right date.
        ("0 30 23 30 10 *", "Africa/Cairo", "2025-10-29 12:00", "2025-11-01 12:00", ["10-30 20:30"]),
        # A whole day skipped: its job runs as the next day begins.
        ("0 0 12 30 12 *", "Pacific/Apia", "2011-12-01 00:00", "2012-01-31 00:00", ["12-30 10:00"]),
        # Winter time is the one that is "saved" in Ireland's law; the clocks are London's.
        ("0 30 1 * * *", "Europe/Dublin", "2025-03-29 12:00", "2025-03-30 12:00", ["03-30 01:00"]),
        ("0 30 1 * * *", "Europe/Dublin", "2025-10-25 12:00", "2025-10-26 12:00", ["10-26 00:30"]),
        # The gap carries a moved fire time into a day the expression does not name.
        ("0 30 23 * * sat", "America/Nuuk", "2025-03-29 12:00", "2025-03-31 12:00", ["03-30 01:00"]),
    ],
)
def test_unusual_clock_changes(
    expression: str, zone: str, after: str, until: str, expected: list[str]
) -> None:
    """Half-hour changes, changes at midnight and skipped days follow the same rule."""
    assert fired(expression, zone, after, until) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "fire_time", "expected"),
    [
        ("0 30 2 * * *", NEW_YORK, "2025-03-09 07:00", "clocks went forward: moved from 02:30"),
        ("0 30 2,3 * * *", NEW_YORK, "2025-03-09 07:00", "clocks went forward: moved from 02:30"),
        ("0 0 2,3 * * *", NEW_YORK, "2025-03-09 07:00", "clocks went forward: also stands for 02:00"),
        ("0 0 3 * * *", NEW_YORK, "2025-03-09 07:00", None),
        ("0 0 * * * *", NEW_YORK, "2025-03-09 07:00", None),
        ("0 30 1 * * *", NEW_YORK, "2025-11-02 05:30", "clocks went back: first of two 01:30s"),
        ("20 30 * * * *", NEW_YORK, "2025-11-02 06:30:20", "clocks went back: second of two 01:30:20s"),
        ("0 30 1 * * *", NEW_YORK, "2025-11-03 06:30", None),
        (
            "0 0 12 30 12 *",
            "Pacific/Apia",
            "2011-12-30 10:00",
            "clocks went forward: moved from 2011-12-30 12:00",
        ),
    ],
)
def test_what_clock_changes_did_is_told_in_words(
    expression: str, zone: str, fire_time: str, expected: str | None
) -> None:
    """A person reading a list of fire times learns why one of them looks odd, and nothing on other days."""
    assert Schedule.parse(expression, zone).oddity(utc(fire_time)) == expected


@pytest.mark.parametrize(
    ("tick", "expected"),
    [
        ("2025-01-02 03:00:00", "2025-01-02 03:00:00"),
        ("2025-01-02 02:59:59.997700", "2025-01-02 03:00:00"),
        ("2025-01-02 02:59:59", "2025-01-02 03:00:00"),
        ("2025-01-02 02:59:50", "2025-01-02 03:00:00"),
        ("2025-01-02 02:59:49.999999", None),
        ("2025-01-02 03:00:00.002300", "2025-01-02 03:00:00"),
        ("2025-01-02 03:01:00", "2025-01-02 03:00:00"),
        ("2025-01-02 03:05:00", "2025-01-02 03:00:00"),
        ("2025-01-02 03:05:00.000001", None),
        ("2025-01-02 15:00:00", None),
    ],
)
def test_a_tick_belongs_to_the_nearest_fire_time(tick: str, expected: str | None) -> None:
    """A tick up to ten seconds early or five minutes late is the daily run's; any other is nobody's."""
    assert Schedule.parse("0 0 3 * * *").snap(utc(tick)) == (expected and utc(expected))


@pytest.mark.parametrize(
    ("milliseconds", "second"), [(0, 10), (400, 10), (500, 10), (501, 11), (999, 11), (1000, 11)]
)
def test_every_second_an_early_tick_is_never_further_than_half_way(milliseconds: int, second: int) -> None:
    """Where fire times are a second apart, a tick goes to the nearer one and, midway, to the one that was."""
    tick = utc("2025-01-01 00:00:10") + timedelta(milliseconds=milliseconds)
    snapped = Schedule.parse("* * * * * *").snap(tick)
    assert snapped is not None
    assert snapped.second == second


def test_the_tolerance_is_the_callers() -> None:
    """A caller that accepts later ticks says so, and one that accepts none says zero."""
    schedule = Schedule.parse("0 0 3 * * *")
    late = utc("2025-01-02 03:10")
    assert schedule.snap(late, tolerance=timedelta(minutes=10)) == utc("2025-01-02 03:00")
    assert schedule.snap(late, tolerance=timedelta(minutes=9)) is None
    on_time = utc("2025-01-02 03:00")
    assert schedule.snap(on_time, tolerance=timedelta()) == on_time
    with pytest.raises(ValueError, match="negative"):
        schedule.snap(on_time, tolerance=-timedelta(seconds=1))


def test_a_tick_of_the_wider_timer_is_not_due() -> None:
    """New York's 02:30 needs a timer of four ticks a day; three of them find nothing due."""
    schedule = Schedule.parse("0 30 2 * * *", NEW_YORK)
    ticks = [utc(f"2025-01-15 {time}") for time in ("06:00", "06:30", "07:00", "07:30")]
    assert [schedule.snap(tick) for tick in ticks] == [None, None, None, ticks[-1]]


@pytest.mark.parametrize(("second", "meant"), [(10, 0), (14, 0), (15, 20), (19, 20)])
def test_a_tick_is_early_by_no_more_than_a_quarter_of_the_way(second: int, meant: int) -> None:
    """Between two fire times that are close together a tick belongs to the last one until it is nearly the next."""
    midnight = utc("2025-01-02 00:00")
    tick = midnight + timedelta(seconds=second)
    assert Schedule.parse("*/20 * * * * *").snap(tick) == midnight + timedelta(seconds=meant)


def test_an_early_tick_snaps_to_a_moved_fire_time() -> None:
    """The tick a moment before clocks go forward belongs to the run moved to after the gap."""
    schedule = Schedule.parse("0 30 2 * * *", NEW_YORK)
    assert schedule.snap(utc("2025-03-09 06:59:59.998")) == utc("2025-03-09 07:00")


def test_seconds_count_in_every_step() -> None:
    """The next minute, the next hour and the next day begin at the schedule's own first second, and end at its last."""
    schedule = Schedule.parse("15,30 10,20 3,5 * * *")
    times = [
        f"2025-01-0{day} 0{hour}:{minute}:{second}"
        for day in (1, 2)
        for hour in (3, 5)
        for minute in (10, 20)
        for second in (15, 30)
    ]
    for earlier, later in pairwise(map(utc, times)):
        assert schedule.next(earlier) == later
        assert schedule.previous(later - timedelta(seconds=1)) == earlier


def test_an_interval_that_is_not_due_when_clocks_go_forward_gains_nothing() -> None:
    """What stands every twenty minutes goes on every twenty minutes, also where the hour's readings are left out."""
    schedule = Schedule.parse("0 5/20 * * * *", "America/New_York")
    found = list(schedule.fire_times(utc("2025-03-09 06:00"), utc("2025-03-09 08:00")))
    assert found == [utc(f"2025-03-09 0{hour}:{minute}") for hour in (6, 7) for minute in ("05", "25", "45")]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no zone of a process's own")
def test_what_clock_changes_did_is_told_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The schedule's zone counts, and not that of the machine that says it."""
    request.addfinalizer(time.tzset)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    schedule = Schedule.parse("0 30 1 * * *", "America/New_York")
    assert schedule.oddity(utc("2025-11-02 05:30")) == "clocks went back: first of two 01:30s"
    assert schedule.oddity(utc("2025-11-03 06:30")) is None
