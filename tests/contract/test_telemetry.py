"""A trace from `enqueue` to the handler and its follow-up, on real Storage queues and a real AMQP connection."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from support.service_bus import broker_fixture, sdk_forgets_sockets
from support.telemetry import id_of, parent_of, recording

from runonce import enqueue, enqueue_many
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.consumer import Consumer
from runonce.messages.definition import handler
from runonce.settings import Settings
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from runonce.messages.message import Message

pytestmark = sdk_forgets_sockets

broker = broker_fixture(*(Queue(name) for name in ("orders", "parcels", "many")))


@pytest.fixture(params=["storage", "servicebus"])
def transport(request: pytest.FixtureRequest, azurite: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of a program that sends by one transport or the other."""
    monkeypatch.setenv("RUNONCE_STORAGE", azurite)
    monkeypatch.setenv("RUNONCE_NAMESPACE", f"t-{uuid.uuid4().hex[:10]}")
    monkeypatch.setenv("RUNONCE_TRANSPORT", request.param)
    if request.param == "servicebus":
        monkeypatch.setenv("RUNONCE_SERVICEBUS", request.getfixturevalue("broker").connection_string)
        monkeypatch.setenv("RUNONCE_QUEUE_NAMES", "plain")
    return str(request.param)


def consume(one: Any, count: int) -> None:
    """Handle so many deliveries as a host does."""
    with Runtime(Settings.from_env(), found=Discovered(handlers={one.name: one})) as runtime:
        consumer = Consumer(runtime.deliverer, runtime.transport, one)
        assert consumer.run(max_messages=count, max_wait=20) == count


def test_a_trace_goes_from_the_sender_through_a_retry_to_the_follow_up(transport: str) -> None:
    """Both attempts are below what sent the message, and the follow-up is below the attempt that sent it."""
    failures = [ValueError("the first time")]

    @handler(queue="parcels", key="id")
    def ship(_: Message) -> None:
        """Take the follow-up."""

    @handler(queue="orders", key="id", retry_delay=1)
    def order(message: Message) -> None:
        """Fail once, then send a follow-up."""
        if failures:
            raise failures.pop()
        message.enqueue(ship, {"id": "p-1"})

    with recording(transport) as recorded:
        enqueue(order, {"id": "A-17"})
        consume(order, 2)
        consume(ship, 1)
        first, second = sorted(recorded.spans("process orders"), key=lambda span: span.start_time or 0)
        send = recorded.span("send orders")
        assert parent_of(first) == parent_of(second) == id_of(send)
        assert [(span.attributes or {})["runonce.outcome"] for span in (first, second)] == [
            "rescheduled",
            "done",
        ]
        follow_up, shipped = recorded.span("send parcels"), recorded.span("process parcels")
        assert parent_of(follow_up) == id_of(second)
        assert parent_of(shipped) == id_of(follow_up)
        assert len({span.get_span_context().trace_id for span in recorded.spans()}) == 1
        about = dict(first.attributes or {})
        assert about["messaging.system"] == {"storage": "azure_storage_queue"}.get(transport, transport)
        ages = recorded.points()["runonce.message.age"]
        assert {labels["runonce.handler"] for labels, _ in ages} == {"order", "ship"}


def test_messages_of_a_batch_link_to_what_sent_them(transport: str) -> None:
    """Each of them is a trace of its own."""

    @handler(queue="many", key="id")
    def many(_: Message) -> None:
        """Take one of many."""

    with recording(transport) as recorded:
        enqueue_many(many, [{"id": str(number)} for number in range(3)])
        consume(many, 3)
        send, processed = recorded.span("send many"), recorded.spans("process many")
        assert [[link.context.span_id for link in span.links] for span in processed] == [[id_of(send)]] * 3
        assert len({span.get_span_context().trace_id for span in (send, *processed)}) == 4
