from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
from support.clock import SteppedClock
from support.messages import AFTER_CLAIM, LEASE, begun, delivery, handling, host_of, row_of

from runonce.errors import LeaseLost, TimeLimitExceeded
from runonce.messages.deliver import Deliverer
from runonce.messages.ended import Working
from runonce.messages.heartbeat import LOOK, Heartbeats
from runonce.testing import Complete, MemorySender, Reschedule, Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from runonce.transports.settlement import Settlement

ONE = handling(max_runtime=None)


class World:
    """A host whose heartbeats run on a clock that moves only when everybody has seen the last move."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.bench = Workbench(clock=self.clock)
        self.boundary = Boundary()
        stores = self.boundary.around(self.bench.stores)
        self.host = Deliverer(stores, MemorySender(), self.bench.settings, self.clock, host="test")

    def begin(self, key: str = "A-17") -> Working:
        """Begin a message."""
        return begun(self.host, ONE, delivery({"id": key}))

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps no longer than the heartbeats look."""
        for _ in range(int(seconds / LOOK)):
            self.clock.step(LOOK)

    def beats(self) -> int:
        """Signs of life since the last look."""
        made = self.boundary.calls.count("commit")
        self.boundary.calls.clear()
        return made


@pytest.fixture
def world() -> World:
    return World()


def test_a_claim_is_kept_alive_while_its_handler_runs(world: World) -> None:
    """A long message gives a sign of life every third of its lease, and nobody takes it over."""
    working = world.begin()
    world.beats()
    world.pass_time(3 * LEASE)
    assert 8 <= world.beats() <= 9
    assert working.claim.held
    assert not isinstance(host_of(world.bench).deliver(ONE, delivery(count=2)), Complete)
    assert world.host.finish(working, None, None) == Complete()


def test_a_finished_message_gives_no_more(world: World) -> None:
    """Once a message is finished its claim is left alone."""
    world.host.finish(world.begin(), None, None)
    world.beats()
    world.pass_time(LEASE)
    assert world.beats() == 0


def test_one_thread_serves_all_messages(world: World) -> None:
    """However many messages are worked on, one thread keeps them alive."""
    before = set(threading.enumerate())
    workings = [world.begin(f"k{n}") for n in range(20)]
    assert len(set(threading.enumerate()) - before) == 1
    world.beats()
    world.pass_time(LEASE / 3)
    assert world.beats() == 20
    assert all(working.claim.held for working in workings)


def test_an_outage_shorter_than_the_lease_is_survived(world: World) -> None:
    """Signs of life that get no answer are tried again soon, and the claim is kept."""
    working = world.begin()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 20)
    world.pass_time(LEASE / 2)
    world.boundary._of.clear()
    world.pass_time(1)
    assert working.claim.held
    assert working.rights.stop.cause is None
    assert working.claim.trusted_until > world.clock.elapsed() + LEASE / 2


def test_a_lost_reply_is_survived(world: World) -> None:
    """A sign of life that was carried out without an answer is noticed by the next one."""
    working = world.begin()
    world.boundary.next("commit", Fault.LOST_REPLY)
    world.pass_time(LEASE / 3 + 1)
    assert working.claim.held
    assert working.claim.trusted_until > world.clock.elapsed() + LEASE / 2


def test_an_outage_longer_than_the_lease_tells_the_handler(world: World) -> None:
    """A claim that could not be kept alive is told to its handler before anybody else may take it."""
    working = world.begin()
    world.boundary.next("commit", *[Fault.LOST_REQUEST] * 999)
    world.pass_time(LEASE * 0.8 + 1)
    assert isinstance(working.rights.stop.cause, LeaseLost)
    assert working.message.stopping
    with pytest.raises(LeaseLost):
        working.message.check()


def test_a_takeover_tells_the_handler(world: World) -> None:
    """A handler whose message was taken over hears of it at the next sign of life."""
    working = world.begin()
    heir = host_of(world.bench, name="heir")
    world.clock.settle()
    world.clock._elapsed += AFTER_CLAIM  # the process was stopped: its heartbeats did not wake meanwhile
    begun(heir, ONE, delivery(count=2))
    working.claim.trusted_until = float("inf")
    world.pass_time(1)
    assert working.rights.stop.cause is not None
    assert not working.claim.held


def test_a_time_limit_is_told_and_ends_the_signs_of_life(world: World) -> None:
    """Over its max_runtime a handler is told; one that does not end is given up after the time that a stop has."""
    one = handling(max_runtime=30, retry_delay=1)
    given_up: list[Settlement] = []
    working = world.host.begin(one, delivery(), None, given_up.append)
    assert isinstance(working, Working)
    world.pass_time(31)
    assert isinstance(working.rights.stop.cause, TimeLimitExceeded)
    assert given_up == []
    world.pass_time(world.bench.settings.shutdown_timeout)
    settlement = working.settled.result(10)
    assert isinstance(settlement, Reschedule)
    assert row_of(world.bench, one).failures == 1
    world.beats()
    world.pass_time(AFTER_CLAIM)
    assert world.beats() == 0
    assert host_of(world.bench).deliver(one, delivery(count=2)) == Complete()
    assert row_of(world.bench, one).abandoned == 0
    with pytest.raises(LeaseLost):
        working.message.checkpoint.save(1)
    assert world.host.finish(working, None, None) is settlement
    assert given_up == [settlement]


def test_trouble_with_one_claim_does_not_end_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error in a sign of life is logged, and the thread goes on."""
    broken, fine = world.begin("broken"), world.begin("fine")

    def fail() -> None:
        raise RuntimeError("not expected")

    broken.claim.beat = fail  # type: ignore[method-assign]
    world.pass_time(LEASE)
    assert "not expected" in caplog.text
    assert isinstance(broken.rights.stop.cause, LeaseLost)
    assert fine.claim.held


@pytest.mark.slow
def test_the_thread_ends_with_its_host() -> None:
    """A host that is gone leaves no thread behind."""
    clock = SteppedClock()
    beats = Heartbeats(clock)
    bench = Workbench(clock=clock)
    host = host_of(bench)
    host.heartbeats = beats
    host.finish(begun(host, ONE), None, None)
    thread, gone = beats._thread, weakref.ref(beats)
    assert thread is not None
    clock.settle()
    del beats, host
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    assert gone() is None
