"""Which fire time a date on the command line means, on days when the clocks change too."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import typer

from runonce import scheduled
from runonce.cli.which import day_of, read_fire_time
from runonce.errors import InputError
from runonce.schedules.zones import zone

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run


def daily(schedule: str, time_zone: str) -> ScheduledJob:
    @scheduled(schedule, time_zone=time_zone)
    def report(run: Run) -> None: ...

    return report


NO_MIDNIGHT = [
    ("Africa/Cairo", "2026-04-24"),
    ("America/Santiago", "2026-09-06"),
    ("America/Havana", "2026-03-08"),
    ("Asia/Beirut", "2026-03-29"),
]


@pytest.mark.parametrize(("time_zone", "day"), NO_MIDNIGHT)
@pytest.mark.parametrize(("time", "comes_at"), [("23:30", "23:30"), ("00:30", "01:00"), ("02:30", "02:30")])
def test_a_date_without_a_midnight_means_its_own_fire_time(
    time_zone: str, day: str, time: str, comes_at: str
) -> None:
    """Where clocks go forward at midnight, a date is neither the evening before nor one that ends an hour early."""
    hour, minute = time.split(":")
    job = daily(f"0 {minute} {hour} * * *", time_zone)
    local = read_fire_time(job, day).astimezone(zone(time_zone))
    assert f"{local:%Y-%m-%d %H:%M}" == f"{day} {comes_at}"


@pytest.mark.parametrize(
    ("time_zone", "day", "hours"),
    [
        ("Africa/Cairo", "2026-04-24", 23),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Africa/Cairo", "2026-10-29", 25),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("Pacific/Apia", "2011-12-30", 0),
        ("UTC", "2026-12-31", 24),
    ],
)
def test_a_day_is_as_long_as_the_clocks_make_it(time_zone: str, day: str, hours: float) -> None:
    """From its first instant to the next day's; a day that the clocks skip has none."""
    first, last = day_of(daily("0 0 3 * * *", time_zone), day, "--at")
    assert last - first == timedelta(hours=hours, seconds=-1)


@pytest.mark.parametrize("day", ["9999-12-31", "0001-01-01", "2026-02-30"])
def test_a_date_that_cannot_be_is_refused(day: str) -> None:
    """The calendar's ends and days that no month has get an error that names the date."""
    with pytest.raises(typer.BadParameter, match=day):
        read_fire_time(daily("0 0 3 * * *", "UTC"), day)


def test_a_date_of_several_fire_times_lists_them() -> None:
    """One of them has to be given."""
    with pytest.raises(InputError, match="2026-01-01T00:00:00Z, 2026-01-01T12:00:00Z"):
        read_fire_time(daily("0 0 */12 * * *", "UTC"), "2026-01-01")
