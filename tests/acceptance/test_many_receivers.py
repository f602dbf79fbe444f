"""Several receivers of one consumer on the local Service Bus: each message once, and a stop leaves none behind."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.messages import handling
from support.service_bus import broker_fixture, sdk_forgets_sockets

from runonce.clock import SystemClock
from runonce.errors import HostStopping, PermanentError
from runonce.execution.stop import StopSignal
from runonce.execution.threads import in_thread
from runonce.messages.consumer import Consumer
from runonce.messages.definition import Handler, handler
from runonce.messages.deliver import Deliverer
from runonce.messages.sending import outgoing, send_all
from runonce.settings import ServiceBusConnection
from runonce.stores.memory import memory_stores
from runonce.transports.servicebus import ServiceBusTransport
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from servicebus.launcher import Broker

pytestmark = [sdk_forgets_sockets]

COUNT = 90
broker = broker_fixture(Queue("invoices", lock=10, max_delivery=10, dedup=600))


class Stage:
    """Replicas with one storage."""

    def __init__(self, settings: Settings, broker: Broker) -> None:
        self.transport = ServiceBusTransport(ServiceBusConnection(broker.connection_string))
        self.sender = self.transport.sender()
        self.stores: Stores = memory_stores(SystemClock())
        self.settings = replace(settings, shutdown_timeout=20)

    def consumer(self, handler: Handler, stop: StopSignal | None = None) -> Consumer:
        clock = SystemClock()
        host = Deliverer(self.stores, self.sender, self.settings, clock, host="replica", stop=stop)
        return Consumer(host, self.transport, handler)


def test_each_message_is_handled_once_whichever_receiver_it_comes_by(
    settings: Settings, broker: Broker
) -> None:
    """Three receivers take them, twenty at a time; after a stop in the middle another replica finds the rest."""
    stage, stop = Stage(settings, broker), StopSignal()
    lock, done, running, most = threading.Lock(), list[str](), [0], [0]

    def body(message: Message) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.05)
        with lock:
            running[0] -= 1
            done.append(message.key)
            if len(done) == COUNT // 3:
                stop.set(HostStopping("The host was told to stop."))

    one = handling(body, concurrency=20)
    send_all(stage.sender, one, [outgoing(one, {"id": str(n)}) for n in range(COUNT)])
    first = in_thread(stage.consumer(one, stop).run).result(60)
    assert COUNT // 3 <= first < COUNT  # those that it gives back unrun are settled too
    stage.consumer(one).run(max_wait=2)
    assert Counter(done) == {str(n): 1 for n in range(COUNT)}
    assert stage.consumer(one).run(max_wait=1) == 0
    assert 8 < most[0] <= 20
    stage.sender.close()


@pytest.mark.parametrize("limit", [1, 33])
def test_no_more_are_taken_than_were_asked_for(settings: Settings, broker: Broker, limit: int) -> None:
    """Several receivers take so many together, and what they leave is there for somebody else."""
    stage = Stage(settings, broker)
    one = handling(lambda _: None, concurrency=20)
    send_all(stage.sender, one, [outgoing(one, {"id": f"{limit}-{n}"}) for n in range(40)])
    assert stage.consumer(one).run(max_messages=limit) == limit
    assert stage.consumer(one).run(max_wait=2) == 40 - limit
    stage.sender.close()


def test_a_batch_is_settled_message_by_message(settings: Settings, broker: Broker) -> None:
    """On a real connection: those that failed come again alone or are dead-lettered, the others are completed."""
    stage, calls = Stage(settings, broker), list[list[str]]()

    @handler(queue="invoices", key="id", name="take", batch=20, retry_delay=0.1)
    def take(messages: list[Message]) -> None:
        calls.append([message.key for message in messages])
        for message in messages:
            if message.key == "b3" and message.attempt == 1:
                message.fail(ValueError("not now"))
            if message.key == "b4":
                message.fail(PermanentError("never"))

    keys = [f"b{n}" for n in range(30)]
    send_all(stage.sender, take, [outgoing(take, {"id": key}) for key in keys])
    assert stage.consumer(take).run(max_wait=3) == 31
    assert ["b3"] in calls
    assert max(map(len, calls)) > 1
    assert sorted(key for call in calls for key in call) == sorted([*keys, "b3"])
    letters = stage.transport.dead_letters(take)
    assert [dead.description.partition(": ")[2] for dead in letters.peek(10)] == ["PermanentError: never"]
    letters.close()
    stage.sender.close()
