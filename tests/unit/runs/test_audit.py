from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runonce import Run, scheduled
from runonce.runs.audit import audit, audit_job, line, log_heartbeat
from runonce.runs.rows import JobRow, Pending
from runonce.runs.table import Jobs
from runonce.runs.versions import schedule_text

NOW = datetime(2026, 11, 29, 12, 40, tzinfo=UTC)
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@scheduled("0 0 * * * *", name="hourly", max_runtime=3600)
def hourly(run: Run) -> None:
    """Runs every hour."""


@scheduled("0 0 * * * *", name="endless", max_runtime=None)
def endless(run: Run) -> None:
    """Runs every hour, as long as it takes."""


WELL = JobRow(
    "hourly",
    schedule=schedule_text(hourly),
    watermark=NOON,
    last_fire_time=NOON,
    last_outcome="succeeded",
    last_finished_at=NOON + timedelta(seconds=9),
)


def row(**changes: Any) -> JobRow:
    return replace(WELL, **changes)


def pending(why: Any, not_before: datetime, fire_time: datetime = NOON) -> JobRow:
    return row(
        pending={fire_time: Pending(why, not_before)},
        last_fire_time=NOON - HOUR,
        last_finished_at=NOON - HOUR,
    )


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (WELL, "well"),
        (row(last_outcome="failed"), "failing"),
        (row(last_outcome="unknown"), "failing"),
        (row(last_outcome="retrying", pending={NOON: Pending("retrying", NOW)}), "well"),
        (JobRow("hourly"), "new"),
        (row(last_fire_time=None, last_finished_at=None), "new"),
        (
            row(paused_at=NOON - 9 * HOUR, last_fire_time=NOON - 9 * HOUR, last_finished_at=NOON - 9 * HOUR),
            "paused",
        ),
        (pending("retrying", NOW + HOUR), "well"),
        (pending("retrying", NOW - timedelta(minutes=14)), "well"),
        (pending("retrying", NOW - timedelta(minutes=16)), "overdue"),
        (pending("missed", NOW - timedelta(minutes=16)), "overdue"),
        (pending("abandoned", NOW - timedelta(minutes=16)), "overdue"),
        (replace(pending("running", NOW - timedelta(minutes=74)), running=NOON), "running"),
        (replace(pending("running", NOW - timedelta(minutes=76)), running=NOON), "overdue"),
        (row(watermark=NOON - HOUR, last_fire_time=NOON - HOUR, last_finished_at=NOON - HOUR), "overdue"),
        (row(last_fire_time=NOON - HOUR, last_finished_at=NOON - HOUR), "well"),
        (row(last_fire_time=NOON - 9 * HOUR), "well"),
        (row(schedule="0 0 3 * * * UTC", watermark=NOON - 9 * HOUR, last_fire_time=NOON - 9 * HOUR), "well"),
    ],
    ids=[
        "ran",
        "its latest run failed",
        "its latest run is unknown",
        "failed, to be tried again",
        "no row yet",
        "seen, never due",
        "paused",
        "retry to come",
        "retry just due",
        "retry forgotten",
        "missed, not made up for",
        "abandoned, not taken over",
        "running within its limit",
        "running beyond its limit",
        "nobody looked after it",
        "skipped by its misfire policy",
        "an old fire time was run by hand just now",
        "the schedule has changed",
    ],
)
def test_how_a_job_stands(found: JobRow, state: str) -> None:
    """A job is overdue when a fire time is neither done nor waiting for its time, and only then."""
    audited = audit_job(hourly, found, NOW)
    assert audited.state == state
    assert bool(audited.overdue) == (state == "overdue")


def test_a_job_without_a_limit_may_run_as_long_as_it_likes() -> None:
    """A run of a job without max_runtime is never overdue."""
    found = replace(
        pending("running", NOW - 99 * HOUR), name="endless", running=NOON, schedule=schedule_text(endless)
    )
    assert audit_job(endless, found, NOW).state == "running"


@pytest.mark.parametrize(("minutes", "state"), [(74, "running"), (76, "overdue")])
def test_what_waits_for_a_run_within_its_limit_is_not_overdue(minutes: int, state: str) -> None:
    """Fire times that came while the job runs wait for it, however they stand; when it is over its limit, all count."""
    began = NOW - timedelta(minutes=minutes)
    waiting = {NOON - HOUR: Pending("retrying", NOON - HOUR), NOON - 3 * HOUR: Pending("running", began)}
    found = row(running=NOON - 3 * HOUR, pending=waiting, watermark=NOON - 3 * HOUR)
    assert audit_job(hourly, found, NOW).state == state


def test_every_job_is_listed_by_name() -> None:
    """A job without a row is listed too: what has never run is what must be seen."""
    assert [one.job for one in audit([hourly, endless], Jobs({"hourly": WELL}, {}, {}, None), NOW)] == [
        "endless",
        "hourly",
    ]


