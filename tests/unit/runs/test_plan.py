"""What claiming means, decided from rows alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at

from runonce.execution.options import MAX_ABANDONED
from runonce.runs.definition import scheduled
from runonce.runs.plan import Claimant, account_for_missed, admit, plan, within
from runonce.runs.rows import JobRow, Outcome, Pending, RunRow
from runonce.runs.versions import of_this_version, schedule_text
from runonce.schedules.schedule import LATE

if TYPE_CHECKING:
    from runonce.runs.run import Run

NOW = at(12)


def job(schedule: str = "0 0 * * * *", **options: Any) -> Any:
    def hourly(run: Run) -> None: ...

    return scheduled(schedule, **options)(hourly)


def who(by: Any = "timer", now: datetime = NOW) -> Claimant:
    return Claimant("me", "host-2", by, now)


def row(**values: Any) -> JobRow:
    return JobRow("hourly", **{"schedule": schedule_text(job()), "watermark": at(11), "token": 7, **values})


def ran(outcome: Outcome, fire_time: datetime = NOW, **values: Any) -> RunRow:
    known = {"attempt": 1, "holder": "old", "host": "host-1", "started_at": at(12), "token": 7}
    return RunRow("hourly", fire_time, outcome, **{**known, **values})


def waiting(**entries: Any) -> dict[datetime, Pending]:
    """Pending fire times by hour: h10="missed"."""
    return {at(int(hour[1:])): Pending(why, NOW) for hour, why in entries.items()}


# -- admit ----------------------------------------------------------------------------------------------------


def test_admits_the_next_fire_time() -> None:
    """A fire time past the watermark is nobody's yet."""
    assert admit(row(), NOW, who()) is None


@pytest.mark.parametrize("fire_time", [at(11), at(3)])
def test_refuses_what_the_watermark_has_passed(fire_time: datetime) -> None:
    """A late replica learns from the job's row alone that the fire time is dealt with."""
    refused = admit(row(), fire_time, who())
    assert refused is not None
    assert "done, or was skipped" in refused.reason


def test_admits_an_old_fire_time_that_is_unfinished() -> None:
    """What is pending may run although the watermark has passed it."""
    assert admit(row(pending=waiting(h10="missed")), at(10), who()) is None


def test_refuses_a_retry_before_its_time() -> None:
    """A retry waits for its back-off, and says until when."""
    pending = {at(10): Pending("retrying", at(12, 5))}
    refused = admit(row(pending=pending), at(10), who())
    assert refused is not None
    assert refused.reason == "retrying, due at 2026-01-01T12:05:00Z"


def test_admits_a_retry_in_its_time() -> None:
    """From the instant on that its back-off ends, a retry may start."""
    assert admit(row(pending={at(10): Pending("retrying", NOW)}), at(10), who()) is None


@pytest.mark.parametrize("why", ["running", "abandoned", "stopped", "missed", "asked"])
def test_a_fast_clock_elsewhere_holds_back_nothing_but_retries(why: Any) -> None:
    """An entry written by a host whose clock is ahead is admitted all the same: clocks decide no ownership."""
    assert admit(row(pending={at(10): Pending(why, at(13))}), at(10), who()) is None


def test_refuses_while_paused_and_says_why_and_how_to_go_on() -> None:
    """A paused job starts nothing by itself."""
    refused = admit(row(paused_at=at(9), paused_why="migration"), NOW, who())
    assert refused is not None
    assert "paused since 2026-01-01T09:00:00Z (migration)" in refused.reason
    assert "runonce resume hourly" in refused.reason


def test_a_person_may_start_what_is_paused_waiting_or_old() -> None:
    """By hand neither a pause, nor a back-off, nor the watermark refuses."""
    pending = {at(10): Pending("retrying", at(13))}
    assert admit(row(paused_at=at(9), pending=pending), at(10), who("hand")) is None
    assert admit(row(), at(3), who("hand")) is None


# -- plan: a first claim --------------------------------------------------------------------------------------


