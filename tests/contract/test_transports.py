"""What both transports do alike, and what each does for its own kind of message."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.types import AMQPTypes
from azure.servicebus.amqp import AmqpAnnotatedMessage

from runonce.errors import TransportError
from runonce.execution.registry import Registry
from runonce.hosts import facts
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.dead_letters import replay, view
from runonce.messages.definition import handler
from runonce.messages.deliver import Deliverer
from runonce.messages.message import BadMessageError
from runonce.messages.reading import prepare
from runonce.messages.rows import MessageRow, State, place
from runonce.messages.sending import outgoing, send_all
from runonce.settings import ServiceBusConnection, StorageConnection
from runonce.stores.azure.wire import services
from runonce.stores.columns import encode
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Insert
from runonce.testing import ManualClock, MemorySender, Workbench
from runonce.testing.proxy import DROP_REPLY, StorageProxy
from runonce.transports.bus_receiver import Receiver
from runonce.transports.envelope import wrap
from runonce.transports.protocols import Delivery, Outgoing
from runonce.transports.servicebus import ServiceBusTransport
from runonce.transports.settlement import Complete, DeadLetter, Reschedule
from runonce.transports.storage import StorageTransport
from servicebus.launcher import Queue, Subscription, Topic
from tests.support.namespaces import fresh_settings
from tests.support.proxy import proxies, proxy
from tests.support.service_bus import Bus, broker_fixture, client_fixture, sdk_forgets_sockets
from tests.support.simulated import MemoryPipe, SimulatedPipe
from tests.support.transports import (
    LOCK,
    PATIENCE,
    BusPipe,
    Pipe,
    StoragePipe,
    make_handler,
    none_come,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Dead, Sender
    from servicebus.launcher import Broker

__all__ = ["proxies", "proxy"]

proton = pytest.importorskip("proton")

pytestmark = sdk_forgets_sockets

QUEUES = [f"q{n}" for n in range(60)]
broker = broker_fixture(
    *(Queue(name, lock=LOCK, max_delivery=4, dedup=600) for name in QUEUES),
    *(
        Topic(
            topic,
            (
                *(Subscription(name, forward=f"{topic}.{name}") for name in ("billing", "shipping")),
                "warehouse",
            ),
            lock=LOCK,
            dedup=600,
        )
        for topic in ("events", "orders", "payments")
    ),
    *(
        Queue(f"{topic}.{name}", lock=LOCK, dedup=600)
        for topic in ("events", "orders", "payments")
        for name in ("billing", "shipping")
    ),
    *(Queue(f"{prefix}-q0", lock=LOCK, dedup=600) for prefix in ("one", "two")),
    Topic("plain", ("billing", "warehouse"), lock=LOCK, dedup=600),
    Queue("plain.billing.retry", lock=LOCK, dedup=600),
)
bus = client_fixture()
BODY = b'{"id": 1}'


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return iter(QUEUES)


@pytest.fixture(scope="module")
def bus_sender(broker: Broker) -> Iterator[Sender]:
    """One for all tests: opening and closing links takes half a second each."""
    sender = ServiceBusTransport(ServiceBusConnection(broker.connection_string)).sender()
    yield sender
    sender.close()


@pytest.fixture
def bus_pipe(broker: Broker, names: Iterator[str], bus_sender: Sender) -> Iterator[BusPipe]:
    pipe = BusPipe(broker, names, bus_sender)
    yield pipe
    broker.clear_faults()
    pipe.close()


@pytest.fixture
def storage_pipe(azurite: str) -> Iterator[StoragePipe]:
    pipe = StoragePipe(azurite)
    yield pipe
    pipe.close()


@pytest.fixture
def memory_pipe() -> MemoryPipe:
    return MemoryPipe()


@pytest.fixture
def simulated_pipe() -> SimulatedPipe:
    return SimulatedPipe()


@pytest.fixture(params=["storage", "bus", "simulated", "memory"])
def pipe(request: pytest.FixtureRequest) -> Pipe:
    """Each transport in turn."""
    made: Pipe = request.getfixturevalue(f"{request.param}_pipe")
    return made


@pytest.fixture(params=["bus", "simulated"])
def topic_pipe(request: pytest.FixtureRequest) -> Pipe:
    """Each that has topics and drops a message whose id it has seen."""
    made: Pipe = request.getfixturevalue(f"{request.param}_pipe")
    return made


@pytest.fixture(params=["storage", "bus"])
def limited_pipe(request: pytest.FixtureRequest) -> Pipe:
    """Each that knows how long a message and a reason may be; those in memory take any."""
    made: Pipe = request.getfixturevalue(f"{request.param}_pipe")
    return made


# -- namespaces -------------------------------------------------------------------------------------------------


def test_two_namespaces_share_no_queue_and_no_dead_letter(azurite: str, broker: Broker) -> None:
    """With the namespace before their names, messages, copies and dead letters are one namespace's alone."""
    to = make_handler("q0")
    storage = [
        StorageTransport(services(StorageConnection(azurite), "queue")[0], LOCK, prefix)
        for prefix in ("one-", "two-")
    ]
    bus = [
        ServiceBusTransport(ServiceBusConnection(broker.connection_string), prefix)
        for prefix in ("one-", "two-")
    ]
    for mine, others in (storage, bus):
        with contextlib.ExitStack() as opened:

            def use(part: Any, opened: contextlib.ExitStack = opened) -> Any:
                return opened.enter_context(contextlib.closing(part))

            inbox, other = use(mine.inbox(to)), use(others.inbox(to))
            other.receive(1, 0)
            use(mine.sender()).send(to.target, [Outgoing(BODY, "m-1"), Outgoing(BODY, "m-2")])
            first, second = receive(inbox, 2)
            inbox.settle(first, DeadLetter("Bad", "no"))
            inbox.settle(second, Reschedule(0, "again"))
            [again] = receive(inbox)
            assert none_come(other)
            inbox.settle(again, Complete())
            assert len(use(mine.dead_letters(to)).peek(9)) == 1
            assert use(others.dead_letters(to)).peek(9) == []


