from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import (
    AFTER_CLAIM,
    KEY,
    begun,
    delivery,
    handling,
    host_of,
    ownership,
    raw_row,
    row_of,
    silence,
)

from runonce.errors import PermanentError, StoreError, StoreUnavailableError, TransportError
from runonce.messages.dead_letters import CLAIMED, let_expire, replay, view
from runonce.messages.purge import purge_claims
from runonce.messages.rows import SHARDS, State, place
from runonce.stores.columns import encode
from runonce.stores.protocols import Replace
from runonce.testing import Complete, DeadLetter, Reschedule, Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock
from runonce.transports.copies import copy_of
from runonce.transports.protocols import Dead, Delivery

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import Outgoing


class Letters:
    """Dead letters that note what is done to them."""

    def __init__(self) -> None:
        self.removed: list[Dead] = []

    def remove(self, dead: Dead) -> None:
        self.removed.append(dead)

    def peek(self, limit: int) -> list[Dead]:
        raise NotImplementedError

    def take(self, limit: int) -> list[Dead]:
        raise NotImplementedError

    def put_back(self, dead: Dead) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Sends:
    """A sender that keeps the messages themselves, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.messages: list[Outgoing] = []
        self.fails = fails

    def send(self, entity: str, messages: Any) -> None:
        if self.fails:
            raise TransportError
        assert entity == "invoices"
        self.messages += messages

    def close(self) -> None:
        raise NotImplementedError

    def delivery(self, n: int = -1) -> Delivery:
        """A message as its inbox would deliver it."""
        sent = self.messages[n]
        return Delivery(sent.body, sent.message_id, reschedules=sent.reschedules, sent_as=sent.sent_as)


def letter(of: Delivery | None = None, reason: str = "Failed") -> Dead:
    """A dead letter."""
    return Dead(of or delivery(), reason, "it says here", None, None)


@pytest.fixture
def bench() -> Workbench:
    made = Workbench(clock=PassingClock())
    silence(made.deliverer)
    return made


class Failing:
    """A body that fails for good as long as it is told to."""

    def __init__(self) -> None:
        self.fail = True
        self.calls: list[Message] = []
        self.keys: list[str] = []

    def __call__(self, message: Message) -> None:
        self.calls.append(message)
        self.keys.append(message.idempotency_key)
        if self.fail:
            raise PermanentError("no such customer")


def failed(bench: Workbench, **options: Any) -> tuple[Handler, Failing]:
    """A handler with one message that failed for good."""
    body = Failing()
    one = handling(body, **options)
    assert isinstance(bench.deliverer.deliver(one, delivery()), DeadLetter)
    return one, body


def replayed(bench: Workbench, one: Handler, dead: Dead | None = None, sends: Sends | None = None) -> Sends:
    """Replay a dead letter; what was sent."""
    made = sends or Sends()
    replay(ownership(bench), made, one, Letters(), dead or letter())
    return made


def test_a_replay_is_a_new_generation(bench: Workbench) -> None:
    """A replay reopens the claim, recorded on its row, with attempts' failures forgotten and a new idempotency key."""
    one, body = failed(bench)
    sent = replayed(bench, one)
    row = row_of(bench, one)
    assert (row.state, row.generation, row.failures, row.abandoned) == (State.RELEASED, 1, 0, 0)
    assert row.replays == ("2026-01-01T00:00:00Z",)
    assert row.expires_at is None
    body.fail = False
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete()
    assert len(set(body.keys)) == 2
    assert body.calls[1].fencing_token == 2


def test_a_replay_goes_under_an_id_of_its_own(bench: Workbench) -> None:
    """The copy's id differs for each generation, or it would be dropped; its sender's id travels along."""
    one, _ = failed(bench)
    first = replayed(bench, one)
    assert re.fullmatch(r"m-1~[0-9a-f]{20}~g1", first.messages[0].message_id)
    assert first.messages[0].sent_as == "m-1"
    assert first.messages[0].reschedules == 1
    assert isinstance(bench.deliverer.deliver(one, first.delivery()), DeadLetter)
    again = replayed(bench, one, letter(first.delivery()))
    assert re.fullmatch(r"m-1~[0-9a-f]{20}~g2", again.messages[0].message_id)
    assert again.messages[0].sent_as == "m-1"
    assert row_of(bench, one).generation == 2
    assert len(row_of(bench, one).replays) == 2


def test_a_replay_of_a_copy_finds_the_claim_without_a_key(bench: Workbench) -> None:
    """For a handler without a key the claim hangs on the sender's id, which a copy's dead letter still knows."""
    body = Failing()
    one = handling(body, key=None)
    copy = delivery(message_id="m-1~r3", reschedules=3, sent_as="m-1")
    bench.deliverer.deliver(one, copy)
    sent = replayed(bench, one, letter(copy))
    assert row_of(bench, one, "m-1").generation == 1
    body.fail = False
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete()


