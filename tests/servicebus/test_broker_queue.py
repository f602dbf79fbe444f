from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from servicebus.launcher import Queue
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Queue("q", lock=30, max_delivery=3), Queue("Mixed.Case", lock=30), Queue("credit", lock=30)
)
bus = client_fixture()


def test_a_completed_message_is_gone(bus: Bus) -> None:
    """A message arrives with its lock, sequence number and times, and completing it removes it."""
    bus.sender("q").send_messages(ServiceBusMessage(b"one", message_id="id-1"))
    [message] = bus.receive("q")
    assert str(message) == "one"
    assert message.message_id == "id-1"
    assert message.delivery_count == 0
    assert isinstance(message.lock_token, uuid.UUID)
    assert abs(message.enqueued_time_utc - datetime.now(UTC)) < timedelta(seconds=5)
    assert 20 < (message.locked_until_utc - datetime.now(UTC)).total_seconds() <= 30
    bus.receiver("q").complete_message(message)
    with pytest.raises(MessageAlreadySettled):
        bus.receiver("q").complete_message(message)
    assert bus.receiver("q").peek_messages(sequence_number=1) == []


def test_properties_survive(bus: Bus) -> None:
    """What a sender sets on a message, the receiver reads."""
    identity = uuid.uuid4()
    properties = {"text": "é", "number": -3, "float": 1.5, "flag": True, "id": identity}
    bus.sender("q").send_messages(
        ServiceBusMessage(
            "bödy",
            message_id="m",
            correlation_id="c",
            subject="s",
            content_type="application/json",
            reply_to="r",
            to="t",
            partition_key="p",
            time_to_live=timedelta(minutes=5),
            application_properties=properties,
        )
    )
    [message] = bus.receive("q")
    assert str(message) == "bödy"
    assert message.application_properties == {
        b"text": "é".encode(), b"number": -3, b"float": 1.5, b"flag": True, b"id": identity,
    }  # fmt: skip
    described = (message.correlation_id, message.subject, message.content_type, message.reply_to, message.to)
    assert described == ("c", "s", "application/json", "r", "t")
    assert (message.partition_key, message.time_to_live) == ("p", timedelta(minutes=5))
    bus.receiver("q").complete_message(message)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"data_body": [b"a", b"b"]}, AmqpMessageBodyType.DATA),
        ({"value_body": {"k": [1, 2]}}, AmqpMessageBodyType.VALUE),
        ({"sequence_body": [[1, "x"], [2]]}, AmqpMessageBodyType.SEQUENCE),
    ],
)
def test_body_types_survive(bus: Bus, body: dict[str, Any], kind: AmqpMessageBodyType) -> None:
    """Each of AMQP's three kinds of body arrives as it was sent, with its footer."""
    bus.sender("q").send_messages(AmqpAnnotatedMessage(**body, footer={"f": "g"}))
    [message] = bus.receive("q")
    assert message.body_type == kind
    assert message.raw_amqp_message.footer
    bus.receiver("q").complete_message(message)


def test_a_batch_is_its_messages(bus: Bus) -> None:
    """A batch arrives as single messages in order; a body that merely looks like a batch does not."""
    sender = bus.sender("q")
    batch = sender.create_message_batch()
    for number in range(200):
        batch.add_message(ServiceBusMessage(f"{number:03d}" + "x" * 1000))
    sender.send_messages(batch)
    encoded_message = b"\x00\x53\x75\xa0\x02hi"
    sender.send_messages(ServiceBusMessage(encoded_message))
    assert [text[:3] for text in bus.drain("q", count=200)] == [f"{number:03d}" for number in range(200)]
    [message] = bus.receive("q")
    assert b"".join(message.body) == encoded_message
    bus.receiver("q").complete_message(message)


def test_failed_deliveries_end_in_the_dead_letter_queue(bus: Bus) -> None:
    """Each abandon raises the delivery count, and the third moves the message to the dead-letter queue."""
    bus.sender("q").send_messages(
        ServiceBusMessage("x", message_id="poison", application_properties={"k": 1})
    )
    for count in range(3):
        [message] = bus.receive("q")
        assert message.delivery_count == count
        bus.receiver("q").abandon_message(message)
    [dead] = bus.receive("q", dead=True)
    assert (dead.message_id, dead.dead_letter_reason) == ("poison", "MaxDeliveryCountExceeded")
    assert dead.application_properties[b"k"] == 1
    bus.receiver("q", dead=True).complete_message(dead)
    assert bus.receiver("q").peek_messages(sequence_number=1) == []


def test_dead_lettering_keeps_the_reason(bus: Bus) -> None:
    """A dead-lettered message carries its reason and description; without one it carries neither."""
    bus.sender("q").send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
    first, second = bus.receive("q", 2)
    bus.receiver("q").dead_letter_message(first, reason="because", error_description="it was bad")
    bus.receiver("q").dead_letter_message(second)
    dead = bus.receive("q", 2, dead=True)
    assert [str(message) for message in dead] == ["x", "y"]
    assert (dead[0].dead_letter_reason, dead[0].dead_letter_error_description) == ("because", "it was bad")
    assert not dead[1].dead_letter_reason
    for message in dead:
        bus.receiver("q", dead=True).complete_message(message)


