from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runonce.schedules.misfire import COUNT_LIMIT, Missed, missed
from runonce.schedules.schedule import Schedule

HOURLY = Schedule.parse("0 0 * * * *")
MIDNIGHT = datetime(2025, 1, 1, tzinfo=UTC)


def hour(number: int) -> datetime:
    return MIDNIGHT + timedelta(hours=number)


def test_nothing_missed_is_nothing_to_do() -> None:
    """A schedule that is up to date has nothing to run and nothing to skip."""
    assert missed(HOURLY, hour(0), hour(1) - timedelta(seconds=1), 1) == Missed(())


def test_one_is_the_newest() -> None:
    """After five missed hours one run catches up, and the four older ones are reported."""
    assert missed(HOURLY, hour(0), hour(5), 1) == Missed(
        (hour(5),), skipped_count=4, skipped=(hour(1), hour(4))
    )


def test_none_runs_none() -> None:
    """Where none is kept all the missed ones are let go, and reported."""
    assert missed(HOURLY, hour(0), hour(5), 0) == Missed((), skipped_count=5, skipped=(hour(1), hour(5)))


def test_as_many_as_there_are_run_in_order() -> None:
    """Where there are no more than are kept, each missed fire time is run, the oldest first."""
    assert missed(HOURLY, hour(0), hour(3), 3) == Missed((hour(1), hour(2), hour(3)))


def test_no_more_run_than_are_kept() -> None:
    """Beyond that the newest are run, in order, and the older ones let go."""
    assert missed(HOURLY, hour(0), hour(5), 2) == Missed(
        (hour(4), hour(5)), skipped_count=3, skipped=(hour(1), hour(3))
    )


@pytest.mark.parametrize(("extra", "at_least"), [(0, False), (1, True)])
def test_the_count_is_exact_up_to_its_limit(extra: int, *, at_least: bool) -> None:
    """Exactly as many skipped as can be counted is an exact count; one more is "at least"."""
    every_second = Schedule.parse("* * * * * *")
    until = MIDNIGHT + timedelta(seconds=COUNT_LIMIT + extra)
    found = missed(every_second, MIDNIGHT, until, 0)
    assert (found.skipped_count, found.at_least) == (COUNT_LIMIT, at_least)
    assert found.skipped == (MIDNIGHT + timedelta(seconds=1), until)


def test_a_week_of_every_second_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was down, only the limit is walked; first and last are still exact."""
    steps = 0
    backwards = Schedule.newest_first

    def counted(self: Schedule, after: datetime, until: datetime) -> Any:
        nonlocal steps
        for fire_time in backwards(self, after, until):
            steps += 1
            yield fire_time

    monkeypatch.setattr(Schedule, "newest_first", counted)
    until = MIDNIGHT + timedelta(days=7)
    found = missed(Schedule.parse("* * * * * *"), MIDNIGHT, until, 2)
    assert steps == COUNT_LIMIT + 3
    assert found == Missed(
        (until - timedelta(seconds=1), until),
        skipped_count=COUNT_LIMIT,
        at_least=True,
        skipped=(MIDNIGHT + timedelta(seconds=1), until - timedelta(seconds=2)),
    )
