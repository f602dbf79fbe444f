"""What Microsoft's .NET client needs on the wire: it cannot be had here, so its frames are sent by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from servicebus import launcher, values
from servicebus.launcher import Queue
from tests.support.amqp import ATTACH, DETACH, FLOW, TRANSFER, Wire, described
from tests.support.service_bus import broker_fixture, client_fixture, require_broker, sdk_forgets_sockets

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets
broker = broker_fixture(*(Queue(name, lock=30) for name in ("q", "drained", "empty", "partly")))
bus = client_fixture()

SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30
HANDLE, COUNT, CREDIT, DRAIN = 4, 5, 6, 8  # places in a flow


def receiver(wire: Wire, queue: str) -> None:
    """Attach a receiver."""
    wire.open()
    wire.attach("r", receiver=True, source=described(SOURCE, values.string(queue)), target=described(TARGET))
    wire.receive(ATTACH)


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "PLAIN", "EXTERNAL", "ANONYMOUS"])
def test_every_mechanism_of_the_clients_is_taken(broker: Broker, mechanism: str) -> None:
    """The broker offers what .NET's, Java's and Python's clients choose from, and takes each."""
    with Wire(broker.port, mechanism, b"\0name\0key") as wire:
        assert mechanism.encode() in wire.offered
        assert wire.outcome == 0
        wire.open()


def test_a_key_may_be_shown_in_plain() -> None:
    """Started with a key, the broker lets in a client that shows it at once, and turns others away."""
    require_broker()
    with launcher.start([Queue("q")], key="s3cret") as broker:
        with Wire(broker.port, "PLAIN", b"\0RootManageSharedAccessKey\0s3cret") as wire:
            receiver(wire, "q")
            wire.drain(1)
            assert wire.receive(FLOW)[CREDIT] == 0
        with Wire(broker.port, "PLAIN", b"\0RootManageSharedAccessKey\0guessed") as wire:
            assert wire.outcome == 1
            with pytest.raises(ConnectionError):
                wire.open()


def test_a_drain_is_answered_when_messages_use_the_credit_up(broker: Broker, bus: Bus) -> None:
    """The flow comes after the last message and says that the credit is gone; a second drain likewise."""
    bus.sender("drained").send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    with Wire(broker.port) as wire:
        receiver(wire, "drained")
        for count in (2, 4):
            wire.drain(2, count - 2)
            numbers = [wire.receive(TRANSFER)[1] for _ in range(2)]
            flow = wire.receive(FLOW)
            assert numbers == [count - 2, count - 1]
            assert (flow[HANDLE], flow[COUNT], flow[CREDIT], flow[DRAIN]) == (0, count, 0, True)
            assert flow[2] == count  # the session's next transfer
    assert broker.counts("drained")["active"] == 1


@pytest.mark.parametrize(("queue", "waiting"), [("empty", 0), ("partly", 2)])
def test_a_drain_gives_back_what_is_not_used(broker: Broker, bus: Bus, queue: str, waiting: int) -> None:
    """With fewer messages than credit the count is moved on past the rest."""
    for _ in range(waiting):
        bus.sender(queue).send_messages(ServiceBusMessage("x"))
    with Wire(broker.port) as wire:
        receiver(wire, queue)
        wire.drain(5)
        for _ in range(waiting):
            wire.receive(TRANSFER)
        flow = wire.receive(FLOW)
        assert (flow[COUNT], flow[CREDIT], flow[DRAIN]) == (5, 0, True)


def test_a_drain_without_credit_is_answered(broker: Broker) -> None:
    """A client whose credit was used up while it asked is answered too."""
    with Wire(broker.port) as wire:
        receiver(wire, "empty")
        wire.drain(0)
        flow = wire.receive(FLOW)
        assert (flow[COUNT], flow[CREDIT], flow[DRAIN]) == (0, 0, True)


def test_idle_connections_are_kept_alive(broker: Broker) -> None:
    """The broker sends a frame at least every half of the client's idle time-out, and says its own."""
    with Wire(broker.port) as wire:
        answer = wire.open(idle_timeout=7000)
        assert answer[4] == 240_000
        for _ in range(2):
            started = time.monotonic()
            assert wire.bytes_within(7) == b"\x00\x00\x00\x08\x02\x00\x00\x00"
            assert time.monotonic() - started < 6.9


def test_transactions_are_refused_in_clear_words(broker: Broker) -> None:
    """A link to the coordinator is answered by what is the matter, not by an entity without a name."""
    with Wire(broker.port) as wire:
        wire.open()
        wire.attach("t", receiver=False, source=described(SOURCE), target=described(COORDINATOR))
        detach = wire.receive(DETACH)
        assert b"This local broker has no transactions." in detach[2]
        assert b"amqp:not-implemented" in detach[2]


@pytest.mark.parametrize("entity", ["q", None])
def test_an_idle_link_is_detached_in_azures_words(entity: str | None) -> None:
    """On request a link, or every link, is detached by the condition and text that clients know from Azure."""
    require_broker()
    with (
        launcher.start([Queue("q"), Queue("other")]) as broker,
        Wire(broker.port) as wire,
        Wire(broker.port) as other,
    ):
        receiver(wire, "q")
        receiver(other, "other")
        broker.detach(entity)
        detach = wire.receive(DETACH)
        assert b"amqp:link:detach-forced" in detach[2]
        assert b"AmqpMessageConsumer.IdleTimerExpired: Idle timeout: 00:10:00." in detach[2]
        other.drain(1)
        assert (other.receive(FLOW)[CREDIT] == 0) if entity else other.receive(DETACH)
