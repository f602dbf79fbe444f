"""Every storage call of the flow is a place to lose a request, lose a reply, or die: all of them are tried.

The flow runs once to count its calls. Then, for each call and each fault, it runs in a fresh world up to that
call; a second host recovers what is left, with a fault of its own at each of *its* calls; a third, healthy
one recovers the rest. Whatever happened: every effect is in the ledger once, the run has ended well, and
nothing is left unfinished.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, AFTER_REQUEST, at, bodies, job_row, replica, run_row, stop_at, work_off

from runonce.errors import RunonceError, StoreUnavailableError
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Died, Fault, PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.run import Run

T = at(3)
ITEMS = ["a", "b", "c"]


def work(run: Run) -> None:
    """Three effects, each in the ledger with its batch."""
    for (item,) in run.batches(ITEMS, size=1):
        run.ledger.record(item, attempt=run.attempt)
    run.ledger.record("closing", attempt=run.attempt)


def plain(run: Run) -> None:
    work(run)


def fails_first(run: Run) -> None:
    """Fails in its first attempt, after a batch."""
    if run.attempt == 1:
        next(iter(run.batches(ITEMS, size=1)))
        raise ValueError("the first time")
    work(run)


def is_stopped_first(run: Run) -> None:
    """Stops in its first attempt, after a batch."""
    if run.attempt == 1:
        for (item,) in run.batches(ITEMS, size=1):
            run.ledger.record(item, attempt=run.attempt)
            if item == "b":
                stop_at(run)
    work(run)


async def asynchronous(run: Run) -> None:
    async for (item,) in run.batches(ITEMS, size=1):
        run.ledger.record(item, attempt=run.attempt)
    run.ledger.record("closing", attempt=run.attempt)


class World:
    """A fresh table, lease store and queue, with one job whose fire time has come."""

    def __init__(self, body: Callable[[Run], Any]) -> None:
        self.completed: Counter[str] = Counter()
        self.job = self._define(body)
        self.bench = Workbench(self.job, clock=PassingClock())
        recover(self.bench.dispatcher)  # the job is known: a fire time of it can be missed
        self.bench.clock.advance(3 * 3600)

    def _define(self, body: Callable[[Run], Any]) -> ScheduledJob:
        return scheduled("0 0 3 * * *", name="nightly", retries=20, retry_delay=1)(body)

    def host(self, name: str, *faults: tuple[int, Fault]) -> tuple[Dispatcher, Boundary]:
        """A host, with faults at some of its calls."""
        boundary = Boundary()
        for call, fault in faults:
            boundary.at(call, fault)
        return replica(self.bench, host=name, stores=boundary.around(self.bench.stores)), boundary

    def first(self, *faults: tuple[int, Fault]) -> int:
        """A host's timer ticks; how many calls that took."""
        dispatcher, boundary = self.host("first", *faults)
        with contextlib.suppress(Died):
            dispatcher.execute(self.job, T, by="timer")
        return self._over(dispatcher, boundary)

    def second(self, *faults: tuple[int, Fault]) -> int:
        """Another host recovers; how many calls that took."""
        self.bench.clock.advance(AFTER_LEASE)
        dispatcher, boundary = self.host("second", *faults)
        with contextlib.suppress(Died):
            for _ in range(2):
                recover(dispatcher)
                with contextlib.suppress(StoreUnavailableError):  # of the queue; its host goes on
                    work_off(dispatcher)
                self.bench.clock.advance(AFTER_REQUEST)
        return self._over(dispatcher, boundary)

    def _over(self, dispatcher: Dispatcher, boundary: Boundary) -> int:
        """The host is gone: nothing of it renews a lease any more."""
        for started in dispatcher.running:
            started.over.set()
            started.lease._closed.set()
        calls = len(boundary.calls)
        boundary.dead = True
        return calls

    def settle(self) -> None:
        """A healthy host recovers what is left."""
        for _ in range(4):
            self.bench.clock.advance(AFTER_REQUEST)
            recover(self.bench.dispatcher)
            work_off(self.bench.dispatcher)

    def judge(self, story: str) -> None:
        """Every effect once, the run ended well, nothing left."""
        run = run_row(self.bench, self.job, T)
        assert run.outcome is Outcome.SUCCEEDED, (story, run)
        entries = [row.values["key"] for row in self.bench.stores.runs.scan("test", "entry:", "entry;")]
        assert entries == [*ITEMS, "closing"], (story, entries)
        row = job_row(self.bench, self.job)
        assert (dict(row.pending), row.running) == ({}, None), (story, row)
        assert row.last_outcome == "succeeded", story
        assert bodies(self.bench.stores) == [], story
        again = self.bench.dispatcher.execute(self.job, T, by="timer")
        assert not again.ran, story


BODIES = [plain, fails_first, is_stopped_first, asynchronous]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_fault_at_any_call_loses_and_doubles_nothing(body: Callable[[Run], Any]) -> None:
    """One fault, at each call of the first host."""
    calls = World(body).first()
    assert calls >= 5
    for call, fault in itertools.product(range(1, calls + 1), Fault):
        world = World(body)
        world.first((call, fault))
        world.settle()
        world.judge(f"{fault} at call {call} of {calls}")


@pytest.mark.slow
@pytest.mark.parametrize("first", Fault, ids=str)
def test_a_fault_in_the_recovery_from_a_fault_loses_and_doubles_nothing(first: Fault) -> None:
    """A fault at each call of the first host, and for each a fault at each call of the host that recovers it."""
    for call in range(1, World(plain).first() + 1):
        probe = World(plain)
        probe.first((call, first))
        calls = probe.second()
        for other, second in itertools.product(range(1, calls + 1), Fault):
            world = World(plain)
            world.first((call, first))
            world.second((other, second))
            world.settle()
            world.judge(f"{first} at call {call}, then {second} at call {other} of the second host")


@pytest.mark.parametrize("second", [Fault.LOST_REQUEST, Fault.LOST_REPLY], ids=str)
@pytest.mark.parametrize("first", [Fault.LOST_REQUEST, Fault.LOST_REPLY], ids=str)
def test_two_faults_in_one_run_lose_and_double_nothing(first: Fault, second: Fault) -> None:
    """Two calls of one host get no answer: the second one often is the reading back after the first."""
    calls = World(plain).first()
    for one, two in itertools.combinations(range(1, calls + 3), 2):
        world = World(plain)
        world.first((one, first), (two, second))
        world.settle()
        world.judge(f"{first} at call {one} and {second} at call {two}")


def test_storage_that_is_silent_for_a_while_loses_and_doubles_nothing() -> None:
    """From each call on, so many calls in a row get no answer, whether they were carried out or not."""
    calls = World(plain).first()
    for call, length, fault in itertools.product(
        range(1, calls + 1), (3, 10), (Fault.LOST_REQUEST, Fault.LOST_REPLY)
    ):
        world = World(plain)
        world.first(*((call + n, fault) for n in range(length)))
        world.settle()
        world.judge(f"{length} x {fault} from call {call}")


@pytest.mark.parametrize(
    "missing",
    [("runs.recovery._next_to_ask",), ("runs.plan._settled", "runs.claim.admit")],
    ids=lambda m: m[0],
)
def test_the_tour_can_fail(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a part of the flow missing the tour finds what is lost or done again: it is no formality."""
    for function in missing:
        monkeypatch.setattr(f"runonce.{function}", lambda *_: None)
    with pytest.raises((AssertionError, RunonceError)):
        test_a_fault_at_any_call_loses_and_doubles_nothing(plain)
