"""Conditional transitions of a claim: races, lost replies, fencing, epochs, signs of life."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import AFTER_CLAIM, KEY, LEASE, handling, ownership, raw_row, row_of

from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    InputError,
    LeaseLost,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.lease import Lease
from runonce.messages.claim import Delivered, MessageClaim, Settled, claim_message
from runonce.messages.rows import MessageRow, State, effect_key, place
from runonce.settings import LeaseTerms
from runonce.stores.protocols import Delete, Replace
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable


class World:
    """A table, a clock on which waiting passes the time, and hosts that claim one message."""

    def __init__(self, **options: Any) -> None:
        self.bench = Workbench(clock=PassingClock())
        self.clock = self.bench.clock
        self.one = handling(**options)
        self.boundary = Boundary()

    def claim(
        self,
        *,
        host: str = "test",
        redelivered: bool = False,
        fingerprint: str = "f",
        lease: int = LEASE,
        boundary: Boundary | None = None,
        reconcile: Callable[[MessageRow], bool | None] | None = None,
    ) -> MessageClaim | tuple[Any, MessageRow | None]:
        """What a host gets."""
        stores = (boundary or self.boundary).around(self.bench.stores)
        own = ownership(self.bench, host=host, stores=stores)
        return claim_message(
            own, self.one, Delivered(KEY, "m-1", fingerprint, redelivered, 0, reconcile), lease
        )

    def claimed(self, **options: Any) -> MessageClaim:
        """The claim, which must be made."""
        made = self.claim(**options)
        assert isinstance(made, MessageClaim), made
        return made

    def settled(self, **options: Any) -> Any:
        """How the message is settled instead of being claimed."""
        made = self.claim(**options)
        assert not isinstance(made, MessageClaim)
        return made[0]

    @property
    def row(self) -> MessageRow:
        """The row as the table has it."""
        return row_of(self.bench, self.one)

    def taken_over(self) -> tuple[MessageClaim, MessageClaim]:
        """A paused holder, and the one that took the message over from it."""
        paused = self.claimed(host="paused")
        self.clock.advance(AFTER_CLAIM)
        return paused, self.claimed(host="heir", redelivered=True, boundary=Boundary())


@pytest.fixture
def world() -> World:
    return World()


# -- claiming -----------------------------------------------------------------------------------------------


def test_a_first_delivery_is_claimed_in_one_call(world: World) -> None:
    """A first delivery inserts and reads nothing: mostly nobody was there before."""
    claim = world.claimed()
    assert world.boundary.calls == ["commit"]
    assert (claim.row.state, claim.row.token, claim.row.attempt, claim.row.host) == (
        State.CLAIMED,
        1,
        1,
        "test",
    )
    assert world.row == claim.row
    assert claim.held


def test_finished_work_is_known_in_one_call(world: World) -> None:
    """A redelivery reads first, so finished work costs one call."""
    world.claimed().done(outbox=[{"to": "q", "id": "x", "body": "{}"}])
    world.boundary.calls.clear()
    made = world.claim(redelivered=True)
    assert not isinstance(made, MessageClaim)
    assert made[0] == Complete(duplicate=True)
    assert made[1] is not None
    assert [sent["id"] for sent in made[1].outbox] == ["x"]
    assert world.boundary.calls == ["get"]


def test_a_first_delivery_that_is_none_reads_after_its_refusal(world: World) -> None:
    """An insert that is refused is followed by one read: the same message was sent twice."""
    world.claimed().done()
    world.boundary.calls.clear()
    assert world.settled() == Complete(duplicate=True)
    assert world.boundary.calls == ["commit", "get"]


def test_a_redelivery_that_nobody_claimed_is_claimed(world: World) -> None:
    """A message whose first delivery died before its claim has no trace and is claimed."""
    assert world.claimed(redelivered=True).row.token == 1
    assert world.boundary.calls == ["get", "commit"]


def test_of_many_at_once_one_wins(world: World) -> None:
    """Of twenty hosts that claim at the same instant one wins; the others are told to come again, and none raises."""
    start = threading.Barrier(20)

    def race(n: int) -> Any:
        start.wait()
        return world.claim(host=f"h{n}")

    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(race, range(20)))
    winners = [m for m in made if isinstance(m, MessageClaim)]
    losers = [m[0] for m in made if not isinstance(m, MessageClaim)]
    assert len(winners) == 1
    assert len(losers) == 19
    assert all(isinstance(settlement, Reschedule) for settlement in losers)
    assert world.row.holder == winners[0].row.holder


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("method", ["commit", "get"])
@pytest.mark.parametrize("redelivered", [False, True])
def test_a_claim_survives_a_call_without_an_answer(
    world: World, method: str, fault: Fault, *, redelivered: bool
) -> None:
    """Whatever gets no answer, the row is read, and a claim that was carried out is recognised as ours."""
    world.boundary.next(method, fault)
    claim = world.claimed(redelivered=redelivered)
    assert (claim.row.token, claim.row.attempt) == (1, 1)
    assert world.row == claim.row
    claim.done()


def test_a_takeover_survives_a_lost_reply(world: World) -> None:
    """A takeover whose reply is lost is ours once, with one higher token and not two."""
    world.claimed(host="dead")
    world.clock.advance(AFTER_CLAIM)
    world.boundary.next("commit", Fault.LOST_REPLY)
    assert world.claimed(redelivered=True).row.token == 2
    assert world.row.token == 2


def test_without_a_table_nothing_is_claimed(world: World) -> None:
    """A table that does not answer at all is told as such, after a few tries, and nothing runs."""
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 20)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 20)
    with pytest.raises(StoreUnavailableError, match="send_invoice, message m-1"):
        world.claim()
    assert len(world.boundary.calls) <= 6


def test_a_row_that_cannot_be_read_is_no_crash(world: World) -> None:
    """A row edited by hand is an error of the store, which re-schedules the message, and no KeyError."""
    world.claimed()
    read = raw_row(world.bench, world.one)
    assert read is not None
    read.values["token"] = "x"  # type: ignore[index]
    world.bench.stores.claims.get = lambda *_: read  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="cannot be read"):
        world.claim(redelivered=True)


def test_a_lock_that_ends_while_a_write_is_read_back_is_missed_before_the_next_try(world: World) -> None:
    """The answer to the reading comes after the lock's trust has ended: nothing more is written."""
    claim = world.claimed()
    lock = Lease.acquire(world.bench.stores.leases, "lock", LeaseTerms(45, 20, 5), world.clock)
    claim.lock = lock
    world.boundary.calls.clear()
    world.boundary.next("commit", Fault.LOST_REQUEST)
    world.boundary.meanwhile("get", lambda: world.clock.advance(41))
    with pytest.raises(LeaseLost):
        claim.save("too late", {})
    assert world.boundary.calls == ["commit", "get"]
    assert world.row.checkpoint == ""


