"""How consumers do where everything takes its time: more at once is more work done, and nothing waits in a row."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.execution import workers as workers_module
from runonce.execution.workers import Workers
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.messages.sending import outgoing, send_all
from runonce.stores.memory import memory_stores
from tests.support.memory_transport import MemorySide, MemoryTransport
from tests.support.namespaces import fresh_settings
from tests.support.transports import make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import Received
    from runonce.transports.settlement import Settlement

PATIENCE = 15.0
LATENCY = 0.05
"""Seconds there and back."""


class SlowSide(MemorySide):
    """An inbox whose every call takes a round trip; where it is for one thread, one call after the other."""

    def __init__(self, broker: SlowTransport, handler: Handler) -> None:
        super().__init__(broker, handler.queue, handler)
        self._slow = broker
        self.any_thread = broker.any_thread
        self._one_at_a_time = threading.Lock()

    def _trip(self) -> None:
        if self.any_thread:
            time.sleep(self._slow.latency)
            return
        assert self._one_at_a_time.acquire(blocking=False), "two threads in a client that is for one"
        time.sleep(self._slow.latency)
        self._one_at_a_time.release()

    def receive(self, count: int, wait: float) -> list[Received]:
        self._trip()
        return super().receive(count, wait)

    def settle(self, received: Received, settlement: Settlement) -> None:
        self._trip()
        super().settle(received, settlement)

    def renew(self, received: Received) -> Received | None:
        self._trip()
        return super().renew(received)


class SlowTransport(MemoryTransport):
    """A broker at some distance."""

    any_thread = False
    latency = LATENCY
    inboxes = 0

    def inbox(self, handler: Handler) -> MemorySide:
        self.inboxes += 1
        return SlowSide(self, handler)


class SlowTable:
    """A table at the same distance."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def get(self, partition: str, key: str) -> Any:
        time.sleep(LATENCY)
        return self._table.get(partition, key)

    def commit(self, partition: str, writes: Sequence[Any]) -> Any:
        time.sleep(LATENCY)
        return self._table.commit(partition, writes)


def consumer_of(broker: SlowTransport, handler: Handler, count: int) -> Consumer:
    """A replica of its own, with so many messages in its queue."""
    stores = memory_stores(broker.clock)
    stores = replace(stores, claims=SlowTable(stores.claims))
    settings = fresh_settings("UseDevelopmentStorage=true")
    send_all(broker.sender(), handler, [outgoing(handler, {"id": n}) for n in range(count)])
    deliverer = Deliverer(stores, broker.sender(), settings, broker.clock, host="replica")
    return Consumer(deliverer, broker, handler)


def broker_at_a_distance(*, any_thread: bool) -> SlowTransport:
    broker = SlowTransport(SystemClock())
    broker.any_thread = any_thread
    return broker


def rate(*, any_thread: bool, concurrency: int, count: int) -> float:
    """Messages a second."""
    broker = broker_at_a_distance(any_thread=any_thread)
    handler = make_handler("invoices", lambda _: None, concurrency=concurrency)
    consumer = consumer_of(broker, handler, count)
    began = time.monotonic()
    assert consumer.run(max_messages=count) == count
    return count / (time.monotonic() - began)


@pytest.mark.parametrize("any_thread", [True, False], ids=["a client for all", "clients for one thread each"])
def test_more_at_once_is_more_work_done(any_thread: bool) -> None:
    """With storage and broker 50 ms away, 64 messages at a time get at least twice as many done as 8 do."""
    few = rate(any_thread=any_thread, concurrency=8, count=60)
    many = rate(any_thread=any_thread, concurrency=64, count=400)
    assert many >= 2 * few


def test_there_are_as_many_inboxes_as_it_takes() -> None:
    """A client for one thread serves eight messages at a time; none is opened that there are no messages for."""
    for concurrency, limit, opened in ((8, None, 1), (20, None, 3), (20, 9, 2), (64, 1, 1)):
        broker = broker_at_a_distance(any_thread=False)
        handler = make_handler("invoices", lambda _: None, concurrency=concurrency)
        consumer = consumer_of(broker, handler, 3)
        consumer.run(max_messages=limit, max_wait=0.1)
        assert broker.inboxes == opened
        assert broker.events.count("close invoices") == opened


def test_several_inboxes_keep_to_the_limits() -> None:
    """Through three inboxes no more than the concurrency run at once, and no more than asked for are received."""
    lock, running, most = threading.Lock(), [0], [0]

    def body(_: Message) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    handler = make_handler("invoices", body, concurrency=20)
    broker = broker_at_a_distance(any_thread=False)
    assert consumer_of(broker, handler, 100).run(max_messages=70, max_wait=5) == 70
    assert most[0] <= 20
    assert len(broker.inbox(handler).receive(100, 0.0)) == 30


def test_renewals_do_not_wait_for_each_other() -> None:
    """Forty messages under a lock of 1.2 s, with a broker that takes 0.2 s to renew one: none is delivered twice."""
    broker = broker_at_a_distance(any_thread=True)
    broker.lock = 1.2
    together, counts = threading.Barrier(40), list[int]()

    def body(message: Message) -> None:
        counts.append(message.attempt)
        together.wait(PATIENCE)
        broker.latency = 0.2
        threading.Event().wait(3)

    handler = make_handler("invoices", body, concurrency=40)
    assert consumer_of(broker, handler, 40).run(max_messages=40) == 40
    assert counts == [1] * 40
    assert broker.bodies("invoices") == []


# -- the threads that handle messages --------------------------------------------------------------------------


def ran(workers: Workers, work: Callable[[], None]) -> str:
    """Run it to its end; the thread that did."""
    names: list[str] = []
    over = threading.Event()

    def carry_out() -> None:
        names.append(str(threading.get_ident()))
        over.set()
        work()

    workers.start(carry_out)
    assert over.wait(PATIENCE)
    return names[0]


def until(true: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < give_up_at, "it never came true"
        threading.Event().wait(0.01)


def idle(workers: Workers) -> int:
    with workers._lock:
        return workers._idle


def test_threads_are_used_again() -> None:
    """Work after work is done by one thread, whatever the work raises; work beside work has one of its own."""
    workers = Workers("test-again")

    def fail() -> None:
        raise SystemExit("of the handler's")

    seen = set()
    for work in (lambda: None, fail, lambda: None):
        seen.add(ran(workers, work))
        until(lambda: idle(workers) == 1)
    assert len(seen) == 1
    hanging = threading.Event()
    first = ran(workers, lambda: hanging.wait(PATIENCE) and None)
    assert ran(workers, lambda: None) != first
    hanging.set()
    workers.close()
    until(lambda: not any(t.name == "test-again" for t in threading.enumerate()))


def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread without work ends by itself, and work that comes then begins in another."""
    monkeypatch.setattr(workers_module, "IDLE", 0.05)
    workers = Workers("test-idle")
    ran(workers, lambda: None)
    until(lambda: not any(t.name == "test-idle" for t in threading.enumerate()))
    assert idle(workers) == 0
    ran(workers, lambda: None)
    workers.close()
