"""What a function gets from a message, as the Functions host hands it over."""

import base64
import datetime as dt
import decimal
import json
import math
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.functions_worker import AmqpValue, FunctionsHost, queue, servicebus, wire
from tests.support.functions_worker.samples import ECHO, write_app


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionsHost]:
    with FunctionsHost(write_app(tmp_path_factory.mktemp("app"), ECHO)) as host:
        yield host


def seen(host: FunctionsHost, name: str, trigger: Any) -> dict[str, Any]:
    """What the function saw; its invocation must have succeeded."""
    done = host.invoke(name, trigger)
    assert done.success, done.exception
    (line,) = done.logs
    return json.loads(line.message)


def refused(host: FunctionsHost, name: str, trigger: Any) -> bool:
    """Whether the invocation failed without the function having been called."""
    done = host.invoke(name, trigger)
    return not done.success and not done.logs


@pytest.mark.parametrize("name", ["id", "Id", "ID"])
def test_a_field_of_the_body_replaces_the_messages_own_id(host: FunctionsHost, name: str) -> None:
    """A text trigger shows the body's `id`, whatever the case of its letters; a BINARY one the message's own."""
    message = queue({name: "order-7", "DEQUEUECOUNT": 5}, message_id="own", dequeue_count=2)
    assert (seen(host, "queue_text", message)["id"], seen(host, "queue_text", message)["count"]) == (
        "order-7",
        5,
    )
    own = seen(host, "queue_binary", message)
    assert (own["id"], own["count"]) == ("own", 2)


def test_the_bodys_fields_lie_over_a_bus_messages_own(host: FunctionsHost) -> None:
    """Identity, counts and properties of a Service Bus message are the body's on a text trigger only."""
    body = {
        "messageId": "same",
        "correlationId": "c",
        "deliveryCount": 5,
        "applicationProperties": {"mark": "y"},
    }
    message = servicebus(body, message_id="own", properties={"mark": "x"})
    text = seen(host, "bus_text", message)
    assert (text["message_id"], text["correlation_id"], text["delivery_count"]) == ("same", "c", 5)
    assert text["application_properties"] == {"mark": "y"}
    own = seen(host, "bus_binary", message)
    assert (own["message_id"], own["correlation_id"], own["delivery_count"]) == ("own", None, 1)
    assert own["application_properties"] == {"mark": "x"}


def test_arrays_and_nulls_of_a_body_change_nothing(host: FunctionsHost) -> None:
    """Only scalars and objects of a body are laid over the metadata."""
    message = servicebus({"messageId": None, "deliveryCount": [9]}, message_id="own", delivery_count=2)
    text = seen(host, "bus_text", message)
    assert (text["message_id"], text["delivery_count"]) == ("own", 2)


def test_scalars_of_a_body_become_text() -> None:
    """Numbers, booleans and dates are text as .NET writes it, objects are JSON, arrays and nulls are nothing."""
    body = '{"i": 7, "f": 1.5, "whole": 2.0, "b": true, "d": "2026-11-30T08:00:00Z",'
    body += ' "o": {"a": [1]}, "l": [1], "n": null}'
    assert wire.body_fields(body) == {
        "i": wire.text("7"),
        "f": wire.text("1.5"),
        "whole": wire.text("2"),
        "b": wire.text("True"),
        "d": wire.text("11/30/2026 08:00:00"),
        "o": wire.as_json({"a": [1]}),
    }
    assert wire.body_fields("[1]") == wire.body_fields("no JSON") == {}


ODD_BUS = [
    {name: "abc"}
    for pascal in (
        "DeliveryCount",
        "SequenceNumber",
        "ApplicationProperties",
        "UserProperties",
        "EnqueuedTimeUtc",
        "ExpiresAtUtc",
    )
    for name in (pascal, pascal[0].lower() + pascal[1:])
] + [
    {name: "abc"}
    for name in ("State", "TimeToLive", "LockedUntil", "ScheduledEnqueueTimeUtc", "EnqueuedSequenceNumber")
]


@pytest.mark.parametrize("fields", [*ODD_BUS, {"EnqueuedTimeUtc": "2026-11-30T08:00:00Z"}], ids=str)
def test_odd_values_keep_a_bus_function_from_running(host: FunctionsHost, fields: dict[str, str]) -> None:
    """A body's field that is no count, time or map under such a name fails the binding; BINARY does not care."""
    assert refused(host, "bus_text", servicebus({"id": "x", **fields}))
    assert seen(host, "bus_binary", servicebus({"id": "x", **fields}))["message_id"] == "m-1"


@pytest.mark.parametrize(
    "name", ["DequeueCount", "dequeueCount", "InsertionTime", "ExpirationTime", "NextVisibleTime"]
)
def test_odd_values_keep_a_queue_function_from_running(host: FunctionsHost, name: str) -> None:
    """The same for a Storage queue's message."""
    assert refused(host, "queue_text", queue({name: "abc"}))
    assert seen(host, "queue_binary", queue({name: "abc"}))["count"] == 1


