"""One of several local hosts leads: who, what the others cost, and what comes when it ends, hangs or is deposed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, replica

from runonce.errors import HostStopping
from runonce.execution.stop import StopSignal
from runonce.hosts import local
from runonce.hosts.leader import Leader, lock_of, terms_of
from runonce.hosts.local import LocalHost
from runonce.runs import presence
from runonce.runs.definition import scheduled
from runonce.settings import LeaseTerms
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock, Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.run import Run
    from runonce.stores.protocols import Stores

TERMS = LeaseTerms()
POLL = 0.003


def until(condition: Callable[[], object]) -> None:
    """Wait, a few milliseconds at a time, for what nothing signals."""
    poll = threading.Event()
    for _ in range(4000):
        if condition():
            return
        poll.wait(0.005)
    pytest.fail("it never came true")


class Waits(ManualClock):
    """A clock that knows who waits until when, so that time passes when all have done what was due."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[object, float] = {}

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait; waits as short as a host's looks at its queue take real time."""
        if seconds <= POLL:
            return event.wait(seconds)
        self._waiting[one := object()] = self.elapsed() + seconds
        try:
            return super().wait(event, seconds)
        finally:
            del self._waiting[one]

    def pass_time(self, seconds: float, threads: int, step: float = 5.0) -> None:
        """Let so many seconds pass, in steps, each when that many threads wait for something still to come."""
        for _ in range(int(seconds / step)):
            until(lambda: self._is_settled(threads))
            self.advance(step)
        until(lambda: self._is_settled(threads))

    def _is_settled(self, threads: int) -> bool:
        due = list(self._waiting.values())
        return len(due) >= threads and min(due) > self.elapsed()


class Replica:
    """A host that leads or stands by, with its storage calls."""

    def __init__(self, stores: Stores, clock: ManualClock, name: str = "shop/runonce-leader-1") -> None:
        self.boundary, self.stop = Boundary(), StopSignal()
        leases = self.boundary.around(stores).leases
        self.leader = Leader(leases, name, TERMS, clock, self.stop)
        self._thread = threading.Thread(target=self.leader.run, daemon=True)

    def begin(self) -> Replica:
        """Begin, and wait for what comes of its first call."""
        self._thread.start()
        until(lambda: self.boundary.calls)
        return self

    def end(self) -> None:
        """The host stops."""
        self.stop.set(HostStopping())
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def clock() -> Waits:
    return Waits()


@pytest.fixture
def replicas(clock: Waits) -> Iterator[list[Replica]]:
    """Three of them, begun; the first leads."""
    stores = memory_stores(clock)
    made = [Replica(stores, clock) for _ in range(3)]
    for one in made:
        one.begin()
    until(lambda: made[0].leader.leads)
    yield made
    for one in made:
        one.end()


WAITING = 4
"""Threads that wait while one of three leads: its renewal and its watch, and two that stand by. Of a host, too."""


@pytest.mark.slow
def test_one_leads_and_the_others_make_one_call_a_period(replicas: list[Replica], clock: Waits) -> None:
    """In ten minutes one leads all the time, and each of the others asks once every 20 s."""
    clock.pass_time(600, WAITING)
    assert [one.leader.leads for one in replicas] == [True, False, False]
    for one in replicas[1:]:
        until(lambda one=one: len(one.boundary.calls) == 31)  # type: ignore[misc]
        assert set(one.boundary.calls) == {"acquire"}
    assert replicas[0].boundary.calls.count("acquire") == 1
    assert replicas[0].boundary.calls.count("renew") == pytest.approx(60, abs=1)


def test_a_leader_that_stops_hands_over(replicas: list[Replica], clock: Waits) -> None:
    """It gives its lease back before its runs have ended, and another one leads with its next look."""
    replicas[0].end()
    assert replicas[0].boundary.calls[-1] == "release"
    assert not replicas[0].leader.leads
    clock.pass_time(20, 2)
    until(lambda: [one.leader.leads for one in replicas].count(True) == 1)


def test_a_leader_that_hangs_is_followed_within_a_lease(replicas: list[Replica], clock: Waits) -> None:
    """Its storage hangs or its process is gone: it knows by itself that it leads no longer, and another one does."""
    clock.pass_time(30, WAITING)
    hung = replicas[0].boundary
    hung.next("renew", *[Fault.LOST_REQUEST] * 1000)
    began = clock.elapsed()
    while not any(one.leader.leads for one in replicas[1:]):
        clock.pass_time(1, 3, step=1)  # each stands by, or has a renewal and a watch
        assert clock.elapsed() - began <= TERMS.duration + 1
        leading = [one.leader.leads for one in replicas]
        assert leading.count(True) <= 1
    assert not replicas[0].leader.leads


