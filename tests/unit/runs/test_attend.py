"""What looks after a run: none of it before the first of it is due, and all of it from then on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.clock import SteppedClock
from support.flows import at, replica, start

from runonce.errors import LeaseLost, TimeLimitExceeded
from runonce.execution.lease import Lease
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.rows import Outcome
from runonce.runs.switch import AFTER
from runonce.testing import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable

T = at(3)


def made(**options: Any) -> tuple[Workbench, SteppedClock, ScheduledJob]:
    """A bench at 03:00, its clock, and a job that does nothing."""
    job = scheduled("0 0 3 * * *", name="nightly", **options)(lambda _: None)
    clock = SteppedClock()
    bench = Workbench(job, clock=clock)
    clock.advance(3 * 3600)
    return bench, clock, job


def threads_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that are started meanwhile."""
    names: list[str] = []
    start_it = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start_it(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", noted)
        work()
    return names


def test_a_short_run_starts_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what is due first, and nothing is: no renewal, no watch, no limit, no switch."""
    bench, _, job = made(max_runtime=60)
    names = threads_of(lambda: bench.dispatcher.execute(job, T, by="timer"), monkeypatch)
    assert names == ["runonce-attend-nightly"]


def test_after_a_second_all_of_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed and watched, and the run's time limited, by a thread each."""
    bench, clock, job = made(max_runtime=60)
    begun = start(bench.dispatcher, job, T)
    clock.settle(1)

    def pass_a_second() -> None:
        clock.advance(AFTER)
        clock.settle(4)

    lock = begun.lease.name
    assert threads_of(pass_a_second, monkeypatch) == [
        f"runonce-renew-{lock}",
        f"runonce-watch-{lock}",
        "runonce-limit-nightly",
    ]
    bench.dispatcher.finish(begun, None)


def test_a_limit_of_less_than_a_second_ends_a_run_in_time() -> None:
    """It is what is due first then."""
    bench, clock, job = made(max_runtime=0.3)
    begun = start(bench.dispatcher, job, T)
    told = begun.stop.event
    clock.settle(1)
    clock.advance(0.2)
    assert not told.is_set()
    clock.advance(0.1)
    assert told.wait(10)
    assert isinstance(begun.stop.cause, TimeLimitExceeded)
    bench.dispatcher.finish(begun, begun.stop.cause)


def test_a_renewal_that_is_due_earlier_is_made_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the lease's terms say."""
    bench, clock, job = made(max_runtime=None)
    monkeypatch.setattr(Lease, "renews_at", property(lambda lease: lease.ends_at - 44.6))
    begun = start(bench.dispatcher, job, T)
    until = begun.lease.trusted_until
    clock.settle(1)
    clock.advance(0.3)
    clock.settle(1)
    assert begun.lease.trusted_until == until
    clock.advance(0.1)
    clock.settle(3)
    assert begun.lease.trusted_until == pytest.approx(until + 0.4)
    bench.dispatcher.finish(begun, None)


def test_a_loss_that_the_run_finds_itself_is_told_before_anything_renews() -> None:
    """As after a pause of the whole process: its first look tells all that listen."""
    bench, clock, _ = made(max_runtime=None)
    heard: list[BaseException] = []

    def paused(run: Any) -> None:
        run._stop.listen(heard.append)
        run._lease._trusted_until = clock.elapsed()
        run.check()

    sleeper = scheduled("0 0 3 * * *", name="nightly", max_runtime=None)(paused)
    result = replica(bench, sleeper).execute(sleeper, T, by="timer")
    assert result.outcome is Outcome.ABANDONED
    assert [type(each) for each in heard] == [LeaseLost]


def test_a_run_that_nobody_can_renew_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is to be had once it has begun: it counts as lost, rather than going on unwatched."""
    start_it = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("runonce-renew"):
            raise RuntimeError("can't start new thread")
        start_it(thread)

    bench, clock, job = made(max_runtime=None)
    begun = start(bench.dispatcher, job, T)
    clock.settle(1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    clock.advance(AFTER)
    assert begun.stop.event.wait(10)
    assert str(begun.stop.cause) == (
        "Job nightly: nobody can renew its lease, or end its time: can't start new thread"
    )
    result = bench.dispatcher.finish(begun, begun.stop.cause)
    assert result.outcome is Outcome.ABANDONED
    assert not bench.stores.leases.held("test/nightly")
