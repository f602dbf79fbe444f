"""What the broker's modules do on their own: nothing here needs Proton or a running broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebus import launcher, values
from servicebus.entities import Queue, Subscription, Topic, declared
from servicebus.frames import FrameReader
from servicebus.message import BATCH_FORMAT, Message, unbatch
from tests.support import service_bus

settings = {
    "lock": st.sampled_from([0.5, 30.0, 60.0, 86_400.25]),
    "max_delivery": st.integers(1, 99),
    "dedup": st.sampled_from([0.0, 600.0]),
    "ttl": st.sampled_from([0.0, 3600.0]),
    "dead_letter_expired": st.booleans(),
    "quota": st.sampled_from([0, 4096, 1_234_567_890]),
    "forward": st.sampled_from(["", "orders.billing"]),
    "forward_dead_letters": st.sampled_from(["", "dead"]),
}
topic_settings = {name: chosen for name, chosen in settings.items() if name != "forward"}
subscription_settings = {name: chosen for name, chosen in settings.items() if name not in ("dedup", "quota")}
wanted = st.sampled_from(
    ["", "total > 5", "sys.Label IN ('a', 'b=c')", {"subject": "x", "properties": {"a": 1}}]
)


@given(st.fixed_dictionaries(settings))
def test_a_queue_survives_its_command_line(chosen: dict[str, Any]) -> None:
    """Parsing a queue's own arguments gives the same queue."""
    queue = Queue("send-invoice", **chosen)
    assert Queue.parse(queue.arguments[1]) == queue


@given(st.fixed_dictionaries(topic_settings), st.lists(st.sampled_from(["billing", "shipping"]), unique=True))
def test_a_topic_survives_its_command_line(chosen: dict[str, Any], subscriptions: list[str]) -> None:
    """Parsing a topic's own arguments gives the same topic."""
    topic = Topic("orders", tuple(subscriptions), **chosen)
    assert Topic.parse(topic.arguments[1]) == topic


@given(st.fixed_dictionaries(subscription_settings), wanted)
def test_a_subscription_survives_its_command_line(chosen: dict[str, Any], wanted: Any) -> None:
    """Parsing the arguments of a topic and its subscription gives the same topic, filter and all."""
    topic = Topic("orders", ("shipping", Subscription("billing", filter=wanted, **chosen)), lock=5)
    _, of_topic, _, of_subscription = topic.arguments
    assert declared([], [of_topic], [of_subscription]) == [topic]


def test_a_subscription_takes_from_its_topic_what_it_does_not_set() -> None:
    """Lock, deliveries and the fate of expired messages are the topic's unless the subscription says otherwise."""
    topic = Topic("orders", lock=5, max_delivery=3, dead_letter_expired=True, ttl=60, dedup=600)
    settings = Subscription("billing", max_delivery=7).under(topic)
    assert (settings.lock, settings.max_delivery, settings.dead_letter_expired) == (5, 7, True)
    assert (settings.ttl, settings.dedup) == (0, 0)


@given(st.text(max_size=400))
def test_a_string_takes_as_many_bytes_as_it_says(text: str) -> None:
    """The end of an encoded string is found, short or long."""
    raw = values.string(text)
    assert values.end_of(raw + b"rest", 0) == len(raw)