def test_a_leader_that_was_paused_leads_no_more_when_it_wakes(clock: Waits) -> None:
    """Time alone ends its trust: before it asks anybody, it knows."""
    only = Replica(memory_stores(clock), clock).begin()
    until(lambda: only.leader.leads)
    clock.advance(terms_of(TERMS).duration)  # as for a process that is stopped meanwhile
    assert not only.leader.leads
    until(lambda: only.leader.turn.is_set() and only.boundary.calls.count("acquire") == 2)
    until(lambda: only.leader.leads)  # nobody else was there
    only.end()


def test_a_lease_that_is_taken_away_is_noticed(clock: Waits) -> None:
    """At its next renewal the leader learns that its lease was broken, and asks again."""
    stores = memory_stores(clock)
    only = Replica(stores, clock).begin()
    until(lambda: only.leader.leads)
    stores.leases.break_lease("shop/runonce-leader-1")
    assert stores.leases.acquire("shop/runonce-leader-1", "other", 60)
    clock.pass_time(10, 1)
    until(lambda: not only.leader.leads)
    assert only.leader.off.is_set()
    assert not only.leader.turn.is_set()
    only.end()


def test_storage_out_of_reach_makes_nobody_lead(clock: Waits, caplog: pytest.LogCaptureFixture) -> None:
    """A host that cannot ask stands by and asks again."""
    one = Replica(memory_stores(clock), clock)
    one.boundary.next("acquire", Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    one.begin()
    until(lambda: "who leads is not known" in caplog.text)
    assert not one.leader.leads
    clock.pass_time(20, 1)
    until(lambda: one.leader.leads)
    one.end()


@pytest.mark.parametrize(
    "terms", [LeaseTerms(), LeaseTerms(60, 25, 10), LeaseTerms(15, 5, 2), LeaseTerms(15, 7.4, 0.2)]
)
def test_a_leaders_lease_and_the_look_after_it_are_within_a_runs(terms: LeaseTerms) -> None:
    """Its end and the next look come within a run's lease, or as near to that as the shortest lease of Azure allows."""
    own = terms_of(terms)
    assert own.duration + terms.renewal <= max(terms.duration, 15 + terms.renewal)


def job(name: str, schedule: str = "0 0 * * * *") -> Any:
    """A job that does nothing."""

    def body(run: Run) -> None:
        """Nothing."""

    return scheduled(schedule, name=name)(body)


def test_versions_with_other_jobs_have_a_leader_each() -> None:
    """The same jobs in any order compete for one lock; with a further job, or another schedule, for another."""
    one = lock_of([job("a"), job("b")])
    assert one == lock_of([job("b"), job("a")])
    assert len({one, lock_of([job("a")]), lock_of([job("a"), job("b", "0 5 * * * *")])}) == 3


@pytest.mark.slow
def test_only_the_leader_runs_timers_recovery_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three hosts one looks at the table and the queue; when it stops another one does; each fire time runs once."""
    monkeypatch.setattr(local, "POLL", POLL)
    ran: list[Any] = []

    @scheduled("*/30 * * * * *")
    def often(run: Run) -> None:
        ran.append(run.fire_time)

    clock = Waits()
    bench = Workbench(often, clock=clock)
    bench.settings = replace(bench.settings, leader=True)
    bench.clock.advance(3 * 3600 - 10)
    boundaries = [Boundary() for _ in range(3)]
    hosts = [
        replica(bench, stores=boundary.around(bench.stores), host=f"host-{number}", stop=StopSignal())
        for number, boundary in enumerate(boundaries)
    ]
    threads = []
    for host, boundary in zip(hosts, boundaries, strict=True):
        threads.append(threading.Thread(target=LocalHost(host).serve, daemon=True))
        threads[-1].start()
        until(lambda calls=boundary.calls: calls)  # type: ignore[misc]
    until(lambda: "receive" in boundaries[0].calls)
    clock.pass_time(10, 3 * WAITING, step=1)
    until(lambda: ran == [at(3)])
    assert [set(boundary.calls) for boundary in boundaries[1:]] == [{"acquire"}] * 2
    hosts[0].stop.set(HostStopping())
    threads[0].join(10)
    assert not any(host.name == "host-0" for host in presence.hosts(bench.dispatcher.registry))
    clock.pass_time(60, 2 * WAITING, step=1)
    until(lambda: len(ran) == 3)
    assert ran == [at(3) + timedelta(seconds=30 * number) for number in range(3)]
    assert [len(set(boundary.calls)) > 1 for boundary in boundaries].count(True) == 2
    assert [host.leads for host in presence.hosts(bench.dispatcher.registry)] == [True]
    for host, thread in zip(hosts[1:], threads[1:], strict=True):
        host.stop.set(HostStopping())
        thread.join(10)
    assert not bench.stores.leases.held_in("test/")