def test_what_a_sender_did_not_set_is_absent(host: FunctionsHost) -> None:
    """Unset identity and texts are None to the function, and so is what the host never sends."""
    message = servicebus("x", message_id=None, content_type=None)
    assert not {"MessageId", "ContentType", "CorrelationId", "Subject"} & set(message.metadata)
    text = seen(host, "bus_text", message)
    absent = {name for name, value in text.items() if value is None}
    assert absent == {
        "message_id",
        "content_type",
        "correlation_id",
        "subject",
        "label",
        "to",
        "reply_to",
        "session_id",
        "partition_key",
        "dead_letter_reason",
        "dead_letter_error_description",
        "state",
        "time_to_live",
        "locked_until",
        "scheduled_enqueue_time_utc",
        "enqueued_sequence_number",
    }


def test_set_texts_arrive_as_strings(host: FunctionsHost) -> None:
    """What the sender set comes as the string it is, the lock token too."""
    texts = {
        "CorrelationId": "c",
        "Subject": "s",
        "Label": "s",
        "To": "t",
        "ReplyTo": "r",
        "SessionId": "1",
        "PartitionKey": "1",
    }
    got = seen(host, "bus_text", servicebus("x", content_type="text/plain", **texts))
    assert [got[name] for name in ("correlation_id", "subject", "label", "to", "reply_to", "session_id")] == [
        "c",
        "s",
        "s",
        "t",
        "r",
        "1",
    ]
    assert (got["partition_key"], got["content_type"], got["sequence_number"]) == ("1", "text/plain", 42)
    assert uuid.UUID(got["lock_token"])


def test_a_bus_messages_times_are_naive(host: FunctionsHost) -> None:
    """EnqueuedTimeUtc and ExpiresAtUtc carry milliseconds and no zone, so the library makes naive times."""
    sent = dt.datetime(2026, 11, 30, 8, 13, 50, 187_000, dt.UTC)
    message = servicebus("x", enqueued=sent, expires=sent + dt.timedelta(days=1))
    assert message.metadata["EnqueuedTimeUtc"].json == '"2026-11-30T08:13:50.187"'
    assert message.metadata["EnqueuedTime"].json == '"2026-11-30T08:13:50.187+00:00"'
    got = seen(host, "bus_binary", message)
    assert got["enqueued_time_utc"] == ["2026-11-30T08:13:50.187000", "None"]
    assert got["expires_at_utc"] == ["2026-12-01T08:13:50.187000", "None"]


@pytest.mark.parametrize(
    ("body", "text", "binary"),
    [
        (b"plain", b"plain", b"plain"),
        (b"", b"", b""),
        (b"\xff\xfe", "��".encode(), b"\xff\xfe"),
        (b"\xef\xbb\xbf{}", b"\xef\xbb\xbf{}", b"\xef\xbb\xbf{}"),
        (
            '{"id":"Zürich"}'.encode("latin-1"),
            '{"id":"Z�rich"}'.encode(),
            '{"id":"Zürich"}'.encode("latin-1"),
        ),
    ],
)
def test_a_bus_body_is_text_unless_binary(
    host: FunctionsHost, body: bytes, text: bytes, binary: bytes
) -> None:
    """Bytes that are no UTF-8 are replaced and a BOM stays; BINARY keeps the bytes as sent."""
    assert seen(host, "bus_text", servicebus(body))["body"].encode("latin-1") == text
    assert seen(host, "bus_binary", servicebus(body))["body"].encode("latin-1") == binary


def test_a_queue_body_that_is_not_utf8_reaches_only_binary(host: FunctionsHost) -> None:
    """A Storage queue's body that is no UTF-8 fails the binding of a text trigger."""
    assert refused(host, "queue_text", queue(b"\xff\xfe"))
    assert seen(host, "queue_binary", queue(b"\xff\xfe"))["body"] == "\xff\xfe"


def test_amqp_values(host: FunctionsHost) -> None:
    """A value string is text and refused with BINARY; numbers, maps, bytes and sequences never run."""
    assert seen(host, "bus_text", servicebus(AmqpValue("text")))["body"] == "text"
    assert refused(host, "bus_binary", servicebus(AmqpValue("text")))
    for content in (7, {"a": 1}, b"bytes", [1, 2]):
        assert refused(host, "bus_text", servicebus(AmqpValue(content)))
        assert refused(host, "bus_binary", servicebus(AmqpValue(content)))


def test_application_properties_keep_what_json_has(host: FunctionsHost) -> None:
    """Strings, booleans, nulls and numbers keep their type, everything else is text; both names hold the same."""
    moment = dt.datetime(2026, 11, 30, 10, 13, 50, 187_000, dt.timezone(dt.timedelta(hours=2)))
    guid = uuid.uuid4()
    sent = {
        "s": "x",
        "b": True,
        "none": None,
        "i": 2**62,
        "f": 1.5,
        "nan": math.nan,
        "inf": -math.inf,
        "decimal": decimal.Decimal("1.25"),
        "guid": guid,
        "time": moment,
        "span": dt.timedelta(days=1, seconds=2.5),
        "bytes": b"\x00\xff",
    }
    got = seen(host, "bus_text", servicebus("x", properties=sent))
    assert got["application_properties"] == {
        "s": "x",
        "b": True,
        "none": None,
        "i": 2**62,
        "f": 1.5,
        "nan": "NaN",
        "inf": "-Infinity",
        "decimal": 1.25,
        "guid": str(guid),
        "time": "2026-11-30T08:13:50.187Z",
        "span": "1.00:00:02.5000000",
        "bytes": base64.b64encode(b"\x00\xff").decode(),
    }
    assert got["user_properties"] == got["application_properties"]
