"""The consumer on a broker in memory, in real time: how much at once, renewal, its ends, and what goes wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.errors import HostStopping, TransportError
from runonce.execution.stop import StopSignal
from runonce.hosts.local import LocalHost
from runonce.messages import lane
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.messages.rows import State, decode_message, place
from runonce.messages.sending import outgoing, send_all
from runonce.runs.dispatch import Dispatcher
from runonce.stores.memory import memory_stores
from tests.support.memory_transport import MemoryTransport
from tests.support.namespaces import fresh_settings
from tests.support.transports import make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

PATIENCE = 10.0


class Stage:
    """Replicas on one broker and one storage, and what the handler did."""

    def __init__(self, lock: float = 30.0, shutdown_timeout: float = 5.0) -> None:
        self.clock = SystemClock()
        self.stores = memory_stores(self.clock)
        self.broker = MemoryTransport(self.clock, lock)
        settings = fresh_settings("UseDevelopmentStorage=true")
        self.settings = replace(settings, shutdown_timeout=shutdown_timeout, claim_lease=3)
        self.done: list[str] = []
        self.stops: list[StopSignal] = []

    def send(self, to: Handler, count: int) -> None:
        send_all(self.broker.sender(), to, [outgoing(to, {"id": n}) for n in range(count)])

    def consumer(self, handler: Handler) -> Consumer:
        """Of a replica of its own."""
        stop = StopSignal()
        self.stops.append(stop)
        name = f"replica-{len(self.stops)}"
        deliverer = Deliverer(
            self.stores, self.broker.sender(), self.settings, self.clock, host=name, stop=stop
        )
        return Consumer(deliverer, self.broker, handler)

    def noting(self, **options: Any) -> Handler:
        """A handler that notes what it handled."""
        return make_handler("invoices", lambda message: self.done.append(message.key), **options)

    def state(self, handler: Handler, key: str) -> State:
        read = self.stores.claims.get(*place(self.settings.namespace, handler.entity, handler.name, key))
        assert read is not None
        return decode_message(read).state

    def stop(self) -> None:
        """Tell every replica."""
        for stop in self.stops:
            stop.set(HostStopping("The host was told to stop."))


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.stop()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start it; the list gets what it returns."""
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(work()), daemon=True)
    thread.start()
    return thread, returned


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive()


def function(body: Callable[[Message], Any]) -> Any:
    def handle(message: Message) -> Any:
        return body(message)

    return handle


# -- how much at once --------------------------------------------------------------------------------------------


def test_as_many_at_once_as_the_handler_says(stage: Stage) -> None:
    """Three run side by side, never a fourth, and no more are received than can be run."""
    together = threading.Barrier(3)
    lock, running, most = threading.Lock(), [0], [0]

    def body(message: Message) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(PATIENCE)  # breaks unless three are in here
        with lock:
            running[0] -= 1
        stage.done.append(message.key)

    handler = make_handler("invoices", function(body), concurrency=3)
    stage.send(handler, 12)
    assert stage.consumer(handler).run(max_wait=0.2) == 12
    assert sorted(stage.done, key=int) == [str(n) for n in range(12)]
    assert most == [3]
    asked = [int(event.split()[1]) for event in stage.broker.events if event.startswith("receive")]
    assert max(asked) == 3


def test_async_handlers_run_side_by_side(stage: Stage) -> None:
    """Two coroutines wait for each other and both end."""
    together = threading.Barrier(2)

    async def handle(message: Message) -> None:
        await asyncio.to_thread(together.wait, PATIENCE)
        stage.done.append(message.key)

    handler = make_handler("invoices", handle, concurrency=2)
    stage.send(handler, 2)
    assert stage.consumer(handler).run(max_wait=0.1) == 2
    assert sorted(stage.done) == ["0", "1"]


def test_a_batch_takes_a_turn_and_those_that_come_again_go_alone(stage: Stage) -> None:
    """At most so many messages in a call, so many calls at once; one that failed is handled again by itself."""
    calls: list[list[tuple[str, int]]] = []
    lock, running, most = threading.Lock(), [0], [0]

    def handle(messages: list[Message]) -> None:
        with lock:
            calls.append([(message.key, message.attempt) for message in messages])
            running[0] += 1
            most[0] = max(most[0], running[0])
        for message in messages:
            if message.key == "3" and message.attempt == 1:
                message.fail(ValueError("not now"))
        with lock:
            running[0] -= 1

    handler = make_handler("invoices", handle, batch=5, concurrency=2, retry_delay=0.01)
    stage.send(handler, 17)
    assert stage.consumer(handler).run(max_wait=0.5) == 18
    assert max(len(call) for call in calls) == 5
    assert most[0] <= 2
    assert [("3", 2)] in calls
    assert sorted(int(key) for call in calls for key, attempt in call if attempt == 1) == list(range(17))
    assert {stage.state(handler, f"{n}") for n in range(17)} == {State.DONE}
    asked = [int(event.split()[1]) for event in stage.broker.events if event.startswith("receive")]
    assert max(asked) == 5