def test_a_first_claim_raises_the_token_and_names_its_holder() -> None:
    """Both rows carry the new token and the holder, and the fire time is pending until it is finished."""
    planned = plan(job(), row(), None, NOW, who())
    assert planned.refused is None
    assert planned.run is not None
    assert (planned.run.attempt, planned.run.token, planned.run.holder) == (1, 8, "me")
    assert (planned.run.outcome, planned.run.by, planned.run.started_at) == (Outcome.RUNNING, "timer", NOW)
    assert (planned.job.token, planned.job.holder, planned.job.host) == (8, "me", "host-2")
    assert (planned.job.running, planned.job.watermark) == (NOW, NOW)
    assert planned.job.pending == {NOW: Pending("running", NOW)}


def test_the_very_first_claim_of_a_job_catches_nothing_up() -> None:
    """A job that never ran has missed nothing, whatever its schedule says about the past."""
    fresh = of_this_version(job(), JobRow("hourly"), NOW, NOW - timedelta(seconds=1))
    planned = plan(job(misfire="all"), fresh, None, NOW, who())
    assert set(planned.job.pending) == {NOW}
    assert planned.skipped is None
    assert planned.job.schedule == "0 0 * * * * UTC"


def test_by_hand_leaves_the_watermark_alone() -> None:
    """A run by hand says nothing about the fire times before it."""
    planned = plan(job(), row(watermark=at(3)), None, NOW, who("hand"))
    assert planned.job.watermark == at(3)


def test_a_claim_of_something_pending_does_not_take_the_watermark_back() -> None:
    """Catching up an old fire time does not make newer ones due again."""
    planned = plan(job(), row(pending=waiting(h10="missed")), None, at(10), who("request"))
    assert planned.job.watermark == at(11)


# -- plan: what is settled ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.UNKNOWN, Outcome.SKIPPED], ids=str
)
def test_what_is_final_is_not_started_again(outcome: Outcome) -> None:
    """A finished fire time is refused, its leftover entry goes, and the message names the way to run it anyway."""
    before = row(pending=waiting(h12="missed"))
    planned = plan(job(), before, ran(outcome, finished_at=at(12, 1)), NOW, who())
    assert planned.run is None
    assert planned.refused is not None
    assert f"already {outcome} at 2026-01-01T12:01:00Z" in planned.refused.reason
    assert "runonce replay hourly --at 2026-01-01T12:00:00Z" in planned.refused.reason
    assert planned.job == replace(before, pending={})


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.UNKNOWN], ids=str)
def test_by_hand_alone_repeats_nothing_that_ran(outcome: Outcome) -> None:
    """Running by hand is not a replay: that has to be said."""
    assert plan(job(), row(), ran(outcome), NOW, who("hand")).refused is not None


def test_by_hand_runs_what_was_skipped() -> None:
    """A fire time that was let go never ran, so a person may run it without a replay, as attempt 1."""
    planned = plan(job(), row(), ran(Outcome.SKIPPED, attempt=0), NOW, who("hand"))
    assert planned.run is not None
    assert (planned.run.attempt, planned.run.generation, planned.run.attempts) == (1, 0, ())


def test_what_was_skipped_runs_when_it_was_asked_for() -> None:
    """A person who asks the running hosts for a skipped fire time gets it, as if run by hand."""
    asked = row(pending=waiting(h10="asked"))
    planned = plan(job(), asked, ran(Outcome.SKIPPED, at(10), attempt=0), at(10), who("request"))
    assert planned.refused is None
    assert planned.run is not None


@pytest.mark.parametrize("by", ["hand", "request"])
@pytest.mark.parametrize("why", ["resumed", "replayed"])
def test_what_an_operator_started_again_runs_as_its_row_says(why: str, by: str) -> None:
    """The decision is on the rows already; whoever claims it adds an attempt and nothing else."""
    ended = ran(Outcome.FAILED, checkpoint="5", progress={"items": 5}, generation=2, finished_at=NOW)
    planned = plan(job(), row(pending={NOW: Pending(why, NOW)}), ended, NOW, who(by))  # type: ignore[arg-type]
    run = planned.run
    assert run is not None
    assert (run.generation, run.attempt, run.checkpoint, run.progress) == (2, 2, "5", {"items": 5})
    assert [a["outcome"] for a in run.attempts] == ["failed"]


