"""Stepping through an expression's readings: held to croniter's own answers, and cheap."""

# ruff: noqa: DTZ001, DTZ901 - local readings are naive
from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from runonce.schedules import ncrontab
from runonce.schedules.schedule import Schedule, _walk
from tests.unit.schedules.test_properties import days, field, hours, months, quick, weekdays

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = timedelta(days=1)
ANY = st.tuples(field(0, 59), field(0, 59), hours, days, months, weekdays).map(" ".join)
FIRST, LAST = datetime(1990, 1, 1), datetime(2080, 1, 1)


def by_croniter(expression: str) -> croniter:
    """croniter itself, which is given both days as they are meant here."""
    fields = ncrontab.read(expression)
    plain = [
        ncrontab.compact(values, kind) for values, kind in zip(fields.values, ncrontab.KINDS, strict=True)
    ]
    return croniter(" ".join(plain), FIRST, ret_type=datetime, day_or=False, second_at_beginning=True)


@pytest.mark.slow
@settings(quick, max_examples=150)
@given(expression=ANY, local=st.datetimes(FIRST, LAST).map(lambda at: at.replace(microsecond=0)))
def test_steps_are_croniters(expression: str, local: datetime) -> None:
    """Forward from a reading and back from it, also from one that is due itself, the neighbours are croniter's."""
    walk, theirs = _walk(expression), by_croniter(expression)
    following = theirs.get_next(start_time=local - timedelta(seconds=1))
    assert walk.at_or_after(local) == following
    assert walk.before(local) == theirs.get_prev(start_time=local)
    assert walk.at_or_after(following) == following
    assert walk.before(following) == theirs.get_prev(start_time=following)
    assert walk.before(following + timedelta(seconds=1)) == following


@pytest.mark.parametrize(
    "expression", ["0 0 12 29 2 3", "0 30 1 31 1,3,5 0", "59 59 23 * 12 6", "0 0 0 30 4 1-5"]
)
def test_steps_are_those_of_days_that_were_all_tried(expression: str) -> None:
    """Over forty years each reading is the next after the one before it, and the last before the one after it."""
    fields, walk = ncrontab.read(expression), _walk(expression)
    days = (datetime(2000, 1, 1) + n * DAY for n in range(40 * 366))
    times = [
        timedelta(hours=hour, minutes=minute, seconds=second)
        for hour, minute, second in product(*map(sorted, (fields.hour, fields.minute, fields.second)))
    ]
    due = [
        day + at
        for day in days
        if day.day in fields.day and day.month in fields.month and day.isoweekday() % 7 in fields.weekday
        for at in times
    ]
    for earlier, later in pairwise(due):
        assert walk.at_or_after(earlier + timedelta(seconds=1)) == later
        assert walk.before(later) == earlier


def test_the_calendars_ends_are_no_readings() -> None:
    """Where there is none before the calendar ends, the answer is its end."""
    walk = _walk("0 0 0 29 2 *")
    assert walk.at_or_after(datetime(9999, 1, 1)) == datetime.max
    assert walk.before(datetime(1, 12, 1)) == datetime.min


def test_croniter_is_asked_once_for_an_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs with one expression, asked a hundred times, have it expanded once."""
    expanded: list[str] = []
    expand = croniter.expand

    def counting(text: str, **options: bool) -> object:
        expanded.append(text)
        return expand(text, **options)

    monkeypatch.setattr(croniter, "expand", counting)
    _walk.cache_clear()
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    for zone in ("UTC", "Europe/Istanbul"):
        schedule = Schedule.parse("17 */7 3 * * *", zone)
        for n in range(50):
            schedule.next(now + n * DAY)
            schedule.previous(now + n * DAY)
            schedule.snap(now + n * DAY)
    assert expanded == ["17 */7 3 * * *"]


def test_a_tick_that_is_not_due_costs_next_to_nothing() -> None:
    """A hundred questions take less time than croniter needs to read the expression a hundred times."""
    schedule = Schedule.parse("0 0 3 * * 1-5")
    ticks = [datetime(2026, 11, 30, tzinfo=UTC) + n * timedelta(minutes=4321) for n in range(100)]
    schedule.snap(ticks[0])
    asked = cpu(lambda: [schedule.snap(tick) for tick in ticks])
    assert asked < cpu(lambda: [by_croniter("0 0 3 * * 1-5") for _ in ticks])


def cpu(work: Callable[[], object]) -> float:
    """Seconds of this process's CPU, at best."""
    took = []
    for _ in range(5):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)
