"""What coming changes of clocks do to a schedule, as dashboard and doctor tell it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runonce.schedules.nights import nights
from runonce.schedules.schedule import Schedule

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def test_a_fire_time_that_is_left_out_or_doubled_is_an_oddity() -> None:
    """02:30 in Berlin: in spring it is moved, in autumn it is the first of two; the soonest comes first."""
    spring, autumn = nights(Schedule.parse("0 30 2 * * *", "Europe/Berlin"), NOW)
    assert spring.text == (
        "On Sunday, 28 March 2027 the clocks of Europe/Berlin go forward by 60 min; that night it fires at 03:00:00."
    )
    assert spring.oddities == ("clocks went forward: moved from 02:30",)
    assert "Sunday, 31 October 2027" in autumn.text
    assert autumn.oddities == ("clocks went back: first of two 02:30s",)


def test_a_fire_time_beside_the_change_is_told_and_no_oddity() -> None:
    """04:00 in Berlin is as ever on both nights."""
    assert [night.oddities for night in nights(Schedule.parse("0 0 4 * * *", "Europe/Berlin"), NOW)] == [
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 30 2 * * *", "UTC"),
        ("0 30 2 * * *", "Europe/Istanbul"),
        ("0 */15 * * * *", "Europe/Berlin"),
        ("0 0 12 * * *", "Europe/Berlin"),
    ],
)
def test_most_schedules_have_no_such_night(expression: str, zone: str) -> None:
    """A zone without changes, an interval, and a fire time in the middle of the day have none."""
    assert nights(Schedule.parse(expression, zone), NOW) == []
