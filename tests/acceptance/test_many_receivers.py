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
from runonce.errors import HostStopping
from runonce.execution.stop import StopSignal
from runonce.execution.threads import in_thread
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.messages.sending import outgoing, send_all
from runonce.settings import ServiceBusConnection
from runonce.stores.memory import memory_stores
from runonce.transports.servicebus import ServiceBusTransport
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
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
