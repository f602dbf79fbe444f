from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from runonce.errors import HostStopping, LeaseLost, RunInterrupted
from runonce.execution.stop import StopSignal


def test_a_signal_is_unset_until_it_is_set() -> None:
    """Nothing is told before there is a cause; then the cause and the event are both there."""
    signal = StopSignal()
    assert signal.cause is None
    assert not signal.event.is_set()
    cause = HostStopping()
    signal.set(cause)
    assert signal.cause is cause
    assert signal.event.is_set()


def test_the_first_cause_wins() -> None:
    """A later cause neither replaces the first nor tells the listeners again."""
    signal, heard = StopSignal(), []
    signal.listen(heard.append)
    first = LeaseLost()
    signal.set(first)
    signal.set(HostStopping())
    assert signal.cause is first
    assert heard == [first]


def test_who_listens_late_hears_at_once() -> None:
    """A listener that comes after the signal is called with its cause immediately."""
    signal, heard = StopSignal(), []
    cause = HostStopping()
    signal.set(cause)
    signal.listen(heard.append)
    assert heard == [cause]


def test_listeners_see_the_signal_set() -> None:
    """By the time a listener is called, both the cause and the event are there for whoever it wakes."""
    signal, seen = StopSignal(), []
    signal.listen(lambda cause: seen.append((signal.cause is cause, signal.event.is_set())))
    signal.set(HostStopping())
    assert seen == [(True, True)]


def test_a_host_tells_its_runs() -> None:
    """Setting the host's signal sets each run's, with the same cause, also of one that begins afterwards."""
    host = StopSignal()
    runs = [StopSignal(host), StopSignal(host)]
    cause = HostStopping()
    host.set(cause)
    assert [run.cause for run in [*runs, StopSignal(host)]] == [cause] * 3


def test_a_run_does_not_tell_its_host() -> None:
    """A run that lost its lease stops alone."""
    host = StopSignal()
    one, other = StopSignal(host), StopSignal(host)
    one.set(LeaseLost())
    assert host.cause is None
    assert other.cause is None


def test_a_run_keeps_its_own_cause() -> None:
    """A run that lost its lease and is then told that its host stops has lost its lease."""
    host = StopSignal()
    run = StopSignal(host)
    lost = LeaseLost()
    run.set(lost)
    host.set(HostStopping())
    assert run.cause is lost


@pytest.mark.slow
def test_a_finished_run_hears_nothing_and_is_forgotten() -> None:
    """After detaching the host holds no reference to the run; detaching twice, or after the stop, is harmless."""
    host = StopSignal()
    run = StopSignal(host)
    run.detach()
    run.detach()
    host.set(HostStopping())
    run.detach()
    assert run.cause is None
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_of_many_causes_one_is_told() -> None:
    """Many threads that set at once agree on one cause, and each listener is called once."""
    for _ in range(20):
        signal, heard = StopSignal(), list[RunInterrupted]()
        signal.listen(heard.append)
        start = threading.Barrier(8)
        causes = [HostStopping(str(n)) for n in range(8)]

        def tell(cause: HostStopping, start: threading.Barrier = start, signal: StopSignal = signal) -> None:
            start.wait()
            signal.set(cause)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tell, causes))
        assert heard == [signal.cause]


def test_a_signal_handler_may_set_it_at_any_moment() -> None:
    """Setting from within a listener, or from a handler that interrupts one, does not deadlock."""
    signal, heard = StopSignal(), []

    def again(cause: RunInterrupted) -> None:
        signal.set(HostStopping("second"))
        signal.listen(heard.append)
        heard.append(cause)

    signal.listen(again)
    with signal._lock:  # as a handler would find it
        signal.set(HostStopping("first"))
    assert [str(cause) for cause in heard] == ["first", "first"]
