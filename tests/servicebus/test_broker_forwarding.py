from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from servicebus.launcher import Queue, Subscription, Topic
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Topic(
        "orders",
        (
            Subscription(
                "billing", forward="orders.billing", filter="sys.Label <> 'draft' OR sys.Label IS NULL"
            ),
            Subscription("paid", filter={"subject": "paid", "properties": {"country": "NO"}}),
        ),
    ),
    Topic(
        "news", ("kept", Subscription("brief", ttl=1, dead_letter_expired=True, forward_dead_letters="dead"))
    ),
    Queue("orders.billing", lock=30, max_delivery=2, dedup=60, forward_dead_letters="dead"),
    Queue("dead"),
    Queue("first", forward="second"),
    Queue("second", forward="orders"),
    Queue("round", forward="about"),
    Queue("about", forward="round"),
    Topic("expiring", ("one",), ttl=1, dead_letter_expired=True),
)
bus = client_fixture()


def test_a_subscription_forwards_to_a_queue(broker: Broker, bus: Bus) -> None:
    """A copy arrives in the queue as a first delivery that keeps its properties and the topic's number."""
    bus.sender("orders").send_messages(
        ServiceBusMessage("x", message_id="f-1", application_properties={"k": 1})
    )
    [message] = bus.receive("orders.billing")
    assert (str(message), message.message_id, message.application_properties) == ("x", "f-1", {b"k": 1})
    assert (message.delivery_count, message.enqueued_sequence_number) == (0, 1)
    bus.receiver("orders.billing").complete_message(message)
    assert sum(broker.counts("orders/Subscriptions/billing").values()) == 0


def test_filters_choose_who_gets_a_copy(broker: Broker, bus: Bus) -> None:
    """Each subscription gets what its filter describes, and a topic's message without a taker is gone."""
    bus.sender("orders").send_messages(
        [
            ServiceBusMessage("draft", subject="draft", message_id="c-1"),
            ServiceBusMessage(
                "abroad", subject="paid", application_properties={"country": "SE"}, message_id="c-2"
            ),
            ServiceBusMessage(
                "home", subject="paid", application_properties={"country": "NO"}, message_id="c-3"
            ),
        ]
    )
    assert bus.drain("orders/paid") == ["home"]
    assert bus.drain("orders.billing", count=2) == ["abroad", "home"]
    assert broker.counts("orders/Subscriptions/paid")["active"] == 0
    assert broker.counts("orders.billing")["active"] == 0


def test_a_dead_letter_is_forwarded_with_where_it_died(bus: Bus) -> None:
    """Dead letters that go on to a queue name the entity they died in, the reason and their first number."""
    bus.sender("orders").send_messages(ServiceBusMessage("x", message_id="d-1"))
    for _ in range(2):
        [message] = bus.receive("orders.billing")
        bus.receiver("orders.billing").abandon_message(message)
    [dead] = bus.receive("dead")
    assert dead.dead_letter_source == "orders.billing"
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description == "Message could not be consumed after 2 delivery attempts."
    assert dead.enqueued_sequence_number == message.enqueued_sequence_number
    assert dead.delivery_count == 0
    bus.receiver("dead").complete_message(dead)


def test_a_subscription_has_its_own_time_to_live(bus: Bus) -> None:
    """A copy nobody takes in the subscription's time is dead-lettered there, and not in the others."""
    bus.sender("news").send_messages(ServiceBusMessage("x"))
    [dead] = bus.receive("dead")
    assert dead.dead_letter_source == "news/Subscriptions/brief"
    described = (dead.dead_letter_reason, dead.dead_letter_error_description)
    assert described == ("TTLExpiredException", "The message expired and was dead lettered.")
    bus.receiver("dead").complete_message(dead)
    assert bus.drain("news/kept") == ["x"]


def test_a_topic_limits_the_time_to_live_of_its_copies(broker: Broker, bus: Bus) -> None:
    """A topic's time to live holds in its subscriptions, and receivers see it on the message."""
    bus.sender("expiring").send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
    [first] = bus.receive("expiring/one")
    assert first.time_to_live == timedelta(seconds=1)
    bus.receiver("expiring/one").complete_message(first)
    dead = "expiring/Subscriptions/one/$DeadLetterQueue"
    deadline = time.monotonic() + 5
    while not broker.counts(dead)["active"]:
        assert time.monotonic() < deadline
    assert sum(broker.counts("expiring/Subscriptions/one").values()) == 0


def test_queues_forward_in_a_chain(broker: Broker, bus: Bus) -> None:
    """From queue to queue to topic to subscription to queue, and what is scheduled waits in the first."""
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    bus.sender("first").schedule_messages(ServiceBusMessage("x", message_id="g-1"), at)
    assert broker.counts("first")["scheduled"] == 1
    assert bus.drain("orders.billing") == ["x"]
    assert datetime.now(UTC) >= at


def test_a_forwarded_message_is_checked_for_duplicates(broker: Broker, bus: Bus) -> None:
    """The queue at the end drops an id it has seen, although the topic itself detects none."""
    for text in ("x", "y"):
        bus.sender("orders").send_messages(ServiceBusMessage(text, message_id="h-1"))
    assert bus.drain("orders.billing") == ["x"]
    assert broker.counts("orders.billing")["active"] == 0


def test_a_circle_ends_after_four_hops(broker: Broker, bus: Bus) -> None:
    """A message that is forwarded too often is dead-lettered with Azure's reason."""
    bus.sender("round").send_messages(ServiceBusMessage("x"))
    [dead] = bus.receive("round", dead=True)
    assert dead.dead_letter_reason == "MaxTransferHopCountExceeded"
    bus.receiver("round", dead=True).complete_message(dead)
    assert sum(broker.counts("about").values()) == 0


@pytest.mark.parametrize(
    ("entity", "dead"), [("orders/billing", False), ("first", False), ("orders.billing", True)]
)
def test_nobody_receives_where_messages_are_forwarded(bus: Bus, entity: str, dead: bool) -> None:
    """A receiver on an entity that forwards is refused in Azure's words."""
    with pytest.raises(
        ServiceBusError, match="Cannot create a message receiver on an entity with auto-forwarding"
    ):
        bus.receiver(entity, dead=dead).receive_messages(max_wait_time=2)
