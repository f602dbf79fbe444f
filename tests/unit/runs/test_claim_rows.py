"""What a claim's writes make of the rows, column by column, and the words of those that are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at

from runonce.errors import AlreadyRecordedError, Fenced, NotKeptError, StoreError
from runonce.execution.lease import Lease
from runonce.execution.registry import Registry
from runonce.runs import claim as module
from runonce.runs.claim import EARLY, Claim, claim
from runonce.runs.definition import scheduled
from runonce.runs.joins import FanOut
from runonce.runs.plan import Refused
from runonce.runs.rows import (
    Failure,
    JobRow,
    Outcome,
    Pending,
    RunRow,
    decode_job,
    decode_run,
    job_key,
    run_key,
)
from runonce.runs.table import write
from runonce.settings import LeaseTerms
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Delete
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.plan import By
    from runonce.runs.run import Run

T = at(3)


def job(schedule: str = "0 0 3 * * *", **options: Any) -> Any:
    def nightly(run: Run) -> None: ...

    return scheduled(schedule, **options)(nightly)


class World:
    """Stores in memory at the fire time, and a host that claims it."""

    def __init__(self, **options: Any) -> None:
        self.clock = PassingClock()
        self.clock.advance(3 * 3600)
        self.stores = memory_stores(self.clock)
        self.registry = Registry(self.stores.runs, "test", self.clock, "host-1")
        self.job = job(**options)

    def lease(self) -> Lease:
        """A new holding; an earlier one is over."""
        self.stores.leases.break_lease("test/nightly")
        lease = Lease.acquire(self.stores.leases, "test/nightly", LeaseTerms(), self.clock)
        assert lease is not None
        return lease

    def ask(self, fire_time: datetime = T, by: By = "timer", **more: Any) -> Claim | Refused:
        return claim(self.registry, self.job, fire_time, self.lease(), by=by, **more)

    def claimed(self, fire_time: datetime = T, by: By = "timer", **more: Any) -> Claim:
        made = self.ask(fire_time, by, **more)
        assert isinstance(made, Claim), made
        return made

    @property
    def rows(self) -> tuple[JobRow, RunRow]:
        """As the table has them."""
        job_row = self.stores.runs.get("test", job_key("nightly"))
        run_row = self.stores.runs.get("test", run_key("nightly", T))
        assert job_row is not None
        assert run_row is not None
        return decode_job(job_row), decode_run(run_row)

    def remove(self, key: str) -> None:
        read = self.stores.runs.get("test", key)
        assert read is not None
        self.stores.runs.commit("test", [Delete(key, read.etag)])


@pytest.fixture
def world() -> World:
    return World()


# -- claiming --------------------------------------------------------------------------------------------------


def test_what_is_not_due_by_storages_clock_is_put_off(world: World) -> None:
    """A fire time may be claimed a little early; one instant more is too early, and it is said until when."""
    lease = world.lease()
    due = lease.granted_by + EARLY
    early = claim(world.registry, world.job, due + timedelta(seconds=1), lease, by="request")
    wait = EARLY + timedelta(seconds=1)
    assert early == Refused(
        "it is not due before 2026-01-01T03:00:03Z, and by storage's clock it is 2026-01-01T03:00:01Z",
        not_before=world.clock.now() + wait,
    )
    just = claim(world.registry, world.job, due, lease, by="hand")
    assert isinstance(just, Claim)


def test_who_runs_it_by_hand_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's own name is on the run's row; a tick has none."""
    monkeypatch.setattr(module, "user_name", lambda: "ana")
    assert world.claimed().run.asked_by == ""
    assert World().claimed(by="hand").run.asked_by == "ana"


def test_by_hand_the_record_is_looked_at_first(world: World) -> None:
    """What has ended is refused, also where the job's row knows nothing of it any more."""
    world.claimed().finish(Outcome.SUCCEEDED)
    refused = world.ask(by="hand")
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("already succeeded at 2026-01-01T03:00:00Z")


def test_a_takeover_says_for_how_long_nobody_gave_a_sign_of_life(world: World) -> None:
    """Since the dead host's last write, by the server's clock; where nobody died it says nothing."""
    assert world.claimed().taken_over is None
    world.clock.advance(100)
    heir = world.claimed(by="request")
    assert heir.taken_over == pytest.approx(100, abs=0.01)
    heir.finish(Outcome.STOPPED)
    assert world.claimed(by="request").taken_over is None