# -- sending and receiving -------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(pipe: Pipe) -> None:
    """Body, id and correlation id are those of the sender, and the first delivery has number 1."""
    to = make_handler(pipe.queue())
    before = datetime.now(UTC)
    [sent] = pipe.send(to, BODY, correlation_id="order-7")
    [received] = receive(pipe.inbox(to))
    delivery = received.delivery
    assert (delivery.body, delivery.message_id, delivery.correlation_id) == (BODY, sent, "order-7")
    assert (delivery.delivery_count, delivery.reschedules, delivery.only_for) == (1, 0, "")
    assert delivery.enqueued_at is not None
    assert abs(delivery.enqueued_at - before) < timedelta(seconds=20)
    assert received.renew_in <= LOCK / 2


@pytest.mark.parametrize(
    "body",
    [b"", b"plain words", "Grüße, 你好\n".encode(), b"\xff\xfe\x00binary", b"MTIzNA==", b'{"a": "\\u0000"}'],
    ids=["empty", "text", "unicode", "binary", "base64", "escaped"],
)
def test_any_body_arrives_byte_for_byte(pipe: Pipe, body: bytes) -> None:
    """Text, other bytes, nothing at all, and what looks like Base64 are all the same afterwards."""
    to = make_handler(pipe.queue())
    pipe.send(to, body)
    [received] = receive(pipe.inbox(to))
    assert received.delivery.body == body


@pytest.mark.slow
def test_many_messages_sent_at_once_all_arrive(pipe: Pipe) -> None:
    """More messages than one batch or one receive holds arrive once each."""
    to = make_handler(pipe.queue())
    sent = pipe.send(to, *([b"x" * 2000] * 250))
    inbox, found = pipe.inbox(to), []
    while len(found) < len(sent):
        for received in receive(inbox):
            found.append(received.delivery.message_id)
            inbox.settle(received, Complete())
        for received in inbox.receive(32, 0.2):
            found.append(received.delivery.message_id)
            inbox.settle(received, Complete())
    assert sorted(found) == sorted(sent)
    assert pipe.count(to.queue) == 0


def test_threads_share_a_sender(pipe: Pipe) -> None:
    """Four threads send through the same sender; nothing is lost or doubled."""
    to = make_handler(pipe.queue())
    pipe.sender.send(to.queue, [])
    failed: list[BaseException] = []

    def send(name: int) -> None:
        try:
            for n in range(10):
                pipe.sender.send(to.queue, [Outgoing(BODY, f"{name}-{n}")])
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            failed.append(error)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len({r.delivery.message_id for r in receive(pipe.inbox(to), 40)}) == 40


def test_a_receive_takes_no_more_than_asked_for(pipe: Pipe) -> None:
    """Asked for two of five, it gives two, and the others are there for somebody else."""
    to = make_handler(pipe.queue())
    pipe.send(to, *[BODY] * 5)
    mine, others = pipe.inbox(to), pipe.inbox(to)
    assert len(receive(mine, 2)) == 2
    assert len(receive(others, 3)) == 3


def test_an_empty_queue_gives_nothing_after_the_wait(pipe: Pipe) -> None:
    """A queue that is empty, or does not exist yet, gives an empty list, about when asked to."""
    to = make_handler(pipe.queue())
    inbox = pipe.inbox(to)
    inbox.receive(1, 0.1)
    started = time.monotonic()
    assert inbox.receive(5, 0.5) == []
    assert 0.4 < time.monotonic() - started < 8


def test_a_scheduled_message_comes_at_its_time(pipe: Pipe) -> None:
    """It is not there before, to the resolution of a second, and it is there after."""
    to = make_handler(pipe.queue())
    inbox = pipe.inbox(to)
    inbox.receive(1, 0.1)
    at = datetime.now(UTC) + timedelta(seconds=2)
    pipe.send(to, BODY, at=at)
    assert pipe.count(to.queue) == 1
    receive(inbox)
    assert datetime.now(UTC) >= at - timedelta(seconds=0.1)


def test_a_time_in_the_past_is_at_once(pipe: Pipe) -> None:
    """A message scheduled for yesterday comes now."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY, at=datetime.now(UTC) - timedelta(days=1))
    receive(pipe.inbox(to), patience=8)


def test_a_large_message_arrives(pipe: Pipe) -> None:
    """40 KB pass both transports."""
    to = make_handler(pipe.queue())
    body = json.dumps({"id": 1, "text": "ä" * 20_000}, ensure_ascii=False).encode()
    pipe.send(to, body)
    [received] = receive(pipe.inbox(to))
    assert received.delivery.body == body


def test_a_message_that_is_too_large_is_refused_and_the_sender_works_on(limited_pipe: Pipe) -> None:
    """The error names the queue and the remedy; the next message passes."""
    to = make_handler(limited_pipe.queue())
    with pytest.raises(TransportError, match=to.queue):
        limited_pipe.send(to, b"x" * 400_000)
    limited_pipe.send(to, BODY)
    assert receive(limited_pipe.inbox(to))[0].delivery.body == BODY


# -- settling ----------------------------------------------------------------------------------------------------


def test_a_follow_up_that_does_not_fit_is_a_dead_letter_of_its_sender(pipe: Pipe) -> None:
    """The real broker's refusal ends its sender's message with the reason; the follow-up beside it is sent."""
    queue = pipe.queue()
    target = make_handler(queue)
    size = 17_000 if pipe.kind == "storage" else 29_000

    def body(message: Any) -> None:
        message.enqueue(target, {"id": "fits"})
        message.enqueue(target, {"id": "large", "text": "中" * size})

    one = make_handler("invoices", body, name="sending", retries=5)
    bench = Workbench()
    host = Deliverer(bench.stores, pipe.sender, bench.settings, bench.clock, host="test")
    settlement = host.deliver(one, Delivery(b'{"id":"1"}', "m-1"))
    if pipe.kind == "storage":
        assert isinstance(settlement, DeadLetter)
        assert settlement.reason == "FollowUpRefused"
        assert "put the data in a blob" in settlement.description
        assert pipe.count(queue) == 1
    else:  # what fits on a claim's row fits into a message
        assert settlement == Complete()
        assert pipe.count(queue) == 2


def test_a_follow_up_to_nowhere_is_a_dead_letter_of_its_sender(bus_pipe: BusPipe) -> None:
    """A queue that is not there is said on the message that would send to it, and its effect stays done."""
    target = make_handler("nowhere-at-all")
    one = make_handler("invoices", lambda message: message.enqueue(target, {"id": "1"}), name="sending")
    bench = Workbench()
    host = Deliverer(bench.stores, bus_pipe.sender, bench.settings, bench.clock, host="test")
    for count in (1, 2):
        settlement = host.deliver(one, Delivery(b'{"id":"1"}', "m-1", count))
        assert isinstance(settlement, DeadLetter)
        assert settlement.reason == "FollowUpRefused"
        assert "nowhere-at-all" in settlement.description


def test_completed_is_gone(pipe: Pipe) -> None:
    """A completed message is neither in the queue nor among the dead letters."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    inbox.settle(receive(inbox)[0], Complete())
    assert (pipe.count(to.queue), pipe.dead_count(to.queue)) == (0, 0)


