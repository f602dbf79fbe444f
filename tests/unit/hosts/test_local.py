"""The local host: its timers, recovery and requests, and how it stops."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, at, die, job_row, replica, run_row, start

from runonce.errors import HostStopping, StoreUnavailableError
from runonce.execution import patience
from runonce.hosts import local
from runonce.hosts.local import EXIT_FAULT, EXIT_STUCK, LocalHost
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher, Started
from runonce.runs.operate import ask
from runonce.runs.rows import Outcome
from runonce.settings import Settings, StorageConnection
from runonce.testing import ManualClock, Workbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.run import Run


class Served:
    """A local host that serves in a thread."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.code: int | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        clock = dispatcher.clock._clock
        assert isinstance(clock, Clock)
        before = len(clock.timers)
        self._thread.start()
        if dispatcher.jobs and dispatcher.stop.cause is None:  # time may pass once its timers wait
            until(lambda: len(clock.timers) > before or not self._thread.is_alive())

    def _serve(self) -> None:
        self.code = LocalHost(self.dispatcher).serve()

    def stop(self) -> int | None:
        """Tell it to stop; its exit code."""
        self.dispatcher.stop.set(HostStopping())
        return self.join()

    def join(self) -> int | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.code


class Ran:
    """A body that counts its runs, and tells when there is one."""

    def __init__(self) -> None:
        self.fire_times: list[Any] = []
        self._more = threading.Condition()

    def __call__(self, run: Run) -> None:
        with self._more:
            self.fire_times.append(run.fire_time)
            self._more.notify_all()

    def wait(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.fire_times) >= count, 10), self.fire_times


def hourly(body: Callable[[Run], None], **options: Any) -> ScheduledJob:
    def run_it(run: Run) -> None:
        body(run)

    return scheduled("0 0 * * * *", name="hourly", **options)(run_it)


def until(condition: Callable[[], object]) -> None:
    """Wait, a few milliseconds at a time, for what nothing signals."""
    poll = threading.Event()
    for _ in range(2000):
        if condition():
            return
        poll.wait(0.005)
    pytest.fail("it never came true")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host looks at its queue often, and at a row that somebody else was faster to change; by the real time."""
    monkeypatch.setattr(local, "POLL", POLL)
    monkeypatch.setattr(local, "REST", POLL)
    monkeypatch.setattr(patience, "FIRST_PAUSE", POLL)
    monkeypatch.setattr(patience, "LONGEST_PAUSE", POLL)


POLL = 0.003


class Clock(ManualClock):
    """A clock that stands still, except for waits as short as the host's looks at its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: set[int] = set()
        """The threads that have waited for a fire time."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread().name == "runonce_timers":
            self.timers.add(threading.get_ident())
        return event.wait(seconds) if seconds <= POLL else super().wait(event, seconds)


def bench_of(*jobs: ScheduledJob) -> Workbench:
    bench = Workbench(*jobs, clock=Clock())
    bench.clock.advance(3 * 3600 - 10)
    return bench


def test_a_timer_runs_its_job_at_each_fire_time() -> None:
    """As the clock goes on, every fire time is run, once."""
    ran = Ran()
    bench = bench_of(hourly(ran))
    host = Served(bench.dispatcher)
    for hour in (3, 4):
        bench.clock.advance((at(hour) - bench.clock.now()).total_seconds())
        ran.wait(hour - 2)
        until(lambda: not bench.stores.leases.held("test/hourly"))  # or its lease would end with the hour
    assert host.stop() == 0
    assert ran.fire_times == [at(3), at(4)]


def test_two_hosts_share_the_work_without_doubling_it() -> None:
    """Replicas of the local host tick together: each fire time runs on one of them."""
    ran = Ran()
    bench = bench_of(hourly(ran))
    hosts = [Served(replica(bench, host=name)) for name in ("one", "two")]
    for hour in range(3, 9):
        bench.clock.advance((at(hour) - bench.clock.now()).total_seconds())
        ran.wait(hour - 2)
        until(lambda: not bench.stores.leases.held("test/hourly"))
    assert [host.stop() for host in hosts] == [0, 0]
    assert Counter(ran.fire_times) == Counter(at(hour) for hour in range(3, 9))


def test_a_job_that_blocks_holds_up_no_other() -> None:
    """Every run has its own thread: the other job's timer goes on."""
    go_on = threading.Event()
    ran = Ran()
    blocking = scheduled("0 0 * * * *", name="blocking")(hourly(lambda _: go_on.wait(10)).body)
    bench = bench_of(blocking, hourly(ran))
    host = Served(bench.dispatcher)
    bench.clock.advance(10)
    ran.wait(1)
    go_on.set()
    assert host.stop() == 0


def test_what_died_before_is_recovered_at_once() -> None:
    """A host that starts looks for unfinished work before anything else, and runs it."""
    ran = Ran()
    job = hourly(ran)
    bench = bench_of(job)
    die(start(replica(bench, host="dead"), job, at(2)))
    bench.clock.advance(AFTER_LEASE)
    host = Served(bench.dispatcher)
    ran.wait(1)
    assert host.stop() == 0
    assert run_row(bench, job, at(2)).attempt == 2


def test_a_recovery_tick_comes_every_interval() -> None:
    """What becomes unfinished later is found by a later recovery tick."""
    ran = Ran()
    job = hourly(ran)
    bench = bench_of(job)
    host = Served(bench.dispatcher)
    until(lambda: bench.stores.runs.get("test", "job:hourly"))
    started = replica(bench, host="dead").begin(job, at(2), by="hand")
    assert isinstance(started, Started)
    die(started)
    bench.clock.advance(70)
    ran.wait(1)
    assert host.stop() == 0