def test_two_replays_of_one_message_have_one_effect(bench: Workbench) -> None:
    """Two dead letters of one message, both replayed, let it take effect once."""
    one, body = failed(bench)
    sends = Sends()
    replayed(bench, one, sends=sends)
    replayed(bench, one, sends=sends)
    body.fail = False
    assert bench.deliverer.deliver(one, sends.delivery(0)) == Complete()
    assert bench.deliverer.deliver(one, sends.delivery(1)) == Complete(duplicate=True)
    assert row_of(bench, one).generation == 1


def test_done_work_is_not_replayed(bench: Workbench) -> None:
    """A dead letter whose message is done is refused, naming since when and what to do with it."""
    one = handling()
    bench.deliverer.deliver(one, delivery())
    letters = Letters()
    with pytest.raises(StoreError, match=r"done since 2026.*purge send_invoice"):
        replay(ownership(bench), Sends(), one, letters, letter())
    assert letters.removed == []


def test_done_work_may_have_follow_ups_to_send(bench: Workbench) -> None:
    """A replay of done work that has follow-ups sends those, under the same ids, and runs nothing."""
    ran: list[str] = []

    def body(message: Message) -> None:
        ran.append(message.key)
        message.enqueue(one, {"id": "B"})

    one = handling(body)
    host = host_of(bench, sender=Sends(fails=True))
    assert isinstance(host.deliver(one, delivery()), Reschedule)
    sent = replayed(bench, one)
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete(duplicate=True)
    assert [s.json for s in bench.sent] == [{"id": "B"}]
    assert ran == [KEY]


def test_an_unknown_message_may_be_replayed(bench: Workbench) -> None:
    """An operator who found out that nothing happened replays a held message, and it runs."""
    one = handling(on_abandoned="hold")
    begun(host_of(bench), one)
    bench.clock.advance(AFTER_CLAIM)
    assert isinstance(bench.deliverer.deliver(one, delivery(count=2)), DeadLetter)
    sent = replayed(bench, one)
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete()


def test_a_message_under_way_is_not_reopened(bench: Workbench) -> None:
    """Replaying what somebody is working on changes nothing of its claim; the copy finds out."""
    one = handling()
    working = begun(bench.deliverer, one)
    before = row_of(bench, one)
    sent = replayed(bench, one)
    assert row_of(bench, one) == before
    assert isinstance(bench.deliverer.deliver(one, sent.delivery()), Reschedule)
    bench.deliverer.finish(working, None, None)
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete(duplicate=True)


def test_a_message_without_a_key_is_judged_anew(bench: Workbench) -> None:
    """A dead letter that never had a claim is sent through once more, for the handler may have been corrected."""
    sent = replayed(bench, handling(), letter(delivery({"number": 7})))
    assert sent.messages[0].message_id.startswith("m-1~")
    corrected = handling(key="number")
    assert bench.deliverer.deliver(corrected, sent.delivery()) == Complete()


CORRECTED = {"id": KEY, "customer": 5}


def test_a_corrected_body_reopens_what_failed(bench: Workbench) -> None:
    """A corrected message under the key of one that failed is handled, as a new generation recorded on the row."""
    one, body = failed(bench)
    body.fail = False
    assert bench.deliverer.deliver(one, delivery(CORRECTED, message_id="m-2")) == Complete()
    row = row_of(bench, one)
    assert (row.state, row.generation, row.failures, row.message_id) == (State.DONE, 1, 0, "m-2")
    assert row.replays == ("2026-01-01T00:00:00Z",)
    assert len(set(body.keys)) == 2
    again = bench.deliverer.deliver(one, delivery(count=2))
    assert isinstance(again, DeadLetter)
    assert again.reason == "KeyReused"


def test_a_correction_and_what_it_corrects_do_not_take_turns(bench: Workbench) -> None:
    """When the corrected body fails too, redeliveries of either run nothing; a further correction does."""
    one, body = failed(bench)
    bench.deliverer.deliver(one, delivery(CORRECTED, message_id="m-2"))
    for count in (2, 3):
        for of in (delivery(count=count), delivery(CORRECTED, message_id="m-2", count=count)):
            assert isinstance(bench.deliverer.deliver(one, of), DeadLetter)
    assert len(body.calls) == 2
    body.fail = False
    assert bench.deliverer.deliver(one, delivery({"id": KEY, "customer": 6}, message_id="m-3")) == Complete()
    assert row_of(bench, one).generation == 2


