"""Limits of consumers, in real time on a broker in memory: what hangs or waits keeps nobody else from going on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.errors import HostStopping, TransportRefusedError
from runonce.execution.stop import StopSignal
from runonce.messages import lane
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.messages.rows import MessageRow, State, decode_message, place
from runonce.settings import LeaseTerms
from runonce.stores.memory import memory_stores
from runonce.testing import Complete, DeadLetter, MemorySender
from runonce.transports.protocols import Outgoing
from tests.support.memory_transport import MemoryTransport
from tests.support.messages import delivery, handling
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

PATIENCE = 15.0


class Stage:
    """Replicas on one broker and one storage."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.stores = memory_stores(self.clock)
        self.broker = MemoryTransport(self.clock, lock=1.0)
        self.settings = replace(
            fresh_settings("UseDevelopmentStorage=true"),
            shutdown_timeout=0.3,
            claim_lease=3,
            lease=LeaseTerms(15, 5, 2),
        )
        self.release = threading.Event()
        self.done: list[str] = []
        self._stops: list[StopSignal] = []

    def host(self) -> Deliverer:
        """A host of its own."""
        stop = StopSignal()
        self._stops.append(stop)
        name = f"host-{len(self._stops)}"
        return Deliverer(self.stores, self.broker.sender(), self.settings, self.clock, host=name, stop=stop)

    def consume(self, handler: Handler) -> Consumer:
        """A replica that consumes until the end of the test."""
        consumer = Consumer(self.host(), self.broker, handler)
        threading.Thread(target=consumer.run_for_ever, daemon=True).start()
        return consumer

    def send(self, *bodies: bytes, queue: str = "invoices") -> None:
        messages = [Outgoing(body, f"m-{n}-{body.hex()}") for n, body in enumerate(bodies)]
        self.broker.sender().send(queue, messages)

    def row(self, handler: Handler, key: str) -> MessageRow:
        read = self.stores.claims.get(*place(self.settings.namespace, handler.entity, handler.name, key))
        assert read is not None
        return decode_message(read)

    def end(self) -> None:
        self.release.set()
        for stop in self._stops:
            stop.set(HostStopping("The test is over."))


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.end()


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until it is true."""
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, "it never came true"
        threading.Event().wait(0.01)


def wedge_sync(stage: Stage, message: Message) -> Any:
    stage.release.wait()
    message.blobs.write("late", b"by one that was given up")


async def wedge_async(stage: Stage, message: Message) -> Any:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.to_thread(stage.release.wait)  # it heeds no cancellation
        await asyncio.to_thread(message.blobs.write, "late", b"by one that was given up")


async def wedge_thread(stage: Stage, _: Message) -> Any:
    await asyncio.to_thread(stage.release.wait)


@pytest.mark.parametrize("wedge", [wedge_sync, wedge_async, wedge_thread])
def test_a_handler_that_hangs_holds_nothing_for_ever(
    stage: Stage, wedge: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Past its max_runtime and the time to stop, its message, slot and lock are others'; a late write is refused."""
    caplog.set_level(logging.ERROR, "runonce")
    body: Any

    if asyncio.iscoroutinefunction(wedge):

        async def body(message: Message) -> None:
            if message.key == "hangs" and message.attempt == 1:
                await wedge(stage, message)
            stage.done.append(f"{message.key} #{message.attempt}")
    else:

        def body(message: Message) -> None:
            if message.key == "hangs" and message.attempt == 1:
                wedge(stage, message)
            stage.done.append(f"{message.key} #{message.attempt}")

    one = handling(
        body,
        lock="tenant:{t}",
        lock_wait=0.5,
        max_runtime=0.5,
        retries=3,
        retry_delay=0.1,
        concurrency=1,
        key="id",
    )
    stage.consume(one)
    stage.send(b'{"id":"hangs","t":"acme"}', b'{"id":"fine","t":"acme"}')
    until(lambda: sorted(stage.done) == ["fine #1", "hangs #2"])
    until(lambda: stage.row(one, "hangs").state is State.DONE)  # which follows the end of its body
    row = stage.row(one, "hangs")
    assert (row.failures, row.abandoned) == (1, 0)
    until(lambda: stage.broker.bodies("invoices") == [])
    if wedge is not wedge_thread:  # which heeds its cancellation, and leaves the thread behind
        told = [r.getMessage() for r in caplog.records if "are given up" in r.getMessage()]
        assert len(told) == 1
    stage.release.set()
    until(lambda: not any(t.name.startswith("runonce-send_invoice") for t in threading.enumerate()))
    assert list(stage.stores.blobs.names("")) == []
    assert stage.row(one, "hangs") == row


def test_one_that_hangs_each_time_is_put_aside(stage: Stage) -> None:
    """Hanging is a failure like another: with its retries used up the message is a dead letter."""
    one = handling(lambda _: stage.release.wait(), max_runtime=0.2, retries=1, retry_delay=0.1)
    stage.consume(one)
    stage.send(b'{"id":"A"}')
    until(lambda: bool(stage.broker.queues.get("invoices/dead")))
    assert stage.broker.bodies("invoices") == []
    assert stage.row(one, "A").failures == 2


