"""A run's dead man's switch: when it shows, when it goes, and what it does where it need not have come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.clock import SteppedClock
from support.flows import at, bodies, die, replica, run_row, start

from runonce.errors import LeaseLost
from runonce.runs.definition import scheduled
from runonce.runs.requests import MOST_HELD, Request, read_request
from runonce.runs.rows import Outcome
from runonce.runs.switch import AFTER, LEAD
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.dispatch import Dispatcher, Started

job = scheduled("0 0 3 * * *", name="nightly", max_runtime=None)(lambda _: None)
ASKED = Request("nightly", at(3), "abandoned")


@pytest.fixture
def bench() -> Workbench:
    made = Workbench(job, clock=SteppedClock())
    made.clock.advance(3 * 3600)
    return made


@pytest.fixture
def boundary() -> Boundary:
    return Boundary()


@pytest.fixture
def begun(bench: Workbench, boundary: Boundary) -> Iterator[Started]:
    """A run under way, on a host whose calls cross the boundary."""
    started = start(replica(bench, stores=boundary.around(bench.stores)), job, at(3))
    yield started
    die(started)


def step(bench: Workbench, seconds: float) -> None:
    """Time goes on in small steps, so that everybody wakes at his own instant."""
    clock = bench.clock
    assert isinstance(clock, SteppedClock)
    for _ in range(round(seconds / 0.1)):
        clock.settle()
        clock.advance(0.1)
        if clock.elapsed() >= 3 * 3600 + AFTER:
            clock.waiters = 3  # who renews, who watches, and the switch
        clock.settle()


def shown(bench: Workbench) -> list[Request]:
    """The requests that somebody would get now; they are taken."""
    return [read_request(body) for body in bodies(bench.stores)]


def test_a_short_run_sends_nothing(bench: Workbench, begun: Started, boundary: Boundary) -> None:
    """A run that ends within a second makes no call to the queue."""
    step(bench, AFTER - 0.2)
    begun_on(bench, boundary).finish(begun, None)
    assert not {"send", "hide", "delete"} & set(boundary.calls)


def begun_on(bench: Workbench, boundary: Boundary) -> Dispatcher:
    """A dispatcher that can end the run."""
    return replica(bench, stores=boundary.around(bench.stores))


@pytest.mark.parametrize("lived", [2, 19, 21, 50, 107])
def test_it_shows_when_the_lease_of_a_dead_host_is_about_to_end(
    bench: Workbench, begun: Started, lived: int
) -> None:
    """Whenever its host dies: not while somebody holds the lease for longer, and at the latest a moment after."""
    step(bench, lived)
    ends_at = begun.lease.ends_at
    die(begun)
    clock = bench.clock
    while not (found := shown(bench)):
        clock.advance(0.1)
        assert clock.elapsed() < ends_at + 1
    assert found == [ASKED]
    assert ends_at - LEAD <= clock.elapsed() + 0.001
    assert clock.elapsed() <= ends_at - LEAD + 0.4


def test_it_never_shows_while_the_run_lives(bench: Workbench, begun: Started, boundary: Boundary) -> None:
    """However long the run is, each renewal hides it again: one call each; and its end takes it away."""
    for _ in range(100):
        step(bench, 2)
        assert shown(bench) == []
    step(bench, 1)
    queue_calls = [call for call in boundary.calls if call in ("send", "hide", "delete")]
    assert queue_calls == ["send"] + ["hide"] * (boundary.calls.count("renew"))
    begun_on(bench, boundary).finish(begun, None)
    assert boundary.calls.count("delete") == 1
    bench.clock.advance(3600)
    assert shown(bench) == []


@pytest.mark.slow
def test_what_takes_over_goes_on_from_it(bench: Workbench, begun: Started) -> None:
    """The other host waits for the moment that is left of the lease, and runs the next attempt."""
    step(bench, 30)
    ends_at, results = begun.lease.ends_at, []
    die(begun)
    other = replica(bench, host="other")
    while not (found := bodies(bench.stores)):
        bench.clock.advance(0.1)
    taking = threading.Thread(target=lambda: results.append(other.handle_request(found[0])))
    taking.start()
    while taking.is_alive():
        taking.join(0.05)
        bench.clock.advance(0.1)
    (result,) = results
    assert result is not None
    assert (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 2)
    started_at = run_row(bench, job, at(3)).started_at
    assert started_at is not None
    assert (started_at - at(3)).total_seconds() <= ends_at - 3 * 3600 + 2


def test_one_that_somebody_took_too_early_is_followed_by_another(bench: Workbench, begun: Started) -> None:
    """A queue that hid it too briefly has handed it to somebody, who cannot have the lease; the run sends a new one."""
    step(bench, 3)
    early = bench.stores.requests._items[0]
    early.visible_at = bench.clock.now()
    assert shown(bench) == [ASKED]
    step(bench, 20)
    (another,) = bench.stores.requests._items
    assert another.id != early.id
    die(begun)
    bench.clock.advance(60)
    assert shown(bench) == [ASKED]


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("method", ["send", "hide"])
def test_a_queue_that_does_not_answer_is_asked_again(
    bench: Workbench, begun: Started, boundary: Boundary, method: str, fault: Fault
) -> None:
    """Some seconds later; the run knows nothing of it, and a message too many does no harm."""
    boundary.next(method, fault)
    step(bench, 30)
    assert boundary.calls.count(method) >= 2
    assert begun.lease.held
    die(begun)
    bench.clock.advance(60)
    found = shown(bench)
    assert set(found) == {ASKED}
    assert len(found) <= 2


def test_a_run_that_lost_its_lease_leaves_it_behind(
    bench: Workbench, begun: Started, boundary: Boundary
) -> None:
    """Nothing is recorded of such a run, so it is what brings it to its next attempt."""
    step(bench, 5)
    begun.lease._lose("a test took it")
    result = begun_on(bench, boundary).finish(begun, LeaseLost())
    assert result.outcome is Outcome.ABANDONED
    bench.clock.advance(60)
    assert shown(bench) == [ASKED]


@pytest.mark.usefixtures("begun")
def test_a_request_that_meets_a_held_lease_comes_again_and_again(bench: Workbench) -> None:
    """Every two seconds, for longer than a lease lasts unrenewed, and then no more."""
    other, taken = replica(bench, host="other"), 0
    other.handle_request('{"job":"nightly","fire_time":"2026-01-01T03:00:00Z","why":"asked"}')
    for _ in range(45):
        step(bench, 2)
        for body in bodies(bench.stores):
            assert read_request(body).fire_time == at(3)
            other.handle_request(body)
            taken += 1
    assert taken == MOST_HELD
    assert MOST_HELD * 2 >= 60


def test_one_of_a_run_that_has_ended_does_nothing(bench: Workbench) -> None:
    """Left behind by a host whose last call failed, it finds that the fire time is done."""
    ran: list[int] = []
    once = scheduled("0 0 3 * * *", name="once")(lambda run: ran.append(run.attempt))
    other = replica(bench, once)
    assert other.execute(once, at(3), by="timer").outcome is Outcome.SUCCEEDED
    result = other.handle_request('{"job":"once","fire_time":"2026-01-01T03:00:00Z","why":"abandoned"}')
    assert result is not None
    assert not result.ran
    assert ran == [1]
    assert bodies(bench.stores) == []