def test_a_correction_begins_from_nought(bench: Workbench) -> None:
    """What was done of the body that failed says nothing about another one: its checkpoint is forgotten."""
    seen: list[Any] = []

    def body(message: Message) -> None:
        seen.append(message.checkpoint.load({"row": 0})["row"])
        message.checkpoint.save({"row": 7})
        if len(seen) < 3:
            raise PermanentError("no")

    one = handling(body)
    bench.deliverer.deliver(one, delivery())
    replay_of_the_same = replayed(bench, one)
    bench.deliverer.deliver(one, replay_of_the_same.delivery())
    assert bench.deliverer.deliver(one, delivery(CORRECTED)) == Complete()
    assert seen == [0, 7, 0]


def test_an_operator_may_go_back_to_a_body_that_was_corrected(bench: Workbench) -> None:
    """A replay says which body is wanted, and that one is handled, whatever was tried meanwhile."""
    one, body = failed(bench)
    bench.deliverer.deliver(one, delivery(CORRECTED))
    sent = replayed(bench, one)
    body.fail = False
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete()
    assert body.calls[-1].json == {"id": KEY}


def test_dead_letters_of_one_key_are_replayed_as_two_messages(bench: Workbench) -> None:
    """The bad message and the corrected one have ids of their own, so no broker drops the second."""
    one, _ = failed(bench)
    sends = Sends()
    replayed(bench, one, sends=sends)
    replayed(bench, one, letter(delivery(CORRECTED)), sends=sends)
    replayed(bench, one, replace(letter(), place="2"), sends=sends)
    assert len({message.message_id for message in sends.messages}) == 3


def test_messages_without_an_id_are_replayed_as_many(bench: Workbench) -> None:
    """Five messages whose sender gave them no id are five replays and five copies."""
    one, sends = handling(), Sends()
    letters = [letter(delivery({"id": "same"}, message_id="", sequence=str(n)), "Expired") for n in range(5)]
    for one_of_five in letters:
        replayed(bench, one, one_of_five, sends)
    copies = [copy_of(one, dead.delivery, 0.0) for dead in letters]
    assert len({m.message_id for m in (*sends.messages, *copies)}) == 10


def test_nothing_is_lost_between_the_steps(bench: Workbench) -> None:
    """A replay whose sending fails leaves the dead letter, and can be made again in the same generation."""
    one, body = failed(bench)
    letters = Letters()
    with pytest.raises(TransportError):
        replay(ownership(bench), Sends(fails=True), one, letters, letter())
    assert letters.removed == []
    sent = replayed(bench, one)
    assert row_of(bench, one).generation == 1
    body.fail = False
    assert bench.deliverer.deliver(one, sent.delivery()) == Complete()


def test_a_lost_reply_reopens_once(bench: Workbench) -> None:
    """When the table's answer to a replay is lost, the next try finds the claim open and adds no generation."""
    one, _ = failed(bench)
    boundary = Boundary()
    own = ownership(bench, stores=boundary.around(bench.stores))
    boundary.next("commit", Fault.LOST_REPLY)
    with pytest.raises(StoreUnavailableError):
        replay(own, Sends(), one, Letters(), letter())
    letters = Letters()
    replay(own, Sends(), one, letters, letter())
    assert row_of(bench, one).generation == 1
    assert len(letters.removed) == 1


def test_a_race_with_another_operator_reopens_once(bench: Workbench) -> None:
    """Two operators that replay at the same instant make one generation."""
    one, _ = failed(bench)
    boundary = Boundary()
    boundary.meanwhile("commit", lambda: replayed(bench, one))
    replay(ownership(bench, stores=boundary.around(bench.stores)), Sends(), one, Letters(), letter())
    assert row_of(bench, one).generation == 1


def test_an_old_replay_list_does_not_grow(bench: Workbench) -> None:
    """The row remembers the last twenty replays."""
    one, _ = failed(bench)
    for _ in range(23):
        sent = replayed(bench, one)
        bench.deliverer.deliver(one, sent.delivery())
    assert row_of(bench, one).generation == 23
    assert len(row_of(bench, one).replays) == 20


def test_a_view_has_the_claims_reason(bench: Workbench) -> None:
    """What the host put aside without a reason is explained by the claim; what has one says it itself."""
    one, _ = failed(bench)
    native = view(ownership(bench), one, letter(reason="MaxDeliveryCountExceeded"))
    assert native.key == KEY
    assert native.description == "PermanentError: no such customer"
    silent = view(ownership(bench), one, letter(reason=""))
    assert (silent.reason, silent.description) == ("Failed", "PermanentError: no such customer")
    told = view(ownership(bench), one, letter(reason="KeyReused"))
    assert (told.reason, told.description) == ("KeyReused", "it says here")