def test_all_messages_of_a_long_batch_are_renewed(stage: Stage) -> None:
    """A call longer than the broker's lock and the claims' lease keeps every message it has in hand."""
    stage.broker.lock = 0.6
    held = threading.Event()

    def handle(messages: list[Message]) -> None:
        for message in messages:
            stage.broker.wait_for(f"renew {message.message_id}")
            stage.broker.wait_for(f"renew {message.message_id}")
        stage.done.extend(message.key for message in messages)
        held.set()

    handler = make_handler("invoices", handle, batch=4)
    stage.send(handler, 4)
    assert stage.consumer(handler).run(max_messages=4) == 4
    assert held.is_set()
    assert sorted(stage.done) == ["0", "1", "2", "3"]


def test_a_batch_that_hangs_after_a_stop_is_left_and_comes_again() -> None:
    """The consumer ends within its patience; none of the messages is settled as done."""
    stage = Stage(shutdown_timeout=0.3)
    begun, let_go = threading.Event(), threading.Event()

    def handle(_: list[Message]) -> None:
        begun.set()
        let_go.wait(PATIENCE)

    handler = make_handler("invoices", handle, batch=4)
    stage.send(handler, 3)
    thread, _ = in_thread(stage.consumer(handler).run)
    assert begun.wait(PATIENCE)
    stage.stop()
    joined(thread)
    assert len(stage.broker.bodies("invoices")) == 3
    let_go.set()


def test_long_work_is_renewed(stage: Stage) -> None:
    """Work that takes longer than the broker's lock keeps its message: delivered once, handled once."""
    stage.broker.lock = 0.4
    release = threading.Event()
    handler = make_handler("invoices", function(lambda _: release.wait(PATIENCE)))
    stage.send(handler, 1)
    thread, returned = in_thread(lambda: stage.consumer(handler).run(max_wait=0.1))
    stage.broker.wait_for("renew invoices:0")
    while stage.broker.events.count("renew invoices:0") < 6:
        with stage.broker.changed:
            assert stage.broker.changed.wait(PATIENCE)
    release.set()
    joined(thread)
    assert returned == [1]
    assert stage.broker.bodies("invoices") == []


def test_an_idle_broker_is_not_asked_all_the_time_while_one_message_takes_long(stage: Stage) -> None:
    """While a message is being worked on and nothing else comes, the pauses between receives grow."""
    release = threading.Event()
    handler = make_handler("invoices", function(lambda _: release.wait(PATIENCE)))
    stage.send(handler, 1)
    thread, _ = in_thread(lambda: stage.consumer(handler).run(max_messages=9, max_wait=0.1))
    assert not release.wait(1.5)
    receives = sum(event.startswith("receive") for event in stage.broker.events)
    release.set()
    joined(thread)
    assert receives < 10


# -- its ends ----------------------------------------------------------------------------------------------------


def test_it_ends_after_so_many_messages(stage: Stage) -> None:
    """Told to take four of ten, it takes four, and the others are there for somebody else, unlocked."""
    handler = stage.noting()
    stage.send(handler, 10)
    assert stage.consumer(handler).run(max_messages=4) == 4
    assert len(stage.done) == 4
    assert len(stage.broker.inbox(handler).receive(10, 0.0)) == 6


def test_it_ends_when_the_queue_has_been_empty_for_so_long(stage: Stage) -> None:
    """All there is gets handled; then it waits that long, and ends."""
    handler = stage.noting()
    stage.send(handler, 5)
    assert stage.consumer(handler).run(max_wait=0.1) == 5
    assert stage.consumer(handler).run(max_wait=0.0) == 0
    assert len(stage.done) == 5


