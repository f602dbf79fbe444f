"""What moves the watermark: the schedule, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_REQUEST, at, job_row, replica, run_row, start, work_off

from runonce.errors import HostStopping
from runonce.runs.audit import audit
from runonce.runs.definition import scheduled
from runonce.runs.operate import ask, pause, resume
from runonce.runs.recovery import recover
from runonce.runs.rows import JobRow, Mark, Outcome
from runonce.runs.table import commit_with, read_jobs
from runonce.runs.versions import schedule_text, without_gone
from runonce.testing import ManualClock, Workbench

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

RAN: list[datetime] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def job(schedule: str = "0 0 3 * * *", **options: Any) -> ScheduledJob:
    def body(run: Run) -> None:
        RAN.append(run.fire_time)

    return scheduled(schedule, name="daily", **options)(body)


def bench_at(one: ScheduledJob, instant: datetime) -> Workbench:
    bench = Workbench(one)
    bench.clock.advance((instant - bench.clock.now()).total_seconds())
    return bench


def later(bench: Workbench, instant: datetime) -> None:
    bench.clock.advance((instant - bench.clock.now()).total_seconds())


def stopped(bench: Workbench, one: ScheduledJob, fire_time: datetime) -> None:
    """Its host begins it, and stops."""
    begun = start(bench.dispatcher, one, fire_time)
    begun.stop.set(HostStopping())
    bench.dispatcher.finish(begun, begun.stop.cause)


def test_a_new_job_has_no_past_whatever_the_grace() -> None:
    """First deployed seconds after its fire time, it does not run that one."""
    one = job()
    bench = bench_at(one, at(3, 0, 8))
    recover(bench.dispatcher, starting=True)
    bench.clock.advance(AFTER_REQUEST)
    recover(bench.dispatcher)
    assert work_off(bench.dispatcher) == []
    assert RAN == []


@pytest.mark.parametrize("misfire", ["latest", "all", "skip"])
def test_a_fire_time_in_a_short_restart_runs_when_the_host_starts(misfire: Any) -> None:
    """All replicas were down for eighteen seconds over it: it runs at once, by every policy."""
    one = job("0 * * * * *", misfire=misfire)
    bench = bench_at(one, at(3, 0))
    recover(bench.dispatcher)
    bench.run(one, at(3, 0))
    later(bench, at(3, 1, 8))
    recover(replica(bench), starting=True)
    work_off(bench.dispatcher)
    assert [at(3, 0), at(3, 1)] == RAN


@pytest.mark.parametrize("misfire", ["latest", "skip"])
def test_a_host_that_starts_names_all_that_it_passes_over(misfire: Any) -> None:
    """Down over four fire times, of which the last is a moment ago: the record names the three before it."""
    one = job("*/20 * * * * *", misfire=misfire)
    bench = bench_at(one, at(3, 0))
    recover(bench.dispatcher)
    bench.run(one, at(3, 0))
    later(bench, at(3, 1, 28))
    recover(replica(bench), starting=True)
    work_off(bench.dispatcher)
    assert [at(3, 0), at(3, 1, 20)] == RAN
    record = run_row(bench, one, at(3, 1))
    assert record.outcome is Outcome.SKIPPED
    assert "3 fire time(s) from 2026-01-01T03:00:20Z to 2026-01-01T03:01:00Z" in record.reason


def test_what_was_passed_over_stays_on_record_when_its_place_is_taken() -> None:
    """The last of the fire times nobody ran had been run by hand: its row has the record of those before it."""
    one = job("0 0 * * * *", misfire="skip")
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    later(bench, at(5, 10))
    bench.dispatcher.execute(one, at(5), by="hand")
    recover(bench.dispatcher)
    row = run_row(bench, one, at(5))
    assert row.outcome is Outcome.SUCCEEDED
    assert "3 fire time(s) from 2026-01-01T03:00:00Z to 2026-01-01T05:00:00Z" in row.attempts[-1]["reason"]


def test_what_was_passed_over_stays_on_record_when_it_is_claimed_over() -> None:
    """The same where the next fire time's claim, not a recovery tick, finds what nobody ran."""
    one = job("0 0 * * * *", misfire="skip")
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    later(bench, at(5, 10))
    bench.dispatcher.execute(one, at(5), by="hand")
    later(bench, at(6))
    bench.run(one, at(6))
    row = run_row(bench, one, at(5))
    assert "3 fire time(s) from 2026-01-01T03:00:00Z to 2026-01-01T05:00:00Z" in row.attempts[-1]["reason"]


