"""Follow-ups: what a broker that is away, refuses, or was away for a moment means for the message that sends them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import AFTER_CLAIM, begun, delivery, handling, host_of, row_of, silence

from runonce.errors import PermanentError, StoreUnavailableError, TransportError, TransportRefusedError
from runonce.messages.claim import MessageClaim
from runonce.messages.rows import State
from runonce.testing import Complete, DeadLetter, MemorySender, Reschedule, Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.testing import Settlement
    from runonce.transports.protocols import Outgoing

MAIL = handling(name="mail", queue="mails", key="id")
OTHER = handling(name="other", queue="others", key="id")


class Broker(MemorySender):
    """Takes no messages while it is away, and never any that hold a certain text."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.never = "nothing holds this"
        self.tries = 0
        self.deliveries: list[Delivery] = []

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        self.tries += 1
        if self.away:
            self.away -= 1
            raise TransportError("503 busy")
        if any(self.never in f"{entity} {message.body.decode()}" for message in messages):
            raise TransportRefusedError(f"sending to {entity}: it is too large.")
        super().send(entity, messages)
        self.deliveries += [Delivery(one.body, one.message_id, sent_as=one.sent_as) for one in messages]

    @property
    def mails(self) -> list[str]:
        return [sent.json["id"] for sent in self.sent]


@pytest.fixture
def bench() -> Workbench:
    made = Workbench(clock=PassingClock())
    silence(made.deliverer)
    return made


def to_its_end(bench: Workbench, one: Handler, broker: Broker, most: int = 12) -> Settlement:
    """Deliver a message until it is settled for good."""
    host = host_of(bench, sender=broker)
    settlement: Settlement = Reschedule(0, "")
    for times in range(most):
        settlement = host.deliver(one, delivery(reschedules=times))
        if not isinstance(settlement, Reschedule):
            break
        bench.clock.advance(settlement.delay + 1)
    return settlement


def importing(batches: int, *, size: int = 10, **options: Any) -> tuple[Handler, list[int]]:
    """A handler that sends one follow-up of so many characters for each batch; and what it worked on."""
    worked: list[int] = []

    def body(message: Message) -> None:
        for (number,) in message.batches(range(batches), size=1):
            worked.append(number)
            message.enqueue(MAIL, {"id": str(number), "text": "x" * size})

    return handling(body, **options), worked


def test_what_was_sent_leaves_the_row_before_more_is_added(bench: Workbench) -> None:
    """A message that was stopped between two batches of large follow-ups is finished by whoever goes on with it."""
    one, worked = importing(4, size=16_000, retries=0)
    broker = Broker()
    host = host_of(bench, sender=broker)
    working = begun(host, one)
    working.message.enqueue(MAIL, {"id": "0", "text": "x" * 16_000})
    working.message.checkpoint.commit("items", 1)
    bench.clock.advance(AFTER_CLAIM)  # and its host dies
    assert isinstance(to_its_end(bench, one, broker), Complete)
    assert worked == [1, 2, 3]
    assert sorted(set(broker.mails)) == ["0", "1", "2", "3"]
    assert len({sent.message_id for sent in broker.sent}) == 4


def test_a_sign_of_life_without_an_answer_takes_no_later_follow_up_for_sent(bench: Workbench) -> None:
    """Made before the first one was sent, it puts that on the row again: the second one is sent all the same."""
    boundary, claims = Boundary(), list[MessageClaim]()

    class Slow(Broker):
        def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
            if not self.tries:
                boundary.next("commit", Fault.LOST_REPLY)
                with suppress(StoreUnavailableError):
                    claims[0].beat()
            super().send(entity, messages)

    def body(message: Message) -> None:
        claims.append(message._own().claim)
        for number in range(2):
            message.enqueue(MAIL, {"id": str(number)})
            message.checkpoint.save(number)
            claims[0].beat()

    one, broker = handling(body), Slow()
    host = host_of(bench, stores=boundary.around(bench.stores), sender=broker)
    assert host.deliver(one, delivery()) == Complete()
    assert sorted(set(broker.mails)) == ["0", "1"]
    assert len({sent.message_id for sent in broker.sent}) == 2


@pytest.mark.parametrize("away", [1, 3, 8])
def test_a_broker_that_is_away_is_no_failure_of_the_handler(bench: Workbench, away: int) -> None:
    """However long it takes no follow-ups, the message is sent back unfailed, and no batch is done twice."""
    one, worked = importing(4, size=16_000, retries=0)
    broker = Broker()
    broker.away = away
    assert isinstance(to_its_end(bench, one, broker), Complete)
    assert worked == [0, 1, 2, 3]
    assert sorted(broker.mails) == ["0", "1", "2", "3"]
    assert row_of(bench, one).failures == 0


def failing_after_one(message: Message) -> None:
    for (number,) in message.batches(range(3), size=1):
        if number == 1:
            raise PermanentError("row 1 is wrong")
        message.enqueue(MAIL, {"id": str(number)})


@pytest.mark.parametrize("away", [0, 1, 4])
def test_what_a_checkpoint_kept_is_sent_though_the_message_fails(bench: Workbench, away: int) -> None:
    """A failed message's dead letter does not take along the follow-ups of the work that was done."""
    one = handling(failing_after_one, retries=3)
    broker = Broker()
    broker.away = away
    settlement = to_its_end(bench, one, broker)
    assert isinstance(settlement, DeadLetter)
    assert "row 1 is wrong" in settlement.description
    assert set(broker.mails) == {"0"}
    assert len({sent.message_id for sent in broker.sent}) == 1