def test_the_line() -> None:
    """The logged line has every figure as name=value, in the order in which the alert reads them."""
    assert line(audit_job(hourly, WELL, NOW), "shop-production") == (
        "runonce.audit namespace=shop-production job=hourly state=well overdue=0 expected=2026-11-29T12:00:00Z "
        "last=2026-11-29T12:00:00Z outcome=succeeded finished=2026-11-29T12:00:09Z"
    )
    assert line(audit_job(hourly, JobRow("hourly"), NOW), "n").endswith("last=- outcome=- finished=-")


def said(
    caplog: pytest.LogCaptureFixture, now: datetime, found: JobRow = WELL, interval: float = 60
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "runonce.audit"):
        log_heartbeat([hourly], Jobs({"hourly": found}, {}, {}, None), now, namespace="n", interval=interval)
    return [record.levelname for record in caplog.records]


def test_a_sign_of_life_every_quarter_of_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """Ticks up to two minutes apart log a job that is well in each quarter of an hour; ticks a minute apart, twice."""
    start = datetime(2026, 11, 29, 12, 20, 0, 700_000, tzinfo=UTC)
    found = row(paused_at=NOON)  # which is well, however long it has not run
    for apart, least, most in ((60.4, 24, 26), (119.0, 12, 16)):
        ticks = [start + timedelta(seconds=apart * n) for n in range(int(3 * 3600 / apart))]
        assert least <= sum(len(said(caplog, tick, found)) for tick in ticks) <= most


@pytest.mark.slow
def test_many_jobs_are_not_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The signs of life of a thousand jobs come over the whole quarter of an hour, each of them twice or so.

    A host that keeps twenty lines a second on average over 15 s would drop some of a thousand at once.
    """
    jobs = [
        scheduled("0 0 * * * *", name=f"job_{n}")(lambda run: None)  # noqa: ARG005 - never run
        for n in range(1000)
    ]
    start = datetime(2026, 11, 29, 12, 20, 0, 700_000, tzinfo=UTC)
    most, heard = 0, dict.fromkeys((job.name for job in jobs), 0)
    for minute in range(30):
        caplog.clear()
        with caplog.at_level(logging.INFO, "runonce.audit"):
            log_heartbeat(
                jobs, Jobs({}, {}, {}, None), start + timedelta(minutes=minute), namespace="n", interval=60
            )
        records = [record for record in caplog.records if record.name == "runonce.audit"]
        most = max(most, len(records))
        for record in records:
            heard[record.getMessage().split("job=")[1].split()[0]] += 1
    assert most < 15 * 20
    assert set(heard.values()) <= {3, 4, 5}


def test_what_is_overdue_is_said_at_every_tick(caplog: pytest.LogCaptureFixture) -> None:
    """An overdue job is logged as a warning at every tick, until it is not."""
    late = pending("missed", NOW - HOUR)
    assert said(caplog, NOW.replace(minute=41), late) == ["WARNING"]
    assert said(caplog, NOW.replace(minute=42), late) == ["WARNING"]
    assert said(caplog, NOW.replace(minute=43)) == []


# -- jobs that have left the code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "late", "overdue"),
    [
        ("retrying", timedelta(minutes=14), False),
        ("retrying", timedelta(minutes=16), True),
        ("asked", timedelta(days=400), True),
        ("abandoned", timedelta(hours=1), True),
        ("running", timedelta(hours=23), False),
        ("running", timedelta(hours=25), True),
    ],
)
def test_what_a_removed_job_left_unfinished_is_overdue(why: Any, late: timedelta, overdue: bool) -> None:
    """Nobody runs it any more, so it is shown until somebody cancels or marks it; what may run elsewhere is let be."""
    gone = JobRow("gone", pending={NOW - late: Pending(why, NOW - late)})
    found = audit([hourly], Jobs({"hourly": WELL, "gone": gone}, {}, {}, None), NOW)
    assert [(one.job, one.state) for one in found] == [("gone", "overdue")] * overdue + [("hourly", "well")]
    assert found[0].overdue == (late if overdue else timedelta())


@pytest.mark.parametrize("changes", [{}, {"paused_at": NOON}, {"name": "runonce_purge"}])
def test_a_removed_job_that_left_nothing_is_not_spoken_of(changes: dict[str, Any]) -> None:
    """Finished, paused by somebody, or the toolkit's own: there is nothing to decide."""
    waiting = {NOW - HOUR: Pending("retrying", NOW - HOUR)} if changes else {}
    gone = replace(JobRow("gone", pending=waiting), **changes)
    assert audit([], Jobs({gone.name: gone}, {}, {}, None), NOW) == []


def test_recovery_warns_of_what_a_removed_job_left(caplog: pytest.LogCaptureFixture) -> None:
    """The alerts' line is logged at every tick, by hosts that do not have the job."""
    gone = JobRow("gone", pending={NOW - HOUR: Pending("retrying", NOW - HOUR)})
    with caplog.at_level(logging.WARNING):
        log_heartbeat([], Jobs({"gone": gone}, {}, {}, None), NOW, namespace="shop", interval=60)
    assert "job=gone state=overdue overdue=3600" in caplog.text
