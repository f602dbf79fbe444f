"""On the Functions host a handler that hangs keeps its thread, which only the host can end, and nothing else."""

from __future__ import annotations

import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.errors import TransportError
from runonce.execution.turns import Turns
from runonce.hosts.functions.handlers import DeadLetteredError, _function, give_up
from runonce.hosts.runtime import Runtime
from runonce.stores.memory import memory_stores
from runonce.testing import MemorySender
from runonce.transports.protocols import Receipt
from tests.support.messages import delivery, handling
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from runonce.messages.message import Message


class Away(MemorySender):
    """A sender that fails so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def send(self, entity: str, messages: Any) -> None:
        if self.times:
            self.times -= 1
            raise TransportError
        super().send(entity, messages)


@pytest.mark.slow
@pytest.mark.parametrize("away", [0, 1])
def test_a_function_that_hangs_gives_its_message_and_its_turn_to_others(away: int) -> None:
    """The message is sent again once, at the latest when its function ends, and the next one is handled meanwhile."""
    settings = replace(fresh_settings("UseDevelopmentStorage=true"), shutdown_timeout=0.2)
    release, done, clock, sender = threading.Event(), threading.Event(), SystemClock(), Away(away)

    def body(message: Message) -> None:
        if message.key == "hangs":
            release.wait(20)
        else:
            done.set()

    one = handling(body, max_runtime=0.2, concurrency=1, lock="index", lock_wait=0.5)
    runtime = Runtime(settings, stores=memory_stores(clock), clock=clock, sender=sender, host="functions")
    function = _function(runtime, one, Turns(one.concurrency, runtime.stop), lambda message: message)
    hanging = threading.Thread(target=function, args=(delivery({"id": "hangs"}),), daemon=True)
    hanging.start()
    function(delivery({"id": "next"}, message_id="m-2"))
    assert done.wait(10)
    assert len(sender.sent) == 1 - away
    release.set()
    hanging.join(10)
    assert not hanging.is_alive()
    assert [sent.json["id"] for sent in sender.sent] == ["hangs"]


class Queues(MemorySender):
    """A sender of Storage queues that notes what is put aside and what is removed."""

    def __init__(self, *, is_latest: bool) -> None:
        super().__init__()
        self.is_latest, self.aside, self.removed = is_latest, list[str](), list[Receipt]()

    def put(self, queue: str, text: str, delay: float = 0.0) -> None:
        assert text
        assert delay == 0
        self.aside.append(queue)

    def remove(self, queue: str, receipt: Receipt) -> bool:
        assert queue == "invoices"
        self.removed.append(receipt)
        return self.is_latest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "is_latest", "fails", "removed"),
    [(1, True, True, 1), (1, False, False, 1), (5, True, False, 0)],
)
def test_a_dead_letter_of_a_function_that_hangs_fails_it(
    *, count: int, is_latest: bool, fails: bool, removed: int
) -> None:
    """Once it is put aside; not where its message would be delivered, or put aside by the host, once more."""
    settings = replace(fresh_settings("UseDevelopmentStorage=true"), shutdown_timeout=0.2)
    release, clock, sender = threading.Event(), SystemClock(), Queues(is_latest=is_latest)
    one = handling(lambda _: release.wait(20), max_runtime=0.2, retries=0)
    runtime = Runtime(settings, stores=memory_stores(clock), clock=clock, sender=sender, host="functions")
    handle = _function(runtime, one, Turns(1, runtime.stop), lambda message: message, deliveries=5)
    ends: SimpleQueue[BaseException | None] = SimpleQueue()
    message = delivery(count=count, receipt=Receipt("id-1", "receipt-1"))
    hanging = threading.Thread(target=handle, args=(message, ends.put), daemon=True)
    hanging.start()
    assert isinstance(ends.get(timeout=10), DeadLetteredError) == fails
    release.set()
    hanging.join(10)
    assert sender.aside == ["invoices-poison"]
    assert len(sender.removed) == removed


class Slow(MemorySender):
    """A sender that takes its time."""

    def send(self, entity: str, messages: Any) -> None:
        threading.Event().wait(0.3)
        super().send(entity, messages)


@pytest.mark.slow
def test_what_does_not_stop_is_given_back_all_at_once() -> None:
    """Forty messages with a third of a second of storage each are back long before the host kills the worker."""
    settings, clock, sender = fresh_settings("UseDevelopmentStorage=true"), SystemClock(), Slow()
    release, begun = threading.Event(), threading.Semaphore(0)

    def body(_: Message) -> None:
        begun.release()
        release.wait(20)

    one = handling(body, concurrency=40)
    runtime = Runtime(settings, stores=memory_stores(clock), clock=clock, sender=sender, host="functions")
    handle = _function(runtime, one, Turns(40, runtime.stop), lambda message: message)
    messages = [delivery({"id": f"m-{n}"}, message_id=f"m-{n}") for n in range(40)]
    threads = [threading.Thread(target=handle, args=(message,), daemon=True) for message in messages]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=10)
    runtime.deliverer.drain(0)
    started = clock.elapsed()
    give_up(runtime)
    assert clock.elapsed() - started < 8
    assert len(sender.sent) == 40
    release.set()
    for thread in threads:
        thread.join(10)
