from __future__ import annotations

import dataclasses
import json
import re
import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.messages import KEY, handling

from runonce import client, enqueue_many, handler
from runonce.errors import InputError, NotKeptError, PermanentError
from runonce.messages.reading import prepare
from runonce.messages.rows import LARGEST_OUTBOX, MessageRow, check_outbox
from runonce.messages.sending import BATCH, follow_up, outgoing, send_all, send_outbox
from runonce.testing import MemorySender
from runonce.transports.copies import copy_of
from runonce.transports.ids import LONGEST_ID
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runonce.transports.protocols import Outgoing

ONE = handling()
ROW = MessageRow("import_orders", "orders", "file-1")


class Invoice(pydantic.BaseModel):
    id: str
    cents: int


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b'{"id":1}', b'{"id":1}'),
        ('{"id":1}', b'{"id":1}'),
        ({"id": "ü", "n": [1, 2]}, '{"id":"ü","n":[1,2]}'.encode()),
        (Invoice(id="A", cents=5), b'{"id":"A","cents":5}'),
    ],
)
def test_bodies(body: Any, data: bytes) -> None:
    """Bytes and text are sent as they are, a model as its JSON, anything else as compact JSON."""
    assert outgoing(ONE, body).body == data


@pytest.mark.parametrize(
    "body",
    [object(), {"id": {1}}, float("nan"), {"id": "\ud800"}, '{"id":"\ud800"}', datetime(2026, 1, 1)],  # noqa: DTZ001
)
def test_what_cannot_be_sent_is_refused(body: Any) -> None:
    """What is no JSON, or no text that can be encoded, is refused where it is sent."""
    with pytest.raises(InputError, match=r"enqueue\(send_invoice\)"):
        outgoing(ONE, body)


@pytest.mark.parametrize("options", [{"key": "A\ud83d"}, {"correlation_id": "\ud83d"}])
def test_half_a_character_is_refused_where_it_is_sent(options: Any) -> None:
    """No broker takes it, in what the message is known by either."""
    with pytest.raises(InputError, match=r"enqueue\(send_invoice\): the (key|corr.*) is text that"):
        outgoing(ONE, {"id": 1}, **options)


@pytest.mark.parametrize("key", ["", " ", "x" * 513])
def test_what_can_be_no_key_is_refused_where_it_is_sent(key: str) -> None:
    """A handler without a key of its own goes by the one that is given, so that must be one."""
    free = handling(key=None)
    with pytest.raises(PermanentError, match="Handler send_invoice"):
        outgoing(free, {}, key=key)
    with pytest.raises(PermanentError, match="in vain: Handler send_invoice"):
        follow_up(ROW, 0, free, {}, key)
    with pytest.raises(InputError, match="the key is text that cannot be sent"):
        follow_up(ROW, 0, ONE, {"id": 1}, "\ud83d")


def test_a_key_that_is_given_is_no_longer_than_one_of_a_body() -> None:
    """It is kept as the message's id, also for a handler with a key of its own: 512 characters are taken, not 513."""
    body = {"id": KEY}
    assert outgoing(ONE, body, key="k" * 512).sent_as == follow_up(ROW, 0, ONE, body, "k" * 512)["sent_as"]
    for send in (lambda: outgoing(ONE, body, key="k" * 513), lambda: follow_up(ROW, 0, ONE, body, "k" * 513)):
        with pytest.raises(NotKeptError, match="513 characters, over 512"):
            send()


def test_the_id_comes_from_the_key_and_the_body() -> None:
    """The same message sent twice has the same id, which duplicate detection drops; any other has another."""
    first, again = outgoing(ONE, {"id": KEY, "n": 1}), outgoing(ONE, b'{ "n": 1.0, "id": "A-17" }')
    assert first.message_id == again.message_id
    assert first.message_id.startswith("invoices:A-17~")
    assert first.sent_as == "invoices:A-17"
    corrected = outgoing(ONE, {"id": KEY, "n": 2})
    assert (corrected.message_id != first.message_id, corrected.sent_as) == (True, first.sent_as)
    assert outgoing(ONE, {"id": "B", "n": 1}).message_id != first.message_id
    assert outgoing(handling(queue="others"), {"id": KEY, "n": 1}).message_id != first.message_id
    assert outgoing(handling(name="other"), {"id": KEY, "n": 1}).message_id != first.message_id


def test_an_id_may_be_given() -> None:
    """A key of the caller's own is what the message is known by; without a key at all each has a fresh id."""
    given = outgoing(ONE, {"id": KEY}, key="mine")
    assert (given.sent_as, given.message_id == outgoing(ONE, {"id": KEY}, key="mine").message_id) == (
        "mine",
        True,
    )
    free = handling(key=None)
    assert outgoing(free, {}, key="mine").message_id != outgoing(free, {"n": 1}, key="mine").message_id
    assert outgoing(free, {}).message_id != outgoing(free, {}).message_id
    assert outgoing(free, {}).sent_as == ""