def test_a_failed_messages_follow_ups_wait_for_the_broker(bench: Workbench) -> None:
    """Where they cannot be sent when the message fails, it comes again until they are, and then is put aside."""
    one = handling(failing_after_one, retries=3)
    broker = Broker()
    host = host_of(bench, sender=broker)
    working = begun(host, one)
    rights = working.rights
    working.message.enqueue(MAIL, {"id": "0"})
    rights.claim.save("", {"items": 1}, outbox=rights.outbox, follow_ups=1)  # kept, and not sent yet
    broker.away = 2
    assert isinstance(host.finish(working, None, PermanentError("no")), Reschedule)
    assert row_of(bench, one).state is State.FAILED
    assert isinstance(host.deliver(one, delivery(count=2)), Reschedule)
    assert isinstance(host.deliver(one, delivery(count=3)), DeadLetter)
    assert broker.mails == ["0"]


def test_a_follow_up_that_can_never_be_sent_is_a_dead_letter_of_its_sender(bench: Workbench) -> None:
    """The others are sent, the message is put aside with the reason, and a replay sends what was refused."""

    def body(message: Message) -> None:
        message.enqueue(MAIL, {"id": "1"})
        message.enqueue(MAIL, {"id": "2", "text": "huge"})
        message.enqueue(OTHER, {"id": "3"})

    one = handling(body)
    broker = Broker()
    broker.never = "huge"
    settlement = to_its_end(bench, one, broker)
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "FollowUpRefused"
    for said in ("send_invoice", "m-1", "it is too large", "dead-letters replay send_invoice"):
        assert said in settlement.description
    assert sorted(broker.mails) == ["1", "3"]
    assert row_of(bench, one).state is State.DONE
    broker.never = "nothing holds this"
    assert isinstance(host_of(bench, sender=broker).deliver(one, delivery(reschedules=1)), Complete)
    assert sorted(set(broker.mails)) == ["1", "2", "3"]


def test_one_of_a_checkpoint_fails_the_message_at_once(bench: Workbench) -> None:
    """A message whose checkpoint has a follow-up that can never be sent is put aside, and its retries are left."""
    one, worked = importing(3, retries=5)
    broker = Broker()
    broker.never = '"1"'
    settlement = to_its_end(bench, one, broker)
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "FollowUpRefused"
    assert worked == [0, 1]
    assert row_of(bench, one).state is State.FAILED


@pytest.mark.parametrize(
    "then",
    [lambda _: None, lambda message: message.commit({}), lambda message: message.checkpoint.save({"at": 1})],
    ids=["end", "commit", "checkpoint"],
)
def test_what_cannot_be_kept_after_the_work_fails_at_once(bench: Workbench, then: Any) -> None:
    """A handler whose follow-ups are too many has had its effect: it is not run again for its retries."""
    effects: list[int] = []

    def body(message: Message) -> None:
        effects.append(message.attempt)
        message.enqueue(MAIL, {"id": "1", "text": "y" * 31_000})
        then(message)

    one = handling(body, retries=5)
    assert isinstance(to_its_end(bench, one, Broker()), DeadLetter)
    assert effects == [1]


@pytest.mark.parametrize(
    ("key", "of_handler", "handled"),
    [(None, "id", [1]), ("x", "id", [1]), ("x", None, [1]), (None, None, [1, 1])],
    ids=["its key", "both", "the key given", "none"],
)
def test_two_equal_follow_ups_are_two_messages_and_one_key_is_one_effect(
    bench: Workbench, key: str | None, of_handler: str | None, handled: list[int]
) -> None:
    """Each call sends a message of its own; which of them are the same is said by their handler's key, or the given."""
    seen: list[int] = []
    to = handling(lambda m: seen.append(m.json["n"]), name="to", queue="to", key=of_handler)
    broker = Broker()

    def body(message: Message) -> None:
        for n in (1, 1, 2):
            message.enqueue(to, {"id": "1", "n": n}, key=key)

    assert host_of(bench, sender=broker).deliver(handling(body), delivery()) == Complete()
    assert len({sent.message_id for sent in broker.sent}) == 3
    ends = [bench.deliverer.deliver(to, one) for one in broker.deliveries]
    assert seen == (handled if key or of_handler else [*handled, 2])
    assert [getattr(end, "reason", "") for end in ends][2] == ("KeyReused" if key or of_handler else "")


@pytest.mark.parametrize("body", [{"nokey": 1}, {"id": ""}, {"id": [1]}, "no JSON"])
@pytest.mark.parametrize("key", [None, "x"])
def test_a_follow_ups_key_is_checked_where_it_is_sent(bench: Workbench, body: Any, key: str | None) -> None:
    """What its handler would put aside is refused where it is made, whether or not the id's key is given."""
    said: list[str] = []

    def enqueueing(message: Message) -> None:
        try:
            message.enqueue(MAIL, body, key=key)
        except PermanentError as error:
            said.append(str(error))

    assert bench.deliver(handling(enqueueing), {"id": "1"}) == Complete()
    assert "Handler mail" in said[0]
    assert bench.sent == []
    assert json.dumps(body) not in said[0]


def test_a_long_reason_says_that_it_was_cut(bench: Workbench) -> None:
    """Of an error's text a row keeps what fits, and shows that there was more."""

    def body(_: Message) -> None:
        raise PermanentError("🔑" * 9000)

    one = handling(body)
    assert isinstance(bench.deliver(one, {"id": "A-17"}), DeadLetter)
    reason = row_of(bench, one).reason
    assert len(reason) == 4000
    assert reason.endswith("🔑…")