def test_a_hook_is_asked_again_after_a_lost_reply() -> None:
    """A verdict of the reconcile hook whose reply is lost ends in the same settlement."""
    world = World(on_abandoned="hold")
    world.claimed(host="dead")
    world.clock.advance(AFTER_CLAIM)
    world.boundary.next("commit", Fault.LOST_REPLY)
    assert isinstance(world.settled(redelivered=True, reconcile=lambda _: True), Complete)
    assert world.row.state is State.DONE


def test_a_hook_is_asked_once_however_often_the_claim_is_tried() -> None:
    """Requests that get lost make the claim try again, and do not ask a slow hook, or one with effects, again."""
    world = World(on_abandoned="hold")
    world.claimed(host="dead")
    world.clock.advance(AFTER_CLAIM)
    asked: list[int] = []

    def hook(row: MessageRow) -> bool:
        asked.append(row.attempt)
        return True

    world.boundary.next("commit", Fault.LOST_REQUEST, Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    assert isinstance(world.settled(redelivered=True, reconcile=hook), Complete)
    assert asked == [1]


def test_two_that_judge_an_abandoned_message_agree() -> None:
    """A hold verdict that somebody else made first is read back, not made twice."""
    world = World(on_abandoned="hold")
    world.claimed(host="dead")
    world.clock.advance(AFTER_CLAIM)
    world.boundary.meanwhile("commit", lambda: world.settled(redelivered=True, boundary=Boundary()))
    settlement = world.settled(redelivered=True)
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "Unknown"
    assert world.row.abandoned == 1


# -- finishing ----------------------------------------------------------------------------------------------


def finishing() -> dict[str, tuple[Callable[[MessageClaim], None], State]]:
    return {
        "done": (lambda claim: claim.done(), State.DONE),
        "commit": (lambda claim: claim.done(effects={"row": {"cents": 5}}), State.DONE),
        "release": (lambda claim: claim.release(None, "why", failed=True), State.RELEASED),
        "fail": (lambda claim: claim.fail("why"), State.FAILED),
        "save": (lambda claim: claim.save("3", {"lines": 1}), State.CLAIMED),
    }


@pytest.mark.parametrize(("finish", "state"), finishing().values(), ids=finishing())
def test_finishing_costs_one_call(world: World, finish: Callable[[MessageClaim], None], state: State) -> None:
    """Done, committed, released, failed, checkpointed: one write each, without reading."""
    claim = world.claimed()
    world.boundary.calls.clear()
    finish(claim)
    assert world.boundary.calls == ["commit"]
    assert world.row == claim.row
    assert world.row.state is state


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize(("finish", "state"), finishing().values(), ids=finishing())
def test_finishing_survives_a_call_without_an_answer(
    world: World, finish: Callable[[MessageClaim], None], state: State, fault: Fault
) -> None:
    """A write whose outcome is unknown is read back: carried out once, whichever it was."""
    claim = world.claimed()
    world.boundary.next("commit", fault)
    finish(claim)
    assert world.row == claim.row
    assert world.row.state is state
    assert world.row.failures == (1 if state in (State.RELEASED, State.FAILED) else 0)


@pytest.mark.parametrize(("finish", "state"), finishing().values(), ids=finishing())
def test_finishing_outlasts_an_outage(
    world: World, finish: Callable[[MessageClaim], None], state: State
) -> None:
    """A table that is away for half a minute costs nothing but the time."""
    claim = world.claimed()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 3)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 8)
    finish(claim)
    assert world.row.state is state


