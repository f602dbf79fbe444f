"""A part of the explorer's faults on the real things: Azurite behind a proxy, and the local Service Bus.

Each case is one message of one queue, a fault somewhere in its flow, and a healthy host that works the queue off
after it. The cases run side by side, for most of their time is waiting for locks and leases to end.
"""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from support import service_bus
from support.messages import handling
from support.namespaces import fresh_settings

from runonce.clock import SystemClock
from runonce.errors import TransportError
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.sending import outgoing
from runonce.settings import ServiceBusConnection, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import Insert
from runonce.testing.faults import Boundary, Died, Fault
from runonce.testing.proxy import DROP_REPLY, DROP_REQUEST, FAILED_AFTER_APPLY, StorageProxy
from runonce.testing.proxy import Fault as Wire
from runonce.transports.servicebus import ServiceBusTransport
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.settings import Settings
    from runonce.transports.protocols import Received
    from runonce.transports.settlement import Settlement
    from servicebus.launcher import Broker

pytestmark = service_bus.sdk_forgets_sockets

CLAIM_LEASE = 3
LOCK = 4
PATIENCE = 30.0
SIDE_BY_SIDE = 10
NOTHING = Wire()


@dataclass(frozen=True)
class Case:
    """A fault, and what it leaves."""

    name: str
    wire: tuple[Wire, ...] = ()
    """What happens to what the table is told, in order."""
    death: tuple[int, Fault] | None = None
    """At which call of the claim table's or the sender's the first host dies."""
    broker: tuple[str, str, bool] | None = None
    """Kind of fault, the operation it meets, and whether on the follow-up's queue."""
    repeats: bool = False
    """Whether the handler runs twice."""


CASES = [
    Case("nothing"),
    Case("claim: request lost", (DROP_REQUEST,)),
    Case("claim: reply lost", (DROP_REPLY,)),
    Case("claim: 500 after apply", (FAILED_AFTER_APPLY,)),
    Case("record: request lost", (NOTHING, DROP_REQUEST)),
    Case("record: reply lost", (NOTHING, DROP_REPLY)),
    Case("record: 500 after apply", (NOTHING, FAILED_AFTER_APPLY)),
    Case("death before the claim", death=(1, Fault.DEATH_BEFORE)),
    Case("death after the claim", death=(1, Fault.DEATH_AFTER)),
    Case("death before the record", death=(2, Fault.DEATH_BEFORE), repeats=True),
    Case("death after the record", death=(2, Fault.DEATH_AFTER)),
    Case("death before the follow-up", death=(3, Fault.DEATH_BEFORE)),
    Case("death after the follow-up", death=(3, Fault.DEATH_AFTER)),
    Case("death before settling", death=(4, Fault.DEATH_BEFORE)),
    Case("follow-up: connection cut, not sent", broker=("drop-before-apply", "send", True)),
    Case("follow-up: sent, connection cut", broker=("drop-after-apply", "send", True)),
    Case("delivery: connection cut", broker=("drop-after-apply", "deliver", False)),
    Case("completing: connection cut, not done", broker=("drop-before-apply", "complete", False)),
    Case("completing: done, connection cut", broker=("drop-after-apply", "complete", False)),
    Case("completing: server busy", broker=("busy", "complete", False)),
]


def queues() -> list[Queue]:
    """Two for each case: of its message and of the follow-up."""
    return [
        Queue(f"{kind}-{n}", lock=LOCK, dedup=60) for n in range(len(CASES)) for kind in ("orders", "mails")
    ]


broker = service_bus.broker_fixture(*queues())


