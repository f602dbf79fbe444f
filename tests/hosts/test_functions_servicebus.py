"""Service Bus handlers through the production Functions worker: indexing, and what each outcome does to the broker."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from runonce.clock import SystemClock
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.rows import State, decode_message, place
from runonce.stores.azure.stores import azure_stores
from runonce.testing import MemorySender
from runonce.transports.protocols import Delivery
from servicebus.launcher import Queue, Subscription, Topic
from tests.conftest import Calls
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, Invocation, servicebus
from tests.support.namespaces import fresh_settings
from tests.support.service_bus import broker_fixture, sdk_forgets_sockets
from tests.support.transports import BusPipe, make_handler, receive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.definition import Handler
    from runonce.messages.rows import MessageRow
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from servicebus.launcher import Broker

pytestmark = sdk_forgets_sockets

broker = broker_fixture(
    Queue("invoices", lock=30, dedup=600),
    Queue("mails", lock=30, dedup=600),
    Queue("notes", lock=30, dedup=600),
    Topic("orders", (Subscription("billing", forward="orders.billing"), "shipping"), dedup=600),
    Queue("orders.billing", lock=30, dedup=600),
    Topic("plain", ("billing",), dedup=600),
    Queue("plain.billing.retry", lock=30, dedup=600),
)
HANDLERS = """
from runonce import Message, PermanentError, handler

@handler(queue="mails", key="id")
def mail(message: Message) -> None:
    pass

@handler(queue="invoices", key="id", retries=1, retry_delay=1)
def take(message: Message) -> None:
    message.log.info("taking, delivery %d", message.delivery_count)
    if message.json.get("fail") == "transient" and message.attempt == 1:
        raise ConnectionError("the provider hung up")
    if message.json.get("fail") == "permanent":
        raise PermanentError("no such customer")
    if message.json.get("mail"):
        message.enqueue(mail, {"id": message.key})
    message.commit({"taken": {"attempt": message.attempt, "tenant": message.properties.get("tenant", "")}})

@handler(queue="notes")
def note(message: Message) -> None:
    message.log.info("noting %s, delivery %d", message.message_id, message.delivery_count)

@handler(topic="orders", subscription="billing", key="id")
async def bill(message: Message) -> None:
    message.log.info("billing")

@handler(topic="plain", subscription="billing", forward=False, key="id", retry_delay=1)
def direct(message: Message) -> None:
    if message.attempt == 1:
        raise ConnectionError("the provider hung up")
    message.log.info("direct")
"""


@pytest.fixture(scope="module")
def module_settings(azurite: str) -> Settings:
    """One namespace for the module's one worker."""
    return fresh_settings(azurite)