# -- plan: later attempts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.RETRYING, Outcome.STOPPED], ids=str)
def test_a_later_attempt_keeps_what_was_achieved(outcome: Outcome) -> None:
    """Checkpoint, progress and failures survive into the next attempt, and its key stays the same."""
    before = ran(
        outcome,
        checkpoint='{"page":3}',
        progress={"items": 30},
        failures=1,
        error="Traceback …\nValueError: no\n",
        retry_at=NOW,
        finished_at=NOW,
    )
    run = plan(job(), row(pending={NOW: Pending("retrying", NOW)}), before, NOW, who("request")).run
    assert run is not None
    assert (run.attempt, run.checkpoint, run.progress, run.failures) == (2, '{"page":3}', {"items": 30}, 1)
    assert (run.error, run.reason, run.retry_at, run.finished_at) == ("", "", None, None)
    assert run.idempotency_key == before.idempotency_key
    assert run.attempts[0]["reason"] == "ValueError: no"


def test_a_run_whose_holder_died_is_taken_over() -> None:
    """We hold the lease, so "running" means abandoned: counted, kept among the attempts, and run again."""
    before = ran(Outcome.RUNNING, checkpoint="5")
    planned = plan(job(), row(running=NOW, pending=waiting(h12="running")), before, NOW, who("request"))
    run = planned.run
    assert run is not None
    assert (run.attempt, run.abandoned, run.checkpoint, run.host) == (2, 1, "5", "host-2")
    assert run.attempts[0]["outcome"] == "abandoned"
    assert run.attempts[0]["host"] == "host-1"


def test_a_job_that_kills_its_hosts_is_given_up() -> None:
    """After MAX_ABANDONED deaths the run fails instead of killing a sixth host."""
    before = ran(Outcome.RUNNING, abandoned=MAX_ABANDONED - 1, attempt=5)
    planned = plan(job(), row(running=NOW, pending=waiting(h12="running")), before, NOW, who("request"))
    assert planned.refused is not None
    assert planned.refused.outcome is Outcome.FAILED
    assert planned.run is not None
    assert (planned.run.outcome, planned.run.abandoned) == (Outcome.FAILED, MAX_ABANDONED)
    assert "may be what kills it" in planned.run.reason
    assert (planned.job.running, planned.job.pending, planned.job.last_outcome) == (None, {}, "failed")


def test_one_death_fewer_is_not_given_up() -> None:
    """The limit is exact: one death less and the run is tried again."""
    before = ran(Outcome.RUNNING, abandoned=MAX_ABANDONED - 2)
    assert plan(job(), row(), before, NOW, who()).refused is None


def test_hold_leaves_a_dead_run_to_a_person() -> None:
    """With on_abandoned="hold" nobody knows what the dead run did, and nothing repeats it."""
    before = ran(Outcome.RUNNING)
    planned = plan(
        job(on_abandoned="hold"), row(running=NOW, pending=waiting(h12="running")), before, NOW, who()
    )
    assert planned.refused is not None
    assert planned.refused.outcome is Outcome.UNKNOWN
    assert planned.run is not None
    assert planned.run.outcome is Outcome.UNKNOWN
    assert "host-1 died during attempt 1" in planned.run.reason
    assert planned.job.last_outcome == "unknown"


def test_another_run_whose_holder_died_stays_pending() -> None:
    """Claiming the next fire time does not forget the one that was running when its host died."""
    planned = plan(job(), row(running=at(11), pending=waiting(h11="running")), None, NOW, who())
    assert planned.job.pending[at(11)].why == "abandoned"
    assert planned.job.pending[NOW].why == "running"
    assert planned.job.running == NOW


