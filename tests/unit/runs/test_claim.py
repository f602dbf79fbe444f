"""The claim and the writes of a run, against replies that are lost and rows that change meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.flows import AFTER_LEASE, at

from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    LeaseLost,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.lease import Lease
from runonce.execution.registry import Registry
from runonce.runs.claim import Claim, claim
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.plan import Refused
from runonce.runs.rows import JobRow, Outcome, Pending, RunRow, entry_key, job_key, run_key
from runonce.runs.table import read_job, read_run, write
from runonce.settings import LeaseTerms
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Delete, LeaseStore, Stores
from runonce.testing.faults import Boundary, Fault, PassingClock

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.run import Run

T = at(3)


@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None: ...


class World:
    """One table and lease store, and a process whose calls to them can go wrong."""

    def __init__(self) -> None:
        self.clock = PassingClock()
        self.clock.advance(3 * 3600)
        self.stores: Stores = memory_stores(self.clock)
        self.boundary = Boundary()
        self.mine = self.boundary.around(self.stores)
        self.registry = Registry(self.mine.runs, "test", self.clock, "host-1")
        self.honest = Registry(self.stores.runs, "test", self.clock, "operator")

    def lease(self, leases: LeaseStore | None = None) -> Lease:
        """A new holding; an earlier one is over."""
        self.stores.leases.break_lease("test/nightly")
        lease = Lease.acquire(leases or self.stores.leases, "test/nightly", LeaseTerms(), self.clock)
        assert lease is not None
        return lease

    def claim(self, job: ScheduledJob = nightly, lease: Lease | None = None) -> Claim:
        claimed = claim(self.registry, job, T, lease or self.lease(), by="timer")
        assert isinstance(claimed, Claim)
        return claimed

    def job_row(self) -> JobRow:
        return read_job(self.honest, "nightly")[0]

    def run_row(self) -> RunRow:
        found = read_run(self.honest, "nightly", T)
        assert found is not None
        return found[0]

    def change(self, **values: object) -> None:
        """What an operator or a recovery tick does to the job's row."""
        row, etag = read_job(self.honest, "nightly")
        self.stores.runs.commit("test", [write(replace(row, **values), etag)])  # type: ignore[arg-type]

    def takeover(self) -> Claim:
        """Another process claims the fire time, as it may when the lease is over."""
        self.clock.advance(AFTER_LEASE)
        registry = replace(self.honest, host="host-2")
        claimed = claim(registry, nightly, T, self.lease(), by="request")
        assert isinstance(claimed, Claim)
        return claimed


@pytest.fixture
def world() -> World:
    return World()


def trusting(lease: Lease) -> Lease:
    """As if the process had been paused after the check: the lease is over and it does not know."""
    lease._trusted_until = float("inf")
    return lease


# -- claiming -------------------------------------------------------------------------------------------------


def test_a_new_fire_time_takes_a_read_and_a_write(world: World) -> None:
    """Claiming what nobody tried before costs two calls, and a job's first claim ever a look for rows it lost."""
    claimed = world.claim()
    assert world.boundary.calls == ["get", "scan", "commit"]
    assert claimed.run == world.run_row()
    assert world.job_row().token == claimed.run.token == 1
    claimed.finish(Outcome.SUCCEEDED)
    world.clock.advance(24 * 3600)
    world.boundary.calls.clear()
    assert isinstance(claim(world.registry, nightly, at(3, day=2), world.lease(), by="timer"), Claim)
    assert world.boundary.calls == ["get", "commit"]


def test_a_finished_fire_time_takes_a_read(world: World) -> None:
    """A late replica learns from one read that the work is done."""
    world.claim().finish(Outcome.SUCCEEDED)
    world.boundary.calls.clear()
    assert isinstance(claim(world.registry, nightly, T, world.lease(), by="timer"), Refused)
    assert world.boundary.calls == ["get"]


def test_by_hand_a_finished_fire_time_takes_two_reads_and_a_write(world: World) -> None:
    """A person is told how it ended, which the run's own row says; the job's row is put in order."""
    world.claim().finish(Outcome.SUCCEEDED)
    world.boundary.calls.clear()
    assert isinstance(claim(world.registry, nightly, T, world.lease(), by="hand"), Refused)
    assert world.boundary.calls == ["get", "get", "commit"]


