"""What claiming makes of the rows, column by column, and the words of what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at

from runonce.execution.options import MAX_ABANDONED
from runonce.runs.definition import scheduled
from runonce.runs.plan import (
    Claimant,
    Plan,
    Refused,
    account_for_missed,
    admit,
    forgotten,
    noted,
    params_for,
    passed_over,
    plan,
    within,
)
from runonce.runs.rows import JobRow, Outcome, Pending, RunRow
from runonce.runs.versions import schedule_text
from runonce.schedules.schedule import LATE
from runonce.stores.columns import KEPT_ATTEMPTS

if TYPE_CHECKING:
    from runonce.runs.plan import By
    from runonce.runs.run import Run

NOW = at(12)
LATER = at(12, 30)


def job(schedule: str = "0 0 * * * *", **options: Any) -> Any:
    def hourly(run: Run) -> None: ...

    return scheduled(schedule, **options)(hourly)


HOURLY = job()


def who(by: By = "timer", **values: Any) -> Claimant:
    return Claimant("me", "host-2", by, LATER, **values)


def row(**values: Any) -> JobRow:
    return JobRow("hourly", **{"schedule": schedule_text(HOURLY), "watermark": at(11), "token": 7, **values})


BEFORE = RunRow(
    "hourly",
    NOW,
    Outcome.RETRYING,
    reason="",
    attempt=3,
    failures=2,
    abandoned=1,
    token=7,
    holder="old",
    host="host-1",
    by="hand",
    why="asked",
    asked_by="ana",
    asked_at=at(11, 50),
    started_at=at(12, 1),
    finished_at=at(12, 2),
    retry_at=at(12, 5),
    error="Traceback …\n  File …\nValueError: no\n",
    checkpoint="5",
    progress={"items": 5},
)
RECORD = {
    "attempt": "3",
    "outcome": "retrying",
    "host": "host-1",
    "started_at": "2026-01-01T12:01:00Z",
    "finished_at": "2026-01-01T12:02:00Z",
    "reason": "ValueError: no",
    "error": "Traceback …\n  File …\nValueError: no\n",
    "by": "hand",
    "why": "asked",
    "asked_by": "ana",
    "asked_at": "2026-01-01T11:50:00Z",
    "token": "7",
}
"""Of that attempt, once another one has begun."""


def refusal(planned: Plan) -> Refused:
    assert planned.refused is not None
    return planned.refused


# -- a claim, column by column ---------------------------------------------------------------------------------


def test_a_first_claim_writes_both_rows_whole() -> None:
    """A new fire time's rows say who has it, by what, with which parameters, and nothing of any other run."""
    planned = plan(HOURLY, row(), None, NOW, who("hand", params='{"n":1}', person="ana"))
    assert planned.run == RunRow(
        "hourly",
        NOW,
        Outcome.RUNNING,
        attempt=1,
        token=8,
        holder="me",
        host="host-2",
        by="hand",
        asked_by="ana",
        started_at=LATER,
        params='{"n":1}',
    )
    assert planned.job == row(
        token=8,
        attempt=1,
        running=NOW,
        holder="me",
        host="host-2",
        pending={NOW: Pending("running", LATER, params='{"n":1}')},
    )
    assert (planned.skipped, planned.refused) == (None, None)
    by_itself = plan(HOURLY, row(), None, NOW, who()).run
    assert by_itself is not None
    assert by_itself.asked_by == ""


def test_a_later_attempt_writes_both_rows_whole() -> None:
    """What the attempt before it achieved stays, how it ended becomes a record of its own, and the rest is new."""
    waits = Pending("retrying", at(12, 5), asked_at=at(12, 6), by="host-9")
    other = {at(9): Pending("missed", at(10))}
    planned = plan(HOURLY, row(watermark=NOW, pending={NOW: waits, **other}), BEFORE, NOW, who("request"))
    assert planned.run == replace(
        BEFORE,
        outcome=Outcome.RUNNING,
        error="",
        attempt=4,
        token=8,
        holder="me",
        host="host-2",
        by="request",
        why="retrying",
        asked_by="host-9",
        asked_at=at(12, 6),
        started_at=LATER,
        finished_at=None,
        retry_at=None,
        attempts=(RECORD,),
    )
    assert planned.job == row(
        watermark=NOW,
        token=8,
        attempt=4,
        progress={"items": 5},
        running=NOW,
        holder="me",
        host="host-2",
        pending={NOW: Pending("running", LATER), **other},
    )


