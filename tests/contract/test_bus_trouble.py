"""The toolkit on a broker with what Azure's has now and then: another clock, lost locks, detached links, no room."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from support.messages import handling
from support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

from runonce.clock import SystemClock
from runonce.execution.threads import in_thread
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.settings import ServiceBusConnection, Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.transports.protocols import Outgoing
from runonce.transports.servicebus import ServiceBusTransport
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = [sdk_forgets_sockets]
LOCK = 8
QUEUES = ("apart", "lost", "idle", "full")
broker = broker_fixture(*(Queue(name, lock=LOCK, max_delivery=10, dedup=600) for name in QUEUES))
bus = client_fixture()


@pytest.fixture(autouse=True)
def calmed(broker: Broker) -> Iterator[None]:
    yield
    broker.clock(0)
    broker.clear_faults()


class Host:
    """One host with stores of its own; `run` consumes a queue until it has been quiet for so long."""

    def __init__(self, broker: Broker) -> None:
        self.transport = ServiceBusTransport(ServiceBusConnection(broker.connection_string))
        self.clock = SystemClock()
        settings = Settings("shop", StorageConnection("UseDevelopmentStorage=true"), claim_lease=5)
        stores = memory_stores(self.clock)
        self.sender = self.transport.sender()
        self.deliverer = Deliverer(stores, self.sender, settings, self.clock, host="host")

    def run(self, to: Handler, max_wait: float = 3) -> int:
        return Consumer(self.deliverer, self.transport, to).run(max_wait=max_wait)


def failing_once(queue: str, then: Callable[[], None] = lambda: None) -> tuple[Handler, list[int]]:
    """A handler whose first attempt fails, after a word to the broker; and the attempts it made."""
    attempts: list[int] = []

    def body(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            then()
            raise ConnectionError("the provider hung up")

    return handling(body, queue=queue, name=queue, retries=3, retry_delay=2), attempts


def send(bus: Bus, queue: str, message_id: str = "m-1", **options: object) -> None:
    bus.sender(queue).send_messages(ServiceBusMessage(b'{"id": "A-17"}', message_id=message_id, **options))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [600, -600])
def test_a_clock_that_is_minutes_wrong_loses_and_delays_nothing(
    broker: Broker, bus: Bus, ahead: float
) -> None:
    """A message is settled, retried in time and once, and keeps its life, though the clocks are ten minutes apart."""
    broker.clock(ahead)
    send(bus, "apart", f"by {ahead}", time_to_live=timedelta(minutes=5))
    one, attempts = failing_once("apart")
    sent = broker.operations().get("send", 0)
    assert Host(broker).run(one, max_wait=LOCK + 8) == 2
    assert attempts == [1, 2]
    assert broker.operations()["send"] - sent == 1, "copies"
    assert sum(broker.counts("apart").values()) == sum(broker.counts("apart/$DeadLetterQueue").values()) == 0


def test_locks_that_are_lost_cost_no_effect_and_no_message(broker: Broker, bus: Bus) -> None:
    """When Azure moves a queue its locks end: what is at work ends as it would, and its redelivery is completed."""
    send(bus, "lost")
    effects: list[int] = []

    def body(message: Message) -> None:
        effects.append(message.attempt)
        broker.lose_locks("lost")

    host, one = Host(broker), handling(body, queue="lost", name="lost")
    host.run(one)
    assert effects == [1]
    assert sum(broker.counts("lost").values()) == sum(broker.counts("lost/$DeadLetterQueue").values()) == 0


@pytest.mark.slow
def test_links_that_are_detached_are_opened_anew(broker: Broker, bus: Bus) -> None:
    """Receiver and sender were idle for ten minutes while a handler was at work: it is sent back and done still."""
    send(bus, "idle")
    one, attempts = failing_once("idle", broker.detach)
    host = Host(broker)
    host.run(one, max_wait=LOCK + 3)
    assert attempts == [1, 2]
    broker.detach()
    host.sender.send("idle", [Outgoing(b'{"id": "B"}', "m-2")])
    host.run(one)
    assert len(attempts) == 3
    assert sum(broker.counts("idle").values()) == sum(broker.counts("idle/$DeadLetterQueue").values()) == 0


@pytest.mark.slow
def test_a_queue_that_takes_no_copy_keeps_its_message(broker: Broker, bus: Bus) -> None:
    """A full queue refuses what is sent back: the message stays, and comes again when its lock has ended."""
    send(bus, "full")
    broker.fault("full", "send", entity="full", count=3)
    one, attempts = failing_once("full")
    ended = in_thread(lambda: Host(broker).run(one, max_wait=LOCK + 6))
    assert ended.result(60) >= 1
    assert attempts == [1, 2]
    assert sum(broker.counts("full").values()) == sum(broker.counts("full/$DeadLetterQueue").values()) == 0