def test_dead_lettered_is_put_aside_with_its_reason(pipe: Pipe) -> None:
    """The queue no longer has it; the dead letters have it with all it had, and why."""
    to = make_handler(pipe.queue())
    [sent] = pipe.send(to, BODY, correlation_id="order-7")
    inbox = pipe.inbox(to)
    inbox.settle(receive(inbox)[0], DeadLetter("MissingKey", "its body has no field 'key': add it"))
    assert (pipe.count(to.queue), pipe.dead_count(to.queue)) == (0, 1)
    [dead] = pipe.dead_letters(to).peek(10)
    assert (dead.reason, dead.description) == ("MissingKey", "its body has no field 'key': add it")
    delivery = dead.delivery
    assert (delivery.body, delivery.message_id, delivery.correlation_id) == (BODY, sent, "order-7")


def test_a_long_reason_is_cut_rather_than_refused(pipe: Pipe) -> None:
    """A reason over the broker's limit, with a body that all but fills a message, is shortened."""
    to = make_handler(pipe.queue())
    pipe.send(to, b"x" * 48_000)
    inbox = pipe.inbox(to)
    inbox.settle(receive(inbox)[0], DeadLetter("InvalidBody", "because " * 3_000))
    [dead] = pipe.dead_letters(to).peek(10)
    assert dead.reason == "InvalidBody"
    assert "because " * 10 in dead.description
    assert len(dead.delivery.body) == 48_000


@pytest.mark.parametrize("text", ["Ada \ud83d", "\U0001f511" * 9000], ids=["half a character", "long"])
def test_any_reason_can_be_told(limited_pipe: Pipe, text: str) -> None:
    """Half a character of an error's text is written out, and what is cut says so."""
    to = make_handler(limited_pipe.queue())
    limited_pipe.send(to, BODY)
    inbox = limited_pipe.inbox(to)
    inbox.settle(receive(inbox)[0], DeadLetter("Failed", f"ValueError: {text}"))
    [dead] = limited_pipe.dead_letters(to).peek(1)
    assert dead.description == "ValueError: Ada \\ud83d" or dead.description.endswith("\U0001f511…")


def test_rescheduled_comes_again(pipe: Pipe) -> None:
    """It says how often, under its sender's id: on Service Bus as a copy, whose deliveries count from 1 again."""
    to = make_handler(pipe.queue())
    [sent] = pipe.send(to, BODY, correlation_id="order-7")
    inbox = pipe.inbox(to)
    for times in (1, 2, 3):
        inbox.settle(receive(inbox)[0], Reschedule(0.0, "busy"))
        assert pipe.count(to.queue) == 1
        if times == 3:
            [received] = receive(inbox)
            delivery = received.delivery
            assert (delivery.sent_as or delivery.message_id, delivery.reschedules) == (sent, 3)
            assert (delivery.body, delivery.correlation_id) == (BODY, "order-7")
            if pipe.kind == "servicebus":
                assert re.fullmatch(rf"{sent}~[0-9a-f]{{20}}~r3", delivery.message_id)
                assert delivery.delivery_count == 1


def test_rescheduled_waits_for_its_delay(pipe: Pipe) -> None:
    """A copy with a delay is there, hidden, and comes when the delay is over."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    started = time.monotonic()
    inbox.settle(received, Reschedule(1.5, "busy"))
    assert pipe.count(to.queue) == 1
    receive(inbox)
    assert time.monotonic() - started > 1.4


def test_given_back_comes_again_at_once(pipe: Pipe) -> None:
    """A message given back is delivered again before its lock would have ended, and the delivery counted."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    inbox.give_back(received)
    started = time.monotonic()
    [again] = receive(inbox)
    assert time.monotonic() - started < LOCK - 1
    assert again.delivery.delivery_count == 2


def test_a_receiver_that_dies_loses_nothing(pipe: Pipe) -> None:
    """A message nobody settled is delivered again when its lock has ended, with the next number."""
    to = make_handler(pipe.queue())
    [sent] = pipe.send(to, BODY)
    receive(pipe.inbox(to))
    [again] = receive(pipe.inbox(to), patience=LOCK + 12)
    assert (again.delivery.message_id, again.delivery.delivery_count) == (sent, 2)


def test_renewed_stays_hidden(pipe: Pipe) -> None:
    """Renewed in time, a message stays with its receiver for twice its lock, and can be settled then."""
    to = make_handler(pipe.queue())
    inbox, other = pipe.inbox(to), pipe.inbox(to)
    assert none_come(other)  # which opens it
    pipe.send(to, BODY)
    [received] = receive(inbox)
    until = time.monotonic() + 2 * LOCK
    while time.monotonic() < until:
        renewed = inbox.renew(received)
        assert renewed is not None
        received = renewed
        assert none_come(other, min(received.renew_in, 1.0))
    inbox.settle(received, Complete())
    assert pipe.count(to.queue) == 0