def test_a_takeover_says_so() -> None:
    """The run of a host that died is taken up as abandoned: its record says so, and has the reason it last gave."""
    died = replace(BEFORE, outcome=Outcome.RUNNING, reason="r" * 300, finished_at=None)
    waits = {NOW: Pending("running", at(12, 1))}
    run = plan(HOURLY, row(running=NOW, pending=waits), died, NOW, who("request")).run
    assert run is not None
    assert (run.why, run.asked_by, run.asked_at, run.abandoned, run.reason) == ("abandoned", "", None, 2, "")
    assert run.attempts == ({**RECORD, "outcome": "abandoned", "finished_at": "", "reason": "r" * 200},)


def test_a_retry_by_hand_names_the_person() -> None:
    """Whoever runs it by hand has asked for it, and not the host whose recovery tick found it."""
    waits = {NOW: Pending("retrying", at(12, 5), by="host-9")}
    run = plan(HOURLY, row(pending=waits), BEFORE, NOW, who("hand", person="ana")).run
    assert run is not None
    assert (run.asked_by, run.why) == ("ana", "retrying")


def test_a_row_that_was_never_tried_leaves_no_record() -> None:
    """A run that an operator decided about before its first attempt has no attempt to remember."""
    untried = RunRow("hourly", NOW, Outcome.CANCELLED, reason="no", finished_at=at(12, 2))
    run = plan(HOURLY, row(pending={NOW: Pending("resumed", NOW)}), untried, NOW, who("request")).run
    assert run is not None
    assert (run.attempt, run.attempts) == (1, ())


def test_a_run_of_another_time_keeps_its_reason_to_wait() -> None:
    """Only what the row calls running is found dead: a retry, or a run that has ended, is left as it is."""
    for why in ("retrying", "stopped"):
        waits = {at(11): Pending(why, NOW, by="host-9")}  # type: ignore[arg-type]
        planned = plan(HOURLY, row(running=at(11), pending=waits), None, NOW, who())
        assert planned.job.pending[at(11)] == waits[at(11)]
    assert at(11) not in plan(HOURLY, row(running=at(11)), None, NOW, who()).job.pending
    dead = {at(11): Pending("running", at(11), asked_at=at(11, 1), params="{}", by="ana")}
    planned = plan(HOURLY, row(running=at(11), pending=dead), None, NOW, who())
    assert planned.job.pending[at(11)] == replace(dead[at(11)], why="abandoned")


# -- what is settled -------------------------------------------------------------------------------------------


def test_what_is_done_is_refused_with_its_end_to_the_second() -> None:
    """The refusal says how and when it ended, and the command that runs it again; what runs beside it stays so."""
    done = replace(BEFORE, outcome=Outcome.SUCCEEDED, finished_at=at(12, 2).replace(microsecond=7))
    before = row(running=at(11), pending={at(11): Pending("running", NOW), NOW: Pending("missed", NOW)})
    planned = plan(HOURLY, before, done, NOW, who())
    assert refusal(planned) == Refused(
        "already succeeded at 2026-01-01T12:02:00Z; `runonce replay hourly --at 2026-01-01T12:00:00Z` runs it again "
        "from its beginning"
    )
    assert (planned.run, planned.skipped) == (None, None)
    assert planned.job == replace(before, pending={at(11): Pending("abandoned", NOW)})


def test_what_is_done_is_not_running_any_more() -> None:
    """A row that still calls the finished run the running one is put in order."""
    done = replace(BEFORE, outcome=Outcome.SUCCEEDED)
    assert plan(HOURLY, row(running=NOW), done, NOW, who()).job == row()


def test_a_success_whose_messages_were_not_sent_is_handed_on() -> None:
    """Its follow-up messages are all that is left to do, so its row comes with the refusal and the entry stays."""
    done = replace(BEFORE, outcome=Outcome.SUCCEEDED)
    before = row(pending={NOW: Pending("unsent", NOW)})
    planned = plan(HOURLY, before, done, NOW, who("request"))
    assert refusal(planned).unsent == done
    assert refusal(planned).outcome is Outcome.SKIPPED
    assert (planned.job, planned.run) == (before, None)


@pytest.mark.parametrize(
    ("by", "why", "runs"),
    [("request", "asked", True), ("request", "missed", False), ("timer", None, False), ("hand", None, True)],
)
def test_what_was_let_go_runs_only_for_somebody_who_asks(by: By, why: Any, runs: bool) -> None:
    """A fire time that nobody ran stays skipped unless a person wants it."""
    skipped = RunRow("hourly", at(10), Outcome.SKIPPED, "nobody ran it")
    waits = {at(10): Pending(why, NOW)} if why else {}
    assert (plan(HOURLY, row(pending=waits), skipped, at(10), who(by)).run is not None) is runs