def test_a_view_of_a_message_without_a_claim(bench: Workbench) -> None:
    """A dead letter without a key, or that nobody claimed, is shown with what the broker knows."""
    bad = view(ownership(bench), handling(), letter(delivery(b"no json"), reason="NotJson"))
    assert (bad.key, bad.row, bad.reason) == ("", None, "NotJson")
    unseen = view(ownership(bench), handling(), letter(reason=""))
    assert (unseen.key, unseen.row, unseen.reason) == (KEY, None, "MaxDeliveryCountExceeded")


@pytest.mark.parametrize("counted", ["", "MaxDeliveryCountExceeded"])
def test_what_was_put_aside_without_a_reason_is_judged_once_more(bench: Workbench, counted: str) -> None:
    """Body and claim tell what the broker, or the Functions host, could not: one reason for each state."""
    one, _ = failed(bench)
    registry = ownership(bench)

    def told(of: Delivery | None = None) -> tuple[str, str]:
        shown = view(registry, one, letter(of, counted))
        return shown.reason, shown.description

    assert told() == ("Failed", "PermanentError: no such customer")
    other = {"id": KEY, "n": 2}
    assert told(delivery(other))[0] == "KeyReused"
    assert told(delivery(b"no json"))[0] == "NotJson"
    assert told(delivery({"ID": 1}))[0] == "MissingKey"
    assert told(delivery({"id": "never"})) == ("MaxDeliveryCountExceeded", "it says here")
    row = row_of(bench, one)
    for state, abandoned, reason in (
        (State.FAILED, 5, "Abandoned"),
        (State.UNKNOWN, 1, "Unknown"),
        (State.DONE, 0, "Done"),
        (State.CLAIMED, 0, "MaxDeliveryCountExceeded"),
    ):
        at = place(registry.namespace, one.entity, one.name, KEY)
        read = registry.table.get(*at)
        assert read is not None
        changed = replace(row, state=state, abandoned=abandoned, finished_at=bench.clock.now())
        registry.table.commit(at[0], [Replace(at[1], encode(changed), read.etag)])
        assert told()[0] == reason
    assert view(registry, one, letter(reason="TooLarge")).reason == "TooLarge"  # who knew is believed


def test_a_failed_message_is_known_for_as_long_as_its_dead_letter(bench: Workbench) -> None:
    """However late it is replayed it goes on from its checkpoint; once its dead letter is purged the claim expires."""
    one, _ = failed(bench)
    dead = letter()
    purge_all(bench, one, days=400)
    assert row_of(bench, one).state is State.FAILED
    let_expire(ownership(bench), one, dead)
    purge_all(bench, one, days=29)
    assert row_of(bench, one).state is State.FAILED
    purge_all(bench, one, days=2)
    assert raw_row(bench, one) is None


def test_what_is_under_way_does_not_expire(bench: Workbench) -> None:
    """A dead letter that is purged while its message is handled again leaves that alone."""
    one = handling()
    begun(bench.deliverer, one)
    let_expire(ownership(bench), one, letter())
    assert row_of(bench, one).expires_at is None


@pytest.mark.parametrize(
    ("reason", "age"),
    [(reason, 1) for reason in sorted(CLAIMED)] + [("MaxDeliveryCountExceeded", 31), ("", 31)],
)
def test_without_its_claim_a_replay_asks_before_it_begins_from_nought(
    bench: Workbench, reason: str, age: int
) -> None:
    """What had a claim that is gone is refused, and nothing is sent, until somebody says that it may begin anew."""
    one, dead = handling(), letter(delivery(enqueued_at=bench.clock.now()), reason)
    bench.clock.advance(age * 86_400)
    letters, sends = Letters(), Sends()
    with pytest.raises(StoreError, match="--from-scratch"):
        replay(ownership(bench), sends, one, letters, dead)
    assert (sends.messages, letters.removed) == ([], [])
    replay(ownership(bench), sends, one, letters, dead, from_scratch=True)
    assert bench.deliverer.deliver(one, sends.delivery()) == Complete()


@pytest.mark.parametrize("reason", ["MaxDeliveryCountExceeded", "TTLExpiredException", ""])
def test_what_never_had_a_claim_needs_no_leave(bench: Workbench, reason: str) -> None:
    """A message that nobody handled before it was put aside is replayed as it is."""
    dead = letter(delivery(enqueued_at=bench.clock.now()), reason)
    assert replayed(bench, handling(), dead).messages


def purge_all(bench: Workbench, one: Handler, days: int) -> None:
    """Let days pass, and purge the claims of the handler."""
    bench.clock.advance(days * 86_400)
    for shard in range(SHARDS):
        purge_claims(ownership(bench), one.name, shard, bench.clock.now(), lambda: None)