def test_a_read_that_fails_after_a_refusal_is_tried_again(world: World) -> None:
    """A refused write whose reading back gets no answer waits for one, instead of giving up."""
    claim = world.claimed()
    world.boundary.next("commit", Fault.LOST_REPLY)
    with pytest.raises(StoreUnavailableError):
        claim.beat()
    world.boundary.next("get", Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    claim.done()
    assert world.row.state is State.DONE


def test_an_endless_outage_is_told(world: World) -> None:
    """After a minute without an answer the writer is told so."""
    claim = world.claimed()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 99)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 99)
    started = world.clock.elapsed()
    with pytest.raises(StoreUnavailableError):
        claim.done()
    assert 60 <= world.clock.elapsed() - started < 70


@pytest.mark.parametrize(("finish", "state"), finishing().values(), ids=finishing())
def test_a_paused_owner_that_was_taken_over_changes_nothing(
    world: World, finish: Callable[[MessageClaim], None], state: State
) -> None:
    """Whatever a paused holder writes after a takeover is refused, and its heir's row stays as it is."""
    paused, heir = world.taken_over()
    before = world.row
    with pytest.raises(Fenced, match="token 1 is older than what heir with token 2 holds"):
        finish(paused)
    assert world.row == before
    assert state in State
    assert (heir.row.token, heir.row.attempt, heir.row.abandoned) == (2, 2, 1)
    heir.done()


def test_a_paused_owners_rows_are_rolled_back(world: World) -> None:
    """Rows that a paused holder commits with its claim after a takeover are not written."""
    paused, heir = world.taken_over()
    with pytest.raises(Fenced):
        paused.done(effects={"row": {"by": "paused"}})
    heir.done(effects={"row": {"by": "heir"}})
    assert [row["by"] for row in world.bench.effects(world.one)] == ["heir"]