@dataclass
class Explored:
    """What came of a case."""

    ran: list[str] = field(default_factory=list)
    """Idempotency keys, of each time the handler ran to its commit."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    mails: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)
    dead: list[dict[str, int]] = field(default_factory=list)


class Flow:
    """One case's queue, stores and hosts."""

    def __init__(self, number: int, case: Case, azurite: str, broker: Broker) -> None:
        self.case = case
        self.broker = broker
        self.queues = (f"orders-{number}", f"mails-{number}")
        self.found = Explored()
        self.direct = fresh_settings(azurite, claim_lease=CLAIM_LEASE)
        self.transport = ServiceBusTransport(ServiceBusConnection(broker.connection_string))
        self.mail = handling(self._mail, name="mail", queue=self.queues[1], key=None)
        self.order = handling(self._order, name="order", queue=self.queues[0])

    def _mail(self, message: Message) -> None:
        message.commit({"mail": {"n": message.json["n"]}})

    def _order(self, message: Message) -> None:
        message.enqueue(self.mail, {"n": 1})
        self.found.ran.append(message.idempotency_key)
        message.commit({"order": {"attempt": message.attempt}})

    def run(self, azurite: str) -> Explored:
        """The message, the fault, and the healthy host after it."""
        with ExitStack() as stack:
            proxy = stack.enter_context(StorageProxy(azurite))
            for wire in self.case.wire:
                proxy.table.inject(wire, "^(POST|PUT) ")
            sender = self.transport.sender()
            stack.callback(sender.close)
            sender.send(self.order.queue, [outgoing(self.order, {"id": "A-17"})])
            if self.case.broker is not None:
                kind, operation, follow_up = self.case.broker
                self.broker.fault(kind, operation, entity=self.queues[follow_up])
            proxied = replace(self.direct, storage=StorageConnection(proxy.connection_string))
            self._host(stack, "first", proxied, self.case.death)
            if self.case.death is not None:
                self._host(stack, "second", self.direct, None)
        claims, namespace = azure_stores(self.direct).claims, self.direct.namespace
        self.found.rows = list(read_effects(claims, namespace, "order"))
        self.found.mails = list(read_effects(claims, namespace, "mail"))
        self.found.counts = [self.broker.counts(name) for name in self.queues]
        self.found.dead = [self.broker.counts(f"{name}/$DeadLetterQueue") for name in self.queues]
        return self.found

    def _host(self, stack: ExitStack, name: str, settings: Settings, death: tuple[int, Fault] | None) -> None:
        """A host that works both queues off, or dies on the way: then nothing of it is used any more."""
        boundary = Boundary()
        if death is not None:
            boundary.at(*death)
        sender, settle = self.transport.sender(), _Crossing(boundary)
        inboxes = [self.transport.inbox(one) for one in (self.order, self.mail)]
        closing: Any
        for closing in (sender, *inboxes):
            stack.callback(closing.close)
        host = Deliverer(
            boundary.around(azure_stores(settings)),
            settle.around(sender),
            settings,
            SystemClock(),
            host=name,
        )
        until = time.monotonic() + PATIENCE
        with contextlib.suppress(Died):
            while not self._is_empty() and time.monotonic() < until:
                for one, inbox in zip((self.order, self.mail), inboxes, strict=True):
                    with contextlib.suppress(TransportError):
                        for received in inbox.receive(1, 0.3):
                            settlement = host.deliver(one, received.delivery)
                            settle(inbox, received, settlement)

    def _is_empty(self) -> bool:
        return all(not any(self.broker.counts(name).values()) for name in self.queues)


class _Crossing:
    """Counts what goes to the broker as the table's calls are counted, so that a host can die there too."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def __call__(self, inbox: Any, received: Received, settlement: Settlement) -> None:
        self._boundary.cross("settle", lambda: inbox.settle(received, settlement), TransportError)

    def around(self, sender: Any) -> Any:
        """The sender, as this process reaches it."""
        crossing = self

        class Crossed:
            def send(self, entity: str, messages: Any) -> None:
                crossing._boundary.cross("send", lambda: sender.send(entity, messages), TransportError)

            def close(self) -> None:
                sender.close()

        return Crossed()


@pytest.fixture(scope="module")
def explored(azurite: str, broker: Broker) -> dict[str, Future[Explored]]:
    """What came of each case, once all have ended: nothing of them may break a connection between two tests."""
    # The table is there before them, or the first thing it is told would be refused for want of it.
    azure_stores(fresh_settings(azurite)).claims.commit("made", [Insert("row", {"n": 1})])
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="case") as pool:
        cases = {
            case.name: pool.submit(Flow(n, case, azurite, broker).run, azurite)
            for n, case in enumerate(CASES)
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_outcome_table_holds(case: Case, explored: dict[str, Future[Explored]]) -> None:
    """Whatever was lost or died: one effect in the table, one follow-up by its id, every message settled, none dead."""
    found = explored[case.name].result()
    assert [row["name"] for row in found.rows] == ["order"]
    assert [row["name"] for row in found.mails] == ["mail"]
    assert len(set(found.ran)) == 1, "the same idempotency key each time"
    assert len(found.ran) == (2 if case.repeats else 1)
    assert not any(count for counts in (*found.counts, *found.dead) for count in counts.values())