def test_one_that_hangs_and_whose_effect_is_to_be_held_is_unknown(stage: Stage) -> None:
    """With on_abandoned="hold" nobody knows what a handler that was given up has done."""
    one = handling(lambda _: stage.release.wait(), max_runtime=0.2, on_abandoned="hold")
    stage.consume(one)
    stage.send(b'{"id":"A"}')
    until(lambda: bool(stage.broker.queues.get("invoices/dead")))
    assert stage.broker.queues["invoices/dead"][0].reason == "Unknown"
    assert stage.row(one, "A").state is State.UNKNOWN


def test_tenants_do_not_wait_for_each_others_locks(stage: Stage) -> None:
    """However many messages wait for one tenant's lock, another tenant's message goes first."""
    stage.broker.lock = 30.0

    def body(message: Message) -> None:
        if message.key.startswith("A"):
            stage.release.wait(PATIENCE)
        stage.done.append(message.key)

    one = handling(body, lock="tenant:{t}", lock_wait=60, concurrency=2)
    stage.send(*(b'{"id":"A%d","t":"acme"}' % n for n in range(12)), b'{"id":"B","t":"other"}')
    began = time.monotonic()
    stage.consume(one)
    until(lambda: stage.done == ["B"])
    assert time.monotonic() - began < 10
    stage.release.set()
    until(lambda: len(stage.done) == 13, 60)


def test_no_more_run_at_once_for_waiting(stage: Stage) -> None:
    """One that has waited for its lock still waits for its turn."""
    running, most, lock = [0], [0], threading.Lock()

    def body(message: Message) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.05)
        with lock:
            running[0] -= 1
        stage.done.append(message.key)

    one = handling(body, lock="tenant:{t}", lock_wait=5, concurrency=2)
    stage.send(*(b'{"id":"%d","t":"%d"}' % (n, n % 3) for n in range(12)))
    stage.consume(one)
    until(lambda: len(stage.done) == 12, 60)
    assert most == [2]


class SlowTable:
    """A table that answers after a while."""

    def __init__(self, table: Any, seconds: float) -> None:
        self._table, self._seconds = table, seconds

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._table, name)

        def call(*args: Any, **options: Any) -> Any:
            time.sleep(self._seconds)
            return function(*args, **options)

        return call


def test_a_slow_table_loses_no_claim_however_many_there_are(stage: Stage) -> None:
    """Signs of life are given side by side: 32 claims of 6 s are kept with a table that takes 0.3 s for each."""
    stores = replace(stage.stores, claims=SlowTable(stage.stores.claims, 0.3))
    settings = replace(stage.settings, claim_lease=6)
    host = Deliverer(stores, MemorySender(), settings, stage.clock, host="busy")

    def body(message: Message) -> None:
        for _ in range(40):
            threading.Event().wait(0.2)
            message.check()

    one = handling(body)
    with ThreadPoolExecutor(32) as pool:
        ends = pool.map(lambda n: host.deliver(one, delivery({"id": str(n)}, message_id=f"m{n}")), range(32))
        assert Counter(ends) == {Complete(): 32}


def test_a_queue_that_is_not_there_ends_work_and_is_said(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waiting cannot mend ends `run` after what was begun is settled, and `run_for_ever` says it and goes on."""
    monkeypatch.setattr(lane, "REST", 0.01)
    one = handling(lambda message: stage.done.append(message.key))
    stage.send(b'{"id":"A"}')
    refused = TransportRefusedError("receiving from invoices: there is no such queue; make it.")
    consumer = Consumer(stage.host(), stage.broker, one)
    stage.broker.fail["receive"] = [refused]
    with pytest.raises(TransportRefusedError, match="no such queue"):
        consumer.run(max_wait=0.1)
    stage.broker.fail["receive"] = [refused]
    stage.consume(one)
    until(lambda: stage.done == ["A"])
    said = [record for record in caplog.records if "make it" in record.getMessage()]
    assert [record.levelname for record in said] == ["ERROR"]


def test_what_the_toolkit_stumbles_over_ends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expects counts as a failure of its message, which then is put aside."""
    monkeypatch.setattr(lane, "REST", 0.01)
    one = handling(retries=2)
    consumer = Consumer(stage.host(), stage.broker, one)

    def stumble(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(consumer._deliverer, "deliver", stumble)
    stage.send(b'{"id":"A"}')
    consumer.run(max_wait=0.3)
    assert [held.reason for held in stage.broker.queues["invoices/dead"]] == ["Failed"]
    assert stage.broker.bodies("invoices") == []


def test_a_message_that_cannot_be_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of an error while it is read, on every host, whatever hosts do with what is raised."""
    stage = Stage()
    monkeypatch.setattr("runonce.messages.known.prepare", lambda *_: 1 / 0)
    one, host = handling(retries=1), stage.host()
    first = host.deliver(one, delivery())
    assert not isinstance(first, DeadLetter)
    last = host.deliver(one, delivery(reschedules=1))
    assert isinstance(last, DeadLetter)
    assert "ZeroDivisionError" in last.description