def test_only_the_latest_attempts_are_kept() -> None:
    """A run that is tried for ever does not grow its row for ever."""
    earlier = tuple({"attempt": str(n)} for n in range(1, 11))
    run = plan(job(), row(), ran(Outcome.RETRYING, attempt=11, attempts=earlier), NOW, who()).run
    assert run is not None
    assert [a["attempt"] for a in run.attempts] == [str(n) for n in range(2, 12)]


# -- misfire --------------------------------------------------------------------------------------------------


def test_latest_at_a_claim_runs_only_what_is_claimed() -> None:
    """With misfire="latest" the claimed fire time is the latest; those before it get one record together."""
    planned = plan(job(misfire="latest"), row(watermark=at(8)), None, NOW, who())
    assert set(planned.job.pending) == {NOW}
    assert planned.skipped is not None
    assert (planned.skipped.fire_time, planned.skipped.outcome) == (at(11), Outcome.SKIPPED)
    assert "3 fire time(s) from 2026-01-01T09:00:00Z to 2026-01-01T11:00:00Z" in planned.skipped.reason


def test_skip_at_a_claim_runs_only_what_is_claimed() -> None:
    """With misfire="skip" fire times nobody ran are recorded as skipped."""
    planned = plan(job(misfire="skip"), row(watermark=at(9)), None, NOW, who())
    assert set(planned.job.pending) == {NOW}
    assert planned.skipped is not None
    assert 'misfire="skip"' in planned.skipped.reason


def test_all_at_a_claim_makes_the_missed_ones_pending() -> None:
    """With misfire="all" every missed fire time follows the claimed one."""
    planned = plan(job(misfire="all"), row(watermark=at(8)), None, NOW, who())
    assert {t: p.why for t, p in planned.job.pending.items()} == {
        at(9): "missed",
        at(10): "missed",
        at(11): "missed",
        NOW: "running",
    }
    assert planned.skipped is None


def test_all_lets_the_oldest_go_beyond_its_cap() -> None:
    """The cap keeps the newest of the missed fire times and records the others as skipped."""
    planned = plan(job(misfire="all", misfire_cap=2), row(watermark=at(6)), None, NOW, who())
    assert set(planned.job.pending) == {at(10), at(11), NOW}
    assert planned.skipped is not None
    assert planned.skipped.fire_time == at(9)
    assert "3 fire time(s)" in planned.skipped.reason


@pytest.mark.parametrize("missed", range(1, 8))
def test_all_drops_nothing_within_its_cap(missed: int) -> None:
    """However many are missed, up to the cap not one is lost."""
    after, _ = account_for_missed(
        job(misfire="all", misfire_cap=7), row(watermark=at(12 - missed)), NOW, NOW, late=True
    )
    assert sorted(after.pending) == [at(hour) for hour in range(13 - missed, 13)]


def test_the_cap_counts_what_was_missed_before() -> None:
    """Fire times that are still waiting from an earlier outage count against the cap, oldest first."""
    before = row(watermark=at(9), pending=waiting(h8="missed", h9="missed"))
    after, skipped = account_for_missed(job(misfire="all", misfire_cap=3), before, at(11), NOW, late=True)
    assert sorted(after.pending) == [at(9), at(10), at(11)]
    assert skipped is not None
    assert skipped.fire_time == at(8)


def test_a_run_that_is_to_go_on_is_no_missed_fire_time() -> None:
    """The watermark went back behind it: it waits as it did, and takes no place of those that were missed."""
    stopped, missed = Pending("stopped", at(10)), Pending("missed", at(13))
    before = row(watermark=at(9), pending={at(10): stopped, at(13): missed})
    after, skipped = account_for_missed(job(misfire="all", misfire_cap=1), before, at(10), NOW, late=True)
    assert after.pending == before.pending
    assert skipped is None


def test_latest_in_recovery_coalesces() -> None:
    """With no tick at hand the newest missed fire time runs, instead of one that was waiting already."""
    before = row(watermark=at(9), pending=waiting(h9="missed"))
    after, skipped = account_for_missed(job(misfire="latest"), before, at(11), NOW, late=True)
    assert set(after.pending) == {at(11)}
    assert skipped is not None
    assert skipped.fire_time == at(10)
    assert "2 fire time(s) from 2026-01-01T09:00:00Z" in skipped.reason