def test_a_stop_finishes_what_runs_and_gives_back_the_rest(stage: Stage) -> None:
    """What is being handled ends, nothing new is begun, and what was received meanwhile is back at once."""
    began, release = threading.Semaphore(0), threading.Event()

    def body(message: Message) -> None:
        began.release()
        assert release.wait(PATIENCE)
        stage.done.append(message.key)

    handler = make_handler("invoices", function(body), concurrency=2)
    stage.send(handler, 5)
    consumer = stage.consumer(handler)
    thread, returned = in_thread(consumer.run)
    for _ in range(2):
        assert began.acquire(timeout=PATIENCE)
    stage.stop()
    release.set()
    joined(thread)
    assert returned == [2]
    assert len(stage.done) == 2
    release.set()
    assert stage.consumer(handler).run(max_wait=0.1) == 3
    assert sorted(stage.done) == [str(n) for n in range(5)]


def test_a_handler_that_hears_of_the_stop_is_released_and_goes_on_elsewhere(stage: Stage) -> None:
    """One that checks ends early; its claim is free and its message is back a second later, without a failure."""
    began = threading.Event()

    def body(message: Message) -> None:
        began.set()
        while message.attempt == 1:
            message.check()
            threading.Event().wait(0.01)
        stage.done.append(message.key)

    handler = make_handler("invoices", function(body))
    stage.send(handler, 1)
    consumer = stage.consumer(handler)
    thread, _ = in_thread(consumer.run)
    assert began.wait(PATIENCE)
    stage.stop()
    joined(thread)
    assert stage.done == []
    assert stage.state(handler, "0") is State.RELEASED
    assert stage.consumer(handler).run(max_messages=1, max_wait=10) == 1
    assert stage.done == ["0"]
    assert stage.state(handler, "0") is State.DONE


def test_what_arrives_with_the_stop_is_given_back(stage: Stage) -> None:
    """A message that a receive brings after the host was told to stop is not begun."""
    handler = stage.noting()
    consumer = stage.consumer(handler)
    inbox = stage.broker.inbox(handler)
    receive = inbox.receive

    def stopping(count: int, wait: float) -> Any:
        stage.send(handler, 1)
        stage.stop()
        return receive(count, wait)

    inbox.receive = stopping  # type: ignore[method-assign]
    stage.broker.inbox = lambda _: inbox  # type: ignore[method-assign]
    assert consumer.run() == 0
    assert "give back invoices:0" in stage.broker.events
    assert stage.done == []


def test_one_that_does_not_end_in_time_is_left_and_comes_again() -> None:
    """The consumer ends after the grace time; the message is taken over when its lock and claim have ended."""
    stage = Stage(lock=0.5, shutdown_timeout=0.2)
    began, release = threading.Event(), threading.Event()

    def body(message: Message) -> None:
        if message.attempt == 1:
            began.set()
            release.wait(PATIENCE)
            message.commit({})
        stage.done.append(f"{message.key} #{message.attempt}")

    handler = make_handler("invoices", function(body))
    stage.send(handler, 1)
    consumer = stage.consumer(handler)
    consumer._deliverer.heartbeats.watch = lambda *_: None  # type: ignore[method-assign]  # as a dead process
    thread, returned = in_thread(consumer.run)
    assert began.wait(PATIENCE)
    stage.stop()
    joined(thread)
    assert returned == [0]
    other = stage.consumer(handler)
    thread, _ = in_thread(other.run)
    assert _until(lambda: bool(stage.done))
    release.set()
    assert _until(lambda: stage.broker.bodies("invoices") == [])
    stage.stop()
    joined(thread)
    assert stage.done == ["0 #2"]


def _until(true: Callable[[], bool]) -> bool:
    for _ in range(1000):
        if true():
            return True
        threading.Event().wait(0.01)
    return False


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "REST", 0.01)
    monkeypatch.setattr(lane, "LONGEST_REST", 0.02)


@pytest.mark.usefixtures("quick")
def test_a_broker_that_does_not_answer_is_asked_again(stage: Stage) -> None:
    """Three receives fail, the fourth brings the message."""
    handler = stage.noting()
    stage.send(handler, 1)
    stage.broker.fail["receive"] = [TransportError("away")] * 3
    assert stage.consumer(handler).run(max_messages=1) == 1
    assert stage.done == ["0"]


def test_a_message_that_could_not_be_settled_comes_again_and_has_no_second_effect(stage: Stage) -> None:
    """The broker refuses the completion; the next delivery is completed without running."""
    stage.broker.lock = 0.2
    handler = stage.noting()
    stage.send(handler, 1)
    stage.broker.fail["settle"] = [TransportError("away")]
    assert stage.consumer(handler).run(max_wait=0.6) == 1
    assert stage.done == ["0"]
    assert stage.broker.bodies("invoices") == []


