"""Pure: when each host's timer would tick, beside when the job fires, around the next night clocks change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from runonce.errors import ScheduleError
from runonce.schedules import zones
from runonce.schedules.host_cron import container_apps_cron, functions_timer
from runonce.schedules.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

HORIZON = timedelta(days=400)
"""How far ahead a clock change is looked for."""
SIDE = 2
"""Fire times shown before the change, and after it."""
LONGEST = 60
"""Ticks shown at most."""


@dataclass(frozen=True, slots=True)
class Tick:
    """An instant at which the job fires, or a host's timer ticks, or both."""

    at: datetime
    due: bool
    functions: bool
    container_apps: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A schedule in both hosts' words, and what comes of them."""

    functions: str
    """Six fields, UTC."""
    container_apps: str
    """Five fields, UTC; empty where they cannot say it."""
    refusal: str
    """Why not, and the remedy."""
    clocks_change: datetime | None
    """The next time they do; None where the zone has no such change within 400 days."""
    ticks: tuple[Tick, ...]


def compare(schedule: Schedule, at: datetime, *, job: str | None = None) -> Comparison:
    """The schedule on both hosts, seen from an instant (aware)."""
    functions, cron, refusal = functions_timer(schedule, at), "", ""
    try:
        cron = container_apps_cron(schedule, at, job=job)
    except ScheduleError as error:
        refusal = str(error)
    change = next_change(schedule.time_zone, at)
    middle = change or at
    opens, start, closes = (
        zones.naive_utc(middle, by).replace(tzinfo=UTC) for by in (-HORIZON, -zones.SECOND, HORIZON)
    )
    before = list(islice(schedule.newest_first(opens, start), SIDE)) if change else []
    after = list(schedule.fire_times(start, closes, limit=SIDE if change else 2 * SIDE))
    shown = sorted([*before, *after])
    if not shown:
        return Comparison(functions, cron, refusal, change, ())
    first, last = shown[0] - zones.SECOND, shown[-1]
    due = set(schedule.fire_times(first, last, limit=LONGEST))
    on_functions = set(_ticks(functions, first, last))
    on_jobs = set(_ticks(f"0 {cron}", first, last)) if cron else set()
    ticks = [
        Tick(instant, instant in due, instant in on_functions, instant in on_jobs)
        for instant in sorted(due | on_functions | on_jobs)
    ]
    return Comparison(functions, cron, refusal, change, tuple(ticks[:LONGEST]))


def next_change(time_zone: str, at: datetime) -> datetime | None:
    """The next instant at which the zone's clocks change."""
    first = zones.naive_utc(at)
    for span in zones.spans(time_zone, first, zones.naive_utc(at, HORIZON)):
        if span.start > first:
            return span.start.replace(tzinfo=UTC)
    return None


def _ticks(expression: str, first: datetime, last: datetime) -> Iterator[datetime]:
    return Schedule.parse(expression).fire_times(first, last, limit=LONGEST)