def test_a_record_of_what_was_missed_costs_no_call(world: World) -> None:
    """It is written with the claim; whether something is in its place is looked at when that is refused."""
    world.claim().finish(Outcome.SUCCEEDED)
    world.clock.advance(48 * 3600)
    world.boundary.calls.clear()
    assert isinstance(claim(world.registry, nightly, at(3, day=3), world.lease(), by="timer"), Claim)
    assert world.boundary.calls == ["get", "commit"]
    skipped = read_run(world.honest, "nightly", at(3, day=2))
    assert skipped is not None
    assert skipped[0].outcome is Outcome.SKIPPED


def test_a_run_that_is_there_unknown_to_its_job_costs_a_round_and_no_look_for_what_was_missed(
    world: World,
) -> None:
    """The refusal says which row was in the way: only where it is the record's is that one's place looked at."""
    world.claim().finish(Outcome.SUCCEEDED)
    world.clock.advance(48 * 3600)
    there = RunRow(job="nightly", fire_time=at(3, day=3), outcome=Outcome.RETRYING)
    world.stores.runs.commit("test", [write(there, None)])
    world.boundary.calls.clear()
    assert isinstance(claim(world.registry, nightly, at(3, day=3), world.lease(), by="timer"), Claim)
    assert world.boundary.calls == ["get", "commit", "get", "get", "commit"]


def test_a_claim_whose_reply_was_lost_is_recognised(world: World) -> None:
    """The rows are read back: the claim is ours, and the token rose once."""
    world.boundary.next("commit", Fault.LOST_REPLY)
    claimed = world.claim()
    assert (claimed.run.attempt, claimed.run.token, world.job_row().token) == (1, 1, 1)
    claimed.finish(Outcome.SUCCEEDED)
    assert world.run_row().outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("fire_time", [T, at(2)])
def test_a_run_is_dead_only_for_who_still_holds_the_lease(world: World, fire_time: datetime) -> None:
    """A person broke it before its holder claimed, and a run began: nobody has told that holder, so it asks."""
    held = replace(nightly, on_abandoned="hold")
    first = world.lease()
    running = world.claim(held)  # with a newer one
    before = world.job_row(), world.run_row()
    with pytest.raises(LeaseLost, match="the store says it is no longer ours"):
        claim(world.registry, held, fire_time, first, by="hand")
    assert (world.job_row(), world.run_row()) == before
    running.finish(Outcome.SUCCEEDED)


def test_a_lease_is_confirmed_for_a_takeover_alone(world: World) -> None:
    """What no other host runs costs no call more, also where its claim's reply was lost and it is there already."""
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.claim(lease=world.lease(world.mine.leases)).finish(Outcome.STOPPED)
    world.claim(lease=world.lease(world.mine.leases))
    assert "renew" not in world.boundary.calls
    world.clock.advance(AFTER_LEASE)
    world.claim(lease=world.lease(world.mine.leases))
    assert world.boundary.calls.count("renew") == 1


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
def test_a_lease_that_nobody_confirms_takes_over_nothing(world: World, fault: Fault) -> None:
    """The lease store does not answer, twice: the fire time stays due, and its row as it was."""
    world.claim()
    world.clock.advance(AFTER_LEASE)
    world.boundary.next("renew", fault, fault)
    lease = world.lease(world.mine.leases)
    before = world.run_row()
    with pytest.raises(StoreUnavailableError, match=r"^the lease on test/nightly could not be confirmed$"):
        claim(world.registry, nightly, T, lease, by="request")
    assert world.run_row() == before
    assert world.claim().run.attempt == 2


def test_a_claim_that_got_lost_is_made_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """When reading back shows nothing, the claim is made, not given up; the log says which got no answer."""
    world.boundary.next("commit", Fault.LOST_REQUEST)
    assert world.claim().run.attempt == 1
    assert world.boundary.calls == ["get", "scan", "commit", "get", "scan", "get", "commit"]
    said = "claim of nightly at 2026-01-01 03:00:00+00:00: no answer, reading back: commit: lost request"
    assert caplog.messages[0] == said