def test_a_skipped_fire_time_that_is_asked_for_keeps_the_record_of_the_others() -> None:
    """Running the last of those that were passed over takes the reason for the others from nobody."""
    one = job("0 0 * * * *")
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    pause(bench.dispatcher, "daily", "the ledger is being moved")
    later(bench, at(5, 10))
    resume(bench.dispatcher, "daily")
    ask(bench.dispatcher, one, at(5))
    work_off(bench.dispatcher)
    row = run_row(bench, one, at(5))
    assert (row.outcome, row.attempt) == (Outcome.SUCCEEDED, 1)
    assert (
        "from 2026-01-01T03:00:00Z to 2026-01-01T05:00:00Z passed over: paused" in row.attempts[-1]["reason"]
    )


def test_latest_is_the_newest() -> None:
    """After an outage the fire time of a moment ago runs, not the one before it."""
    one = job("0 * * * * *")
    bench = bench_at(one, at(3, 0))
    recover(bench.dispatcher)
    bench.run(one, at(3, 0))
    later(bench, at(3, 30, 8))
    recover(replica(bench), starting=True)
    work_off(bench.dispatcher)
    assert [at(3, 0), at(3, 30)] == RAN


def test_a_run_asked_for_by_hand_leaves_the_missed_one_due() -> None:
    """An instant that the schedule does not name accounts for none that it does."""
    one = job()
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    later(bench, at(9))
    ask(bench.dispatcher, one, at(9))
    work_off(bench.dispatcher)
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    assert [at(9), at(3)] == RAN


