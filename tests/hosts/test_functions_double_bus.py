"""Service Bus as the Functions host serves it: what it makes of a real message, and how it settles."""

import datetime as dt
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp import _decode
from azure.servicebus.amqp import AmqpAnnotatedMessage

from servicebus.launcher import Broker, Queue, Topic
from tests.support.functions_worker import LiveHost, Times, wire
from tests.support.functions_worker.amqp_types import plain
from tests.support.functions_worker.samples import until, write_app
from tests.support.service_bus import Bus, broker_fixture, client_fixture, sdk_forgets_sockets

pytestmark = sdk_forgets_sockets

broker = broker_fixture(
    Queue("text", lock=10, dedup=600),
    Queue("binary", lock=10, dedup=600),
    Queue("work", lock=3, dedup=600),
    Queue("late", lock=60, dedup=600),
    Queue("brief", lock=3, dedup=600),
    Topic("orders", ("billing",), dedup=600),
)
bus = client_fixture()

APP = """
    def show(message):
        log.info("%s", json.dumps({
            "body": message.get_body().decode("latin-1"), "id": message.message_id, "count": message.delivery_count,
            "type": message.content_type, "subject": message.subject, "enqueued": str(message.enqueued_time_utc),
            "properties": message.application_properties,
        }))

    @app.service_bus_queue_trigger(arg_name="message", queue_name="text", connection="Bus")
    def text(message: func.ServiceBusMessage) -> None:
        show(message)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="binary", connection="Bus",
                                   data_type=func.DataType.BINARY)
    def binary(message: func.ServiceBusMessage) -> None:
        show(message)

    @app.service_bus_topic_trigger(arg_name="message", topic_name="orders", subscription_name="billing",
                                   connection="Bus", data_type=func.DataType.BINARY)
    def bill(message: func.ServiceBusMessage) -> None:
        show(message)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="work", connection="Bus")
    def work(message: func.ServiceBusMessage) -> None:
        order = json.loads(message.get_body())
        log.info("at work on %s, delivery %s", order["n"], message.delivery_count)
        if order.get("fail"):
            raise ValueError("no such order")
        time.sleep(order.get("seconds", 0))

    @app.service_bus_queue_trigger(arg_name="message", queue_name="brief", connection="Bus")
    def brief(message: func.ServiceBusMessage) -> None:
        log.info("brief, delivery %s", message.delivery_count)
        time.sleep(float(message.get_body()) if message.delivery_count == 1 else 0)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="late", connection="Bus")
    def late(message: func.ServiceBusMessage) -> None:
        log.info("late, delivery %s", message.delivery_count)
        time.sleep(float(message.get_body()))
"""


def make_host(
    folder: Path,
    storage: str,
    broker: Broker,
    off: tuple[str, ...] = (),
    renewal: str = "00:05:00",
    **times: float,
) -> LiveHost:
    options = {"maxConcurrentCalls": 8, "maxAutoLockRenewalDuration": renewal}
    app = write_app(folder, APP, json.dumps({"version": "2.0", "extensions": {"serviceBus": options}}))
    settings = {"AzureWebJobsStorage": storage, "Bus": broker.connection_string}
    settings |= {f"AzureWebJobs.{name}.Disabled": "true" for name in off}
    return LiveHost(app, settings, times=Times(**times))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, azurite: str, broker: Broker) -> Iterator[LiveHost]:
    with make_host(tmp_path_factory.mktemp("app"), azurite, broker, off=("late", "brief")) as running:
        yield running


def seen(host: LiveHost, entity: str, bus: Bus, message: Any, name: str | None = None) -> dict[str, Any]:
    """What the function saw of a message that was sent."""
    before = len(host.console.lines)
    bus.sender(entity).send_messages(message)

    def shown() -> list[str]:
        return [line for line in host.console.lines[before:] if '"properties"' in line]

    host.console.wait_until(shown, f"a message of {name or entity}")
    return json.loads(shown()[0].removeprefix("Information: "))


def test_a_bare_message(host: LiveHost, bus: Bus) -> None:
    """What the sender did not set is absent; the count starts at 1; the time of enqueuing has no zone."""
    got = seen(host, "text", bus, ServiceBusMessage("hello"))
    assert (got["body"], got["count"], got["type"], got["subject"]) == ("hello", 1, None, None)
    enqueued = dt.datetime.fromisoformat(got["enqueued"])
    assert enqueued.tzinfo is None
    assert abs(dt.datetime.now(dt.UTC).replace(tzinfo=None) - enqueued) < dt.timedelta(minutes=1)