@pytest.mark.parametrize(("grace", "missed"), [(0, True), (5, False)])
def test_what_may_still_wait_for_its_tick_was_not_missed(*, grace: int, missed: bool) -> None:
    """A fire time that is passed over is a trouble of the job only where it has waited for longer than the grace."""
    world = World(schedule="0 * * * * *")
    world.claimed().finish(Outcome.SUCCEEDED)
    world.clock.advance(180)
    world.claimed(at(3, 3), grace=timedelta(minutes=grace))
    assert ("missed" in world.rows[0].troubles) is missed


def test_what_the_schedule_before_left_is_on_record_with_the_first_claim_of_the_next() -> None:
    """Its fire times that nobody ran are named there, by the claim itself."""
    world = World(schedule="0 0 * * * *")
    world.claimed().finish(Outcome.SUCCEEDED)
    world.clock.advance(3600 + 600)
    world.job = job("0 5 4 * * *")
    world.claimed(at(4, 5))
    left = world.stores.runs.get("test", run_key("nightly", at(4)))
    assert left is not None
    assert decode_run(left).outcome is Outcome.SKIPPED
    assert "the schedule changed from 0 0 * * * * UTC to 0 5 4 * * * UTC" in decode_run(left).reason


@pytest.mark.parametrize(("known", "since"), [(60, at(2, 50)), (5, at(2, 55))])
def test_a_schedule_is_accounted_for_since_a_host_knew_it(world: World, known: int, since: datetime) -> None:
    """By storage's clock, and no longer ago than a fire time may wait for its tick."""
    world.claimed(age=timedelta(minutes=known), grace=timedelta(minutes=10))
    assert world.rows[0].since == since + timedelta(seconds=1)


def test_a_new_job_that_is_run_by_hand_still_owes_its_own_fire_time(world: World) -> None:
    """Its watermark stands just before, so that a tick may still claim it, or the next one."""
    world.claimed(by="hand")
    assert world.rows[0].watermark == T - EARLY


# -- saving and finishing --------------------------------------------------------------------------------------


def test_a_checkpoint_is_kept_on_both_rows(world: World) -> None:
    """The run's row has all of it, the job's how far it is; the next one takes what was to be sent off the row."""
    claimed = world.claimed()
    before = world.rows
    outbox = ({"to": "q", "id": "x", "body": "{}"},)
    claimed.save("3", {"items": 3}, outbox=outbox, follow_ups=1)
    job_row, run_row = world.rows
    assert job_row == replace(before[0], progress={"items": 3})
    assert run_row == replace(
        before[1],
        write_id=run_row.write_id,
        checkpoint="3",
        progress={"items": 3},
        outbox=outbox,
        follow_ups=1,
    )
    assert run_row.write_id != before[1].write_id
    claimed.save("4", {"items": 4})
    assert (world.rows[1].outbox, world.rows[1].follow_ups) == ((), 0)


def test_only_progress_leaves_deaths_behind(world: World) -> None:
    """A checkpoint that says nothing new does not, or a run that kills its hosts would be tried for ever."""
    world.claimed()
    heir = world.claimed(by="request")
    heir.save("", {})
    assert (world.rows[1].abandoned, world.rows[1].survived) == (1, 0)
    heir.save("", {"items": 1})
    assert world.rows[1].survived == 1


def test_results_of_steps_stay_until_others_are_given(world: World) -> None:
    """A checkpoint without any leaves them as they are."""
    claimed = world.claimed()
    claimed.save("1", {}, steps={"charge": 7})
    claimed.save("2", {})
    assert world.rows[1].steps == {"charge": 7}
    claimed.save("2", {}, steps={})
    assert world.rows[1].steps == {}


def listed(world: World) -> list[object]:
    """The members of all lists of messages that others wait for."""
    return [row.values["members"] for row in world.stores.runs.scan("test", "join:", "join;")]


