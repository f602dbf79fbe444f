"""A message is the same on the Functions host and on ours, whatever its body and its properties are called."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from azure.functions.meta import Datum
from azure.functions.queue import QueueMessageInConverter
from azure.functions.servicebus import ServiceBusMessageInConverter
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runonce.hosts.functions.handlers import from_servicebus, from_storage
from runonce.messages.definition import handler
from runonce.messages.message import Message
from runonce.transports.bus_messages import delivery_of
from runonce.transports.storage import _delivery as delivery_from
from tests.hosts.test_functions_double_messages import FIELDS
from tests.support.functions_worker import triggers
from tests.support.functions_worker.bus_listener import trigger_of

if TYPE_CHECKING:
    from runonce.transports.protocols import Delivery
    from tests.support.functions_worker import Trigger

BINARY = {"dataType": "BINARY"}
INSTANT = datetime(2026, 11, 30, 8, 13, 50, 187_000, UTC)
SHOWN = (
    "body",
    "message_id",
    "delivery_count",
    "enqueued_at",
    "correlation_id",
    "properties",
    "subject",
    "content_type",
)


@handler(queue="words")
def note(message: Message) -> None:
    """Do nothing."""


names = st.sampled_from([spelt for name in FIELDS for spelt in (name, name[0].upper() + name[1:])]) | st.text(
    max_size=8
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.just("2026-11-30T08:00:00Z")
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(names, values, max_size=5)
properties = st.dictionaries(
    st.text(st.characters(codec="utf-8", min_codepoint=32), min_size=1, max_size=12),
    st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    max_size=4,
)
texts = st.none() | st.text(st.characters(codec="utf-8", min_codepoint=32), min_size=1, max_size=20)


def decoded(converter: Any, trigger: Trigger) -> Any:
    """What the library makes of what the host sends."""
    data, metadata = trigger.bound(BINARY)
    as_datum = {
        name: Datum(getattr(one, one.WhichOneof("data")), one.WhichOneof("data"))
        for name, one in metadata.items()
    }
    kind = data.WhichOneof("data")
    return converter.decode(Datum(getattr(data, kind), kind), trigger_metadata=as_datum)


def shown(delivery: Delivery) -> dict[str, Any]:
    """What a handler sees of a delivery."""
    message = Message(note, delivery)
    return {name: getattr(message, name) for name in SHOWN} | {"text": message.text, "json": message.json}


def check(there: Delivery, here: Delivery) -> None:
    assert shown(there) == shown(here)
    assert there.enqueued_at is None or there.enqueued_at.tzinfo is not None


@pytest.mark.slow
@given(body=bodies, count=st.integers(1, 9))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_of_a_storage_queue(body: dict[str, Any], count: int) -> None:
    """Every field of a message is the same, for any JSON object as its body."""
    raw = json.dumps(body).encode()
    native = SimpleNamespace(
        id="5c1d7a52", content=base64.b64encode(raw).decode(), dequeue_count=count, inserted_on=INSTANT
    )
    trigger = triggers.queue(raw, message_id=native.id, dequeue_count=count, inserted=INSTANT.isoformat())
    check(from_storage(decoded(QueueMessageInConverter, trigger)), delivery_from(native, note)[0])


@given(body=bodies, sent=properties, message_id=texts, correlation_id=texts, subject=texts)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_of_service_bus(
    body: dict[str, Any],
    sent: dict[str, Any],
    message_id: str | None,
    correlation_id: str | None,
    subject: str | None,
) -> None:
    """The same on Service Bus, also for what the sender left out: without an id it is known by the broker's number."""
    message = ServiceBusMessage(
        json.dumps(body).encode(),
        application_properties=sent,
        correlation_id=correlation_id,
        subject=subject,
    )
    message.message_id = message_id
    native = received(message)
    there = from_servicebus(decoded(ServiceBusMessageInConverter, trigger_of(native)))
    check(there, delivery_of(native))
    assert there.message_id == (message_id or "")
    assert Message(note, there).message_id == (message_id or "unnamed-7")


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (2**31 - 1, 2**31 - 1),
        ({"TYPE": "LONG", "VALUE": 2**40}, 2**40),
        ({"TYPE": "ULONG", "VALUE": 2**63}, 2**63),
        ({"TYPE": "BYTE", "VALUE": 5}, 5),
        ({"TYPE": "FLOAT", "VALUE": 1.5}, 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ({"TYPE": "SYMBOL", "VALUE": "x"}, "x"),
        (True, True),
        (None, None),
    ],
)
def test_a_property_has_one_form(sent: Any, value: Any) -> None:
    """Whatever type a sender gave a property, handlers see it in one form, on both hosts."""
    native = received(ServiceBusMessage(b"{}", application_properties={"p": sent}))
    there = from_servicebus(decoded(ServiceBusMessageInConverter, trigger_of(native)))
    assert there.properties == delivery_of(native).properties == {"p": value}


@pytest.mark.parametrize(
    "body", [b"", b"\xef\xbb\xbf{}", '{"id": "Zürich"}'.encode("latin-1"), "{}".encode("utf-16")]
)
def test_bytes_are_as_sent(body: bytes) -> None:
    """What is no UTF-8, or begins with a byte order mark, arrives as the bytes it is on both hosts."""
    native = received(ServiceBusMessage(body))
    there = from_servicebus(decoded(ServiceBusMessageInConverter, trigger_of(native)))
    assert there.body == delivery_of(native).body == body
    stored = SimpleNamespace(
        id="m", content=base64.b64encode(body).decode(), dequeue_count=1, inserted_on=INSTANT
    )
    assert from_storage(decoded(QueueMessageInConverter, triggers.queue(body))).body == body
    assert delivery_from(stored, note)[0].body in (body, stored.content.encode())


def received(message: ServiceBusMessage) -> ServiceBusReceivedMessage:
    """A message as a broker would deliver it, through its AMQP form; it is the seventh of its queue."""
    message.raw_amqp_message.annotations = {
        "x-opt-sequence-number": 7,
        "x-opt-enqueued-time": {"TYPE": "TIMESTAMP", "VALUE": int(INSTANT.timestamp() * 1000)},
    }
    message._message = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    return ServiceBusReceivedMessage.from_bytes(bytes(PyamqpTransport.encode_message(message)))
