from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from servicebus.launcher import Queue
from tests.support.service_bus import Bus, broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicebus.launcher import Broker

QUICK = {"retry_total": 3, "retry_backoff_factor": 0.05}

pytestmark = sdk_forgets_sockets

broker = broker_fixture(
    Queue("q", lock=30),
    Queue("short", lock=1),
    Queue("dedup", dedup=60),
    Queue("lost", lock=30),
    Queue("idle", lock=30),
)


bus = client_fixture()


@pytest.fixture(scope="module")
def retrying(broker: Broker) -> Iterator[Bus]:
    """A client that retries, as the SDK does unless told otherwise, only sooner."""
    with Bus(broker.connection_string, **QUICK) as clients:
        yield clients


@pytest.fixture(autouse=True)
def _no_faults_left(broker: Broker) -> Iterator[None]:
    yield
    broker.clear_faults()


def test_a_dropped_reply_to_complete_looks_like_a_lost_lock(broker: Broker, retrying: Bus) -> None:
    """Completed but never answered: the SDK's own retry finds no lock, and the message is gone."""
    retrying.sender("q").send_messages(ServiceBusMessage("x"))
    [message] = retrying.receive("q")
    broker.fault("drop-after-apply", "complete", entity="q")
    with pytest.raises(MessageLockLostError):
        retrying.receiver("q").complete_message(message)
    assert sum(broker.counts("q").values()) == 0


def test_a_request_dropped_unapplied_is_retried(broker: Broker, retrying: Bus) -> None:
    """Dropped before it was applied, a completion succeeds at the SDK's second attempt."""
    struck = broker.faults_struck()
    retrying.sender("q").send_messages(ServiceBusMessage("x"))
    [message] = retrying.receive("q")
    broker.fault("drop-before-apply", "complete")
    retrying.receiver("q").complete_message(message)
    assert broker.faults_struck() == struck + 1
    assert sum(broker.counts("q").values()) == 0


def test_a_dropped_reply_to_send_duplicates_without_detection(broker: Broker, retrying: Bus) -> None:
    """Taken in but never answered, a message is sent again: twice in a plain queue, once where ids are checked."""
    for entity, copies in (("q", 2), ("dedup", 1)):
        broker.fault("drop-after-apply", "send", entity=entity)
        retrying.sender(entity).send_messages(ServiceBusMessage("x", message_id="m"))
        assert broker.counts(entity)["active"] == copies
        assert len(retrying.drain(entity, count=copies)) == copies


def test_a_lost_delivery_comes_back_after_its_lock(broker: Broker, bus: Bus) -> None:
    """Locked for a receiver that never saw it, a message comes back as a second delivery."""
    bus.sender("short").send_messages(ServiceBusMessage("x"))
    broker.fault("silence-after-apply", "deliver", entity="short")
    [message] = bus.receive("short")
    assert message.delivery_count == 1
    bus.receiver("short").complete_message(message)


def test_a_fault_waits_for_its_turn(broker: Broker, bus: Bus) -> None:
    """A fault with skip=1 and count=2 lets the first message through and strikes the next two."""
    bus.sender("q").send_messages(ServiceBusMessage("warm"))
    broker.fault("busy", "send", entity="q", skip=1, count=2)
    bus.sender("q").send_messages(ServiceBusMessage("first"))
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError):
            bus.sender("q").send_messages(ServiceBusMessage("refused"))
    bus.sender("q").send_messages(ServiceBusMessage("last"))
    assert bus.drain("q", count=3) == ["warm", "first", "last"]


def test_a_cleared_fault_does_not_strike(broker: Broker, bus: Bus) -> None:
    """What was armed and cleared changes nothing."""
    broker.fault("drop-before-apply", "send")
    broker.clear_faults()
    bus.sender("q").send_messages(ServiceBusMessage("x"))
    assert bus.drain("q") == ["x"]


def test_a_paused_broker_answers_when_resumed(broker: Broker, bus: Bus) -> None:
    """While paused the broker delivers nothing; resumed, it goes on with what came meanwhile."""
    bus.sender("q").send_messages(ServiceBusMessage("a"))
    assert bus.drain("q") == ["a"]
    bus.sender("q").send_messages(ServiceBusMessage("b"))
    broker.pause()
    assert bus.receiver("q").receive_messages(max_wait_time=1) == []
    broker.resume()
    assert bus.drain("q") == ["b"]