@pytest.fixture(scope="module")
def host(
    module_settings: Settings, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FunctionsHost]:
    """The app in one worker for the whole module."""
    app = make_app(tmp_path_factory.mktemp("functions") / "app", {"handlers.py": HANDLERS})
    env = environment(module_settings) | {"RUNONCE_SERVICEBUS": broker.connection_string}
    with FunctionsHost(app, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def stores(module_settings: Settings) -> Stores:
    return azure_stores(module_settings)


@pytest.fixture
def pipe(broker: Broker) -> Iterator[BusPipe]:
    made = BusPipe(broker, ["invoices"])
    yield made
    made.close()


def row_of(settings: Settings, stores: Stores, key: str, of: Handler | None = None) -> MessageRow:
    handler = of or make_handler("invoices", name="take")
    read = stores.claims.get(*place(settings.namespace, handler.entity, handler.name, key))
    assert read is not None
    return decode_message(read)


def effects(settings: Settings, stores: Stores, key: str) -> list[Any]:
    rows = read_effects(stores.claims, settings.namespace, "take")
    return [row for row in rows if row["key"] == key]


def deliver(host: FunctionsHost, body: dict[str, Any], count: int = 1, **more: Any) -> Invocation:
    return host.invoke("take", servicebus(body, message_id=f"m-{body['id']}", delivery_count=count, **more))


def test_each_handler_has_its_trigger(host: FunctionsHost) -> None:
    """A queue, one that a subscription forwards to, and a subscription with its retry queue, by name and connection."""
    queues = {"take": "invoices", "bill": "orders.billing", "direct_retry": "plain.billing.retry"}
    for name, queue in queues.items():
        trigger = host.functions[name].trigger
        assert (trigger["type"], trigger["queueName"]) == ("serviceBusTrigger", queue)
        assert trigger["connection"] == "RUNONCE_SERVICEBUS"
    direct = host.functions["direct"].trigger
    assert (direct["topicName"], direct["subscriptionName"], direct["connection"]) == (
        "plain",
        "billing",
        "RUNONCE_SERVICEBUS",
    )
    assert "runonce_purge" in host.functions


def test_a_duplicate_has_one_effect(host: FunctionsHost, module_settings: Settings, stores: Stores) -> None:
    """Delivered twice as two messages of one key, and once more as a redelivery: one row, three completions."""
    first = deliver(host, {"id": "dup"}, properties={"tenant": "acme"})
    second = deliver(host, {"id": "dup"})
    third = deliver(host, {"id": "dup"}, count=2)
    assert [first.success, second.success, third.success] == [True, True, True]
    assert [done.said("taking") for done in (first, second, third)] == [True, False, False]
    [effect] = effects(module_settings, stores, "dup")
    assert effect["tenant"] == "acme"


@pytest.mark.parametrize(
    "body",
    [
        {"messageId": "same", "v": 1},
        {"id": "x", "ApplicationProperties": {"runonce-only-for": "y"}},
        {"id": "x", "State": "NY"},
        {"id": "x", "EnqueuedTimeUtc": "2026-11-30T08:00:00Z", "sequenceNumber": "INV-7"},
        {"correlationId": "c", "deliveryCount": 5},
    ],
)
def test_a_message_is_what_its_sender_sent(host: FunctionsHost, body: dict[str, Any]) -> None:
    """Fields of a body that are called as the broker's own change neither identity, counts nor properties."""
    for message_id in (uuid.uuid4().hex, uuid.uuid4().hex):
        done = host.invoke("note", servicebus(body, message_id=message_id, delivery_count=2))
        assert done.success, done.exception
        assert done.said(f"noting {message_id}, delivery 2")


def test_deliveries_count_from_one(host: FunctionsHost) -> None:
    """The handler sees the number that the host sees: 1 on the first delivery."""
    assert deliver(host, {"id": "count-1"}).said("taking, delivery 1")
    assert deliver(host, {"id": "count-2"}, count=3).said("taking, delivery 3")


def test_a_transient_error_sends_a_copy_and_the_invocation_succeeds(
    host: FunctionsHost, module_settings: Settings, stores: Stores, pipe: BusPipe
) -> None:
    """The copy waits in the queue under a derived id; delivered in turn, it takes effect."""
    done = deliver(host, {"id": "transient", "fail": "transient"}, CorrelationId="order-7")
    assert done.success
    assert row_of(module_settings, stores, "transient").state is State.RELEASED
    [received] = receive(pipe.inbox(make_handler("invoices")))
    copy = received.delivery
    assert (copy.sent_as, copy.reschedules, copy.correlation_id) == ("m-transient", 1, "order-7")
    again = host.invoke(
        "take",
        servicebus(
            copy.body,
            message_id=copy.message_id,
            properties={"runonce-reschedules": 1, "runonce-sent-as": "m-transient"},
        ),
    )
    assert again.success
    [effect] = effects(module_settings, stores, "transient")
    assert effect["attempt"] == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [({"id": "permanent", "fail": "permanent"}, "no such customer"), ({"ID": 1}, "no field 'id'")],
)
def test_a_message_that_cannot_be_handled_is_dead_lettered_with_its_reason(
    host: FunctionsHost, pipe: BusPipe, body: dict[str, Any], said: str
) -> None:
    """The first delivery completes; its copy raises whenever it comes, runs nothing, and keeps the reason."""
    first = host.invoke("take", servicebus(body, message_id="m-dead"))
    assert first.success, first.exception
    assert first.said(said)
    inbox = pipe.inbox(make_handler("invoices"))
    [received] = receive(inbox)
    copy = received.delivery
    assert copy.dead is not None
    again = host.invoke(
        "take",
        servicebus(
            copy.body,
            message_id=copy.message_id,
            properties={"runonce-dead": "Failed", "runonce-dead-why": said},
        ),
    )
    assert (again.success, again.said("taking")) == (False, False)
    assert said in again.exception
    native = received.native[1]
    received.native[0].call(
        "dead-lettering", lambda r: r.dead_letter_message(native, reason="MaxDeliveryCountExceeded")
    )
    letters = pipe.dead_letters(make_handler("invoices"))
    [dead] = letters.take(5)
    assert dead.reason in ("Failed", "MissingKey")
    assert said in dead.description
    assert dead.delivery.sent_as == "m-dead"
    letters.remove(dead)