def test_messages_that_others_wait_for_are_listed_with_their_numbers(world: World) -> None:
    """How many there have been stays on the run's row; the new ones are a row of their own, with the end's too."""
    claimed = world.claimed()
    claimed.save("1", {}, fan_out=FanOut({"resize": 1}, {"resize": ["m-1"]}))
    assert world.rows[1].fanned_out == {"resize": 1}
    assert listed(world) == ['{"resize":["m-1"]}']
    claimed.save("2", {})
    assert world.rows[1].fanned_out == {"resize": 1}
    claimed.finish(Outcome.SUCCEEDED, fan_out=FanOut({"resize": 2}, {"resize": ["m-2"]}))
    assert world.rows[1].fanned_out == {"resize": 2}
    assert sorted(map(str, listed(world))) == ['{"resize":["m-1"]}', '{"resize":["m-2"]}']
    assert world.rows[0].joins == (("2026-01-01T03:00:00Z", ""),)


def test_a_success_is_written_on_both_rows(world: World) -> None:
    """The job's row is free for the next fire time and knows how this one ended, and when."""
    claimed = world.claimed()
    before = world.rows
    world.clock.advance(5)
    claimed.finish(Outcome.SUCCEEDED, reason="3 items")
    now = world.clock.now()
    run_row = replace(
        before[1],
        outcome=Outcome.SUCCEEDED,
        write_id=world.rows[1].write_id,
        reason="3 items",
        finished_at=now,
    )
    assert world.rows[1] == run_row
    assert world.rows[0] == replace(before[0].ended(run_row), running=None, holder="", pending={})
    assert world.rows[0].took == (5.0,)


@pytest.mark.parametrize(("counted", "failures"), [(True, 1), (False, 0)])
def test_a_failure_that_is_tried_again_waits_on_the_jobs_row(
    world: World, *, counted: bool, failures: int
) -> None:
    """From when it may be, with its parameters; one that is nobody's fault uses up no retry."""
    claimed = world.claimed()
    later = at(4)
    claimed.finish(Outcome.RETRYING, error="ValueError: no", retry_at=later, counted=counted)
    job_row, run_row = world.rows
    assert (run_row.failures, run_row.retry_at, run_row.error) == (failures, later, "ValueError: no")
    assert job_row.pending == {T: Pending("retrying", later)}
    assert (job_row.failed_in_a_row, job_row.troubles) == (0, {})


def test_a_retry_without_a_time_waits_from_now() -> None:
    """And it keeps the parameters it was asked for with."""
    world = World()
    claimed = world.claimed(at(2), by="hand", params='{"n":1}')
    claimed.finish(Outcome.RETRYING)
    row = world.stores.runs.get("test", job_key("nightly"))
    assert row is not None
    assert decode_job(row).pending == {at(2): Pending("retrying", world.clock.now(), params='{"n":1}')}


def test_a_failure_for_good_is_the_jobs_trouble(world: World) -> None:
    """It is an open question, and what was wrong with the job before is known to whoever tells of it."""
    claimed = world.claimed()
    assert dict(claimed.troubles_before) == {}
    claimed.finish(Outcome.FAILED, error="ValueError: no")
    job_row, run_row = world.rows
    now = world.clock.now()
    assert (job_row.failures, job_row.pending) == ((Failure(T, "", Outcome.FAILED, now),), {})
    assert (run_row.failures, dict(claimed.troubles_before)) == (1, {})
    assert claimed.troubles == job_row.troubles == {"failed": "2026-01-01T03:00:00Z"}


def test_a_stopped_run_is_asked_for_at_once(world: World) -> None:
    """Whoever stopped it sends the request, so recovery need not."""
    claimed = world.claimed()
    claimed.finish(Outcome.STOPPED)
    now = world.clock.now()
    assert world.rows[0].pending == {T: Pending("stopped", now, asked_at=now)}
    assert world.rows[1].failures == 0


@pytest.mark.parametrize(("outcome", "why"), [(Outcome.STOPPED, "stopped"), (Outcome.SUCCEEDED, "unsent")])
def test_what_follows_a_run_has_its_parameters(outcome: Outcome, why: str) -> None:
    """Whether it goes on or has messages left to send: without them its row would not be found."""
    world = World()
    claimed = world.claimed(at(2), by="hand", params='{"n":1}')
    claimed.finish(outcome, outbox=({"to": "q", "id": "x", "body": "{}"},))
    now = world.clock.now()
    left = claimed._rows[0].pending[at(2)]
    assert left == Pending(why, now, asked_at=now, params='{"n":1}')  # type: ignore[arg-type]


