"""A local Service Bus for a test module, where it can run; and clients that are opened once and closed at the end.

broker = service_bus.broker_fixture(Queue("invoices", lock=5), Topic("orders", ("billing",)))
bus = service_bus.client_fixture()

def test_something(bus): bus.sender("invoices").send_messages(…)
"""

from __future__ import annotations

import gc
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusSubQueue

from servicebus import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender

    from servicebus.launcher import Broker, Queue, Topic


sdk_forgets_sockets = pytest.mark.filterwarnings(
    "ignore:unclosed (<socket|transport|<StreamWriter):ResourceWarning"
)
"""For every module that uses the SDK: it forgets to close the sockets of connections that broke or were refused."""


def require_broker() -> None:
    """Skip a test where the broker cannot run, naming the remedy; in CI that is a failure."""
    if launcher.available():
        return
    if os.environ.get("CI"):
        pytest.fail(launcher.HINT, pytrace=False)
    pytest.skip(launcher.HINT)


def broker_fixture(*entities: Queue | Topic, scope: str = "module", **options: Any) -> Any:
    """A fixture that is a running broker with these entities; options go to `launcher.start`."""

    @pytest.fixture(scope=scope, name="broker")
    def broker() -> Iterator[Broker]:
        require_broker()
        with launcher.start(entities, **options) as running:
            yield running

    return broker


def client_fixture(scope: str = "module", **options: Any) -> Any:
    """A fixture that is a `Bus` on the module's broker."""

    @pytest.fixture(scope=scope, name="bus")
    def bus(broker: Broker) -> Iterator[Bus]:
        with Bus(broker.connection_string, **options) as clients:
            yield clients

    return bus


class Bus:
    """Senders and receivers by name, each opened once: opening and closing one takes the SDK half a second each."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        options.setdefault("retry_total", 0)
        options.setdefault("keep_alive", 0)  # a sender without that thread closes at once
        self._client = ServiceBusClient.from_connection_string(connection_string, **options)
        self._open: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(max_workers=16) as pool:  # one by one would be half a second each
            list(pool.map(lambda handler: handler.close(), self._open.values()))
        self._client.close()
        self._open.clear()
        with warnings.catch_warnings():  # those of broken sockets belong to this test, not to the next one
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def sender(self, entity: str) -> ServiceBusSender:
        """A sender to a queue, or to a topic, which is the same to the SDK."""
        return self._once(f"send {entity}", lambda: self._client.get_queue_sender(entity))

    def receiver(self, entity: str, *, dead: bool = False, **options: Any) -> ServiceBusReceiver:
        """A receiver from a queue or `topic/subscription`, or from its dead-letter queue."""
        if dead:
            options["sub_queue"] = ServiceBusSubQueue.DEAD_LETTER
        topic, _, subscription = entity.partition("/")

        def make() -> ServiceBusReceiver:
            if subscription:
                return self._client.get_subscription_receiver(topic, subscription, **options)
            return self._client.get_queue_receiver(entity, **options)

        return self._once(f"receive {entity} {sorted(options.items())}", make)

    def receive(
        self, entity: str, count: int = 1, *, wait: float = 5, dead: bool = False
    ) -> list[ServiceBusReceivedMessage]:
        """Exactly this many messages, however many calls the SDK needs, or as many as came in time."""
        receiver, found = self.receiver(entity, dead=dead), []
        while len(found) < count:
            more = receiver.receive_messages(count - len(found), max_wait_time=wait)
            if not more:
                break
            found += more
        return found

    def drain(self, entity: str, *, dead: bool = False, count: int = 1, wait: float = 5) -> list[str]:
        """Receive and complete this many; returns their bodies."""
        messages = self.receive(entity, count, wait=wait, dead=dead)
        for message in messages:
            self.receiver(entity, dead=dead).complete_message(message)
        return [str(message) for message in messages]

    def _once(self, name: str, make: Any) -> Any:
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]