def test_renewing_what_is_lost_says_so(pipe: Pipe) -> None:
    """When somebody else has the message by now, renewing gives None and settling leaves it to them."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox, other = pipe.inbox(to), pipe.inbox(to)
    [received] = receive(inbox)
    [theirs] = receive(other, patience=LOCK + 12)
    assert inbox.renew(received) is None
    _settled_or_refused(inbox, received)
    assert pipe.count(to.queue) == 1
    other.settle(theirs, Complete())
    assert pipe.count(to.queue) == 0


def _settled_or_refused(inbox: Any, received: Any) -> None:
    """Service Bus refuses it; a Storage queue cannot tell it from a message that is deleted already."""
    try:
        inbox.settle(received, Complete())
    except TransportError:
        return


# -- dead letters ------------------------------------------------------------------------------------------------


def _put_aside(pipe: Pipe, count: int) -> Any:
    to = make_handler(pipe.queue())
    pipe.send(to, *[json.dumps({"id": n}).encode() for n in range(count)])
    inbox = pipe.inbox(to)
    for received in receive(inbox, count):
        inbox.settle(received, DeadLetter("Failed", "no such address"))
    return to


def test_peeking_at_dead_letters_changes_nothing(pipe: Pipe) -> None:
    """They can be looked at again and again, as many as asked for."""
    to = _put_aside(pipe, 3)
    letters = pipe.dead_letters(to)
    assert len(letters.peek(2)) == 2
    assert sorted(d.delivery.body for d in letters.peek(32)) == [b'{"id": 0}', b'{"id": 1}', b'{"id": 2}']
    assert pipe.dead_count(to.queue) == 3


def test_taken_dead_letters_are_removed_or_put_back(pipe: Pipe) -> None:
    """Taken ones are hidden from others; removed is gone, put back is there again, at once."""
    to = _put_aside(pipe, 3)
    letters = pipe.dead_letters(to)
    taken = letters.take(2)
    while len(taken) < 2:
        taken += letters.take(2 - len(taken))
    letters.remove(taken[0])
    letters.put_back(taken[1])
    assert pipe.dead_count(to.queue) == 2
    remaining = {d.delivery.body for d in letters.take(10)}
    while len(remaining) < 2:
        remaining |= {d.delivery.body for d in letters.take(10)}
    assert taken[0].delivery.body not in remaining
    assert taken[1].delivery.body in remaining


def test_no_dead_letters_is_an_empty_list(pipe: Pipe) -> None:
    """A queue that never had any, or does not exist yet, has none."""
    to = make_handler(pipe.queue())
    letters = pipe.dead_letters(to)
    assert letters.peek(10) == []
    assert letters.take(10) == []


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["storage", "servicebus"])
def nobody(request: pytest.FixtureRequest) -> Any:
    """Each transport, with nobody at the other end."""
    if request.param == "servicebus":
        closed = (
            "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        return ServiceBusTransport(ServiceBusConnection(closed))
    key = base64.b64encode(b"key").decode()
    ends = "".join(f"{s}Endpoint=http://127.0.0.1:9/devstoreaccount1;" for s in ("Blob", "Queue", "Table"))
    text = f"AccountName=devstoreaccount1;AccountKey={key};{ends}"
    return StorageTransport(services(StorageConnection(text), "queue")[0], LOCK)


def test_a_broker_out_of_reach_is_one_kind_of_error_and_soon(nobody: Any) -> None:
    """Sending, receiving and looking at dead letters end in TransportError within ten seconds each."""
    to = make_handler("invoices")
    calls = (
        (nobody.sender(), lambda part: part.send("invoices", [Outgoing(BODY, "1")])),
        (nobody.inbox(to), lambda part: part.receive(1, 1.0)),
        (nobody.dead_letters(to), lambda part: part.peek(1)),
        (nobody.dead_letters(to), lambda part: part.take(1)),
    )
    for part, call in calls:
        started = time.monotonic()
        with pytest.raises(TransportError, match="invoices"):
            call(part)
        assert time.monotonic() - started < 10
        part.close()
        part.close()


def test_a_service_bus_that_was_away_is_found_again(bus_pipe: BusPipe) -> None:
    """Sender, inbox and dead letters work on after their connections broke, with the messages they had."""
    to = make_handler(bus_pipe.queue())
    bus_pipe.send(to, BODY, BODY)
    inbox = bus_pipe.inbox(to)
    received = receive(inbox, 2)
    bus_pipe.broker.cut()
    inbox.settle(received[0], Complete())
    bus_pipe.broker.cut()
    inbox.settle(received[1], DeadLetter("Failed", "why"))
    bus_pipe.broker.cut()
    bus_pipe.send(to, b"later")
    with contextlib.suppress(TransportError):  # a receive of a second may be too short for opening anew
        receive(inbox)
    assert [r.delivery.body for r in receive(inbox)] == [b"later"]
    assert bus_pipe.dead_count(to.queue) == 1


def test_a_service_bus_copy_is_sent_before_the_message_is_completed(bus_pipe: BusPipe) -> None:
    """When completing fails after the copy was sent, both are there; when sending fails, the message is."""
    to = make_handler(bus_pipe.queue())
    bus_pipe.send(to, BODY)
    inbox = bus_pipe.inbox(to)
    [received] = receive(inbox)
    bus_pipe.broker.fault("busy", "complete", entity=to.queue, count=10)
    with pytest.raises(TransportError, match="completing"):
        inbox.settle(received, Reschedule(0.0, "busy"))
    bus_pipe.broker.clear_faults()
    assert bus_pipe.count(to.queue) == 2
    found = {r.delivery.message_id: r for r in receive(inbox, 2, patience=LOCK + 12)}
    bus_pipe.broker.fault("busy", "send", entity=to.queue, count=10)
    with pytest.raises(TransportError, match="sending"):
        inbox.settle(next(iter(found.values())), Reschedule(0.0, "busy"))
    assert bus_pipe.count(to.queue) == 2


def test_a_lost_reply_to_a_deletion_is_an_error_that_loses_nothing(proxy: StorageProxy) -> None:
    """Deleted, and never answered: the consumer hears that it comes again, and it simply does not."""
    pipe = StoragePipe(proxy.connection_string)
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    proxy.queue.inject(DROP_REPLY, "^DELETE")
    with pytest.raises(TransportError):
        inbox.settle(received, Complete())
    assert pipe.count(to.queue) == 0
    inbox.settle(received, Complete())  # gone already is what was wanted
    pipe.close()


def test_a_storage_queue_holds_back_for_a_week_at_most(storage_pipe: StoragePipe) -> None:
    """A later time is refused with the remedy, rather than delivered too early."""
    to = make_handler(storage_pipe.queue())
    with pytest.raises(TransportError, match=r"7 days at most.*use Service Bus"):
        storage_pipe.send(to, BODY, at=datetime.now(UTC) + timedelta(days=8))


# -- messages of others on Storage queues ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"id": 1}', b'{"id": 1}'),
        (base64.b64encode(b'{"id": 1}').decode(), b'{"id": 1}'),
        (base64.b64encode(b'{\n  "id": 1\n}').decode(), b'{\n  "id": 1\n}'),
        ("1234", b"1234"),
        ("true", b"true"),
        ("hello world", b"hello world"),
        ('{"runonce": 2}', b'{"runonce": 2}'),
        ('{"runonce": 1, "id": 7, "body": "x"}', b'{"runonce": 1, "id": 7, "body": "x"}'),
        (
            '{"runonce": 1, "id": "a", "correlation_id": "", "reschedules": 0, "body64": "!"}',
            b'{"runonce": 1, "id": "a", "correlation_id": "", "reschedules": 0, "body64": "!"}',
        ),
        ('{"runonce": ' + "[" * 20_000, b'{"runonce": ' + b"[" * 20_000),
    ],
    ids=["json", "base64", "base64-lines", "digits", "word", "text", "mark", "types", "bad-base64", "deep"],
)
def test_what_others_send_is_taken_as_it_is(storage_pipe: StoragePipe, text: str, body: bytes) -> None:
    """Plain or in Base64, and even if it looks like the toolkit's envelope: the body is what was meant."""
    to = make_handler(storage_pipe.queue())
    with storage_pipe.client(to.queue) as client:
        client.create_queue()
        sent = client.send_message(text)
    [received] = receive(storage_pipe.inbox(to))
    assert (received.delivery.body, received.delivery.message_id) == (body, sent.id)