def test_a_success_with_messages_to_send_is_not_forgotten(world: World) -> None:
    """They are on its row, and the job's row says that they are to be sent; a retry sends its own later."""
    outbox = ({"to": "q", "id": "x", "body": "{}"},)
    claimed = world.claimed()
    claimed.finish(Outcome.SUCCEEDED, outbox=outbox)
    now = world.clock.now()
    assert world.rows[0].pending == {T: Pending("unsent", now, asked_at=now)}
    assert world.rows[1].outbox == outbox
    other = World()
    other.claimed().finish(Outcome.RETRYING, outbox=outbox)
    assert other.rows[0].pending[T].why == "retrying"


def test_what_came_while_it_ran_is_let_go_where_the_job_says_so() -> None:
    """On record, in the run's own reason too, and the watermark is past it; a stop lets nothing go."""
    world = World(schedule="0 0 * * * *", overlap="skip")
    claimed = world.claimed()
    world.clock.advance(2 * 3600)
    claimed._lease._trusted_until = float("inf")
    claimed.finish(Outcome.SUCCEEDED, reason="late")
    job_row, run_row = world.rows
    passed = '2 fire time(s) from 2026-01-01T04:00:00Z to 2026-01-01T05:00:00Z passed over: overlap="skip"'
    assert run_row.reason == f"late; {passed}"
    assert run_row.skips == (("2026-01-01T04:00:00Z", "2026-01-01T05:00:00Z", "overlap"),)
    assert job_row.watermark == world.clock.now()
    for options, outcome in (({}, Outcome.SUCCEEDED), ({"overlap": "skip"}, Outcome.STOPPED)):
        other = World(schedule="0 0 * * * *", **options)
        kept = other.claimed()
        other.clock.advance(2 * 3600)
        kept._lease._trusted_until = float("inf")
        kept.finish(outcome)
        assert (other.rows[1].reason, other.rows[1].skips, other.rows[0].watermark) == ("", (), T)


def test_a_run_on_time_lets_nothing_go() -> None:
    """Its reason is its own, and the watermark is at its end."""
    world = World(schedule="0 0 * * * *", overlap="skip")
    claimed = world.claimed()
    world.clock.advance(1)
    claimed.finish(Outcome.SUCCEEDED)
    assert (world.rows[1].reason, world.rows[1].skips) == ("", ())
    assert world.rows[0].watermark == world.clock.now()


def test_what_was_let_go_is_a_reason_by_itself() -> None:
    """A run that gives none has only that one."""
    world = World(schedule="0 0 * * * *", overlap="skip")
    claimed = world.claimed()
    world.clock.advance(3600)
    claimed._lease._trusted_until = float("inf")
    claimed.finish(Outcome.SUCCEEDED)
    assert world.rows[1].reason.startswith("1 fire time(s) from 2026-01-01T04:00:00Z to ")


def test_a_watermark_never_goes_back() -> None:
    """One that is ahead of the run's end, as a host whose clock is ahead leaves it, stays."""
    world = World(schedule="0 0 * * * *", overlap="skip")
    claimed = world.claimed()
    read = world.stores.runs.get("test", job_key("nightly"))
    assert read is not None
    ahead = world.clock.now() + timedelta(seconds=9)
    world.stores.runs.commit("test", [write(replace(world.rows[0], watermark=ahead), read.etag)])
    claimed.finish(Outcome.SUCCEEDED)
    assert world.rows[0].watermark == ahead


# -- what is next ----------------------------------------------------------------------------------------------


def test_the_oldest_that_is_due_is_next(world: World) -> None:
    """Not what runs, nor what only has to be sent, nor what waits for its retry."""
    claimed = world.claimed()
    row, read = world.rows[0], world.stores.runs.get("test", job_key("nightly"))
    assert read is not None
    assert claimed.next_due() is None
    waits = {
        at(0): Pending("unsent", at(0)),
        at(1): Pending("retrying", at(9)),
        at(2): Pending("missed", at(2)),
        at(2, 30): Pending("asked", at(2)),
    }
    world.stores.runs.commit("test", [write(replace(row, pending={**row.pending, **waits}), read.etag)])
    claimed.save("1", {})
    assert claimed.next_due() == at(2)


def test_what_came_while_it_ran_is_known() -> None:
    """The newest of them; none where all is accounted for."""
    world = World(schedule="0 0 * * * *")
    claimed = world.claimed(age=timedelta(hours=1), grace=timedelta(minutes=10))
    assert claimed.passed() is None
    world.clock.advance(2 * 3600)
    assert claimed.passed() == at(5)