def test_a_request_is_taken_and_run() -> None:
    """What is asked for in the queue runs here, and a malformed request harms nothing."""
    ran = Ran()
    job = hourly(ran)
    bench = bench_of(job)
    bench.stores.requests.send("nonsense")
    ask(bench.dispatcher, bench.dispatcher.jobs["hourly"], at(2))
    host = Served(bench.dispatcher)
    ran.wait(1)
    assert host.stop() == 0
    assert bench.stores.requests.receive(visibility=1) is None


def test_no_more_requests_are_taken_than_there_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every slot busy a request stays in the queue, for another replica."""
    monkeypatch.setattr(local, "MAX_REQUESTS", 1)
    entered, go_on = threading.Event(), threading.Event()

    def body(_: Run) -> None:
        entered.set()
        go_on.wait(10)

    jobs = [scheduled("0 0 * * * *", name=name)(hourly(body).body) for name in ("first", "second")]
    bench = bench_of(*jobs)
    for job in jobs:
        ask(bench.dispatcher, job, at(2))
    host = Served(bench.dispatcher)
    assert entered.wait(10)
    item = bench.stores.requests.receive(visibility=30)
    assert item is not None
    assert '"second"' in item.body
    go_on.set()
    assert host.stop() == 0


def test_a_body_that_hangs_keeps_no_slot_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on after it was given up counts no more, so that the next request is taken."""
    monkeypatch.setattr(local, "MAX_REQUESTS", 1)
    entered, go_on, ran = threading.Event(), threading.Event(), Ran()

    def hangs(_: Run) -> None:
        entered.set()
        go_on.wait(20)

    first = scheduled("0 0 1 1 1 *", name="first", max_runtime=60)(hangs)
    second = scheduled("0 0 1 1 1 *", name="second")(hourly(ran).body)
    bench = bench_of(first, second)
    ask(bench.dispatcher, first, at(2))
    host = Served(bench.dispatcher)
    assert entered.wait(10)
    for seconds in (60 + bench.settings.shutdown_timeout - 1, 1):
        ask(bench.dispatcher, second, at(2))
        assert not ran.fire_times
        bench.clock.advance(seconds)
    ran.wait(1)
    go_on.set()
    host.stop()


def test_a_request_received_by_a_stopping_host_is_left_to_others() -> None:
    """A request that arrives together with the stop is not consumed: it shows up again."""
    bench = bench_of(hourly(Ran()))
    ask(bench.dispatcher, bench.dispatcher.jobs["hourly"], at(2))
    receive = bench.stores.requests.receive

    def receive_then_stop(*, visibility: int) -> Any:
        item = receive(visibility=visibility)
        bench.stop.set(HostStopping())
        return item

    bench.stores.requests.receive = receive_then_stop  # type: ignore[method-assign]
    assert Served(bench.dispatcher).join() == 0
    bench.clock.advance(31)
    assert receive(visibility=1) is not None


def test_a_queue_out_of_reach_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Storage that does not answer is logged, and the host goes on when it does."""
    ran = Ran()
    bench = bench_of(hourly(ran))
    receive = bench.stores.requests.receive
    silence = iter(range(3))

    def receive_sometimes(*, visibility: int) -> Any:
        if next(silence, None) is not None:
            raise StoreUnavailableError
        return receive(visibility=visibility)

    bench.stores.requests.receive = receive_sometimes  # type: ignore[method-assign]
    ask(bench.dispatcher, bench.dispatcher.jobs["hourly"], at(2))
    host = Served(bench.dispatcher)
    ran.wait(1)
    assert host.stop() == 0
    assert "internal queue is out of reach" in caplog.text


@pytest.mark.parametrize("entry", ["tick", "handle_request"])
def test_a_surprise_in_one_run_leaves_the_host_alive(
    entry: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error nobody foresaw costs one tick or request, and is logged with where it comes from."""
    bench = bench_of(hourly(Ran()))
    failed = threading.Event()

    def surprise(*_: object, **__: object) -> None:
        failed.set()
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(bench.dispatcher, entry, surprise)
    host = Served(bench.dispatcher)
    ask(bench.dispatcher, bench.dispatcher.jobs["hourly"], at(2))
    bench.clock.advance(10)
    assert failed.wait(10)
    until(lambda: "nobody foresaw this" in caplog.text)
    assert host.stop() == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_half_a_host_takes_itself_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When a part of the host ends for good, the host stops with a code that says so."""

    def surprise(*_: object, **__: object) -> None:
        raise ZeroDivisionError("recovery is broken")

    monkeypatch.setattr(local, "recover", surprise)
    assert Served(bench_of(hourly(Ran())).dispatcher).join() == EXIT_FAULT
    assert "recovery is broken" in caplog.text


def test_a_host_without_jobs_waits_to_be_stopped() -> None:
    """No job is no error: the host serves until it is told to stop."""
    assert Served(bench_of().dispatcher).stop() == 0


def test_runs_that_heed_no_stop_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the shutdown time-out the run is recorded as stopped and released, and the process ends with 75."""
    entered, go_on = threading.Event(), threading.Event()

    def body(_: Run) -> None:
        entered.set()
        go_on.wait(10)

    job = hourly(body)
    bench = bench_of(job)
    impatient = Settings("test", StorageConnection("UseDevelopmentStorage=true"), shutdown_timeout=0)
    dispatcher = Dispatcher({"hourly": job}, bench.stores, impatient, bench.clock, host="stuck")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    host = Served(dispatcher)
    bench.clock.advance(10)
    assert entered.wait(10)
    host.stop()
    assert codes == [EXIT_STUCK]
    assert run_row(bench, job, at(3)).outcome is Outcome.STOPPED
    assert job_row(bench, job).pending[at(3)].why == "stopped"
    assert not bench.stores.leases.held("test/hourly")
    go_on.set()