def test_a_topics_subscription(host: LiveHost, bus: Bus) -> None:
    """A subscription's function gets its copy, bytes as sent."""
    got = seen(host, "orders", bus, ServiceBusMessage(b"\xff\xfe", message_id="m-1"), "bill")
    assert (got["body"], got["id"]) == ("\xff\xfe", "m-1")


def test_the_bodys_fields_win_on_text_only(host: LiveHost, bus: Bus) -> None:
    """A field `messageId` of the body is the id of a text trigger's message, and nothing to BINARY."""
    message = ServiceBusMessage('{"messageId": "same"}', message_id="own")
    assert seen(host, "text", bus, message)["id"] == "same"
    assert seen(host, "binary", bus, message)["id"] == "own"


def test_the_types_of_properties(host: LiveHost, bus: Bus) -> None:
    """Each AMQP type of a property arrives in the form the host gives it."""
    guid = uuid.uuid4()
    moment = dt.datetime(2026, 11, 30, 8, 13, 50, 187_000, dt.UTC)
    properties = {
        "s": "x",
        "b": True,
        "i": 7,
        "big": 2**30,
        "f": 1.5,
        "guid": guid,
        "time": moment,
    }
    got = seen(host, "binary", bus, ServiceBusMessage("x", application_properties=properties))
    assert got["properties"] == {
        "s": "x",
        "b": True,
        "i": 7,
        "big": 2**30,
        "f": 1.5,
        "guid": str(guid),
        "time": "2026-11-30T08:13:50.187Z",
    }


def test_amqp_value_bodies(host: LiveHost, bus: Bus) -> None:
    """A value string and several data sections are text; an empty message is an empty body."""
    assert seen(host, "text", bus, AmqpAnnotatedMessage(value_body="text"))["body"] == "text"
    sections = AmqpAnnotatedMessage(data_body=[b"one ", b"two"])
    assert seen(host, "text", bus, sections)["body"] == "one two"
    assert seen(host, "binary", bus, ServiceBusMessage(b""))["body"] == ""


@pytest.mark.parametrize(
    ("entity", "body"),
    [
        ("text", {"value_body": 7}),
        ("text", {"value_body": {"a": 1}}),
        ("text", {"value_body": b"bytes"}),
        ("text", {"sequence_body": [[1, 2]]}),
        ("binary", {"value_body": "text"}),
    ],
    ids=str,
)
def test_bodies_that_never_run(host: LiveHost, bus: Bus, entity: str, body: dict[str, Any]) -> None:
    """Such a body fails ten bindings, no function is called, and the broker puts the message aside."""
    before = len(host.console.of(entity))
    bus.sender(entity).send_messages(AmqpAnnotatedMessage(**body))
    [dead] = bus.receive(entity, dead=True)
    bus.receiver(entity, dead=True).complete_message(dead)
    failed = host.console.of(entity)[before:]
    assert [done.success for done in failed] == [False] * 10
    assert all("Exception binding parameter 'message'" in done.error for done in failed)
    assert failed[-1].ended - failed[0].started < 5


def test_success_completes_and_failure_abandons(host: LiveHost, bus: Bus, broker: Broker) -> None:
    """A function that succeeds completes its message; one that fails abandons it, ten times at once."""
    bus.sender("work").send_messages(ServiceBusMessage('{"n": "good"}'))
    host.console.wait_for("at work on good, delivery 1")
    bus.sender("work").send_messages(ServiceBusMessage('{"n": "bad", "fail": true}'))
    host.console.wait_for("at work on bad, delivery 10")
    [dead] = bus.receive("work", dead=True)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    bus.receiver("work", dead=True).complete_message(dead)
    assert sum(broker.counts("work").values()) == 0


def test_a_long_handler_keeps_its_lock(host: LiveHost, bus: Bus, broker: Broker) -> None:
    """The host renews the lock of a handler that takes longer than it lasts: it runs once."""
    bus.sender("work").send_messages(ServiceBusMessage('{"n": "long", "seconds": 7}'))
    host.console.wait_for("at work on long, delivery 1")
    host.console.wait_until(lambda: host.console.of("work")[-1].success, "its end")
    until(lambda: sum(broker.counts("work").values()) == 0)
    assert sum("at work on long" in line for line in host.console.lines) == 1


