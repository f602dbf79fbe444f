from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from runonce.errors import ScheduleError
from runonce.schedules import zones
from runonce.schedules.host_ticks import compare
from runonce.schedules.misfire import missed
from runonce.schedules.schedule import Schedule
from runonce.schedules.windows_zones import IANA
from tests.support.command_line import CommandLine, invoke
from tests.support.job_files import job_files

if TYPE_CHECKING:
    from pathlib import Path


def test_every_name_windows_has_stands_for_a_zone() -> None:
    """Each IANA name that is offered for a Windows name is one that is accepted."""
    assert len(IANA) > 130
    for name in IANA.values():
        zones.check(name)


EDGES = [
    datetime.min.replace(tzinfo=UTC),
    datetime(1, 1, 1, 12, tzinfo=timezone(timedelta(hours=14))),
    datetime(1, 6, 1, tzinfo=UTC),
    datetime(9999, 12, 1, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
]


@pytest.mark.parametrize(
    "time_zone", ["UTC", "Europe/Istanbul", "America/New_York", "Pacific/Kiritimati", "Pacific/Pago_Pago"]
)
@pytest.mark.parametrize("expression", ["0 0 3 * * *", "* * * * * *", "0 30 2 29 2 mon"])
def test_any_instant_of_the_calendar_has_an_answer(expression: str, time_zone: str) -> None:
    """At the calendar's ends every question is answered, with fire times on the asked side or none."""
    schedule = Schedule.parse(expression, time_zone)
    for at in EDGES:
        upcoming, last = schedule.next(at), schedule.previous(at)
        assert upcoming is None or upcoming > at
        assert last is None or last <= at
        schedule.snap(at)
        schedule.oddity(at)
        missed(schedule, at, at, 1)
        compare(schedule, at)
    assert next(schedule.fire_times(EDGES[0], EDGES[0].replace(year=50))).year < 50
    assert next(schedule.newest_first(EDGES[-1].replace(year=9950), EDGES[-1])).year > 9950


@pytest.mark.parametrize(
    "after",
    [
        "0001-01-01",
        "0001-01-01T00:00+14:00",
        "9999-12-01",
        "9999-12-31T23:59:59",
        "9999-12-31T23:59:59-12:00",
        "9999-12-31T23:59Z",
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"], ["--host", "both"]], ids=str)
def test_next_answers_or_refuses_at_the_calendars_ends(tmp_path: Path, after: str, more: list[str]) -> None:
    """`next JOB --after` prints an answer, or a clear error about its option; never a traceback."""
    source = "from runonce import scheduled\n@scheduled('0 0 3 * * *', time_zone='America/New_York')\ndef a(run): ..."
    cli = CommandLine(tmp_path)
    with job_files(cli.folder, a=source):
        ended = invoke(cli.context(), "next", "a", "--after", after, *more)
    assert ended.exit_code in (0, 2), ended.output
    assert isinstance(ended.exception, SystemExit | None)


def refused(name: object) -> str:
    with pytest.raises(ScheduleError) as caught:
        zones.check(name)
    return str(caught.value)


def test_without_zones_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """UTC needs none."""
    monkeypatch.setattr(zones, "names", frozenset)
    zones.check("UTC")
    assert refused("Europe/Istanbul") == (
        "time zone 'Europe/Istanbul' cannot be looked up, for the package tzdata is not installed. Install it "
        "(`pip install tzdata`); runonce reads no other zone data, so that all hosts agree."
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Nowhere", 'Use an IANA name such as "Europe/Istanbul" or "UTC".'),
        ("Etc/GMT+33", 'Did you mean "Etc/GMT"?'),
        ("europe/istanbul", 'Did you mean "Europe/Istanbul"?'),
        ("Europe/Istambul", 'Did you mean "Europe/Istanbul"?'),
        ("Turkey  Standard Time", 'That is its name on Windows; use the IANA name "Europe/Istanbul".'),
    ],
)
def test_an_unknown_zone_is_told_with_the_likeliest_one(name: str, remedy: str) -> None:
    """One that is an hour's number away is never offered: its sign is the other way round."""
    assert refused(name) == f"time zone {name!r} is not known. {remedy}"


def test_time_is_cut_where_clocks_change_and_nowhere_else() -> None:
    """A stretch that begins with a change is of the offset after it alone; one of no length is none."""
    change, day = datetime(2025, 3, 9, 7), timedelta(days=1)  # noqa: DTZ001 - naive UTC, as zones has it
    winter, summer = timedelta(hours=-5), timedelta(hours=-4)
    york = "America/New_York"
    whole = zones.Span(change, change + day, summer, summer)
    assert list(zones.spans(york, change, change + day)) == [whole]
    assert list(zones.spans(york, change - day, change)) == [zones.Span(change - day, change, winter, winter)]
    assert list(zones.spans(york, change - day, change + day)) == [
        zones.Span(change - day, change, winter, winter),
        zones.Span(change, change + day, winter, summer),
    ]
    assert list(zones.spans(york, change, change)) == []
