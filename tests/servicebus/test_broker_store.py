from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from servicebus.launcher import Queue, start
from tests.support.service_bus import Bus, require_broker, sdk_forgets_sockets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = sdk_forgets_sockets


@pytest.fixture(autouse=True)
def _needs_the_broker() -> None:
    require_broker()


@pytest.mark.parametrize(("moment", "left"), [("before", 1), ("after", 0)])
def test_a_killed_broker_remembers_what_it_applied(tmp_path: Path, moment: str, left: int) -> None:
    """Killed before applying a completion the broker still has the message, killed after it does not."""
    with start([Queue("q", lock=30)], folder=tmp_path) as broker:
        with Bus(broker.connection_string) as bus:
            bus.sender("q").send_messages(ServiceBusMessage("x"))
            [message] = bus.receive("q")
            broker.fault(f"exit-{moment}-apply", "complete")
            with pytest.raises(ServiceBusError):
                bus.receiver("q").complete_message(message)
        assert broker.wait(5) != 0
        broker.restart()
        assert broker.counts("q")["active"] == left


def test_a_restart_keeps_every_kind_of_message(tmp_path: Path) -> None:
    """Killed and started again on its folder, the broker has what was ready, locked, deferred, scheduled or dead."""
    with start([Queue("q", lock=30, dedup=60)], folder=tmp_path) as broker:
        port = broker.port
        with Bus(broker.connection_string) as bus:
            sender, receiver = bus.sender("q"), bus.receiver("q")
            sender.send_messages([ServiceBusMessage(name, message_id=name) for name in "abcde"])
            in_an_hour = datetime.now(UTC) + timedelta(hours=1)
            sender.schedule_messages(ServiceBusMessage("f", message_id="f"), in_an_hour)
            completed, abandoned, deferred, dead = bus.receive("q", 4)
            receiver.complete_message(completed)
            receiver.abandon_message(abandoned)
            receiver.defer_message(deferred)
            receiver.dead_letter_message(dead, reason="r")
            broker.kill()
        broker.restart()
        assert broker.port == port
        assert broker.counts("q") == {"active": 2, "locked": 0, "deferred": 1, "scheduled": 1}
        with Bus(broker.connection_string) as bus:
            bus.sender("q").send_messages(ServiceBusMessage("again", message_id="a"))  # the id is remembered
            bus.sender("q").send_messages(ServiceBusMessage("g", message_id="g"))
            messages = bus.receive("q", 3)
            assert [(str(message), message.delivery_count) for message in messages] == [
                ("b", 1), ("e", 0), ("g", 0),
            ]  # fmt: skip
            assert len({message.sequence_number for message in messages}) == 3
        assert broker.counts("q/$DeadLetterQueue")["active"] == 1


def test_a_client_waits_for_a_restarting_broker(tmp_path: Path) -> None:
    """A client that retries gets its message through although the broker was gone for a moment."""
    with (
        start([Queue("q")], folder=tmp_path) as broker,
        Bus(broker.connection_string, retry_total=3, retry_backoff_factor=0.05) as bus,
    ):
        bus.sender("q").send_messages(ServiceBusMessage("a"))
        broker.kill()
        broker.restart()
        bus.sender("q").send_messages(ServiceBusMessage("b"))
        assert bus.drain("q", count=2) == ["a", "b"]


def test_a_killed_broker_forwards_what_was_scheduled(tmp_path: Path) -> None:
    """A message scheduled in a queue that forwards goes on when due, although the broker was killed meanwhile."""
    with start([Queue("first", forward="last"), Queue("last")], folder=tmp_path) as broker:
        with Bus(broker.connection_string) as bus:
            at = datetime.now(UTC) + timedelta(seconds=8)
            bus.sender("first").schedule_messages(ServiceBusMessage("x", message_id="m"), at)
            broker.kill()
        broker.restart()
        assert broker.counts("first")["scheduled"] == 1
        with Bus(broker.connection_string) as bus:
            [message] = bus.receive("last", wait=20)
            assert (str(message), message.message_id) == ("x", "m")