def test_a_held_run_is_unknown_and_changes_hands() -> None:
    """Its row says when and why nobody knows, and is the dead host's no longer; the job's row has it as its last."""
    died = replace(BEFORE, outcome=Outcome.RUNNING, finished_at=None)
    planned = plan(
        job(on_abandoned="hold"), row(running=NOW, pending={NOW: Pending("running", NOW)}), died, NOW, who()
    )
    reason = 'its host host-1 died during attempt 3, and on_abandoned="hold"'
    assert refusal(planned) == Refused(reason, Outcome.UNKNOWN)
    final = replace(died, outcome=Outcome.UNKNOWN, reason=reason, abandoned=2, finished_at=LATER, holder="me")
    assert planned.run == final
    told = replace(row(), troubles={"held": "2026-01-01T12:30:00Z"})
    assert planned.job == told.ended(final)


def test_a_run_that_kills_its_hosts_is_given_up_with_its_reason() -> None:
    """Deaths since its last progress count, and only those; the row says how many there were."""
    died = replace(BEFORE, outcome=Outcome.RUNNING, abandoned=MAX_ABANDONED, survived=1)
    planned = plan(HOURLY, row(running=NOW), died, NOW, who())
    reason = (
        f"its host died, or could not renew its lease, during {MAX_ABANDONED} attempts without progress; the job "
        f"itself may be what kills it"
    )
    assert refusal(planned) == Refused(reason, Outcome.FAILED)
    assert planned.run is not None
    assert (planned.run.outcome, planned.run.reason) == (Outcome.FAILED, reason)
    assert planned.job.troubles == {"failed": "2026-01-01T12:30:00Z"}
    assert plan(HOURLY, row(), replace(died, survived=2), NOW, who()).refused is None


# -- what is refused before anything is read -------------------------------------------------------------------


def test_the_watermark_refuses_up_to_itself_and_says_so() -> None:
    """A fire time at the watermark is done; one after it, or of a row that has none, is not."""
    assert admit(row(), at(11), who()) == Refused("this fire time is done, or was skipped")
    assert admit(row(watermark=None), at(11), who()) is None


def test_a_retry_that_waits_says_when_it_may_come() -> None:
    """The refusal has the time itself, so that a request can be put back until then."""
    waits = {at(10): Pending("retrying", at(13))}
    assert admit(row(pending=waits), at(10), who()) == Refused(
        "retrying, due at 2026-01-01T13:00:00Z", not_before=at(13)
    )


def test_a_pause_without_a_reason_is_told_without_one() -> None:
    """It says since when, and how to end it."""
    assert admit(row(paused_at=at(9)), NOW, who()) == Refused(
        "the job is paused since 2026-01-01T09:00:00Z; `runonce resume hourly`"
    )
    assert admit(row(paused_at=at(9), paused_why="move"), NOW, who()) == Refused(
        "the job is paused since 2026-01-01T09:00:00Z (move); `runonce resume hourly`"
    )


def test_a_fire_time_of_a_removed_history_is_run_by_hand_only_as_a_replay() -> None:
    """Its record may be gone: whoever runs it by hand is told so; a tick, and what is unfinished, are not held up."""
    old = row(history_from=at(10))
    reason = (
        "its record, if there was one, is removed by now (history begins at 2026-01-01T10:00:00Z); "
        "`runonce replay hourly --at 2026-01-01T09:00:00Z` runs it"
    )
    assert forgotten(old, at(9)) == reason
    assert forgotten(old, at(10)) is None
    assert forgotten(row(), at(9)) is None
    assert forgotten(row(history_from=at(10), pending={at(9): Pending("asked", NOW)}), at(9)) is None
    assert plan(HOURLY, old, None, at(9), who("hand")) == Plan(old, None, refused=Refused(reason))
    assert plan(HOURLY, old, None, at(9), who("request")).refused is None
    assert plan(HOURLY, old, replace(BEFORE, fire_time=at(9)), at(9), who("hand")).refused is None