def test_a_takeover_whose_reply_was_lost_counts_one_death(world: World) -> None:
    """A repeated takeover neither counts a second death nor a second attempt."""
    world.claim()
    world.clock.advance(AFTER_LEASE)
    world.boundary.next("commit", Fault.LOST_REPLY)
    taken = world.claim()
    assert (taken.run.attempt, taken.run.abandoned) == (2, 1)
    assert taken.taken_over == pytest.approx(AFTER_LEASE, abs=1)


def test_a_run_that_is_held_stays_held_where_the_reply_was_lost(world: World) -> None:
    """The verdict on a dead run carries the holder of whoever wrote it, and is no claim: nothing runs."""
    held = replace(nightly, on_abandoned="hold")
    world.claim()
    world.clock.advance(AFTER_LEASE)
    world.boundary.next("commit", Fault.LOST_REPLY)
    refused = claim(world.registry, held, at(3), world.lease(), by="request")
    assert isinstance(refused, Refused)
    assert refused.outcome is Outcome.UNKNOWN
    assert 'on_abandoned="hold"' in refused.reason
    assert world.run_row().outcome is Outcome.UNKNOWN


def test_a_claim_without_an_answer_at_all_runs_nothing(world: World) -> None:
    """The table stays silent: nothing is ours, and the caller is told so."""
    world.boundary.next("get", Fault.LOST_REQUEST)
    with pytest.raises(StoreUnavailableError):
        world.claim()


def test_a_claim_that_may_be_ours_is_read_back_patiently(world: World) -> None:
    """A table that stays silent for a while after the claim is asked until it answers, or its host would count
    as dead although it lives."""
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.boundary.meanwhile("commit", lambda: world.boundary.next("get", *[Fault.LOST_REQUEST] * 4))
    claimed = world.claim()
    assert (claimed.run.attempt, claimed.run.abandoned) == (1, 0)


def test_a_claim_is_given_up_with_the_lease(world: World) -> None:
    """Trust that ends while the claim's outcome is unknown ends the claim."""
    lease = world.lease()
    world.boundary.next("commit", Fault.LOST_REQUEST)
    world.boundary.meanwhile("commit", lambda: world.clock.advance(AFTER_LEASE))
    with pytest.raises(LeaseLost):
        world.claim(lease=lease)


def test_a_claim_starts_over_when_the_row_changes_meanwhile(world: World) -> None:
    """An operator's pause between reading and writing refuses the claim, not crashes it."""
    world.claim().finish(Outcome.RETRYING, retry_at=T)
    world.boundary.meanwhile("commit", lambda: world.change(paused_at=T, paused_why="now"))
    refused = claim(world.registry, nightly, T, world.lease(), by="request")
    assert isinstance(refused, Refused)
    assert "paused" in refused.reason


def test_a_claim_gives_up_on_a_row_that_never_stands_still(world: World) -> None:
    """A row that changes at every try is reported as such, and nothing runs."""
    world.change(paused_why="0")
    tokens = iter(range(100))

    def again() -> None:
        world.change(paused_why=str(next(tokens)))
        world.boundary.meanwhile("commit", again)

    world.boundary.meanwhile("commit", again)
    with pytest.raises(StoreUnavailableError, match=r"changed 8 times.*stays due"):
        world.claim()


def test_a_record_the_job_row_does_not_know_is_found(world: World) -> None:
    """A run by hand before its timer's tick leaves a record: the tick finds it and runs nothing."""
    done = claim(world.registry, nightly, T, world.lease(), by="hand")
    assert isinstance(done, Claim)
    done.finish(Outcome.SUCCEEDED)
    world.clock.advance(AFTER_LEASE)
    refused = claim(world.registry, nightly, T, world.lease(), by="timer")
    assert isinstance(refused, Refused)
    assert "already succeeded" in refused.reason


def test_a_skipped_record_that_exists_already_does_not_stop_the_claim(world: World) -> None:
    """When the last missed fire time has a record of its own, the claim goes through without another."""
    hourly = scheduled("0 0 * * * *", name="nightly")(lambda_body)
    world.claim(hourly).finish(Outcome.SUCCEEDED)
    world.clock.advance(3 * 3600)
    by_hand = claim(world.honest, hourly, at(5), world.lease(), by="hand")
    assert isinstance(by_hand, Claim)
    by_hand.finish(Outcome.SUCCEEDED)
    claimed = claim(world.registry, hourly, at(6), world.lease(), by="timer")
    assert isinstance(claimed, Claim)
    found = read_run(world.honest, "nightly", at(5))
    assert found is not None
    assert found[0].outcome is Outcome.SUCCEEDED