def test_once_fenced_nothing_more_is_asked(world: World) -> None:
    """A holder that knows it was taken over makes no further calls."""
    paused, _ = world.taken_over()
    with pytest.raises(Fenced):
        paused.done()
    world.boundary.calls.clear()
    for write in (paused.done, paused.check):
        with pytest.raises(LeaseLost):
            write()
    paused.beat()
    assert world.boundary.calls == []
    assert not paused.held


def test_a_late_owner_that_nobody_replaced_still_records(world: World) -> None:
    """Being late is no reason to lose the record: with nobody in between, the effect is kept and not repeated."""
    claim = world.claimed()
    world.clock.advance(10 * LEASE)
    assert not claim.held
    with pytest.raises(LeaseLost):
        claim.check()
    claim.done(effects={"row": {"n": 1}})
    assert world.row.state is State.DONE
    assert world.settled(redelivered=True) == Complete(duplicate=True)


def test_a_paused_owner_of_an_unknown_message_is_fenced() -> None:
    """A message judged unknown is an operator's: its holder, should it wake, can no longer write."""
    world = World(on_abandoned="hold")
    paused = world.claimed(host="paused")
    world.clock.advance(AFTER_CLAIM)
    assert isinstance(world.settled(redelivered=True, boundary=Boundary()), DeadLetter)
    with pytest.raises(Fenced):
        paused.done(effects={"row": {"n": 1}})
    assert world.row.state is State.UNKNOWN
    assert world.bench.effects(world.one) == []


def test_a_deleted_row_is_nobodys(world: World) -> None:
    """A holder whose row is gone is fenced rather than writing it anew."""
    claim = world.claimed()
    world.bench.stores.claims._rows.clear()  # type: ignore[attr-defined]
    with pytest.raises(Fenced, match="nobody"):
        claim.done()


def test_a_finished_claim_takes_no_more(world: World) -> None:
    """Nothing is written with a claim once it is finished, so a second commit cannot go unnoticed."""
    claim = world.claimed()
    claim.done(effects={"first": {"n": 1}})
    with pytest.raises(InputError, match="done already"):
        claim.done(effects={"second": {"n": 2}})
    with pytest.raises(InputError, match="done already"):
        claim.save("3", {})
    assert [row["name"] for row in world.bench.effects(world.one)] == ["first"]


def test_an_unknown_commit_is_not_undone_by_what_follows(world: World) -> None:
    """When a commit got no answer for a minute but was carried out, giving the message back finds that and stops."""
    claim = world.claimed()
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.boundary.next("get", *[Fault.LOST_REQUEST] * 40)
    with pytest.raises(StoreUnavailableError):
        claim.done(effects={"row": {"n": 1}}, outbox=[{"to": "q", "id": "x", "body": "{}"}])
    world.boundary._of.clear()
    claim.release(None, "commit failed", failed=True)
    assert world.row.state is State.DONE
    assert claim.row.state is State.DONE
    assert len(claim.row.outbox) == 1


def test_a_row_of_that_name_written_before_is_told(world: World) -> None:
    """Committing a row that an earlier generation wrote is refused as such, and nothing is written."""
    world.claimed().done(effects={"row": {"n": 1}})
    read = raw_row(world.bench, world.one)
    assert read is not None
    read.values.update(state="released", retry_at="")  # type: ignore[attr-defined]
    world.bench.stores.claims._rows[next(iter(world.bench.stores.claims._rows))][read.key] = read  # type: ignore[attr-defined]
    again = world.claimed(redelivered=True)
    with pytest.raises(AlreadyRecordedError, match="'row'"):
        again.done(effects={"new": {"n": 2}, "row": {"n": 2}})
    assert [row["name"] for row in world.bench.effects(world.one)] == ["row"]


def test_what_survives_a_release(world: World) -> None:
    """Attempts, failures and the checkpoint outlast giving a message back."""
    claim = world.claimed()
    claim.save('{"at":3}', {"lines": 3})
    claim.release(None, "no luck", failed=True, error="trace")
    assert (world.row.reason, world.row.error) == ("no luck", "trace")
    again = world.claimed(redelivered=True)
    assert (again.row.attempt, again.row.token, again.row.failures) == (2, 2, 1)
    assert (again.row.checkpoint, again.row.progress) == ('{"at":3}', {"lines": 3})
    assert (again.row.reason, again.row.error) == ("", "")