def test_a_watermark_of_the_future_takes_what_it_was_since_with_it() -> None:
    """It goes back behind what may be under way, unless it is within a second of now."""
    back = NOW - LATE
    assert within(row(watermark=at(20), since=at(20)), NOW) == row(watermark=back, since=back)
    assert within(row(watermark=at(20), since=at(3)), NOW) == row(watermark=back, since=at(3))
    assert within(row(watermark=at(20)), NOW) == row(watermark=back, since=back)
    for left in (row(watermark=NOW + timedelta(seconds=1)), row(watermark=None)):
        assert within(left, NOW) is left
    assert within(row(watermark=NOW + timedelta(seconds=1.001)), NOW).watermark == back


# -- parameters ------------------------------------------------------------------------------------------------


def test_a_request_runs_what_was_asked_for_or_the_schedule_names() -> None:
    """With the parameters that were asked for; one that nobody asked for and no schedule names is refused."""
    asked = row(pending={at(10, 7): Pending("asked", NOW, params='{"n":1}')})
    assert params_for(HOURLY, asked, at(10, 7), "request", "ignored") == '{"n":1}'
    assert params_for(HOURLY, row(), at(10), "request", "ignored") == ""
    assert params_for(HOURLY, row(), at(10, 7), "request", "") == Refused(
        "no schedule names this fire time, and nobody asked for it"
    )


def test_the_schedules_own_run_waits_for_one_with_parameters() -> None:
    """A tick does not take up what was asked for with parameters; without them it does."""
    asked = row(pending={NOW: Pending("asked", NOW, params='{"n":1}')})
    assert params_for(HOURLY, asked, NOW, "timer", "") == Refused(
        'it was asked for with {"n":1}, and its own run comes after that'
    )
    assert params_for(HOURLY, row(pending={NOW: Pending("asked", NOW)}), NOW, "timer", "") == ""
    assert params_for(HOURLY, row(), NOW, "timer", "") == ""
    assert params_for(HOURLY, asked, NOW, "hand", "") == ""


def test_parameters_by_hand_wait_for_the_schedules_own_run() -> None:
    """While that one has not begun it comes first; a fire time that is past, or that no schedule names, runs."""
    first = Refused("the schedule's own run of this fire time has not begun; that one comes first")
    given = '{"n":1}'
    assert params_for(HOURLY, row(), NOW, "hand", given) == first
    assert params_for(HOURLY, row(since=at(9)), NOW, "hand", given) == first
    assert params_for(HOURLY, row(), NOW, "hand", "") == ""
    for passed in (row(watermark=NOW), row(watermark=None), row(since=NOW)):
        assert params_for(HOURLY, passed, NOW, "hand", given) == given
    assert params_for(HOURLY, row(), at(12, 7), "hand", given) == given


# -- what was missed -------------------------------------------------------------------------------------------


def test_what_a_claim_passes_is_one_record() -> None:
    """Of the fire times between the watermark and the claimed one: first, last, how many, by which policy, and when."""
    planned = plan(job(misfire="latest"), row(watermark=at(8)), None, NOW, who())
    reason = 'nobody ran 3 fire time(s) from 2026-01-01T09:00:00Z to 2026-01-01T11:00:00Z; misfire="latest"'
    skips = (("2026-01-01T09:00:00Z", "2026-01-01T11:00:00Z", "missed"),)
    assert planned.skipped == RunRow(
        "hourly", at(11), Outcome.SKIPPED, reason, finished_at=LATER, skips=skips
    )


def test_what_stays_to_be_run_is_pending_since_now() -> None:
    """A missed fire time is noted once: what was waiting before keeps its own entry."""
    old = Pending("missed", at(9), asked_at=at(9, 1))
    after, skipped = account_for_missed(
        job(misfire="all"), row(watermark=at(9), pending={at(9): old}), at(11), NOW, late=True
    )
    assert after == row(
        pending={at(9): old, at(10): Pending("missed", NOW), at(11): Pending("missed", NOW)}, watermark=at(11)
    )
    assert skipped is None


def test_what_waits_stays_until_more_is_missed() -> None:
    """Only with the next missed fire time is one that waited dropped, where the policy runs none any more."""
    skip, waits = job(misfire="skip"), {at(9): Pending("missed", NOW)}
    before = row(watermark=at(11), pending=waits)
    assert account_for_missed(skip, before, at(11), NOW, late=True) == (before, None)
    after, skipped = account_for_missed(skip, row(watermark=at(10), pending=waits), at(11), NOW, late=True)
    assert after == row()
    assert skipped is not None
    assert skipped.reason.startswith(
        "nobody ran 2 fire time(s) from 2026-01-01T09:00:00Z to 2026-01-01T11:00:00Z"
    )