# -- the writes of a run --------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_call(world: World) -> None:
    """Saving is one transaction over both rows and the ledger's entries."""
    claimed = world.claim()
    world.boundary.calls.clear()
    claimed.save("1", {"items": 1}, {"a": {"key": "a"}, "b": {"key": "b"}})
    assert world.boundary.calls == ["commit"]
    assert (world.run_row().checkpoint, world.run_row().progress) == ("1", {"items": 1})


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
def test_a_checkpoint_without_an_answer_is_written_once(world: World, fault: Fault) -> None:
    """Whether the request or the reply was lost, the checkpoint and its ledger entry are there once."""
    claimed = world.claim()
    world.boundary.next("commit", fault)
    claimed.save("1", {}, {"a": {"key": "a"}})
    claimed.save("2", {}, {"b": {"key": "b"}})
    assert world.run_row().checkpoint == "2"
    assert world.stores.runs.get("test", entry_key("nightly", "a")) is not None
    assert world.stores.runs.get("test", entry_key("nightly", "b")) is not None


def test_reading_back_is_patient(world: World) -> None:
    """A table that stays silent for a while after a lost reply is asked until it answers."""
    claimed = world.claim()
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 5)
    claimed.save("1", {})
    assert world.run_row().checkpoint == "1"


def test_a_table_that_is_busy_is_not_hammered(world: World) -> None:
    """Between tries of a write that gets no answer there are growing pauses."""
    claimed = world.claim()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 5)
    before = world.clock.elapsed()
    claimed.save("1", {})
    assert world.clock.elapsed() - before > 1


def test_a_silent_table_ends_the_run_with_its_lease(world: World) -> None:
    """Silence that outlasts the lease is LeaseLost: by then the job may be somebody else's."""
    claimed = world.claim()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(LeaseLost):
        claimed.save("1", {})


def test_a_silent_table_is_given_up_after_a_minute(world: World) -> None:
    """Silence that outlasts patience is reported as what it is."""
    lease = trusting(world.lease())
    claimed = world.claim(lease=lease)
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 1000)
    started = world.clock.elapsed()
    with pytest.raises(StoreUnavailableError):
        claimed.save("1", {})
    assert 60 <= world.clock.elapsed() - started < 70


def test_silence_while_reading_back_is_given_up_after_a_minute(world: World) -> None:
    """So is a table that takes no reads any more."""
    lease = trusting(world.lease())
    claimed = world.claim(lease=lease)
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(StoreUnavailableError):
        claimed.save("1", {})


def test_a_pause_meanwhile_is_kept(world: World) -> None:
    """A write refused because an operator changed the row is made again on top of the change."""
    claimed = world.claim()
    world.change(paused_at=T, paused_why="migration")
    claimed.save("1", {})
    world.change(paused_why="longer migration")
    claimed.finish(Outcome.SUCCEEDED)
    assert world.job_row().paused_why == "longer migration"
    assert (world.run_row().checkpoint, world.run_row().outcome) == ("1", Outcome.SUCCEEDED)


def test_a_fire_time_asked_for_meanwhile_is_kept(world: World) -> None:
    """What somebody asked for during a run is still pending after it, and follows next."""
    claimed = world.claim()
    world.change(pending={**world.job_row().pending, at(2): Pending("asked", T)})
    claimed.finish(Outcome.SUCCEEDED)
    assert set(world.job_row().pending) == {at(2)}
    assert claimed.next_due() == at(2)


def test_a_lost_lease_writes_nothing(world: World) -> None:
    """Once trust has ended, no call is even made."""
    claimed = world.claim()
    world.clock.advance(AFTER_LEASE)
    world.boundary.calls.clear()
    with pytest.raises(LeaseLost):
        claimed.save("1", {})
    with pytest.raises(LeaseLost):
        claimed.finish(Outcome.SUCCEEDED)
    assert world.boundary.calls == []


