"""The schedule against the records: exactly what was seeded is reported, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.flows import AFTER_LEASE, at, die, replica, start, work_off

from runonce.errors import PermanentError
from runonce.runs.accounts import audit_since
from runonce.runs.decide import Which, cancel, mark, replay
from runonce.runs.definition import scheduled
from runonce.runs.operate import pause, resume
from runonce.runs.recovery import recover
from runonce.testing import Workbench

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.accounts import JobAudit
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run


def later(bench: Workbench, instant: datetime) -> None:
    bench.clock.advance((instant - bench.clock.now()).total_seconds())


def tick(bench: Workbench, job: ScheduledJob, hour: int) -> None:
    """The host is there, and its timer ticks."""
    later(bench, at(hour))
    bench.dispatcher.tick(job)


def found(audited: JobAudit) -> set[tuple[int, str, bool]]:
    return {(one.fire_time.hour, one.what, one.is_owed) for one in audited.findings}


def hourly(**options: Any) -> ScheduledJob:
    def body(run: Run) -> None:
        hour = run.fire_time.hour
        if hour == 3 and run.attempt == 1:
            raise ValueError("try again")
        if hour in (4, 10):
            raise PermanentError("no")

    return scheduled("0 0 * * * *", name="hourly", retries=1, retry_delay=1, **options)(body)


def test_a_day_of_gaps_repeats_and_failures_is_reported_exactly() -> None:
    """Late, retried, failed, paused, cancelled, missed, marked, replayed and owed fire times, each as what it was."""
    job = hourly()
    bench = Workbench(job)
    later(bench, at(0, 30))
    recover(bench.dispatcher)  # the accounts begin here
    tick(bench, job, 1)
    later(bench, at(2, 10))  # nobody ticked at two
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    tick(bench, job, 3)
    bench.clock.advance(70)
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    tick(bench, job, 4)
    later(bench, at(4, 50))
    pause(bench.dispatcher, "hourly", "the ledger is being moved", "ada")
    later(bench, at(5, 30))
    resume(bench.dispatcher, "hourly", by="ada")
    cancel(bench.dispatcher, Which("hourly", at(6), by="ada", why="not today"))
    tick(bench, job, 6)
    later(bench, at(9, 5))  # everything was down from seven on
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    tick(bench, job, 10)
    mark(bench.dispatcher, Which("hourly", at(10), by="ada", why="known"), "failed")
    tick(bench, job, 11)
    replay(bench.dispatcher, Which("hourly", at(11), by="ada"))
    bench.dispatcher.execute(job, at(11), by="hand")
    tick(bench, job, 12)
    later(bench, at(14, 1))  # nobody is there any more; at one was the last that is certain
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert found(audited) == {
        (2, "late", False),
        (3, "retried", False),
        (4, "failed", True),
        (5, "skipped", False),
        (6, "cancelled", False),
        (7, "missed", False),
        (8, "missed", False),
        (9, "late", False),
        (10, "failed", False),
        (11, "retried", False),
        (13, "owed", True),
    }
    assert (audited.expected, audited.counts["done"], audited.owed, audited.other) == (13, 6, 2, 0)
    (since_noon,) = audit_since(bench.dispatcher, at(11, 30), "hourly")
    assert (since_noon.expected, found(since_noon)) == (2, {(13, "owed", True)})


def test_a_run_that_is_unknown_is_owed_until_somebody_decides() -> None:
    """Its host died and it must not be repeated blindly: owed, and once a person says that it worked, done."""
    job = hourly(on_abandoned="hold")
    bench = Workbench(job)
    later(bench, at(0, 30))
    recover(bench.dispatcher)
    later(bench, at(1))
    die(start(bench.dispatcher, job, at(1)))
    bench.clock.advance(AFTER_LEASE)
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert found(audited) == {(1, "unknown", True)}
    mark(bench.dispatcher, Which("hourly", at(1), by="ada"), "done")
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert (found(audited), audited.owed) == (set(), 0)


def test_what_waits_behind_a_long_run_is_not_owed() -> None:
    """Fire times that come while the job runs wait for their turn; once it is over its lease they are owed."""
    job = hourly(max_runtime=None)
    bench = Workbench(job)
    later(bench, at(0, 30))
    recover(bench.dispatcher)
    later(bench, at(1))
    started = start(bench.dispatcher, job, at(1))
    lock = bench.dispatcher.registry.lock_name("hourly")
    while bench.clock.now() < at(3, 10):  # as its host does
        bench.clock.advance(20)
        assert bench.stores.leases.renew(lock, started.claim.run.holder)
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert found(audited) == {(1, "running", False), (2, "waiting", False), (3, "waiting", False)}
    die(started)
    bench.clock.advance(AFTER_LEASE)
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert {one for one in found(audited) if one[2]} == {(2, "owed", True), (3, "owed", True)}


def test_a_changed_schedule_accounts_for_its_own_fire_times() -> None:
    """What only the old schedule names after the change, and only the new one before it, nobody owes."""
    old = hourly()
    bench = Workbench(old)
    later(bench, at(0, 30))
    recover(bench.dispatcher)
    tick(bench, old, 1)
    tick(bench, old, 2)
    new = scheduled("0 30 * * * *", name="hourly")(lambda run: None)  # noqa: ARG005 - does nothing
    later(bench, at(2, 10))
    deployed = replica(bench, new)
    recover(deployed)
    later(bench, at(2, 30))
    deployed.tick(new)
    later(bench, at(3, 30))
    deployed.tick(new)
    later(bench, at(3, 40))
    (audited,) = audit_since(deployed, at(0), "hourly")
    assert found(audited) == set()
    assert (audited.expected, audited.counts["done"]) == (4, 4)


def test_the_latest_fire_time_counts_as_soon_as_it_has_run() -> None:
    """Seconds old, it is done and no run by hand; one that has not begun yet is owed by nobody."""
    job = hourly()
    bench = Workbench(job)
    later(bench, at(0, 30))
    recover(bench.dispatcher)
    tick(bench, job, 1)
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert (audited.expected, audited.counts["done"], audited.other) == (1, 1, 0)
    later(bench, at(2, 0, 30))
    (audited,) = audit_since(bench.dispatcher, at(0), "hourly")
    assert (audited.expected, audited.owed) == (1, 0)


def test_a_job_that_left_the_code_is_told_by_storage_alone() -> None:
    """Its past is judged by the schedule on its row; what it would have run since is nobody's debt."""
    job = hourly()
    bench = Workbench(job)
    later(bench, at(0, 30))
    recover(bench.dispatcher)
    tick(bench, job, 1)
    later(bench, at(5))
    bench.dispatcher.jobs = {}
    (audited,) = (one for one in audit_since(bench.dispatcher, at(0)) if one.job == "hourly")
    assert (audited.job, audited.in_code, audited.expected, audited.owed) == ("hourly", False, 1, 0)
    assert audited.counts["done"] == 1


def test_the_newest_findings_are_named_and_all_are_counted() -> None:
    """A job of every minute that nobody ran for half a day has 200 findings, and counts the others."""
    job = scheduled("0 * * * * *", name="often")(lambda run: None)  # noqa: ARG005 - does nothing
    bench = Workbench(job)
    recover(bench.dispatcher)
    later(bench, at(12))
    (audited,) = audit_since(bench.dispatcher, at(0), "often")
    assert (len(audited.findings), audited.more, audited.owed) == (
        200,
        audited.expected - 200,
        audited.expected,
    )
    assert audited.expected > 700
    assert audited.findings[0].fire_time > audited.findings[-1].fire_time