# -- what is refused -------------------------------------------------------------------------------------------


def test_a_run_that_has_ended_writes_no_more(world: World) -> None:
    """The refusal says how it ended."""
    claimed = world.claimed()
    claimed.finish(Outcome.SUCCEEDED)
    with pytest.raises(Fenced) as refused:
        claimed.save("1", {})
    assert str(refused.value) == (
        "Job nightly, fire time 2026-01-01 03:00:00+00:00: the run has ended as succeeded already; the write was "
        "refused."
    )


def test_an_older_holder_is_told_who_has_it(world: World) -> None:
    """Its token, the newer one, and the host that has that."""
    paused = world.claimed()
    paused._lease._trusted_until = float("inf")
    replace_host = replace(world.registry, host="host-2")
    claim(replace_host, world.job, T, world.lease(), by="request")
    with pytest.raises(Fenced) as refused:
        paused.save("1", {})
    assert str(refused.value) == (
        "Job nightly, fire time 2026-01-01 03:00:00+00:00: fencing token 1 is older than 2, held on host-2; the write "
        "was refused and host-1 stops."
    )


def test_an_older_holder_is_told_of_a_newer_fire_time_too(world: World) -> None:
    """The job's row has its token and its host, whatever the older run's own row says."""
    paused = world.claimed()
    paused._lease._trusted_until = float("inf")
    world.clock.advance(24 * 3600)
    elsewhere = replace(world.registry, host="host-2")
    assert isinstance(claim(elsewhere, world.job, at(3, day=2), world.lease(), by="timer"), Claim)
    with pytest.raises(Fenced, match="token 1 is older than 2, held on host-2; the write was refused"):
        paused.save("1", {})


def test_a_run_that_was_cancelled_is_told_by_whom(world: World) -> None:
    """Where it is this run that an operator has cancelled, and not one that has taken its place."""
    claimed = world.claimed()
    key = run_key("nightly", T)
    read = world.stores.runs.get("test", key)
    assert read is not None
    gone = replace(decode_run(read), outcome=Outcome.CANCELLED, reason="cancelled by ana")
    world.stores.runs.commit("test", [write(gone, read.etag)])
    with pytest.raises(Fenced) as refused:
        claimed.save("1", {})
    assert str(refused.value) == (
        "Job nightly, fire time 2026-01-01 03:00:00+00:00: cancelled by ana; the write was refused."
    )


@pytest.mark.parametrize("key", [job_key("nightly"), run_key("nightly", T)])
def test_a_run_whose_rows_are_gone_records_nothing(world: World, key: str) -> None:
    """Whichever of the two is gone, it is said that nothing was recorded."""
    claimed = world.claimed()
    world.remove(key)
    with pytest.raises(StoreError) as refused:
        claimed.save("1", {})
    assert str(refused.value) == "Job nightly: its rows were deleted while it ran; nothing was recorded."


def test_an_entry_that_is_there_is_named_with_the_remedy(world: World) -> None:
    """Nothing of the batch is written."""
    claimed = world.claimed()
    claimed.save("1", {}, {"a/1": {"n": 1}})
    with pytest.raises(AlreadyRecordedError) as refused:
        claimed.save("2", {}, {"a/1": {"n": 1}})
    assert str(refused.value) == (
        "Job nightly: its ledger has an entry 'a/1' already, so nothing of this batch was written; leave out what "
        "`run.ledger.keys()` has."
    )
    assert world.rows[1].checkpoint == "1"


def test_a_list_of_messages_takes_the_place_of_an_entry(world: World) -> None:
    """A transaction has a hundred rows: two of the run, the list, and 97 entries; one more writes nothing."""
    claimed, new = world.claimed(), FanOut({"resize": 1}, {"resize": ["m-1"]})
    claimed.save("1", {}, {str(n): {} for n in range(97)}, fan_out=new)
    with pytest.raises(NotKeptError) as refused:
        claimed.save("2", {}, {f"more-{n}": {} for n in range(98)}, fan_out=new)
    assert str(refused.value) == (
        "Job nightly: a commit that sends messages some handler waits for takes one ledger entry less than 98; use "
        "smaller batches."
    )
    assert world.rows[1].checkpoint == "1"