def test_what_the_toolkit_sends_is_base64_for_the_functions_host(storage_pipe: StoragePipe) -> None:
    """The raw text decodes to an envelope; the Functions host would put anything else into the poison queue."""
    to = make_handler(storage_pipe.queue())
    storage_pipe.send(to, BODY)
    with storage_pipe.client(to.queue) as client:
        [raw] = client.peek_messages()
    envelope = json.loads(base64.b64decode(raw.content, validate=True))
    assert (envelope["runonce"], envelope["body"]) == (1, BODY.decode())


def test_a_foreign_message_keeps_its_body_through_copies_and_dead_letters(storage_pipe: StoragePipe) -> None:
    """Sent back it is the same message, and put aside it is as it came; why is told again from its body."""
    to = make_handler(storage_pipe.queue())
    with storage_pipe.client(to.queue) as client:
        client.create_queue()
        sent = client.send_message("<order/>")
    inbox = storage_pipe.inbox(to)
    inbox.settle(receive(inbox)[0], Reschedule(0.0, "busy"))
    [copy] = receive(inbox)
    assert (copy.delivery.body, copy.delivery.message_id) == (b"<order/>", sent.id)
    inbox.settle(copy, DeadLetter("NotJson", "it is XML"))
    with storage_pipe.client(f"{to.queue}-poison") as client:
        assert [message.content for message in client.peek_messages()] == ["<order/>"]
    registry = Registry(memory_stores(ManualClock()).claims, "shop", ManualClock(), "test")
    shown = view(registry, to, storage_pipe.dead_letters(to).peek(1)[0])
    assert (shown.dead.delivery.body, shown.reason) == (b"<order/>", "NotJson")


def test_what_the_functions_host_put_aside_has_no_reason(storage_pipe: StoragePipe) -> None:
    """Its copy in the poison queue is the body alone; it is shown as what it is."""
    to = make_handler(storage_pipe.queue())
    with storage_pipe.client(f"{to.queue}-poison") as client:
        client.create_queue()
        client.send_message(wrap(Outgoing(BODY, "m-1")))
        client.send_message("plain")
    ours, plain = storage_pipe.dead_letters(to).peek(10)
    assert (ours.delivery.body, ours.delivery.message_id, ours.reason) == (BODY, "m-1", "")
    assert (plain.delivery.body, plain.reason) == (b"plain", "")
    assert "Functions host" in plain.description
    assert "no Base64" in plain.description
    assert "no Base64" not in ours.description
    in_a_week = datetime.now(UTC) + timedelta(days=7)
    for dead in (ours, plain):
        assert dead.expires_at is not None
        assert abs(dead.expires_at - in_a_week) < timedelta(minutes=1)


# -- Service Bus alone -------------------------------------------------------------------------------------------


def test_application_properties_arrive_and_survive_a_copy(bus_pipe: BusPipe, bus: Bus) -> None:
    """What others set as properties is there, on the copy too; the toolkit's own are not among them."""
    to = make_handler(bus_pipe.queue())
    bus.sender(to.queue).send_messages(
        ServiceBusMessage(BODY, message_id="m-1", application_properties={"tenant": "a", b"n": 3})
    )
    inbox = bus_pipe.inbox(to)
    [received] = receive(inbox)
    assert received.delivery.properties == {"tenant": "a", "n": 3}
    inbox.settle(received, Reschedule(0.0, "busy"))
    [copy] = receive(inbox)
    assert copy.delivery.properties == {"tenant": "a", "n": 3}
    assert copy.delivery.reschedules == 1


