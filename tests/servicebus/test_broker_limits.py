from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from servicebus.launcher import Queue, Subscription, Topic
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Queue("small", quota=1000),
    Topic("orders", ("one", "two"), quota=1000),
    Topic("news", (Subscription("relayed", forward="full"),)),
    Queue("full", quota=1000),
)
bus = client_fixture()


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
