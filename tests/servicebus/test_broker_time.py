from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import ServiceBusError

from servicebus.launcher import Queue
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(
    Queue("q"),
    Queue("dedup", dedup=2),
    Queue("expiring", dead_letter_expired=True),
    Queue("vanishing", ttl=1),
)
bus = client_fixture()


def test_a_scheduled_message_waits(bus: Bus) -> None:
    """A message scheduled for later, in either of the SDK's ways, arrives then and not before."""
    sender, receiver = bus.sender("q"), bus.receiver("q")
    sender.send_messages(ServiceBusMessage("now"))
    assert bus.drain("q") == ["now"]  # opens both, so that only the schedule is measured
    at = datetime.now(UTC) + timedelta(seconds=2)
    numbers = sender.schedule_messages([ServiceBusMessage("cancelled"), ServiceBusMessage("first")], at)
    annotated = ServiceBusMessage("second")
    annotated.scheduled_enqueue_time_utc = at
    sender.send_messages(annotated)
    sender.cancel_scheduled_messages(numbers[0])
    states = [message.state for message in receiver.peek_messages(5, sequence_number=1)]
    assert states == [ServiceBusMessageState.SCHEDULED] * 2
    messages = bus.receive("q", 2)
    assert datetime.now(UTC) >= at
    assert [str(message) for message in messages] == ["first", "second"]
    assert abs(messages[0].enqueued_time_utc - at) < timedelta(seconds=0.01)
    for message in messages:
        receiver.complete_message(message)


def test_only_a_waiting_message_can_be_cancelled(bus: Bus) -> None:
    """Cancelling a scheduled message twice is refused."""
    at = datetime.now(UTC) + timedelta(minutes=5)
    [number] = bus.sender("q").schedule_messages(ServiceBusMessage("x"), at)
    bus.sender("q").cancel_scheduled_messages(number)
    with pytest.raises(ServiceBusError, match="no scheduled message"):
        bus.sender("q").cancel_scheduled_messages(number)


def test_a_message_id_is_taken_once_per_window(bus: Bus) -> None:
    """A second message of the same id is swallowed, even after the first is completed, until the window ends."""
    sender = bus.sender("dedup")
    sender.send_messages(ServiceBusMessage("x", message_id="same"))
    sender.send_messages([ServiceBusMessage("y", message_id=name) for name in ("same", "other", "other")])
    assert bus.drain("dedup", count=2) == ["x", "y"]
    sender.send_messages(ServiceBusMessage("z", message_id="same"))
    assert bus.receiver("dedup").peek_messages(sequence_number=1) == []
    time.sleep(2.1)
    sender.send_messages(ServiceBusMessage("again", message_id="same"))
    assert bus.drain("dedup") == ["again"]


def test_an_expired_message_is_dead_lettered_if_declared(broker: Broker, bus: Bus) -> None:
    """A message past its time to live moves to the dead-letter queue though nobody receives."""
    bus.sender("expiring").send_messages(ServiceBusMessage("x", time_to_live=timedelta(seconds=1)))
    time.sleep(1.2)
    assert broker.counts("expiring")["active"] == 0
    [dead] = bus.receive("expiring", dead=True)
    assert dead.dead_letter_reason == "TTLExpiredException"
    bus.receiver("expiring", dead=True).complete_message(dead)


def test_a_deferred_message_expires(broker: Broker, bus: Bus) -> None:
    """A message put off past its time to live moves to the dead-letter queue, also if it is locked by then."""
    message = ServiceBusMessage("x", time_to_live=timedelta(seconds=2))
    bus.sender("expiring").send_messages([message, ServiceBusMessage("y", time_to_live=timedelta(seconds=2))])
    left, locked = bus.receive("expiring", 2)
    for each in (left, locked):
        bus.receiver("expiring").defer_message(each)
    [locked] = bus.receiver("expiring").receive_deferred_messages(locked.sequence_number)
    [dead] = bus.receive("expiring", dead=True)
    assert (str(dead), dead.dead_letter_reason) == ("x", "TTLExpiredException")
    assert broker.counts("expiring")["locked"] == 1
    bus.receiver("expiring").abandon_message(locked)
    [later] = bus.receive("expiring", dead=True)
    assert (str(later), later.dead_letter_reason) == ("y", "TTLExpiredException")
    for each in (dead, later):
        bus.receiver("expiring", dead=True).complete_message(each)
    assert sum(broker.counts("expiring").values()) == 0


def test_a_queue_limits_the_time_to_live(broker: Broker, bus: Bus) -> None:
    """A queue's own limit holds for messages that name none or a longer one; expired, they vanish."""
    bus.sender("vanishing").send_messages(
        [ServiceBusMessage("x"), ServiceBusMessage("y", time_to_live=timedelta(hours=1))]
    )
    assert broker.counts("vanishing")["active"] == 2
    time.sleep(1.2)
    assert broker.counts("vanishing")["active"] == 0
    assert broker.counts("vanishing/$DeadLetterQueue")["active"] == 0


def test_a_scheduled_message_lives_from_its_due_time(broker: Broker, bus: Bus) -> None:
    """Time to live starts when a scheduled message becomes due, not when it was sent."""
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    message = ServiceBusMessage("x", time_to_live=timedelta(seconds=1))
    bus.sender("expiring").schedule_messages(message, at)
    time.sleep(1.7)
    assert broker.counts("expiring")["active"] == 1
    time.sleep(1)
    assert broker.counts("expiring")["active"] == 0