# -- signs of life ------------------------------------------------------------------------------------------


def test_a_sign_of_life_keeps_the_claim(world: World) -> None:
    """A claim that is kept alive is not taken over however long its work takes, and stays trusted."""
    claim = world.claimed()
    for _ in range(10):
        world.clock.advance(LEASE / 3)
        claim.beat()
        assert claim.held
        assert isinstance(world.settled(redelivered=True), Reschedule)
    assert world.row.token == 1


def test_trust_ends_before_the_lease_does(world: World) -> None:
    """A holder stops trusting its claim before anybody else may take it."""
    claim = world.claimed()
    assert claim.trusted_until <= world.clock.elapsed() + LEASE * 0.8
    world.clock.advance(LEASE * 0.8)
    assert not claim.held
    assert isinstance(world.settled(redelivered=True), Reschedule)


def test_trust_counts_from_the_start_of_the_call(world: World) -> None:
    """Trust counts from before the call that gave it, however long the answer took."""
    world.boundary.meanwhile("commit", lambda: world.clock.advance(5))
    started = world.clock.elapsed()
    assert world.claimed().trusted_until == pytest.approx(started + LEASE * 0.8)


def test_a_late_sign_of_life_is_not_given(world: World) -> None:
    """Once trust has ended a sign of life would come too late, and is not even sent."""
    claim = world.claimed()
    world.clock.advance(LEASE)
    world.boundary.calls.clear()
    claim.beat()
    assert world.boundary.calls == []


def test_a_lost_sign_of_life_is_made_up_for(world: World) -> None:
    """When a sign of life was carried out and its reply lost, the next one notices, and trust goes on."""
    claim = world.claimed()
    world.clock.advance(20)
    world.boundary.next("commit", Fault.LOST_REPLY)
    with pytest.raises(StoreUnavailableError):
        claim.beat()
    before = claim.trusted_until
    world.clock.advance(1)
    claim.beat()
    assert claim.trusted_until == pytest.approx(before + 21)
    claim.done()


def test_a_sign_of_life_is_tried_twice_on_a_row_that_changes(world: World) -> None:
    """After that the next one is soon enough, or a heartbeat would serve one claim alone."""
    claim = world.claimed()
    at = place(world.bench.settings.namespace, world.one.entity, world.one.name, KEY)

    def again() -> None:
        read = world.bench.stores.claims.get(*at)
        assert read is not None
        world.bench.stores.claims.commit(at[0], [Replace(at[1], read.values, read.etag)])
        world.boundary.meanwhile("commit", again)

    world.boundary.meanwhile("commit", again)
    world.boundary.calls.clear()
    claim.beat()
    assert world.boundary.calls == ["commit", "get", "commit", "get"]


def test_a_sign_of_life_after_a_takeover_is_refused(world: World) -> None:
    """A holder that still trusts its claim although it was taken over learns so by its next sign of life."""
    paused, heir = world.taken_over()
    paused.trusted_until = float("inf")
    with pytest.raises(Fenced):
        paused.beat()
    assert world.row == heir.row
    assert not paused.held


def test_a_finished_claim_gives_no_sign_of_life(world: World) -> None:
    """A claim that is finished, or let go of, is kept alive no longer."""
    done, dropped = world.claimed(), World()
    done.done()
    other = dropped.claimed()
    other.let_go()
    for claim, boundary in ((done, world.boundary), (other, dropped.boundary)):
        boundary.calls.clear()
        claim.beat()
        assert claim.finished
        assert boundary.calls == []


def test_a_sign_of_life_does_not_wait_for_a_write(world: World) -> None:
    """While a claim is being written it needs no other sign of life, and the heartbeat thread goes on to the next."""
    claim = world.claimed()
    with claim._lock, ThreadPoolExecutor(1) as pool:
        world.boundary.calls.clear()
        pool.submit(claim.beat).result(timeout=5)
    assert world.boundary.calls == []