def test_an_older_run_is_fenced(world: World) -> None:
    """A run that still believes in its lease is refused by the table once a newer one has claimed."""
    lease = world.lease()
    claimed = world.claim(lease=lease)
    newer = world.takeover()
    trusting(lease)
    with pytest.raises(Fenced, match=r"token 1 is older than 2, held on host-2"):
        claimed.save("old", {}, {"a": {"key": "a"}})
    with pytest.raises(Fenced):
        claimed.finish(Outcome.FAILED)
    assert world.stores.runs.get("test", entry_key("nightly", "a")) is None
    newer.finish(Outcome.SUCCEEDED)
    assert (world.run_row().outcome, world.run_row().checkpoint) == (Outcome.SUCCEEDED, "")


def test_an_older_run_is_fenced_by_a_newer_fire_time_too(world: World) -> None:
    """The token is the job's: a claim of any later fire time refuses what an older run still writes."""
    lease = world.lease()
    claimed = world.claim(lease=lease)
    world.clock.advance(24 * 3600)
    newer = claim(world.honest, nightly, at(3, day=2), world.lease(), by="timer")
    assert isinstance(newer, Claim)
    trusting(lease)
    with pytest.raises(Fenced):
        claimed.save("old", {})


def test_an_entry_that_exists_refuses_the_whole_batch(world: World) -> None:
    """One repeated key and neither the checkpoint nor the other entries are written."""
    claimed = world.claim()
    claimed.save("1", {}, {"a": {"key": "a"}})
    with pytest.raises(AlreadyRecordedError, match="'a' already"):
        claimed.save("2", {}, {"new": {"key": "new"}, "a": {"key": "a"}})
    assert world.run_row().checkpoint == "1"
    assert world.stores.runs.get("test", entry_key("nightly", "new")) is None
    claimed.save("3", {})
    assert world.run_row().checkpoint == "3"


def test_a_finished_run_writes_nothing_more(world: World) -> None:
    """What is recorded as done stays so: a second end, or a straggler's checkpoint, is refused."""
    claimed = world.claim()
    claimed.finish(Outcome.SUCCEEDED)
    with pytest.raises(Fenced, match="has ended as succeeded already"):
        claimed.finish(Outcome.STOPPED)
    with pytest.raises(Fenced):
        claimed.save("late", {})
    assert world.run_row().outcome is Outcome.SUCCEEDED
    assert world.job_row().pending == {}


def test_a_released_lease_is_no_right_to_write(world: World) -> None:
    """After the release the job is anybody's, so a write is refused although nobody has taken it yet."""
    lease = world.lease()
    claimed = world.claim(lease=lease)
    lease.release()
    with pytest.raises(LeaseLost, match="released"):
        claimed.save("late", {})


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
def test_an_end_without_an_answer_is_recorded_once(world: World, fault: Fault) -> None:
    """A lost reply at the end neither fails the run nor counts its failure twice."""
    claimed = world.claim()
    world.boundary.next("commit", fault)
    claimed.finish(Outcome.RETRYING, retry_at=at(4))
    assert (world.run_row().outcome, world.run_row().failures) == (Outcome.RETRYING, 1)
    assert world.job_row().pending == {T: Pending("retrying", at(4))}


def test_deleted_rows_are_reported(world: World) -> None:
    """Somebody deletes the rows of a running job: that is said, and nothing is made up."""
    claimed = world.claim()
    for key in (job_key("nightly"), run_key("nightly", T)):
        row = world.stores.runs.get("test", key)
        assert row is not None
        world.stores.runs.commit("test", [Delete(key, row.etag)])
    with pytest.raises(StoreError, match="deleted while it ran"):
        claimed.save("1", {})


def test_an_unreadable_row_names_itself(world: World) -> None:
    """A row edited by hand into nonsense gives an error that says which row and what to do."""
    row, etag = read_job(world.honest, "nightly")
    made = write(row, etag)
    assert not isinstance(made, Delete)
    world.stores.runs.commit("test", [replace(made, values={**made.values, "pending": "{"})])
    with pytest.raises(StoreError, match=r"Row job:nightly cannot be read .*Correct the column"):
        world.claim()


def lambda_body(run: Run) -> None:
    """A body that does nothing."""