@given(st.dictionaries(st.text(max_size=9), st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_a_map_is_read_back(entries: dict[str, int]) -> None:
    """An encoded map is taken apart into the values that went in."""
    raw = {values.string(key): values.int32(number) for key, number in entries.items()}
    assert values.map_of(values.encode_map(raw)) == raw
    assert [values.integer(number) for number in raw.values()] == list(entries.values())


@given(st.binary(max_size=80))
def test_garbage_is_no_message(raw: bytes) -> None:
    """Whatever arrives, reading it as a message succeeds or raises one of two errors, and never hangs."""
    for read in (Message.parse, unbatch):
        try:
            read(raw)
        except (ValueError, IndexError):
            continue


def test_a_message_without_sections_gets_what_the_broker_adds() -> None:
    """A bare body comes out with a header and annotations that say what the broker knows."""
    message = Message.parse(b"\x00\x53\x75\xa0\x02hi")
    message.sequence_number, message.delivery_count = 7, 2
    again = Message.parse(message.encode(locked_until=5.0))
    assert again.body == b"\x00\x53\x75\xa0\x02hi"
    assert again.annotations[values.symbol("x-opt-sequence-number")] == values.long(7)
    assert values.integer(again.header[4]) == 2


@pytest.mark.parametrize("descriptor", ["53 73", "80 0000000000000073"])
def test_sections_are_read_however_their_kind_is_written(descriptor: str) -> None:
    """The kind of a section, in one byte or in eight, changes nothing about what is in it."""
    fields = values.encode_list([values.string("id"), values.NULL, values.string("to")])
    message = Message.sent(b"\x00" + bytes.fromhex(descriptor) + fields + b"\x00\x53\x75\xa0\x02hi")
    assert message.property_fields() == [values.string("id"), values.NULL, values.string("to")]


def test_a_message_without_an_id_gets_one_and_keeps_the_rest() -> None:
    """Its other properties stay, and two messages get two ids."""
    raw = b"\x00\x53\x73" + values.encode_list([values.NULL, values.NULL, values.string("to")])
    first, second = Message.sent(raw), Message.sent(raw)
    assert first.property_fields()[1:] == [values.NULL, values.string("to")]
    assert first.property_fields()[0] == first.message_id != second.message_id


def test_what_only_the_broker_says_of_a_message_is_not_taken_from_a_client() -> None:
    """A copy of a received message does not carry its numbers, locks and source along; its schedule is the sender's."""
    names = (
        "sequence-number",
        "locked-until",
        "enqueued-time",
        "deadletter-source",
        "enqueue-sequence-number",
    )
    annotations = {
        values.symbol(f"x-opt-{name}"): values.long(7) for name in (*names, "scheduled-enqueue-time")
    }
    message = Message.sent(b"\x00\x53\x72" + values.encode_map(annotations))
    assert list(message.annotations) == [values.symbol("x-opt-scheduled-enqueue-time")]


def test_a_long_life_is_said_as_far_as_amqp_can() -> None:
    """A time to live of more than 49 days, which a header cannot hold, is shown as the longest it can."""
    message = Message.sent(b"\x00\x53\x75\xa0\x02hi")
    message.live(90 * 86_400)
    assert message.time_to_live == 0xFFFFFFFF / 1000


def _transfer(
    payload: bytes, message_format: int | None = None, *, more: bool = False, channel: int = 0
) -> bytes:
    fields = [
        b"\x43",
        b"\x43",
        b"\xa0\x01t",
        values.uint32(message_format) if message_format else values.NULL,
    ]
    fields += [values.NULL, b"\x41" if more else b"\x42"]
    body = b"".join(fields)
    performative = b"\x00\x53\x14\xc0" + bytes((len(body) + 1, len(fields))) + body
    return (
        (8 + len(performative) + len(payload)).to_bytes(4, "big")
        + bytes((2, 0, 0, channel))
        + performative
        + payload
    )


STREAM = [
    (b"AMQP\x00\x01\x00\x00" + b"\x00\x00\x00\x08\x02\x00\x00\x00" + _transfer(b"single"), 0),
    (_transfer(b"ba", BATCH_FORMAT, more=True) + _transfer(b"t", more=True) + _transfer(b"ch"), BATCH_FORMAT),
    (_transfer(b"next"), 0),
    (_transfer(b"A", BATCH_FORMAT, more=True) + _transfer(b"b", channel=1), 0),
    (_transfer(b"B"), BATCH_FORMAT),
]


@given(st.data())
def test_frames_are_found_however_they_arrive(data: st.DataObject) -> None:
    """Cut anywhere, the stream gives all its bytes in order, and each finished delivery its message-format."""
    stream = b"".join(piece for piece, _ in STREAM)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    reader, got = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])
    assert b"".join(piece.data for piece in got) == stream
    finished = [
        piece.message_format for piece in got if piece.data.endswith((b"single", b"ch", b"next", b"b", b"B"))
    ]
    assert finished == [message_format for _, message_format in STREAM]


def test_what_is_no_amqp_is_refused() -> None:
    """An HTTP request on the port is an error, not an endless wait for a huge frame."""
    with pytest.raises(ValueError, match="a frame of"):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\n\r\n"))


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_broker_skips_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    """Where Proton is missing, tests are skipped with the remedy; in CI they fail with it."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(launcher, "available", lambda: False)
    with pytest.raises(outcome, match=r"pip install python-qpid-proton=="):
        service_bus.require_broker()