@pytest.mark.usefixtures("quick")
def test_a_renewal_that_fails_is_tried_again(stage: Stage) -> None:
    """One failed renewal is followed by another before the lock ends."""
    stage.broker.lock = 1.0
    release = threading.Event()
    handler = make_handler("invoices", function(lambda _: release.wait(PATIENCE)))
    stage.send(handler, 1)
    stage.broker.fail["renew"] = [TransportError("away")]
    thread, returned = in_thread(lambda: stage.consumer(handler).run(max_wait=0.1))
    assert _until(lambda: stage.broker.events.count("renew invoices:0") >= 3)
    release.set()
    joined(thread)
    assert returned == [1]


def test_a_lost_lock_leaves_the_message_to_whoever_has_it(stage: Stage) -> None:
    """A message the broker gave to somebody else is not settled by the one that lost it."""
    stage.broker.lock = 0.3
    began, release = threading.Event(), threading.Event()

    def body(message: Message) -> None:
        began.set()
        assert release.wait(PATIENCE)
        stage.done.append(message.key)

    handler = make_handler("invoices", function(body))
    stage.send(handler, 1)
    consumer = stage.consumer(handler)
    thread, returned = in_thread(lambda: consumer.run(max_wait=0.1))
    assert began.wait(PATIENCE)
    with stage.broker.changed:
        stage.broker.queues["invoices"][0].receipt += 1  # as if somebody else had received it
    stage.broker.wait_for("renew invoices:0")
    release.set()
    joined(thread)
    assert returned == [0]
    assert stage.done == ["0"]
    assert len(stage.broker.bodies("invoices")) == 1


@pytest.mark.usefixtures("quick")
def test_a_defect_of_the_toolkit_loses_no_message(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """When delivering raises what it never should, the message comes again."""
    handler = stage.noting()
    stage.send(handler, 1)
    consumer = stage.consumer(handler)
    deliver = consumer._deliverer.deliver
    failures = [RuntimeError("a defect")]

    def defective(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return deliver(*args)

    monkeypatch.setattr(consumer._deliverer, "deliver", defective)
    assert consumer.run(max_wait=0.3) == 2
    assert stage.done == ["0"]


@pytest.mark.usefixtures("quick")
def test_a_consumer_that_fails_begins_anew(stage: Stage) -> None:
    """For ever means for ever: an inbox that cannot be opened is opened again."""
    handler = stage.noting()
    stage.send(handler, 1)
    inbox = stage.broker.inbox
    failures = [TransportError("away")] * 2

    def opening(of: Handler) -> Any:
        if failures:
            raise failures.pop()
        return inbox(of)

    stage.broker.inbox = opening  # type: ignore[method-assign]
    consumer = stage.consumer(handler)
    thread, _ = in_thread(consumer.run_for_ever)
    stage.broker.wait_for("settle invoices:0 Complete")
    stage.stop()
    joined(thread)
    assert stage.done == ["0"]


# -- the local host ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wedged", [False, True], ids=["ends in time", "does not"])
def test_the_local_host_consumes_beside_its_timers(wedged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It handles messages while it serves; told to stop it ends with 0, or with 75 when a handler goes on."""
    stage = Stage(shutdown_timeout=0.5 if wedged else 5.0)
    began, release = threading.Event(), threading.Event()

    def body(message: Message) -> None:
        stage.done.append(message.key)
        began.set()
        if wedged:
            release.wait(PATIENCE)

    handler = make_handler("invoices", function(body))
    stage.send(handler, 1)
    consumer = stage.consumer(handler)
    stop = stage.stops[0]
    dispatcher = Dispatcher({}, stage.stores, stage.settings, stage.clock, host="replica", stop=stop)
    exits: list[int] = []
    monkeypatch.setattr("os._exit", exits.append)
    thread, returned = in_thread(LocalHost(dispatcher, [consumer]).serve)
    assert began.wait(PATIENCE)
    if not wedged:
        stage.broker.wait_for("settle invoices:0 Complete")
    stop.set(HostStopping("The host was told to stop."))
    joined(thread)
    release.set()
    assert stage.done == ["0"]
    assert (exits, returned) == (([75], [0]) if wedged else ([], [0]))
