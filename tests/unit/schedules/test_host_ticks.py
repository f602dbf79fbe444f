from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runonce.schedules.host_ticks import compare, next_change
from runonce.schedules.schedule import Schedule

AT = datetime(2027, 1, 1, tzinfo=UTC)


def test_every_fire_time_is_a_tick_of_both_hosts() -> None:
    """Over a change of clocks both hosts tick at every fire time, and at instants that are not due."""
    made = compare(Schedule.parse("0 30 2 * * *", "America/New_York"), AT)
    due = [tick for tick in made.ticks if tick.due]
    assert [f"{tick.at:%m-%d %H:%M}" for tick in due] == [
        "03-12 07:30",
        "03-13 07:30",
        "03-14 07:00",
        "03-15 06:30",
    ]
    assert all(tick.functions and tick.container_apps for tick in due)
    assert any(not tick.due for tick in made.ticks)
    assert made.clocks_change == datetime(2027, 3, 14, 7, tzinfo=UTC)


def test_a_refusal_leaves_the_other_host() -> None:
    """A schedule that Container Apps cannot have still has its ticks on Functions, and the reason."""
    made = compare(Schedule.parse("30 0 2 * * *"), AT, job="odd")
    assert made.container_apps == ""
    assert "Job 'odd'" in made.refusal
    assert all(tick.functions and tick.due and not tick.container_apps for tick in made.ticks)


def test_a_zone_without_changes_shows_the_next_fire_times() -> None:
    """Where clocks never change the next fire times are shown."""
    made = compare(Schedule.parse("0 0 3 * * *"), AT)
    assert made.clocks_change is None
    assert [tick.at for tick in made.ticks] == [AT + timedelta(days=n, hours=3) for n in range(4)]


def test_the_next_change() -> None:
    """The next change is the one that comes, not the one that was, whichever way the clocks go."""
    assert next_change("Europe/London", datetime(2027, 6, 1, tzinfo=UTC)) == datetime(
        2027, 10, 31, 1, tzinfo=UTC
    )
    assert next_change("Europe/Istanbul", AT) is None
