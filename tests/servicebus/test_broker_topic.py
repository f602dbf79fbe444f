from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from servicebus.launcher import Queue, Topic
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Topic("orders", ("Billing", "shipping"), lock=5, max_delivery=2),
    Topic("unique", ("one", "two"), dedup=60),
    Topic("deaf"),
    Queue("q"),
)
bus = client_fixture()


def test_each_subscription_gets_its_own_copy(bus: Bus) -> None:
    """A message to a topic arrives at every subscription, and completing one copy leaves the other."""
    bus.sender("orders").send_messages(ServiceBusMessage("x", application_properties={"k": 1}))
    [billing] = bus.receive("orders/billing")
    assert billing.application_properties == {b"k": 1}
    bus.receiver("orders/billing").complete_message(billing)
    assert bus.drain("orders/shipping") == ["x"]


def test_each_subscription_has_its_own_dead_letters(broker: Broker, bus: Bus) -> None:
    """A copy dead-lettered in one subscription, by hand or by its deliveries, is dead only there."""
    bus.sender("orders").send_messages([ServiceBusMessage("by hand"), ServiceBusMessage("by count")])
    receiver = bus.receiver("orders/billing")
    by_hand, by_count = bus.receive("orders/billing", 2)
    receiver.dead_letter_message(by_hand, reason="because")
    receiver.abandon_message(by_count)
    [by_count] = bus.receive("orders/billing")
    assert by_count.delivery_count == 1
    receiver.abandon_message(by_count)
    reasons = [message.dead_letter_reason for message in bus.receive("orders/billing", 2, dead=True)]
    assert reasons == ["because", "MaxDeliveryCountExceeded"]
    assert broker.counts("orders/Subscriptions/shipping/$DeadLetterQueue")["active"] == 0
    assert bus.drain("orders/shipping", count=2) == ["by hand", "by count"]


def test_a_subscription_has_its_own_management(bus: Bus) -> None:
    """Peeking, renewing and deferring work on a subscription."""
    bus.sender("orders").send_messages(ServiceBusMessage("x"))
    receiver = bus.receiver("orders/shipping")
    assert [str(message) for message in receiver.peek_messages(sequence_number=1)] == ["x"]
    [message] = bus.receive("orders/shipping")
    receiver.renew_message_lock(message)
    receiver.defer_message(message)
    [message] = receiver.receive_deferred_messages(message.sequence_number)
    receiver.complete_message(message)
    assert bus.drain("orders/billing") == ["x"]


def test_a_scheduled_message_waits_in_the_topic(broker: Broker, bus: Bus) -> None:
    """A message scheduled on a topic reaches the subscriptions when due, and can be cancelled until then."""
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    sender = bus.sender("orders")
    numbers = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], at)
    sender.cancel_scheduled_messages(numbers[1])
    assert broker.counts("orders")["scheduled"] == 1
    assert broker.counts("orders/Subscriptions/billing")["active"] == 0
    assert bus.drain("orders/billing") == ["kept"]
    assert datetime.now(UTC) >= at
    assert bus.drain("orders/shipping") == ["kept"]


def test_a_topic_detects_duplicates_once_for_all(bus: Bus) -> None:
    """A message id seen by the topic is swallowed for every subscription."""
    for _ in range(2):
        bus.sender("unique").send_messages(ServiceBusMessage("x", message_id="same"))
    for subscription in ("unique/one", "unique/two"):
        assert bus.drain(subscription) == ["x"]
        assert bus.receiver(subscription).peek_messages(sequence_number=1) == []


def test_a_topic_without_subscriptions_keeps_nothing(broker: Broker, bus: Bus) -> None:
    """What nobody subscribes to is accepted and gone."""
    bus.sender("deaf").send_messages(ServiceBusMessage("x"))
    assert sum(broker.counts("deaf").values()) == 0


def test_a_topic_itself_cannot_be_received_from(bus: Bus) -> None:
    """Receiving from a topic instead of a subscription is refused."""
    with pytest.raises(ServiceBusError, match="receive from a subscription"):
        bus.receiver("orders").receive_messages(max_wait_time=2)