def test_a_lock_is_renewed_no_longer_than_host_json_says(
    tmp_path: Path, azurite: str, broker: Broker, bus: Bus
) -> None:
    """After maxAutoLockRenewalDuration the lock runs out, and the message comes again while it is being handled."""
    with make_host(tmp_path / "app", azurite, broker, renewal="00:00:03") as host:
        bus.sender("brief").send_messages(ServiceBusMessage("9"))
        host.console.wait_for("brief, delivery 2", timeout=15)
        first = host.console.of("brief")[0]
        assert first.success is None
        assert time.time() - first.started > 4
        until(lambda: sum(broker.counts("brief").values()) == 0)


def test_a_killed_workers_messages_come_again_at_once(host: LiveHost, bus: Bus) -> None:
    """After kill -9 of the worker its messages are abandoned, and the new worker gets them."""
    bus.sender("work").send_messages(ServiceBusMessage('{"n": "killed", "seconds": 2}'))
    host.console.wait_for("at work on killed, delivery 1")
    host.worker.kill()
    host.console.wait_for("at work on killed, delivery 2", timeout=10)


def test_a_stopping_host_abandons_what_has_succeeded(
    tmp_path: Path, azurite: str, broker: Broker, bus: Bus
) -> None:
    """A handler that ends after SIGTERM has had its effect, and its message comes once more all the same.

    One that does not end keeps its message until the lock runs out.
    """
    with make_host(tmp_path / "app", azurite, broker, shutdown=4) as host:
        bus.sender("late").send_messages([ServiceBusMessage("1.5"), ServiceBusMessage("60")])
        host.console.wait_for("late, delivery 1", count=2)
        host.terminate()
        assert host.wait(15) == 0
        assert sorted(str(done.success) for done in host.console.of("late")) == ["False", "True"]
        assert [line for line in host.console.lines if "Action=" in line] == []
    until(lambda: broker.counts("late")["active"] == 1)
    assert broker.counts("late")["locked"] == 1
    [again] = bus.receive("late")
    assert (str(again), again.delivery_count) == ("1.5", 1)
    bus.receiver("late").complete_message(again)


def test_a_drained_host_completes_what_it_has(tmp_path: Path, azurite: str, broker: Broker, bus: Bus) -> None:
    """A drain only stops the listeners: what is in hand ends and is completed."""
    with make_host(tmp_path / "app", azurite, broker) as host:
        bus.sender("brief").send_messages(ServiceBusMessage("1"))
        host.console.wait_for("brief, delivery 1")
        host.drain()
        host.console.wait_until(lambda: host.console.of("brief")[0].success, "its end")
        until(lambda: sum(broker.counts("brief").values()) == 0)


def test_amqp_types_are_told_apart() -> None:
    """Strings and binaries, numbers and timestamps: what the client decodes alike reaches the host as sent."""
    proton = pytest.importorskip("proton")
    guid = uuid.uuid4()
    sent = proton.Message(
        body=b"x",
        properties={
            "string": "x",
            "binary": b"\x00\xff",
            "char": proton.char("ü"),
            "timestamp": proton.timestamp(1_796_026_430_187),
            "ulong": proton.ulong(2**63),
            "uuid": guid,
            "null": None,
            "span": proton.Described(proton.symbol("com.microsoft:timespan"), 25_000_000),
            "offset": proton.Described(
                proton.symbol("com.microsoft:datetime-offset"), 639_000_000_000_000_000
            ),
            "uri": proton.Described(proton.symbol("com.microsoft:uri"), "https://example.org/"),
        },
    )
    received = _decode.decode_payload(memoryview(sent.encode()))
    properties = {plain(name): plain(value) for name, value in received.application_properties.items()}
    assert json.loads(wire.application_properties(properties).json) == {
        "string": "x",
        "binary": "AP8=",
        "char": "ü",
        "timestamp": "2026-11-30T08:13:50.187Z",
        "ulong": 2**63,
        "uuid": str(guid),
        "null": None,
        "span": "00:00:02.5000000",
        "offset": "2025-11-29T08:00:00.000Z",
        "uri": "https://example.org/",
    }


def test_a_broker_that_was_away_is_served_again(host: LiveHost, broker: Broker) -> None:
    """When every connection is cut the host connects again."""
    broker.cut()
    time.sleep(0.5)
    with Bus(broker.connection_string) as fresh:
        fresh.sender("work").send_messages(ServiceBusMessage('{"n": "after"}'))
        host.console.wait_for("at work on after")