def test_what_waited_and_is_let_go_is_counted_with_the_others() -> None:
    """Each is counted once, whether it was waiting already or came to light just now."""
    waits = {at(hour): Pending("missed", NOW) for hour in (6, 7, 8)}
    after, skipped = account_for_missed(
        job(misfire="all", misfire_cap=2), row(watermark=at(8), pending=waits), at(11), NOW, late=True
    )
    assert sorted(after.pending) == [at(10), at(11)]
    assert skipped is not None
    assert skipped.reason.startswith(
        "nobody ran 4 fire time(s) from 2026-01-01T06:00:00Z to 2026-01-01T09:00"
    )


def test_nothing_is_missed_before_a_schedule_came_into_force() -> None:
    """`since` counts where it is later than the watermark; a row that has neither begins at the end."""
    every = job(misfire="all")
    after, _ = account_for_missed(every, row(watermark=at(8), since=at(10)), at(11), NOW, late=True)
    assert set(after.pending) == {at(11)}
    after, _ = account_for_missed(every, row(watermark=at(10), since=at(8)), at(11), NOW, late=True)
    assert set(after.pending) == {at(11)}
    fresh = row(watermark=None, since=None)
    assert account_for_missed(every, fresh, at(11), NOW, late=True) == (
        replace(fresh, watermark=at(11)),
        None,
    )


@pytest.mark.parametrize(
    ("by", "fire_time", "watermark"),
    [
        ("timer", NOW, NOW),
        ("timer", at(12, 7), at(12, 7)),
        ("request", NOW, NOW),
        ("request", at(12, 7), at(11)),
        ("hand", NOW, at(11)),
    ],
)
def test_only_the_schedules_own_run_moves_the_watermark(
    by: By, fire_time: datetime, watermark: datetime
) -> None:
    """A tick is the schedule's; a fire time that somebody asked for, or a run by hand, says nothing of those before."""
    assert plan(HOURLY, row(), None, fire_time, who(by)).job.watermark == watermark


def test_a_tick_at_the_watermark_passes_nothing() -> None:
    """What is claimed again has no missed fire times of its own."""
    before = row(watermark=NOW, since=at(3))
    planned = plan(HOURLY, before, BEFORE, NOW, who())
    assert (planned.skipped, planned.job.watermark) == (None, NOW)


def test_what_a_person_passes_over_is_on_record() -> None:
    """How many, from when to when, and why; nothing where there is none."""
    kept = passed_over(row(watermark=at(8)), HOURLY.schedule, at(11), NOW, "paused", "the job was paused")
    reason = (
        "3 fire time(s) from 2026-01-01T09:00:00Z to 2026-01-01T11:00:00Z passed over: the job was paused"
    )
    skips = (("2026-01-01T09:00:00Z", "2026-01-01T11:00:00Z", "paused"),)
    assert kept == RunRow("hourly", at(11), Outcome.SKIPPED, reason, finished_at=NOW, skips=skips)
    late = passed_over(row(watermark=at(8), since=at(10)), HOURLY.schedule, at(11), NOW, "paused", "a pause")
    assert late is not None
    assert late.reason.startswith("1 fire time(s) from 2026-01-01T11:00:00Z")
    for nothing in (row(watermark=at(11)), row(watermark=None)):
        assert passed_over(nothing, HOURLY.schedule, at(11), NOW, "paused", "a pause") is None
    many = passed_over(row(watermark=at(1)), job("* * * * * *").schedule, at(11), NOW, "changed", "a change")
    assert many is not None
    assert many.reason.startswith("at least 1000 fire time(s) from 2026-01-01T01:00:01Z")


def test_a_record_of_what_was_skipped_goes_on_in_the_run_that_takes_its_place() -> None:
    """All of its reason and the newest spans; a record without a reason says nothing."""
    run = RunRow("hourly", NOW, Outcome.RUNNING, skips=(("a", "b", "missed"),))
    skipped = RunRow("hourly", NOW, Outcome.SKIPPED, "r" * 300, skips=(("c", "d", "paused"),))
    kept = noted(run, skipped)
    assert kept.skips == (("a", "b", "missed"), ("c", "d", "paused"))
    [record] = kept.attempts
    assert (record["reason"], record["outcome"], record["attempt"]) == ("r" * 300, "skipped", "0")
    assert noted(run, replace(skipped, reason="")) is run
    many = replace(skipped, skips=tuple((str(n), str(n), "paused") for n in range(KEPT_ATTEMPTS)))
    assert noted(run, many).skips == many.skips