def test_two_versions_of_a_schedule_both_find_what_they_missed() -> None:
    """In a rolling deployment, or two slots, each version makes up for its own fire times."""
    old, new = job("0 0 3 * * *"), job("0 0 5 * * *")
    bench = bench_at(old, at(2))
    other = replica(bench, new)
    for minute in range(0, 8 * 60, 20):
        later(bench, at(2 + minute // 60, minute % 60, 40))
        for host in (bench.dispatcher, other):
            recover(host)
            work_off(host)
    assert sorted(RAN) == [at(3), at(5)]


def test_two_versions_write_nothing_when_nothing_is_due() -> None:
    """A tick of either leaves the row alone: their schedules do not take turns in it."""
    old, new = job("0 0 3 * * *"), job("0 0 5 * * *")
    bench = bench_at(old, at(10))
    other = replica(bench, new)
    recover(bench.dispatcher)
    recover(other)
    before = bench.stores.runs.get("test", "job:daily")
    for _ in range(3):
        bench.clock.advance(60)
        recover(bench.dispatcher)
        recover(other)
    after = bench.stores.runs.get("test", "job:daily")
    assert before is not None
    assert after is not None
    assert after.etag == before.etag


def test_a_changed_schedule_says_what_it_left_behind() -> None:
    """Fire times of the old schedule that nobody ran are on record with the reason."""
    old, new = job("0 0 * * * *"), job("0 30 5 * * *")
    bench = bench_at(old, at(2))
    recover(bench.dispatcher)
    later(bench, at(9, 10))
    recover(replica(bench, new))
    record = run_row(bench, old, at(9))
    assert record.outcome is Outcome.SKIPPED
    assert "the schedule changed from 0 0 * * * * UTC to 0 30 5 * * * UTC" in record.reason
    assert "7 fire time(s) from 2026-01-01T03:00:00Z to 2026-01-01T09:00:00Z" in record.reason


def test_a_pause_says_what_it_passed_over_of_each_version() -> None:
    """Resumed by somebody with one version's code, or with none, the fire times of both are on record."""
    old, new = job("0 0 * * * *"), job("0 30 * * * *")
    bench = bench_at(old, at(2, 10))
    recover(bench.dispatcher)
    recover(replica(bench, new))
    pause(bench.dispatcher, "daily")
    later(bench, at(4, 40))
    resume(bench.dispatcher, "daily")
    record = run_row(bench, old, at(4, 30))
    assert "2 fire time(s) from 2026-01-01T03:00:00Z to 2026-01-01T04:00:00Z" in record.reason
    assert "3 fire time(s) from 2026-01-01T02:30:00Z to 2026-01-01T04:30:00Z" in record.reason


def test_a_changed_schedule_says_it_too_when_a_claim_comes_first() -> None:
    """The new version's first word is a timer's tick, before any recovery tick: the record is the same."""
    old, new = job("0 0 * * * *"), job("0 30 * * * *")
    bench = bench_at(old, at(2))
    recover(bench.dispatcher)
    later(bench, at(5, 30))
    replica(bench, new).tick(new)
    record = run_row(bench, old, at(5))
    assert record.outcome is Outcome.SKIPPED
    assert "3 fire time(s) from 2026-01-01T03:00:00Z to 2026-01-01T05:00:00Z" in record.reason


def test_what_a_version_missed_stays_on_record_beside_what_the_one_before_left() -> None:
    """One claim both lets a fire time of its own go and finds a schedule that changed: each has its record."""
    old, new = job("0 0 * * * *"), job("0 30 * * * *", misfire="skip")
    bench = bench_at(old, at(2))
    recover(bench.dispatcher)
    later(bench, at(3, 10))
    recover(bench.dispatcher)  # 03:00 is missed, and waits
    other = replica(bench, new)
    later(bench, at(5, 30))
    other.tick(new)
    record = run_row(bench, old, at(5))
    assert "from 2026-01-01T03:00:00Z to 2026-01-01T03:00:00Z; misfire" in record.reason
    assert "from 2026-01-01T04:00:00Z to 2026-01-01T05:00:00Z passed over: the schedule" in record.reason


def test_what_a_version_left_that_has_no_host_any_more_is_on_record() -> None:
    """The old schedule's last host died after the new one was seen: its fire times are named, and its mark goes."""
    old, new = job("0 0 * * * *"), job("0 30 5 * * *")
    bench = bench_at(old, at(2))
    other = replica(bench, new)
    recover(bench.dispatcher)
    recover(other)
    bench.run(old, at(2))
    later(bench, at(3, 20))
    recover(other)
    assert "from 2026-01-01T03:00:00Z to 2026-01-01T03:00:00Z" in run_row(bench, old, at(3)).reason
    assert (
        "the schedule changed from 0 0 * * * * UTC to 0 30 5 * * * UTC" in run_row(bench, old, at(3)).reason
    )
    assert job_row(bench, old).marks == {}


def test_it_is_on_record_too_where_recovery_finds_the_job_at_work_each_time() -> None:
    """Of a job whose runs follow each other without a pause, a claim says what a version without a host left."""
    old, new = job("0 0 * * * *"), job("0 30 * * * *")
    bench = bench_at(old, at(2, 10))
    other = replica(bench, new)
    recover(bench.dispatcher)
    recover(other)
    later(bench, at(4, 30))
    other.tick(new)
    assert "from 2026-01-01T03:00:00Z to 2026-01-01T04:00:00Z" in run_row(bench, old, at(4)).reason
    assert job_row(bench, old).marks == {}


@pytest.mark.parametrize("by", ["recovery", "tick"])
def test_a_slow_clock_ends_no_version_before_its_last_fire_time(by: str) -> None:
    """By storage's clock the old schedule has come due once more: whoever takes it for gone names that one too."""
    old, new = job("5 30 * * * *"), job("0 30 * * * *")
    bench = bench_at(old, at(2, 20))
    recover(bench.dispatcher)
    recover(replica(bench, new))
    later(bench, at(4, 30, 10))
    slow = ManualClock()
    slow.advance(bench.clock.elapsed() - 10)
    other = replica(bench, new, clock=slow)
    recover(other) if by == "recovery" else other.tick(new)
    assert "from 2026-01-01T02:30:05Z to 2026-01-01T04:30:05Z" in run_row(bench, old, at(4, 30, 5)).reason
    assert job_row(bench, old).marks == {}


def test_a_slow_clock_makes_no_missed_fire_time_of_a_run_that_stopped() -> None:
    """A host starts whose clock is behind the newest one on record: a run that is to go on stays one."""
    one = job("0 */10 * * * *", misfire="latest")
    bench = bench_at(one, at(2, 10))
    stopped(bench, one, at(2, 10))
    later(bench, at(2, 20, 5))
    recover(replica(bench, one), starting=True)
    before = job_row(bench, one)
    later(bench, at(2, 20, 10))
    slow = ManualClock()
    slow.advance(bench.clock.elapsed() - 20)
    recover(replica(bench, one, clock=slow), starting=True)
    after = job_row(bench, one)
    assert (after.watermark, after.pending.keys()) == (before.watermark, before.pending.keys())
    assert [after.pending[t].why for t in (at(2, 10), at(2, 20))] == ["stopped", "missed"]


def test_a_host_that_starts_finds_nothing_missed_that_is_to_go_on() -> None:
    """A clock that was fast has moved the watermark ahead of storage's: it goes back behind a run that stopped."""
    one = job("0 */10 * * * *", misfire="latest")
    bench = bench_at(one, at(2, 10))
    stopped(bench, one, at(2, 10))
    jobs = read_jobs(bench.dispatcher.registry)
    ahead = replace(jobs.rows["daily"], watermark=at(3))
    commit_with(bench.dispatcher.registry, ahead, jobs.etags["daily"], None)
    later(bench, at(2, 12))
    recover(replica(bench, one), starting=True)
    assert job_row(bench, one).pending[at(2, 10)].why == "stopped"


def test_a_claim_takes_no_version_for_gone_that_may_still_come() -> None:
    """The other version's fire time is minutes ago: its own host finds it, and a claim leaves its mark alone."""
    old, new = job("0 25 * * * *"), job("0 30 * * * *")
    bench = bench_at(old, at(2, 26))
    other = replica(bench, new)
    recover(bench.dispatcher)
    recover(other)
    bench.run(old, at(2, 25))
    later(bench, at(3, 30))
    other.tick(new)
    assert list(job_row(bench, old).marks) == [schedule_text(old)]


def test_a_version_that_a_run_kept_waiting_is_not_gone() -> None:
    """A run of hours ends, and the other version's tick comes first: what came under it waits for its own host."""
    old, new = job("0 0 * * * *"), job("0 30 5 * * *")
    marks = {schedule_text(old): Mark(at(3), at(2))}
    row = JobRow("daily", schedule=schedule_text(new), watermark=at(2), since=at(2), marks=marks)
    ended = replace(row, last_fire_time=at(3), last_finished_at=at(4, 40))
    assert without_gone(new, ended, at(4, 41), at(4, 42)) == (ended, None)
    gone, record = without_gone(new, ended, at(4, 56), at(4, 57))
    assert (gone.marks, record and record.fire_time) == ({}, at(4))


def test_a_version_that_comes_back_begins_its_account_anew() -> None:
    """Its hosts were away for longer than is waited for: what they left is on record, what comes next runs."""
    old, new = job("0 0 * * * *"), job("0 30 5 * * *")
    bench = bench_at(old, at(2, 10))
    other = replica(bench, new)
    recover(bench.dispatcher)
    recover(other)
    later(bench, at(3, 20))
    recover(other)
    later(bench, at(4))
    assert replica(bench, host="again").tick(old) is not None
    assert [at(4)] == RAN
    assert run_row(bench, old, at(3)).outcome is Outcome.SKIPPED


def test_the_record_of_what_another_version_left_takes_no_fire_time_that_is_still_due() -> None:
    """The newest of those that were left is one of the new schedule too, whose tick may still come."""
    old, new = job("0 * * * * *"), job("0 */5 * * * *", jitter=60)
    bench = bench_at(old, at(2))
    recover(bench.dispatcher)
    later(bench, at(3, 5, 40))
    other = replica(bench, new)
    recover(other)
    reason = run_row(bench, old, at(3, 4)).reason
    assert "from 2026-01-01T02:01:00Z to 2026-01-01T03:05:00Z passed over: the schedule changed" in reason
    other.execute(new, at(3, 5), by="timer")  # late, by its jitter
    assert run_row(bench, new, at(3, 5)).outcome is Outcome.SUCCEEDED


def test_a_pause_says_what_it_passed_over() -> None:
    """Resuming records how many fire times the pause swallowed, since when and why."""
    one = job("0 0 * * * *")
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    pause(bench.dispatcher, "daily", "the ledger is being moved")
    later(bench, at(9, 10))
    resume(bench.dispatcher, "daily")
    record = run_row(bench, one, at(9))
    assert record.outcome is Outcome.SKIPPED
    assert "paused from 2026-01-01T02:00:00Z (the ledger is being moved)" in record.reason
    assert "7 fire time(s)" in record.reason
    recover(bench.dispatcher)
    assert [result for result in work_off(bench.dispatcher) if result.job == "daily"] == []


def test_the_audit_counts_what_the_schedule_names() -> None:
    """A run by hand is not the missed one, a changed schedule owes nothing."""
    one = job()
    bench = bench_at(one, at(2))
    recover(bench.dispatcher)
    later(bench, at(9, 1))
    bench.dispatcher.execute(one, at(9, 1), by="hand")

    def state(of: ScheduledJob) -> str:
        [audited] = audit([of], read_jobs(bench.dispatcher.registry), bench.clock.now())
        return audited.state

    assert state(one) == "overdue"
    assert state(job("0 0 8 * * *")) == "well"
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    assert state(one) == "well"


def test_a_fire_time_that_came_while_the_job_ran_follows_at_once() -> None:
    """Its own tick found the lease held; the run that held it hands it on when it ends, by every policy."""
    one = job("*/10 * * * * *", misfire="skip")
    bench = bench_at(one, at(3, 0))
    recover(bench.dispatcher)
    started = start(bench.dispatcher, one, at(3, 0))
    later(bench, at(3, 0, 12))
    assert bench.dispatcher.execute(one, at(3, 0, 10), by="timer").reason == "held elsewhere"
    bench.dispatcher.finish(started, None)
    assert [result.outcome for result in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]
    assert [at(3, 0, 10)] == RAN
    assert job_row(bench, one).watermark == at(3, 0, 10)