def test_applied_operations_are_counted(broker: Broker, bus: Bus) -> None:
    """The broker tells how often each operation was applied."""
    before = broker.operations()
    bus.sender("q").send_messages(ServiceBusMessage("x"))
    [message] = bus.receive("q")
    bus.receiver("q").renew_message_lock(message)
    bus.receiver("q").complete_message(message)
    after = broker.operations()
    names = ("send", "deliver", "renew", "complete", "abandon")
    assert [after.get(name, 0) - before.get(name, 0) for name in names] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("kind", "operation", "problem"),
    [("explode", "send", "no fault 'explode'"), ("busy", "eat", "no operation")],
)
def test_a_wrong_fault_is_refused(broker: Broker, kind: str, operation: str, problem: str) -> None:
    """A misspelt fault or operation raises and names those there are."""
    with pytest.raises(ValueError, match=problem):
        broker.fault(kind, operation)


def test_cut_connections_are_reported_without_retries(broker: Broker) -> None:
    """A client that does not retry learns that its connection was cut."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        client.get_queue_sender("q") as sender,
    ):
        broker.fault("drop-before-apply", "send")
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"))


def test_a_queue_can_be_full_on_request(broker: Broker, bus: Bus) -> None:
    """Told so, a queue refuses to take in, sent or scheduled, while receiving goes on."""
    bus.sender("q").send_messages(ServiceBusMessage("x"))
    for operation in ("send", "schedule"):
        broker.fault("full", operation, entity="q")
    with pytest.raises(ServiceBusQuotaExceededError):
        bus.sender("q").send_messages(ServiceBusMessage("y"))
    with pytest.raises(ServiceBusQuotaExceededError):
        bus.sender("q").schedule_messages(ServiceBusMessage("y"), datetime.now(UTC))
    assert bus.drain("q") == ["x"]


def test_locks_are_lost_on_request(broker: Broker, bus: Bus) -> None:
    """A lost lock cannot be settled or renewed, and its message comes back as a further delivery."""
    bus.sender("lost").send_messages(ServiceBusMessage("x"))
    [message] = bus.receive("lost")
    broker.lose_locks("q")
    bus.receiver("lost").renew_message_lock(message)
    broker.lose_locks("lost")
    for act in (bus.receiver("lost").renew_message_lock, bus.receiver("lost").complete_message):
        with pytest.raises(MessageLockLostError):
            act(message)
    [again] = bus.receive("lost")
    assert again.delivery_count == 1
    bus.receiver("lost").complete_message(again)
    with pytest.raises(ValueError, match="there is no entity 'nope'"):
        broker.lose_locks("nope")


def test_idle_links_are_detached_on_request(broker: Broker) -> None:
    """A client that retries attaches again and goes on, and settles what it held by its lock."""
    with Bus(broker.connection_string, **QUICK) as clients:
        clients.sender("idle").send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])
        [message] = clients.receive("idle")
        broker.detach("idle")
        clients.receiver("idle").complete_message(message)
        assert clients.drain("idle") == ["y"]
        clients.sender("idle").send_messages(ServiceBusMessage("z"))
        assert clients.drain("idle") == ["z"]


def test_the_broker_has_a_clock_of_its_own(broker: Broker, bus: Bus) -> None:
    """Times on messages, the ends of locks and what falls due go by the broker's clock, ahead or behind."""
    bus.sender("q").send_messages(ServiceBusMessage("warm"))
    assert bus.drain("q") == ["warm"]
    ahead = timedelta(minutes=5)
    try:
        broker.clock(ahead.total_seconds())
        started = datetime.now(UTC)
        bus.sender("q").schedule_messages(ServiceBusMessage("x"), started + ahead - timedelta(seconds=1))
        [message] = bus.receive("q")
        assert message.locked_until_utc > started + ahead
        bus.receiver("q").complete_message(message)
        broker.clock(-ahead.total_seconds())
        bus.sender("q").send_messages(ServiceBusMessage("y"))
        [message] = bus.receive("q")
        assert message.enqueued_time_utc < datetime.now(UTC) - ahead + timedelta(seconds=10)
        assert message.locked_until_utc < datetime.now(UTC)
    finally:
        broker.clock(0)