@pytest.mark.parametrize("key", ["x" * 500, "x" * 121, "x" * 128])
def test_an_id_leaves_room_for_its_copies(key: str) -> None:
    """A long key becomes a hash, so that the id and its copies' ids fit in what Service Bus takes."""
    for message in (outgoing(ONE, {"id": key}), outgoing(ONE, {"id": "A"}, key=key)):
        assert len(message.message_id) <= LONGEST_ID - 8
    assert outgoing(ONE, {"id": key}).message_id != outgoing(ONE, {"id": key[:-1] + "y"}).message_id


def test_a_message_without_its_key_is_refused_at_its_sender() -> None:
    """A body that the handler would refuse is refused where it is sent."""
    with pytest.raises(PermanentError, match="no field 'id'"):
        outgoing(ONE, {"number": 7})


def test_a_time_has_a_zone() -> None:
    """A later time is kept in UTC, and one without a zone is refused."""
    local = datetime(2026, 1, 1, 6, tzinfo=timezone(timedelta(hours=3)))
    assert outgoing(ONE, {"id": 1}, at=local).at == datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert outgoing(ONE, {"id": 1}).at is None
    with pytest.raises(InputError, match="no time zone"):
        outgoing(ONE, {"id": 1}, at=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("other", ["send_invoice", None, test_bodies], ids=["a name", "none", "a function"])
def test_only_a_handler_is_sent_something(other: Any) -> None:
    """What is no handler is refused by name, from a producer, a message and a job alike."""
    with pytest.raises(NotKeptError, match="is no handler; give what @handler made"):
        outgoing(other, {})
    with pytest.raises(NotKeptError, match="is no handler; give what @handler made"):
        follow_up(ROW, 0, other, {}, None)


def test_many_go_in_batches() -> None:
    """Many messages are sent in order, a hundred at a time."""
    sizes: list[int] = []

    class Sizes(MemorySender):
        def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
            sizes.append(len(messages))
            super().send(entity, messages)

    sender = Sizes()
    send_all(sender, ONE, [outgoing(ONE, {"id": n}) for n in range(BATCH * 2 + 1)])
    assert sizes == [BATCH, BATCH, 1]
    assert [sent.json["id"] for sent in sender.sent] == list(range(BATCH * 2 + 1))
    send_all(sender, ONE, [])
    assert len(sizes) == 3


@pytest.mark.parametrize("count", [2, 3])
def test_many_bodies_are_not_given_one_key(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One id for several messages, of which the broker would keep one, is refused before any is sent."""
    sender = MemorySender()
    monkeypatch.setattr(client, "_sender", lambda: sender)
    bodies = ({"id": n} for n in range(count))  # an iterator, which can be gone through once
    with pytest.raises(
        InputError, match=rf"send_invoice: {count} messages cannot have one id.*'batch-7'.*leave it out"
    ):
        enqueue_many(ONE, bodies, key="batch-7")
    assert sender.sent == []


def test_one_body_may_have_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one message the key is its id; without a key many messages have an id each."""
    sender = MemorySender()
    monkeypatch.setattr(client, "_sender", lambda: sender)
    assert enqueue_many(ONE, [{"id": 1}], key="mine") == ["mine"]
    assert len(set(enqueue_many(ONE, [{"id": n} for n in range(3)]))) == 3
    assert enqueue_many(ONE, [], key="mine") == []
    assert len(sender.sent) == 4


def ids(*messages: Mapping[str, Any]) -> list[str]:
    return [str(message["id"]) for message in messages]


def test_a_follow_ups_id_comes_from_its_parent() -> None:
    """A follow-up's id is the same in every attempt, and differs by parent, ordinal and replay."""
    first = follow_up(ROW, 0, ONE, {"id": 1}, None)
    again = follow_up(
        MessageRow("import_orders", "orders", "file-1", attempt=3, token=9), 0, ONE, {"id": 1}, None
    )
    assert first == again
    assert (first["to"], first["body"]) == ("invoices", '{"id":1}')
    others = [
        follow_up(ROW, 1, ONE, {"id": 1}, None),
        follow_up(MessageRow("import_orders", "orders", "file-2"), 0, ONE, {"id": 1}, None),
        follow_up(MessageRow("import_orders", "orders", "file-1", generation=1), 0, ONE, {"id": 1}, None),
        follow_up(ROW, 0, ONE, {"id": 1}, "mine"),
        follow_up(MessageRow("import_orders", "orders", "file-1", generation=1), 0, ONE, {"id": 1}, "mine"),
    ]
    assert len({*ids(first, *others)}) == 6
    assert all(len(name) <= LONGEST_ID - 8 for name in ids(first, *others))
    assert len(ids(follow_up(ROW, 0, ONE, {"id": 1}, "x" * 500))[0]) <= LONGEST_ID


SENT = st.tuples(
    st.sampled_from([ONE, handling(name="other"), handling(queue="others"), handling(key=None)]),
    st.sampled_from([{"id": 1}, {"id": 1, "n": 1}, {"id": 2}]),
    st.sampled_from([None, "x", "y", "x" * 500]),
    st.integers(0, 3),
    st.sampled_from(
        [
            ROW,
            MessageRow("import_orders", "orders", "file-2"),
            MessageRow("import_orders", "files", "file-1"),
            MessageRow("other", "orders", "file-1"),
            MessageRow("import_orders", "orders", "file-1", generation=1),
        ]
    ),
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(SENT, SENT)
def test_follow_ups_have_one_id_exactly_when_they_are_one(one: Any, other: Any) -> None:
    """Handler, queue, body, key and ordinal, and who sends it: what differs in one of them has another id."""
    first, second = (follow_up(row, n, to, body, key)["id"] for to, body, key, n, row in (one, other))
    told = [(to.entity, to.name, str(body), key or "", n, row) for to, body, key, n, row in (one, other)]
    assert (first == second) == (told[0] == told[1])


def test_a_follow_up_is_text() -> None:
    """A follow-up that is not UTF-8 cannot be kept on the row, and is refused with the remedy."""
    with pytest.raises(InputError, match="put the data in a blob"):
        follow_up(ROW, 0, ONE, b"\xff", None)


def test_an_outbox_has_a_limit() -> None:
    """What a column can hold is counted in the units the table counts in."""
    check_outbox("h", [{"to": "q", "id": "1", "body": "x" * (LARGEST_OUTBOX - 50)}])
    for body in ("x" * LARGEST_OUTBOX, "🔑" * (LARGEST_OUTBOX // 2)):
        with pytest.raises(InputError, match="30000"):
            check_outbox("h", [{"to": "q", "id": "1", "body": body}])


def test_an_outbox_is_sent_by_where_it_goes() -> None:
    """Follow-ups go out grouped by queue, in order, with the message's correlation id."""
    sends: list[tuple[str, list[Outgoing]]] = []

    class Noting(MemorySender):
        def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
            sends.append((entity, list(messages)))

    outbox = [{"to": to, "id": str(n), "body": str(n)} for n, to in enumerate(["a", "b", "a"])]
    send_outbox(Noting(), outbox, "c-1")
    assert [(to, [m.message_id for m in messages]) for to, messages in sends] == [
        ("a", ["0", "2"]),
        ("b", ["1"]),
    ]
    assert {m.correlation_id for _, messages in sends for m in messages} == {"c-1"}


def test_a_copy_keeps_everything_but_its_id() -> None:
    """The copy that comes again has the body, correlation and properties of its message, and knows its sender's id."""
    came = Delivery(b"\xff", "m-1", 3, None, "c-1", {"kind": "x"})
    copy = copy_of(ONE, came, 0.0)
    assert (copy.body, copy.correlation_id, copy.properties, copy.at) == (b"\xff", "c-1", {"kind": "x"}, None)
    assert re.fullmatch(r"m-1~[0-9a-f]{20}~r1", copy.message_id)
    assert (copy.reschedules, copy.sent_as) == (1, "m-1")
    came_again = Delivery(copy.body, copy.message_id, reschedules=1, sent_as=copy.sent_as)
    later = copy_of(ONE, came_again, 30.0)
    assert re.fullmatch(r"m-1~[0-9a-f]{20}~r2", later.message_id)
    assert (later.reschedules, later.sent_as) == (2, "m-1")
    assert later.at is not None
    assert later.at > datetime.now(UTC) + timedelta(seconds=25)


def test_a_topics_message_is_sent_to_the_topic_and_copied_to_the_queue() -> None:
    """What is sent goes to all subscribers; what comes again has an id of its own in the one subscriber's queue."""
    both = [handling(queue=None, topic="orders", subscription=name) for name in ("billing", "shipping")]
    assert {outgoing(one, {"id": KEY}).sent_as for one in both} == {"orders:A-17"}
    assert len({copy_of(one, Delivery(b"", "m-1"), 1.0).message_id for one in both}) == 2


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: str
    when: datetime
    who: uuid.UUID
    total: Decimal
    tags: set[str]
    by: dict[int, str]


class Named(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: str
    invoice_id: str = pydantic.Field(alias="invoiceId")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shown(self) -> str:
        return f"{self.id}/{self.invoice_id}"


@dataclasses.dataclass
class Parcel:
    id: str
    sent: datetime


@pytest.mark.parametrize(
    "model",
    [
        Strict(
            id="1",
            when=datetime(2026, 1, 1, tzinfo=UTC),
            who=uuid.UUID(int=7),
            total=Decimal("12345678901234567.89"),
            tags={"a"},
            by={1: "x"},
        ),
        Named(id="1", invoiceId="7"),
        Parcel("1", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
    ids=["strict", "alias", "dataclass"],
)
def test_what_a_model_is_sent_as_it_is_read_from(model: Any) -> None:
    """Strict models, aliases, computed fields and dataclasses come out of the message as they went into it."""

    def take(body: Any) -> None: ...

    take.__annotations__["body"] = type(model)
    one = handler(queue="invoices", key="id")(take)
    assert prepare(one, Delivery(outgoing(one, model).body, "m-1"), 10_000).arguments == [model]
    several = json.loads(outgoing(handling(key=None), [model, {"in": model}]).body)
    assert several[0] == several[1]["in"] == json.loads(outgoing(one, model).body)