def test_what_others_put_where_the_toolkits_marks_are_does_no_harm(bus_pipe: BusPipe, bus: Bus) -> None:
    """A message without an id, and a property that looks like the toolkit's, are no reason for the consumer to fail."""
    to = make_handler(bus_pipe.queue())
    bus.sender(to.queue).send_messages(AmqpAnnotatedMessage(data_body=[b"two ", b"parts"]))
    bus.sender(to.queue).send_messages(
        ServiceBusMessage(BODY, application_properties={"runonce-reschedules": "many"})
    )
    found = [r.delivery for r in receive(bus_pipe.inbox(to), 2)]
    assert found[0].body == b"two parts"
    assert len({d.message_id for d in found} - {""}) == 2, "the service names what has no id"
    assert [d.reschedules for d in found] == [0, 0]


def test_a_type_that_the_client_does_not_know_is_received_and_copied(bus_pipe: BusPipe) -> None:
    """A property that is a character, as .NET's char, keeps nobody from receiving its message or sending it back."""
    to = make_handler(bus_pipe.queue())
    raw = proton.Message(body=BODY, inferred=True, properties={"kind": proton.char("A")}).encode()
    bus_pipe.sender.send(to.queue, [Outgoing(BODY, "m-1", original=lambda: raw)])
    inbox = bus_pipe.inbox(to)
    [received] = receive(inbox, 1)
    inbox.settle(received, Reschedule(0.0, "busy"))
    [copy] = receive(inbox, 1)
    assert [dict(r.delivery.properties) for r in (received, copy)] == [{"kind": "A"}] * 2


def test_an_entity_that_does_not_exist_is_an_error_that_names_it(bus_pipe: BusPipe) -> None:
    """A queue nobody made: sending and receiving say which."""
    to = make_handler("no-such-queue")
    with pytest.raises(TransportError, match="no-such-queue"):
        bus_pipe.inbox(to).receive(1, 1.0)
    with pytest.raises(TransportError, match="no-such-queue"):
        bus_pipe.send(to, BODY)


# -- what duplicate detection must and must not drop -----------------------------------------------------------------


def test_a_message_sent_twice_comes_once_and_its_correction_too(topic_pipe: Pipe) -> None:
    """Within the window: the same body in other bytes is dropped, another body under the same key is not."""
    to = make_handler(topic_pipe.queue())
    bodies: list[Any] = [{"id": "A", "n": 1}, b'{ "n": 1.0, "id": "A" }', {"id": "A", "n": 2}]
    for body in bodies:
        send_all(topic_pipe.sender, to, [outgoing(to, body)])
    found = [json.loads(r.delivery.body)["n"] for r in receive(topic_pipe.inbox(to), 2)]
    assert found == [1, 2]
    assert topic_pipe.count(to.queue) == 2


def test_messages_without_an_id_all_come_again_and_are_all_replayed(bus_pipe: BusPipe, bus: Bus) -> None:
    """Five messages of a sender that sets no id: sent back they are five, dead and replayed they are five."""
    to = make_handler(bus_pipe.queue())
    for _ in range(5):
        bus.sender(to.queue).send_messages(AmqpAnnotatedMessage(data_body=BODY))
    inbox = bus_pipe.inbox(to)
    for received in receive(inbox, 5):
        inbox.settle(received, Reschedule(0.0, "busy"))
    copies = receive(inbox, 5)
    for received in copies:
        inbox.settle(received, DeadLetter("Failed", "why"))
    letters, stores = bus_pipe.dead_letters(to), memory_stores(ManualClock())
    registry = Registry(stores.claims, "shop", ManualClock(), "test")
    taken: list[Dead] = []
    while len(taken) < 5:
        taken += letters.take(5)
    for dead in taken:
        replay(registry, bus_pipe.sender, to, letters, dead, from_scratch=True)
    assert len(receive(inbox, 5)) == 5
    assert bus_pipe.dead_count(to.queue) == 0


# -- topics ------------------------------------------------------------------------------------------------------


def _subscriber(topic: str, subscription: str, **options: Any) -> Handler:
    def handle(message: Any) -> None:
        """Do nothing."""

    return handler(topic=topic, subscription=subscription, key="id", name=subscription, **options)(handle)


def test_each_subscription_has_its_own_queue(topic_pipe: Pipe) -> None:
    """What one completes or puts aside, the other still gets, and dead letters belong to one of them."""
    billing, shipping = _subscriber("events", "billing"), _subscriber("events", "shipping")
    topic_pipe.send(billing, BODY)
    inbox, other = topic_pipe.inbox(billing), topic_pipe.inbox(shipping)
    inbox.settle(receive(inbox)[0], DeadLetter("Failed", "why"))
    assert topic_pipe.count("events.billing") == 0
    assert [d.reason for d in topic_pipe.dead_letters(billing).peek(5)] == ["Failed"]
    assert topic_pipe.dead_letters(shipping).peek(5) == []
    other.settle(receive(other)[0], Complete())
    assert topic_pipe.count("events.shipping") == 0


def test_what_one_subscriber_retries_nobody_else_sees(topic_pipe: Pipe) -> None:
    """Two subscribers send every event back and replay it within the window: both have all, others have it once."""
    both = [_subscriber("orders", "billing"), _subscriber("orders", "shipping")]
    topic_pipe.send(both[0], *(json.dumps({"id": n}).encode() for n in range(5)))
    registry = Registry(memory_stores(ManualClock()).claims, "shop", ManualClock(), "test")
    for one in both:
        inbox, letters = topic_pipe.inbox(one), topic_pipe.dead_letters(one)
        for received in receive(inbox, 5):
            inbox.settle(received, Reschedule(0.0, "the claim table is out of reach"))
        for received in receive(inbox, 5):
            inbox.settle(received, DeadLetter("Failed", "why"))
        taken: list[Dead] = []
        while len(taken) < 5:
            taken += letters.take(5)
        for dead in taken:
            replay(registry, topic_pipe.sender, one, letters, dead, from_scratch=True)
        again = receive(inbox, 5)
        assert sorted(json.loads(r.delivery.body)["id"] for r in again) == list(range(5))
        assert {r.delivery.only_for for r in again} == {""}
    assert topic_pipe.count("orders/warehouse") == 5