# -- what a claim says of itself -------------------------------------------------------------------------------


def test_a_takeover_says_for_how_long_nobody_gave_a_sign_of_life(world: World) -> None:
    """By the server's clock, since the dead holder's last write; a first claim or one after a release says nothing."""
    first = world.claimed()
    assert first.taken_over is None
    world.clock.advance(AFTER_CLAIM)
    heir = world.claimed(redelivered=True)
    assert heir.taken_over == pytest.approx(AFTER_CLAIM, abs=0.01)
    heir.release(None, "the host stops", failed=False)
    assert world.claimed(redelivered=True).taken_over is None


def test_a_takeover_whose_reply_was_lost_is_written_with_as_any_other(world: World) -> None:
    """It knows how long nobody gave a sign of life, and where the row stands, so that the end is one call."""
    world.claimed()
    world.clock.advance(AFTER_CLAIM)
    world.boundary.next("commit", Fault.LOST_REPLY)
    heir = world.claimed(redelivered=True)
    assert heir.taken_over == pytest.approx(AFTER_CLAIM, abs=0.01)
    world.boundary.calls.clear()
    heir.done()
    assert world.boundary.calls == ["commit"]


def test_a_claim_knows_when_its_message_expires(world: World) -> None:
    """As the delivery says, for then nobody need keep the claim any longer."""
    until = world.clock.now() + timedelta(days=7)
    delivered = Delivered(KEY, "m-1", "f", redelivered=False, reschedules=0, expires_at=until)
    own = ownership(world.bench, host="test", stores=world.bench.stores)
    assert isinstance(claim_message(own, world.one, delivered, LEASE), MessageClaim)
    assert world.row.expires_at == until


def test_each_claim_is_a_write_of_its_own(world: World) -> None:
    """By the write's id a writer whose reply was lost tells its own write from the one before."""
    paused, heir = world.taken_over()
    assert heir.row.write_id not in ("", paused.row.write_id)


def test_a_delivery_that_ends_a_message_says_so_with_its_row() -> None:
    """Whoever tells of it needs the row as it is now, and whether it was this delivery that changed it."""
    world = World(on_abandoned="hold")
    world.claimed()
    world.clock.advance(AFTER_CLAIM)
    first = world.claim(redelivered=True)
    assert isinstance(first, Settled)
    assert (first.row, first.written) == (world.row, True)
    again = world.claim(redelivered=True)
    assert isinstance(again, Settled)
    assert (again.row, again.written) == (world.row, False)


# -- what is written, column by column ---------------------------------------------------------------------------


def test_a_released_message_says_when_and_why(world: World) -> None:
    """Its row has the end of the attempt, from when it may come again, and a failure more only if it was one."""
    claim = world.claimed()
    before, now = claim.row, world.clock.now()
    claim.release(now, "no luck", failed=True, error="ValueError: no")
    assert world.row == replace(
        before,
        state=State.RELEASED,
        write_id=world.row.write_id,
        finished_at=now,
        retry_at=now,
        reason="no luck",
        error="ValueError: no",
        failures=1,
    )
    again = world.claimed(redelivered=True)
    again.release(None, "the host stops", failed=False)
    assert (world.row.failures, world.row.error, world.row.retry_at) == (1, "", None)


def test_a_failed_message_says_when_why_and_as_what(world: World) -> None:
    """It is kept without end; its dead letter's name is on the row where it is not that of its state."""
    claim = world.claimed()
    before, now = claim.row, world.clock.now()
    claim.fail("no customer", "ValueError: no", "NoCustomer")
    ended = {"state": State.FAILED, "write_id": world.row.write_id, "finished_at": now, "failures": 1}
    assert world.row == replace(
        before, **ended, reason="no customer", error="ValueError: no", dead_as="NoCustomer"
    )
    other = World()
    other.claimed().fail("no customer")
    assert (other.row.error, other.row.dead_as) == ("", "")


def test_a_held_message_is_unknown_with_its_reason(world: World) -> None:
    """Nothing else of its row changes."""
    claim = world.claimed()
    before = claim.row
    claim.hold("nobody knows")
    assert world.row == replace(
        before, state=State.UNKNOWN, write_id=world.row.write_id, reason="nobody knows"
    )