def test_skip_in_recovery_runs_nothing() -> None:
    """With misfire="skip" recovery only records."""
    after, skipped = account_for_missed(job(misfire="skip"), row(watermark=at(9)), at(11), NOW, late=True)
    assert after.pending == {}
    assert after.watermark == at(11)
    assert skipped is not None


def test_coalescing_leaves_other_unfinished_runs_alone() -> None:
    """A retry or a dead run is no missed fire time, and no policy drops it."""
    before = row(watermark=at(9), pending=waiting(h7="retrying", h8="abandoned", h6="asked"))
    after, _ = account_for_missed(job(misfire="skip"), before, at(11), NOW, late=True)
    assert set(after.pending) == {at(6), at(7), at(8)}


@pytest.mark.parametrize("late", [True, False])
def test_a_changed_schedule_has_missed_nothing(late: bool) -> None:
    """Fire times of the new schedule before it came into force are not missed ones."""
    every_minute = job("0 * * * * *", misfire="all")
    seen = of_this_version(every_minute, row(watermark=at(9)), at(11), at(10))
    after, skipped = account_for_missed(every_minute, seen, at(11), NOW, late=late)
    assert after.pending == {}
    assert skipped is None
    assert (after.schedule, after.watermark) == ("0 * * * * * UTC", at(11))


def test_two_versions_of_a_schedule_each_have_their_own_marks() -> None:
    """A host of the other version moves only its own watermark, and neither begins anew with each tick."""
    old, new = job(), job("0 30 * * * *")
    both = of_this_version(new, row(watermark=at(9)), at(10), at(10))
    moved, _ = account_for_missed(new, both, at(11), NOW, late=True)
    again = of_this_version(old, moved, NOW, NOW)
    assert (again.schedule, again.watermark) == (schedule_text(old), at(9))
    assert of_this_version(new, again, NOW, NOW).watermark == at(11)


def test_only_a_few_schedules_are_remembered() -> None:
    """A row does not grow with each change of its schedule: the marks that were moved last are kept."""
    kept = row(watermark=at(9))
    for minute in range(20):
        at_minute = NOW + timedelta(minutes=minute)
        kept = of_this_version(job(f"0 {minute} * * * *"), kept, at_minute, at_minute)
    assert len(kept.marks) <= 3


def test_a_watermark_of_the_future_is_pulled_back() -> None:
    """A host whose clock was a day ahead must not take the fire times that are to come from all others."""
    assert within(row(watermark=NOW + timedelta(days=1)), NOW).watermark == NOW - LATE
    assert within(row(watermark=NOW), NOW).watermark == NOW


def test_a_changed_time_zone_is_a_changed_schedule() -> None:
    """The zone belongs to the schedule: another one makes other fire times."""
    moved = job(time_zone="Asia/Kolkata", misfire="all")
    seen = of_this_version(moved, row(watermark=at(9)), at(11), at(11))
    assert account_for_missed(moved, seen, at(11), NOW, late=True)[0].pending == {}


def test_the_watermark_never_goes_back() -> None:
    """A host whose clock is behind, or a late tick, does not make finished fire times due again."""
    for schedule in ("0 0 * * * *", "0 30 * * * *"):
        after, _ = account_for_missed(job(schedule), row(watermark=at(11)), at(9), at(9), late=True)
        assert after.watermark == at(11)


def test_an_endless_outage_is_counted_up_to_a_limit() -> None:
    """A schedule of every second that was down for a day is settled at once, with "at least" in its record."""
    secondly = job("* * * * * *")
    before = row(schedule=schedule_text(secondly), watermark=NOW - timedelta(days=1))
    _, skipped = account_for_missed(secondly, before, NOW, NOW)
    assert skipped is not None
    assert "at least 1000 fire time(s)" in skipped.reason