def test_a_subscription_that_does_not_forward_retries_through_a_queue(bus_pipe: BusPipe) -> None:
    """Read directly, its copies and replays go through the toolkit's own queue; both places' dead letters are seen."""
    one = _subscriber("plain", "billing", forward=False)
    bus_pipe.send(one, b'{"id": 1}', b'{"id": 2}')
    inbox, letters = bus_pipe.inbox(one), bus_pipe.dead_letters(one)
    first, second = receive(inbox, 2)
    inbox.settle(first, Reschedule(0.0, "busy"))
    inbox.settle(second, DeadLetter("Failed", "at once"))
    [copy] = receive(inbox)
    assert copy.delivery.body == first.delivery.body
    renewed = inbox.renew(copy)
    assert renewed is not None
    inbox.give_back(renewed)
    [copy] = receive(inbox)
    assert copy.delivery.delivery_count == 2
    inbox.settle(copy, DeadLetter("Failed", "later"))
    assert sorted(dead.description for dead in letters.peek(5)) == ["at once", "later"]
    registry = Registry(memory_stores(ManualClock()).claims, "shop", ManualClock(), "test")
    taken: list[Dead] = []
    while len(taken) < 2:
        taken += letters.take(5)
    assert len({dead.place for dead in taken}) == 2
    for dead in taken:
        replay(registry, bus_pipe.sender, one, letters, dead, from_scratch=True)
    assert len(receive(inbox, 2)) == 2
    assert bus_pipe.dead_count("plain/billing") + bus_pipe.dead_count("plain.billing.retry") == 0
    assert bus_pipe.count("plain/warehouse") == 2


def test_a_copy_of_an_older_version_is_for_one_subscription(azurite: str) -> None:
    """One that went to the whole topic, and is in flight during an upgrade, is completed by those it is not for."""
    clock, ran = ManualClock(), list[str]()
    deliverer = Deliverer(memory_stores(clock), MemorySender(), fresh_settings(azurite), clock, host="test")
    for name in ("billing", "shipping"):
        one = handler(topic="payments", subscription=name, key="id", name=name)(
            lambda m: ran.append(m.handler)
        )
        came = Delivery(BODY, "m-1~r1", reschedules=1, only_for="billing")
        assert deliverer.deliver(one, came) == Complete(duplicate=name == "shipping")
    assert ran == ["billing"]


# -- a copy is its message ---------------------------------------------------------------------------------------

TYPED = {
    "long": (AMQPTypes.long, 5_000_000_000),
    "short long": (AMQPTypes.long, 7),
    "timestamp": (AMQPTypes.timestamp, 1_790_000_000_000),
    "uuid": (AMQPTypes.uuid, uuid.UUID(int=17)),
    "symbol": (AMQPTypes.symbol, b"gold"),
    "float": (AMQPTypes.float, 1.5),
    "ulong": (AMQPTypes.ulong, 2**63 + 1),
    "byte": (AMQPTypes.byte, -3),
    "binary": (AMQPTypes.binary, b"\xff\x00"),
    "text": (AMQPTypes.string, "Grüße"),
    "yes": (AMQPTypes.boolean, True),
}


def _send_whole(bus: Bus, queue: str) -> None:
    """A message with everything that a sender can set."""
    message = ServiceBusMessage(
        BODY,
        message_id="m-1",
        subject="paid",
        content_type="application/json",
        to="billing",
        reply_to="answers",
        reply_to_session_id="s-2",
        correlation_id="order-7",
        partition_key="p-1",
        time_to_live=timedelta(minutes=10),
        application_properties={
            name: {"TYPE": kind, "VALUE": value} for name, (kind, value) in TYPED.items()
        },
    )
    bus.sender(queue).send_messages(message)


def _seen(broker: Broker, bus: Bus, queue: str) -> dict[str, Any]:
    """The one message of a queue, decoded with its types by another AMQP library."""
    [peeked] = bus.receiver(queue).peek_messages(sequence_number=1)
    receiver = Receiver(ServiceBusConnection(broker.connection_string), (queue, None))
    raw = receiver.original(peeked.sequence_number or 0)
    receiver.close()
    assert raw is not None
    message = proton.Message()
    message.decode(raw)
    return {
        "id": message.id,
        # It shows binaries by views of its own memory, which is another's once the message has gone.
        "properties": {
            k: (type(v).__name__, bytes(v) if isinstance(v, memoryview) else v)
            for k, v in (message.properties or {}).items()
        },
        "rest": [
            *(
                message.subject,
                message.content_type,
                message.address,
                message.reply_to,
                message.correlation_id,
            ),
            *(message.reply_to_group_id, bytes(message.body), message.annotations["x-opt-partition-key"]),
        ],
        "ttl": message.ttl,
    }


def test_a_copy_and_a_replay_are_the_message_with_all_it_had(bus_pipe: BusPipe, bus: Bus) -> None:
    """Types of properties, subject, content type, to, reply-to, keys and body are those of the message."""
    to = make_handler(bus_pipe.queue())
    _send_whole(bus, to.queue)
    first = _seen(bus_pipe.broker, bus, to.queue)
    inbox, letters = bus_pipe.inbox(to), bus_pipe.dead_letters(to)
    inbox.settle(receive(inbox)[0], Reschedule(0.0, "busy"))
    copy = _seen(bus_pipe.broker, bus, to.queue)
    assert copy["id"] != first["id"]
    assert copy["rest"] == first["rest"]
    own = {"runonce-reschedules": ("int32", 1), "runonce-sent-as": ("str", "m-1")}
    assert copy["properties"] == first["properties"] | own
    assert 300 < copy["ttl"] < 600, "seconds of life that are left"
    [received] = receive(inbox)
    assert received.delivery.properties == {
        name: value if isinstance(value, str | bool | float | int) else str(value)
        for name, (_, value) in TYPED.items()
    } | {"symbol": "gold", "binary": "/wA=", "timestamp": "2026-09-21T14:13:20.000Z"}
    inbox.settle(received, DeadLetter("Failed", "because " * 400))
    registry = Registry(memory_stores(ManualClock()).claims, "shop", ManualClock(), "test")
    replay(registry, bus_pipe.sender, to, letters, letters.take(1)[0], from_scratch=True)
    again = _seen(bus_pipe.broker, bus, to.queue)
    assert again["rest"] == first["rest"]
    assert again["properties"] == first["properties"] | own


