from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from servicebus.launcher import Queue, Subscription, Topic
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Queue("q"),
    Queue("small", quota=1000),
    Topic("orders", ("one", "two"), quota=1000),
    Topic("news", (Subscription("relayed", forward="full"),)),
    Queue("full", quota=1000),
)
bus = client_fixture()


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"properties": {"message_id": "i" * 129}}, "message id has 129 characters; 128 are allowed"),
        ({"properties": {"group_id": "s" * 129}}, "session id has 129 characters"),
        ({"properties": {"reply_to_group_id": "s" * 129}}, "reply-to session id has 129 characters"),
        ({"annotations": {"x-opt-partition-key": "p" * 129}}, "partition key has 129 characters"),
        ({"application_properties": {"big": "x" * 33_000}}, "application property 'big' has 33005 bytes"),
        ({"properties": {"subject": "s" * 33_000}}, "subject has 33005 bytes; 32768 are allowed"),
        (
            {"application_properties": {"a": "x" * 30_000, "b": "x" * 30_000, "c": "x" * 6_000}},
            "properties together have 66",
        ),
    ],
)
def test_what_azure_does_not_take_is_refused(bus: Bus, message: dict[str, Any], problem: str) -> None:
    """Ids and properties that are too long are refused with the limit, sent or scheduled, and nothing is kept."""
    properties = AmqpMessageProperties(**message.pop("properties", {}))
    too_long = AmqpAnnotatedMessage(data_body=b"x", properties=properties, **message)
    with pytest.raises(ServiceBusError, match=problem):
        bus.sender("q").send_messages(too_long)
    with pytest.raises(ServiceBusError, match=problem):
        bus.sender("q").schedule_messages(too_long, datetime.now(UTC) + timedelta(hours=1))
    assert bus.receiver("q").peek_messages(sequence_number=1) == []


def test_what_azure_takes_is_taken(bus: Bus) -> None:
    """Ids and properties just within their limits arrive, and a session id without sessions is passed on."""
    bus.sender("q").send_messages(
        ServiceBusMessage(
            "x",
            message_id="i" * 128,
            session_id="s" * 128,
            correlation_id="c" * 200,
            subject="s" * 10_000,
            application_properties={"a": "x" * 30_000},
        )
    )
    [message] = bus.receive("q")
    assert (message.message_id, message.session_id) == ("i" * 128, "s" * 128)
    assert (len(message.correlation_id), len(message.subject)) == (200, 10_000)
    bus.receiver("q").complete_message(message)


def test_a_full_queue_refuses_until_it_is_emptied(bus: Bus) -> None:
    """Past its quota a queue takes nothing in, though it still gives out; a dead letter takes room too."""
    bus.sender("small").send_messages(ServiceBusMessage(b"x" * 900))
    with pytest.raises(ServiceBusQuotaExceededError, match=r"maximum entity size .* 'small'.*bytes: 1000"):
        bus.sender("small").send_messages(ServiceBusMessage(b"y" * 200))
    [message] = bus.receive("small")
    bus.receiver("small").dead_letter_message(message)
    with pytest.raises(ServiceBusQuotaExceededError):
        bus.sender("small").send_messages(ServiceBusMessage(b"y" * 200))
    bus.drain("small", dead=True)
    bus.sender("small").send_messages(ServiceBusMessage(b"y" * 200))
    assert bus.drain("small") == ["y" * 200]


def test_a_topic_counts_what_its_subscriptions_hold(bus: Bus) -> None:
    """Two copies of one message take twice its room of the topic's quota."""
    bus.sender("orders").send_messages(ServiceBusMessage(b"x" * 400))
    with pytest.raises(ServiceBusQuotaExceededError):
        bus.sender("orders").send_messages(ServiceBusMessage(b"y" * 400))
    assert bus.drain("orders/one") == ["x" * 400]
    bus.sender("orders").send_messages(ServiceBusMessage(b"y" * 400))


def test_what_cannot_be_forwarded_is_dead_lettered(bus: Bus) -> None:
    """A subscription whose queue is full puts the copy aside, with the reason."""
    for text in (b"x" * 900, b"y" * 900):
        bus.sender("news").send_messages(ServiceBusMessage(text))
    assert bus.drain("full") == ["x" * 900]
    [dead] = bus.receive("news/relayed", dead=True)
    assert dead.dead_letter_reason == "amqp:resource-limit-exceeded"
    assert "maximum entity size" in dead.dead_letter_error_description