def test_a_checkpoint_is_kept_with_its_follow_ups(world: World) -> None:
    """They are on the row until they are sent, and leave it with its next write."""
    claim = world.claimed()
    outbox = ({"to": "q", "id": "x", "body": "{}"},)
    claim.save("3", {"lines": 3}, outbox=outbox, follow_ups=1)
    row = world.row
    assert (row.checkpoint, row.progress, row.outbox, row.follow_ups) == ("3", {"lines": 3}, outbox, 1)
    claim.sent()
    assert claim.row.outbox == ()
    claim.beat()
    assert world.row == replace(row, outbox=(), write_id=world.row.write_id)
    claim.save("4", {"lines": 4})
    assert (world.row.outbox, world.row.follow_ups) == ((), 0)


def test_a_checkpoint_whose_reply_was_lost_is_written_once(world: World) -> None:
    """The row is read back, and found to be this write's own."""
    claim = world.claimed()
    world.boundary.calls.clear()
    world.boundary.next("commit", Fault.LOST_REPLY)
    claim.save("1", {})
    assert world.boundary.calls == ["commit", "get"]
    assert world.row.checkpoint == "1"


def test_results_of_steps_stay_until_others_are_given(world: World) -> None:
    """A checkpoint without any leaves them as they are."""
    claim = world.claimed()
    claim.save("1", {}, steps={"charge": 7})
    claim.save("2", {})
    assert world.row.steps == {"charge": 7}
    claim.save("2", {}, steps={})
    assert world.row.steps == {}


def test_what_a_handler_returned_is_on_its_row(world: World) -> None:
    """Nothing where it returned nothing that is kept."""
    world.claimed().done(returned='{"paid":true}')
    assert world.row.returned == '{"paid":true}'
    other = World()
    other.claimed().done()
    assert other.row.returned == ""


def test_only_progress_leaves_deaths_behind(world: World) -> None:
    """A checkpoint that says nothing new does not, or a message that kills its hosts would be tried for ever."""
    paused, heir = world.taken_over()
    assert (heir.row.abandoned, heir.row.survived) == (1, 0)
    heir.save(paused.row.checkpoint, {})
    assert world.row.survived == 0
    heir.save("1", {})
    assert world.row.survived == 1


def test_a_row_that_a_handler_commits_says_whose_it_is(world: World) -> None:
    """Its own columns, its name and the message's key."""
    claim = world.claimed()
    claim.done(effects={"invoice": {"total": 7}})
    at = place(world.bench.settings.namespace, world.one.entity, world.one.name, KEY)
    read = world.bench.stores.claims.get(at[0], effect_key(at[1], "invoice"))
    assert read is not None
    assert read.values == {"name": "invoice", "key": KEY, "total": 7}


def test_a_lost_claim_says_whose_the_message_is(world: World) -> None:
    """The write that is refused names both tokens; whatever follows says who has the message now."""
    paused, heir = world.taken_over()
    with pytest.raises(Fenced) as fenced:
        paused.done()
    assert str(fenced.value) == (
        "Handler send_invoice, message m-1: token 1 is older than what heir with token 2 holds; the write was refused."
    )
    with pytest.raises(LeaseLost) as lost:
        paused.check()
    assert str(lost.value) == "Handler send_invoice, message m-1 is heir with token 2's now."
    delete = Delete(raw_row(world.bench, world.one).key, raw_row(world.bench, world.one).etag)  # type: ignore[union-attr]
    at = place(world.bench.settings.namespace, world.one.entity, world.one.name, KEY)
    world.bench.stores.claims.commit(at[0], [delete])
    with pytest.raises(Fenced, match="older than what nobody holds"):
        heir.done()


def test_a_claim_that_is_let_go_or_late_says_so(world: World) -> None:
    """It names the handler and the message."""
    claim = world.claimed()
    claim.let_go()
    with pytest.raises(LeaseLost) as lost:
        claim.check()
    assert str(lost.value) == "Handler send_invoice, message m-1: its claim could not be kept alive."