def test_lengths_of_time_and_instants_are_text_on_every_host(bus_pipe: BusPipe, bus: Bus) -> None:
    """What .NET sends as TimeSpan and DateTimeOffset is read as the Functions host would tell it."""
    to = make_handler(bus_pipe.queue())
    times = {
        "span": (b"com.microsoft:timespan", 36_610_000_000 + 864_000_000_000 * 2),
        "back": (b"com.microsoft:timespan", -10_000_001),
        "offset": (b"com.microsoft:datetime-offset", 639_130_000_000_000_000),
    }
    properties: Any = {
        name: {
            "TYPE": AMQPTypes.described,
            "VALUE": (
                {"TYPE": AMQPTypes.symbol, "VALUE": kind},
                {"TYPE": AMQPTypes.long, "VALUE": ticks},
            ),
        }
        for name, (kind, ticks) in times.items()
    }
    bus.sender(to.queue).send_messages(ServiceBusMessage(BODY, application_properties=properties))
    inbox = bus_pipe.inbox(to)
    for _ in range(2):
        [received] = receive(inbox)
        assert received.delivery.properties == {
            "span": "2.01:01:01",
            "back": "-00:00:01.0000001",
            "offset": "2026-04-28T19:06:40.000Z",
        }
        inbox.settle(received, Reschedule(0.0, "busy"))


def test_a_copy_that_waits_has_that_much_less_to_live(bus_pipe: BusPipe, bus: Bus) -> None:
    """The broker counts a scheduled message's life from its time, so the wait is taken off."""
    to = make_handler(bus_pipe.queue())
    bus.sender(to.queue).send_messages(
        ServiceBusMessage(BODY, message_id="m-1", time_to_live=timedelta(minutes=10))
    )
    inbox = bus_pipe.inbox(to)
    inbox.settle(receive(inbox)[0], Reschedule(240.0, "busy"))
    [peeked] = bus.receiver(to.queue).peek_messages()
    assert peeked.time_to_live is not None
    assert timedelta(minutes=5) < peeked.time_to_live <= timedelta(minutes=6)


def test_a_body_that_is_not_data_is_told_as_such(bus_pipe: BusPipe, bus: Bus) -> None:
    """Text and bytes of an AMQP value are the body, no body is an empty one, anything else has no bytes to handle."""
    to = make_handler(bus_pipe.queue())
    bodies = [
        AmqpAnnotatedMessage(value_body='{"id": 1}'),
        AmqpAnnotatedMessage(value_body=b'{"id": 1}'),
        AmqpAnnotatedMessage(data_body=[b'{"id"', b": 1}"]),
        AmqpAnnotatedMessage(value_body=["a", 1]),
        AmqpAnnotatedMessage(value_body={"id": 1}),
        AmqpAnnotatedMessage(sequence_body=[["a"], [1]]),
    ]
    for body in bodies:
        bus.sender(to.queue).send_messages(body)
    found = [r.delivery for r in receive(bus_pipe.inbox(to), len(bodies))]
    assert [d.body for d in found] == [b'{"id": 1}'] * 3 + [b""] * 3
    assert [bool(d.unreadable) for d in found] == [False] * 3 + [True] * 3
    for delivery in found[3:]:
        with pytest.raises(BadMessageError, match=r"AMQP (value|sequence).*neither bytes nor text") as caught:
            prepare(to, delivery, 1000)
        assert caught.value.reason == "NotData"


# -- how much there is ------------------------------------------------------------------------------------------


def test_a_backlog_is_counted_and_nothing_is_touched(pipe: Pipe) -> None:
    """What waits, what was put aside and since when the oldest waits; twice the same, and all can still be had."""
    to = _put_aside(pipe, 3)
    empty = make_handler(pipe.queue())
    assert (pipe.transport.backlog(empty).waiting, pipe.transport.backlog(empty).dead) == (0, 0)
    before = datetime.now(UTC)
    pipe.send(to, b"1", b"2")
    for _ in range(2):
        found = pipe.transport.backlog(to)
        assert (found.waiting, found.dead, found.at_least) == (2, 3, False)
        assert found.oldest is not None
        assert abs((found.oldest - before).total_seconds()) < PATIENCE
    assert len(receive(pipe.inbox(to), 2)) == 2
    assert len(pipe.dead_letters(to).take(3)) == 3


@pytest.mark.slow
def test_dead_letters_beyond_what_a_queue_shows(storage_pipe: StoragePipe) -> None:
    """Forty in a Storage queue: counted, thirty-two shown, the others told by their claims where they have one."""
    pipe = storage_pipe
    settings = fresh_settings(pipe.connection_string)
    to = _put_aside(pipe, 40)
    found = Discovered(handlers={to.name: to})
    with Runtime(settings, found=found, transport=pipe.transport) as runtime:
        bare = facts.letters(runtime, to, 1000)
        assert (bare.count, len(bare.shown), bare.by_claims) == (40, 32, ())
        (told,) = facts.dead_letters(runtime)
        assert (told.count, sum(group.count for group in told.groups), told.unexplained) == (40, 32, 8)
        for n in range(8):
            row = MessageRow(to.name, to.entity, f"k{n}", State.FAILED, "ValueError: no", message_id=f"c{n}")
            partition, key = place(settings.namespace, to.entity, to.name, row.key)
            runtime.stores.claims.commit(partition, [Insert(key, encode(row))])
        assert len(facts.letters(runtime, to, 1000).by_claims) == 8
        (told,) = facts.dead_letters(runtime)
        assert (told.count, sum(group.count for group in told.groups), told.unexplained) == (40, 40, 0)