def test_deferred_messages_come_only_by_number(bus: Bus) -> None:
    """A deferred message is not delivered; fetched by its number it can be settled in every way."""
    receiver = bus.receiver("q")
    bus.sender("q").send_messages([ServiceBusMessage(text) for text in "abc"])
    numbers = []
    for message in bus.receive("q", 3):
        numbers.append(message.sequence_number)
        receiver.defer_message(message)
    states = [message.state for message in receiver.peek_messages(3, sequence_number=1)]
    assert states == [ServiceBusMessageState.DEFERRED] * 3
    completed, abandoned, dead = receiver.receive_deferred_messages(numbers)
    receiver.renew_message_lock(completed)
    receiver.complete_message(completed)
    receiver.abandon_message(abandoned)
    receiver.dead_letter_message(dead, reason="late")
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(numbers[0])
    [again] = receiver.receive_deferred_messages(numbers[1])
    assert again.delivery_count == 2
    receiver.complete_message(again)
    [message] = bus.receive("q", dead=True)
    assert message.dead_letter_reason == "late"
    bus.receiver("q", dead=True).complete_message(message)


def test_peeking_takes_nothing(bus: Bus) -> None:
    """Peeked messages come in order, from the number asked for, and stay where they are."""
    bus.sender("q").send_messages([ServiceBusMessage(text) for text in "abc"])
    receiver = bus.receiver("q")
    seen = receiver.peek_messages(10, sequence_number=1)
    assert [str(message) for message in seen] == ["a", "b", "c"]
    rest = receiver.peek_messages(10, sequence_number=seen[1].sequence_number)
    assert [str(message) for message in rest] == ["b", "c"]
    assert bus.drain("q", count=3) == ["a", "b", "c"]


def test_receive_and_delete_needs_no_settling(bus: Bus) -> None:
    """In receive-and-delete mode a delivered message is gone."""
    bus.sender("q").send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    receiver = bus.receiver("q", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert len(receiver.receive_messages(5, max_wait_time=3)) == 5
    assert bus.receiver("q").peek_messages(5, sequence_number=1) == []


def test_a_message_too_large_is_refused(bus: Bus) -> None:
    """Up to 256 KiB go through in many frames; more is refused, and the sender works on."""
    large = os.urandom(100_000).hex()
    bus.sender("q").send_messages(ServiceBusMessage(large))
    assert bus.drain("q") == [large]
    with pytest.raises(MessageSizeExceededError):
        bus.sender("q").send_messages(ServiceBusMessage(os.urandom(400_000)))
    bus.sender("q").send_messages(ServiceBusMessage("after"))
    assert bus.drain("q") == ["after"]


def test_names_compare_without_case(bus: Bus) -> None:
    """An entity is found whatever the case of its name."""
    bus.sender("mixed.CASE").send_messages(ServiceBusMessage("x"))
    assert bus.drain("MIXED.case") == ["x"]


def test_an_unknown_entity_is_refused(bus: Bus) -> None:
    """Sending to or receiving from an entity that was not declared raises the SDK's not-found error."""
    with pytest.raises(MessagingEntityNotFoundError):
        bus.sender("nope").send_messages(ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityNotFoundError):
        bus.receiver("nope").receive_messages(max_wait_time=2)


def test_sessions_are_refused(broker: Broker) -> None:
    """Asking for a session is refused at once, rather than answered without one."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        pytest.raises(ServiceBusError, match="no sessions"),
        client.get_queue_receiver("q", session_id="s") as receiver,
    ):
        receiver.receive_messages(max_wait_time=2)


def test_nothing_can_be_sent_to_a_dead_letter_queue(bus: Bus) -> None:
    """A dead-letter queue takes messages from the broker only."""
    with pytest.raises(ServiceBusError, match="Nothing can be sent"):
        bus.sender("q/$DeadLetterQueue").send_messages(ServiceBusMessage("x"))


def test_closing_gives_prefetched_messages_back(broker: Broker, bus: Bus) -> None:
    """What a closed receiver had fetched ahead comes back, and counts as no delivery."""
    bus.sender("credit").send_messages([ServiceBusMessage(str(number)) for number in range(10)])
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        receiver = client.get_queue_receiver("credit", prefetch_count=10)
        [message] = receiver.receive_messages(1, max_wait_time=3)
        receiver.complete_message(message)
        receiver.close()
    messages = bus.receive("credit", 9)
    assert [str(message) for message in messages] == [str(number) for number in range(1, 10)]
    assert {message.delivery_count for message in messages} == {0}
    for message in messages:
        bus.receiver("credit").complete_message(message)


def test_the_dead_letter_queue_of_a_queue_is_an_entity(bus: Bus) -> None:
    """The SDK's sub-queue and the path ending in $DeadLetterQueue are the same place."""
    bus.sender("q").send_messages(ServiceBusMessage("x"))
    [message] = bus.receive("q")
    bus.receiver("q").dead_letter_message(message, reason="r")
    assert len(bus.receiver("q", dead=True).peek_messages(sequence_number=1)) == 1
    assert bus.receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) is bus.receiver("q", dead=True)
    assert bus.drain("q", dead=True) == ["x"]
