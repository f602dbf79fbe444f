from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from servicebus.launcher import Queue
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets

broker = broker_fixture(
    Queue("short", lock=1, max_delivery=2),
    Queue("held", lock=1.5, max_delivery=5),
    Queue("renewed", lock=2.5),
    Queue("killed", lock=2),
    Queue("cut", lock=30),
)
bus = client_fixture()


def test_renewing_extends_a_lock(bus: Bus) -> None:
    """A renewed lock outlives its first duration, and the message can still be completed."""
    bus.sender("held").send_messages(ServiceBusMessage("x"))
    [message] = bus.receive("held")
    first = message.locked_until_utc
    time.sleep(1)
    assert bus.receiver("held").renew_message_lock(message) > first
    time.sleep(0.8)
    bus.receiver("held").complete_message(message)
    assert bus.receiver("held").peek_messages(sequence_number=1) == []


def test_a_late_settlement_is_refused(bus: Bus) -> None:
    """Once the lock is over, completing and renewing raise, and the message is delivered again."""
    bus.sender("short").send_messages(ServiceBusMessage("x"))
    [message] = bus.receive("short")
    time.sleep(1.2)
    message._expiry = datetime.now(UTC) + timedelta(minutes=1)  # else the SDK refuses before the broker can
    with pytest.raises(MessageLockLostError):
        bus.receiver("short").complete_message(message)
    with pytest.raises(MessageLockLostError):
        bus.receiver("short").renew_message_lock(message)
    [again] = bus.receive("short")
    assert again.sequence_number == message.sequence_number
    assert again.lock_token != message.lock_token
    assert again.delivery_count == 1
    bus.receiver("short").complete_message(again)


def test_expired_locks_count_as_deliveries(bus: Bus) -> None:
    """A message whose receivers all let their locks run out ends in the dead-letter queue."""
    bus.sender("short").send_messages(ServiceBusMessage("x"))
    for count in range(2):
        [message] = bus.receive("short")
        assert message.delivery_count == count
    [dead] = bus.receive("short", dead=True)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    bus.receiver("short", dead=True).complete_message(dead)


def test_the_sdk_renews_a_lock_by_itself(bus: Bus) -> None:
    """Under the SDK's own renewer, work may take longer than the lock."""
    with AutoLockRenewer(max_lock_renewal_duration=30) as renewer:
        receiver = bus.receiver("renewed")
        bus.sender("renewed").send_messages(ServiceBusMessage("slow"))
        [message] = bus.receive("renewed")
        renewer.register(receiver, message)
        time.sleep(3)
        assert message.auto_renew_error is None
        receiver.complete_message(message)


_HOLD = """
import sys, time
from azure.servicebus import ServiceBusClient
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_receiver("killed") as receiver:
        print(receiver.receive_messages(1, max_wait_time=5)[0].delivery_count, flush=True)
        time.sleep(60)
"""


def test_a_killed_receiver_loses_nothing(broker: Broker, bus: Bus) -> None:
    """What a killed process held comes back when its lock ends, as one failed delivery."""
    bus.sender("killed").send_messages(ServiceBusMessage("x"))
    command = [sys.executable, "-c", _HOLD, broker.connection_string]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "0\n"
        holder.kill()
    assert broker.counts("killed")["locked"] == 1
    [message] = bus.receive("killed")
    assert message.delivery_count == 1
    bus.receiver("killed").complete_message(message)


def test_a_lock_outlives_its_connection(broker: Broker, bus: Bus) -> None:
    """After a cut connection the holder settles through the management node, by the lock alone."""
    bus.sender("cut").send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_backoff_factor=0.1) as client,
        client.get_queue_receiver("cut") as receiver,
    ):
        first, second = receiver.receive_messages(2, max_wait_time=5)
        broker.cut()
        receiver.complete_message(first)
        receiver.abandon_message(second)
        [message] = receiver.receive_messages(1, max_wait_time=5)
        assert (str(message), message.delivery_count) == ("b", 1)
        receiver.complete_message(message)