def test_follow_ups_go_out_with_the_record(host: FunctionsHost, pipe: BusPipe) -> None:
    """A message to another handler's queue is there when the invocation has ended."""
    assert deliver(host, {"id": "mailing", "mail": True}).success
    [received] = receive(pipe.inbox(make_handler("mails")))
    assert json.loads(received.delivery.body) == {"id": "mailing"}


def test_a_subscriptions_copy_is_dropped_by_the_others(host: FunctionsHost) -> None:
    """A copy for another subscription completes without running; its own runs."""
    other = host.invoke("bill", servicebus({"id": 1}, properties={"runonce-only-for": "shipping"}))
    own = host.invoke("bill", servicebus({"id": 1}, properties={"runonce-only-for": "billing"}))
    assert (other.success, other.said("billing")) == (True, False)
    assert (own.success, own.said("billing")) == (True, True)


def test_a_copy_is_made_of_the_message_as_the_broker_has_it(host: FunctionsHost, broker: Broker) -> None:
    """The host tells no types, so the message is peeked by its number: a long stays one, and the subject is there."""
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_topic_sender("plain") as sender:
            sender.send_messages(
                ServiceBusMessage(
                    b'{"id": "typed"}',
                    message_id="m-typed",
                    subject="paid",
                    application_properties={"order": {"TYPE": "LONG", "VALUE": 5_000_000_000}},
                )
            )
        with client.get_subscription_receiver("plain", "billing") as receiver:
            [message] = receiver.receive_messages(max_wait_time=5)
            number = message.sequence_number
            assert number is not None
            trigger = servicebus({"id": "typed"}, message_id="m-typed", sequence_number=number)
            assert host.invoke("direct", trigger).success
            receiver.complete_message(message)
        with client.get_queue_receiver("plain.billing.retry") as receiver:
            [copy] = receiver.receive_messages(max_wait_time=8)
            assert (copy.subject, copy.application_properties[b"order"]) == ("paid", 5_000_000_000)
            assert copy.application_properties[b"runonce-sent-as"] == b"m-typed"
            receiver.complete_message(copy)


def test_a_redelivery_of_finished_work_reads_once(module_settings: Settings) -> None:
    """Counted where the calls go out: two for a first delivery, one for the next."""
    calls = Calls()
    stores = azure_stores(module_settings, transport=calls)
    deliverer = Deliverer(stores, MemorySender(), module_settings, SystemClock(), host="test")
    handler = make_handler("counted")
    deliverer.deliver(handler, Delivery(b'{"id": 0}', "m-0"))  # makes the table
    calls.made.clear()
    deliverer.deliver(handler, Delivery(b'{"id": 1}', "m-1"))
    assert len(calls.made) == 2, calls.made
    calls.made.clear()
    deliverer.deliver(handler, Delivery(b'{"id": 1}', "m-1", 2))
    assert len(calls.made) == 1, calls.made
