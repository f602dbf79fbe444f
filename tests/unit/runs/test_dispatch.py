"""The flow of a scheduled job from tick to record, on stores in memory and a clock that is moved."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import (
    AFTER_LEASE,
    at,
    die,
    has_run_row,
    job_row,
    recovered,
    replayed,
    replica,
    requests,
    run_row,
    start,
    stop_at,
    work_off,
)

from runonce.clock import SystemClock
from runonce.errors import (
    HostStopping,
    LeaseLost,
    PermanentError,
    StoreError,
    StoreUnavailableError,
    TimeLimitExceeded,
)
from runonce.execution.options import MAX_ABANDONED, OnAbandoned
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher, Started
from runonce.runs.operate import pause, resume
from runonce.runs.recovery import recover
from runonce.runs.result import Refusal, Result
from runonce.runs.rows import Outcome
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Replace
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.run import Run

T = at(3)


def nightly(body: Callable[[Run], Any] = lambda _: None, **options: Any) -> ScheduledJob:
    """A job at 03:00 with that body."""
    if asyncio.iscoroutinefunction(body):

        async def run_it(run: Run) -> None:
            await body(run)

        return scheduled("0 0 3 * * *", name="nightly", **options)(run_it)

    def call_it(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly", **options)(call_it)


def bench_of(*jobs: ScheduledJob) -> Workbench:
    """A workbench at 03:00."""
    bench = Workbench(*jobs)
    bench.clock.advance(3 * 3600)
    return bench


def raising(error: BaseException) -> Callable[[Run], None]:
    def body(_: Run) -> None:
        raise error

    return body


def raising_async(error: BaseException) -> Callable[[Run], Any]:
    async def body(_: Run) -> None:
        await asyncio.sleep(0)
        raise error

    return body


class Gate:
    """A body that waits, so that a test can act in the middle of a run."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, run: Run) -> None:
        self.entered.set()
        assert self.go_on.wait(10)
        run.check()


class InThread:
    """A run in a thread of its own, and its result."""

    def __init__(self, call: Callable[[], Result | None]) -> None:
        self._result: Result | None = None
        self._error: BaseException | None = None

        def target() -> None:
            try:
                self._result = call()
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self._error = error

        self._thread = threading.Thread(target=target)
        self._thread.start()

    def result(self) -> Result:
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert self._error is None, self._error
        assert self._result is not None
        return self._result


# -- which fire time ------------------------------------------------------------------------------------------


def test_a_tick_runs_the_fire_time_it_was_meant_for() -> None:
    """A timer that fires a little early or some seconds late runs the same fire time."""
    for moment in (-0.8, 0.0, 12.5):
        ran: list[datetime] = []
        job = nightly(lambda run, ran=ran: ran.append(run.fire_time))
        bench = Workbench(job)
        bench.clock.advance(3 * 3600 + moment)
        tick = InThread(partial(bench.dispatcher.tick, job))
        bench.clock.advance(max(0.0, -moment))
        assert tick.result().outcome is Outcome.SUCCEEDED
        assert ran == [T]


def test_a_tick_between_fire_times_does_nothing() -> None:
    """Nothing is due: no result, and storage hears nothing of it."""
    job = nightly()
    bench = Workbench(job)
    boundary = Boundary()
    dispatcher = replica(bench, stores=boundary.around(bench.stores))
    assert dispatcher.tick(job) is None
    assert boundary.calls == []


# -- a run from begin to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_run_is_recorded_and_its_lease_released(kind: str) -> None:
    """After success the record says so, nothing is pending, the lock is free, and the budget of calls is kept."""
    seen: list[Run] = []

    async def body(run: Run) -> None:
        await asyncio.sleep(0)
        seen.append(run)

    job = nightly(seen.append if kind == "sync" else body)
    bench = bench_of(job)
    boundary = Boundary()
    result = replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert result == Result("nightly", T, Outcome.SUCCEEDED, attempt=1)
    assert result.ran
    assert boundary.calls == [
        "acquire",
        "get",
        "scan",
        "commit",
        "commit",
        "release",
    ]  # the scan: its first run ever
    assert (seen[0].job, seen[0].fire_time, seen[0].attempt, seen[0].fencing_token) == ("nightly", T, 1, 1)
    assert seen[0].idempotency_key == "nightly:20260101T030000Z"
    assert run_row(bench, job, T).outcome is Outcome.SUCCEEDED
    assert (job_row(bench, job).running, job_row(bench, job).pending) == (None, {})
    assert (job_row(bench, job).last_fire_time, job_row(bench, job).last_outcome) == (T, "succeeded")
    assert not bench.stores.leases.held("test/nightly")


def test_a_losing_replica_makes_one_call() -> None:
    """The lease is held elsewhere: nothing is recorded and nothing further asked."""
    job = nightly()
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    boundary = Boundary()
    result = replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert (result.outcome, result.reason, result.ran) == (Outcome.SKIPPED, "held elsewhere", False)
    assert result.refusal is Refusal.HELD_ELSEWHERE
    assert boundary.calls == ["acquire"]
    bench.dispatcher.finish(started, None)


@pytest.mark.parametrize("by", ["timer", "request", "hand"])
def test_what_is_done_never_starts_again(by: Any) -> None:
    """Timer, request or person: a finished fire time is refused, from any host."""
    starts: list[int] = []
    job = nightly(lambda run: starts.append(run.attempt))
    bench = bench_of(job)
    bench.run(job, T)
    for dispatcher in (bench.dispatcher, replica(bench)):
        result = dispatcher.execute(job, T, by=by)
        assert result.outcome is Outcome.SKIPPED
    assert starts == [1]


def test_an_operators_replay_starts_it_again() -> None:
    """A replay runs from the beginning under a new idempotency key."""
    keys: list[str] = []

    def body(run: Run) -> None:
        keys.append(run.idempotency_key)
        assert run.checkpoint.load() is None
        run.checkpoint.save(1)

    job = nightly(body)
    bench = bench_of(job)
    bench.run(job, T)
    result = replayed(bench.dispatcher, job, T)
    assert (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 2)
    assert keys == ["nightly:20260101T030000Z", "nightly:20260101T030000Z:1"]


def test_a_fire_time_in_another_zone_is_the_same_fire_time() -> None:
    """However an instant is written, its record and its idempotency key are those of the UTC instant."""
    keys: list[str] = []
    job = nightly(lambda run: keys.append(f"{run.idempotency_key} {run.fire_time.isoformat()}"))
    bench = bench_of(job)
    local = T.astimezone(timezone(timedelta(hours=3))).replace(microsecond=400)
    assert bench.run(job, local).outcome is Outcome.SUCCEEDED
    assert bench.run(job, T).outcome is Outcome.SKIPPED
    assert keys == ["nightly:20260101T030000Z 2026-01-01T03:00:00+00:00"]


# -- what bodies raise ----------------------------------------------------------------------------------------


class Unprintable(Exception):  # noqa: N818 - as careless as the class it stands for
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


WRONG: list[BaseException] = [
    ValueError("no"),
    SystemExit(3),
    StopIteration("x"),
    GeneratorExit(),
    asyncio.CancelledError(),
    Unprintable(),
]


def test_a_failure_is_kept_with_its_traceback() -> None:
    """The record says what was raised and where."""
    job = nightly(raising(ValueError("no such shop")))
    bench = bench_of(job)
    bench.run(job, T)
    row = run_row(bench, job, T)
    assert row.reason == "ValueError: no such shop"
    assert "in body" in row.error
    assert row.failures == 1


def test_an_endless_error_is_cut() -> None:
    """A traceback of any length leaves a row that fits, with its end, which says most."""
    job = nightly(raising(ValueError("x" * 100_000 + "the end")))
    bench = bench_of(job)
    bench.run(job, T)
    row = run_row(bench, job, T)
    assert len(row.error) == len(row.reason) == 4000
    assert row.error.endswith("the end\n")


def test_a_failed_run_is_tried_again_after_its_back_off() -> None:
    """Retries are kept in the store: refused before their time, due after it, and then no more."""
    job = nightly(raising(ValueError("no")), retries=2, retry_delay=100)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.RETRYING
    waits = []
    for attempt in (2, 3):
        retry_at = run_row(bench, job, T).retry_at
        assert retry_at is not None
        waits.append((retry_at - bench.clock.now()).total_seconds())
        assert bench.dispatcher.execute(job, T, by="request").reason.startswith("retrying, due at")
        bench.clock.advance(waits[-1] + 0.001)
        last = bench.dispatcher.execute(job, T, by="request")
        assert last.attempt == attempt
    assert last.outcome is Outcome.FAILED
    assert 80 <= waits[0] <= 120
    assert 160 <= waits[1] <= 240
    row = run_row(bench, job, T)
    assert (row.failures, row.retry_at) == (3, None)
    assert [a["outcome"] for a in row.attempts] == ["retrying", "retrying"]
    assert job_row(bench, job).pending == {}


def test_a_person_need_not_wait_for_a_retry() -> None:
    """By hand a retry runs at once."""
    outcomes: Iterator[BaseException | None] = iter([ValueError("no"), None])

    def body(_: Run) -> None:
        if (error := next(outcomes)) is not None:
            raise error

    job = nightly(body, retries=1)
    bench = bench_of(job)
    bench.run(job, T)
    assert bench.dispatcher.execute(job, T, by="hand").outcome is Outcome.SUCCEEDED


def test_a_permanent_error_is_never_tried_again() -> None:
    """PermanentError fails at once, whatever retries are left."""
    job = nightly(raising(PermanentError("no such account")), retries=5)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.FAILED
    assert job_row(bench, job).pending == {}


# -- deaths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_dead_holders_run_goes_on_from_its_checkpoint(kind: str) -> None:
    """Another host goes on where the checkpoint is, as attempt 2, with a higher token and the same key."""
    runs: list[tuple[int, int, Any, str]] = []

    def look(run: Run) -> None:
        runs.append((run.attempt, run.fencing_token, run.checkpoint.load(), run.idempotency_key))

    async def body(run: Run) -> None:
        await asyncio.sleep(0)
        look(run)

    job = nightly(look if kind == "sync" else body)
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    started.run.checkpoint.save({"page": 7})
    die(started)
    bench.clock.advance(AFTER_LEASE)
    result = replica(bench).execute(job, T, by="request")
    assert (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 2)
    assert runs == [(2, 2, {"page": 7}, "nightly:20260101T030000Z")]
    assert run_row(bench, job, T).abandoned == 1


def test_a_job_that_kills_every_host_ends_failed() -> None:
    """After MAX_ABANDONED deaths the run is failed, not handed to yet another host."""
    job = nightly(retries=100)
    bench = bench_of(job)
    for attempt in range(1, MAX_ABANDONED + 1):
        started = bench.dispatcher.begin(job, T, by="timer" if attempt == 1 else "request")
        assert isinstance(started, Started)
        die(started)
        bench.clock.advance(AFTER_LEASE)
    result = bench.dispatcher.execute(job, T, by="request")
    assert (result.outcome, result.ran) == (Outcome.FAILED, False)
    assert run_row(bench, job, T).abandoned == MAX_ABANDONED
    assert recovered(bench.dispatcher, bench.clock) == []


def test_hold_makes_a_dead_run_unknown_until_a_replay() -> None:
    """With on_abandoned="hold" a dead run is visible as unknown and nothing but a person's replay runs it."""
    starts: list[int] = []
    job = nightly(lambda run: starts.append(run.attempt), on_abandoned="hold")
    bench = bench_of(job)
    die(start(bench.dispatcher, job, T))
    results = recovered(bench.dispatcher, bench.clock)
    assert [r.outcome for r in results] == [Outcome.UNKNOWN]
    assert run_row(bench, job, T).outcome is Outcome.UNKNOWN
    assert job_row(bench, job).last_outcome == "unknown"
    assert starts == []
    assert replayed(bench.dispatcher, job, T).outcome is Outcome.SUCCEEDED


def test_hold_does_not_keep_a_stopped_run_back() -> None:
    """A run that was told to stop is known to have stopped, so it goes on even with "hold"."""
    job = nightly(on_abandoned="hold")
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    started.stop.set(HostStopping())
    bench.dispatcher.finish(started, started.stop.cause)
    assert replica(bench).execute(job, T, by="request").outcome is Outcome.SUCCEEDED


# -- pause ----------------------------------------------------------------------------------------------------


def test_a_paused_job_runs_by_hand_only() -> None:
    """A pause refuses timers and requests and names the way out; a person may run it."""
    job = nightly()
    bench = bench_of(job)
    pause(bench.dispatcher, "nightly", "migration")
    result = bench.run(job, T)
    assert (result.outcome, result.ran) == (Outcome.SKIPPED, False)
    assert "(migration)" in result.reason
    assert bench.dispatcher.execute(job, T, by="hand").outcome is Outcome.SUCCEEDED


def test_a_resumed_job_catches_up_nothing() -> None:
    """Fire times that passed during a pause were meant not to run."""
    starts: list[datetime] = []
    job = nightly(lambda run: starts.append(run.fire_time), misfire="all")
    bench = bench_of(job)
    bench.run(job, T)
    pause(bench.dispatcher, "nightly")
    bench.clock.advance(86400 * 3)
    assert recover(bench.dispatcher) == []
    resume(bench.dispatcher, "nightly")
    assert recovered(bench.dispatcher, bench.clock) == []
    bench.run(job, at(3, day=5))
    assert starts == [T, at(3, day=5)]


# -- misfire --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", [9]), ("latest", [9]), ("all", [9, 7, 8])],
)
def test_a_claim_deals_with_what_was_missed(policy: Any, expected: list[int]) -> None:
    """The due fire time runs; with misfire="all" those nobody ran follow one another without a recovery tick."""
    order: list[int] = []

    @scheduled("0 0 * * * *", misfire=policy, misfire_cap=2)
    def hourly(run: Run) -> None:
        order.append(run.fire_time.hour)

    bench = Workbench(hourly)
    bench.run(hourly, at(5))
    order.clear()
    bench.run(hourly, at(9))
    work_off(replica(bench))
    assert order == expected
    last_skipped = {"skip": 8, "latest": 8, "all": 6}[policy]
    assert run_row(bench, hourly, at(last_skipped)).outcome is Outcome.SKIPPED
    assert job_row(bench, hourly).pending == {}


# -- stopping -------------------------------------------------------------------------------------------------


def test_a_stopped_run_is_asked_for_only_after_its_release() -> None:
    """When the request can be seen, the lease is free: whoever takes it can go on at once."""
    job = nightly(stop_at)
    bench = bench_of(job)
    boundary = Boundary()
    boundary.meanwhile("send", lambda: held.append(bench.stores.leases.held("test/nightly")))
    held: list[bool] = []
    result = replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert result.outcome is Outcome.STOPPED
    assert boundary.calls[-3:] == ["commit", "release", "send"]
    assert held == [False]
    assert [(r.job, r.fire_time) for r in requests(bench)] == [("nightly", T)]


def test_a_stopping_host_tells_its_runs() -> None:
    """A run of a stopping host is told, stops, keeps its checkpoint, and goes on elsewhere as attempt 2."""
    gate = Gate()
    runs: list[Any] = []

    def body(run: Run) -> None:
        runs.append(run.checkpoint.load())
        if run.attempt == 1:
            run.checkpoint.save("half")
            gate(run)

    job = nightly(body)
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    bench.stop.set(HostStopping())
    gate.go_on.set()
    assert running.result().outcome is Outcome.STOPPED
    assert run_row(bench, job, T).failures == 0
    results = work_off(replica(bench))
    assert [(r.outcome, r.attempt) for r in results] == [(Outcome.SUCCEEDED, 2)]
    assert runs == [None, "half"]


def test_a_stopping_host_starts_nothing() -> None:
    """Once told to stop, a host begins no run and makes no call."""
    job = nightly()
    bench = bench_of(job)
    bench.stop.set(HostStopping())
    result = bench.run(job, T)
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "this host is stopping")
    assert not has_run_row(bench, job, T)


def test_a_stopping_run_that_ends_by_itself_has_succeeded() -> None:
    """A run that is told to stop and finishes its work all the same is done."""
    job = nightly(lambda _: bench.stop.set(HostStopping()))
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED


def test_drain_waits_for_runs_and_for_those_that_begin() -> None:
    """A host has drained when no run is left and none can start any more."""
    gate = Gate()
    job = nightly(gate)
    bench = bench_of(job)
    boundary = Boundary()
    boundary.meanwhile("commit", gate)  # the claim takes a while
    dispatcher = replica(bench, stores=boundary.around(bench.stores))
    boundary._before["commit"] = [lambda: (gate.entered.set(), gate.go_on.wait(10))]
    running = InThread(lambda: dispatcher.execute(job, T, by="timer"))
    assert gate.entered.wait(10)
    assert not dispatcher.drain(0)
    gate.go_on.set()
    assert running.result().outcome is Outcome.STOPPED
    assert dispatcher.drain(0)


def test_a_run_that_heeds_no_stop_is_abandoned_as_stopped() -> None:
    """After the shutdown time-out its record says stopped, its lease is free, it is asked for elsewhere, and its
    code, should it still run, can write nothing more."""
    gate = Gate()
    late: list[BaseException] = []

    def body(run: Run) -> None:
        if run.attempt > 1:
            return
        gate.entered.set()
        assert gate.go_on.wait(10)
        try:
            run.checkpoint.save("late")
        except BaseException as error:
            late.append(error)
            raise

    job = nightly(body)
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    assert not bench.dispatcher.drain(0)
    assert bench.dispatcher.abandon() == ["nightly"]
    assert run_row(bench, job, T).outcome is Outcome.STOPPED
    assert not bench.stores.leases.held("test/nightly")
    gate.go_on.set()
    assert running.result().outcome is Outcome.ABANDONED
    assert len(late) == 1
    assert run_row(bench, job, T).checkpoint == ""
    assert [r.outcome for r in work_off(replica(bench)) if r.ran] == [Outcome.SUCCEEDED]


def test_abandon_undoes_no_success() -> None:
    """A run that ends while its host gives it up stays done: it is not run again elsewhere."""
    job = nightly()
    bench = bench_of(job)
    boundary = Boundary()
    dispatcher = replica(bench, stores=boundary.around(bench.stores))
    # Between the record of its success and the release of its lease the host gives the run up.
    boundary.meanwhile("release", dispatcher.abandon)
    assert dispatcher.execute(job, T, by="timer").outcome is Outcome.SUCCEEDED
    assert run_row(bench, job, T).outcome is Outcome.SUCCEEDED
    assert job_row(bench, job).pending == {}
    assert work_off(replica(bench)) == []


# -- lease and time limit -------------------------------------------------------------------------------------


def test_a_lost_lease_ends_a_run_that_looks() -> None:
    """A sync body learns of the loss by check(), and its result is abandoned, with nothing recorded."""
    gate = Gate()
    job = nightly(gate)
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    (started,) = bench.dispatcher.running
    bench.stores.leases.break_lease("test/nightly")
    bench.clock.advance(20)  # the next renewal is refused
    assert started.stop.event.wait(10)
    gate.go_on.set()
    result = running.result()
    assert result.outcome is Outcome.ABANDONED
    assert isinstance(result.error, LeaseLost)
    assert run_row(bench, job, T).outcome is Outcome.RUNNING
    assert [r.outcome for r in recovered(bench.dispatcher, bench.clock, 1)] == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("on_abandoned", ["hold", "rerun"])
def test_a_run_that_was_told_dead_records_nothing_before_it_knows(on_abandoned: OnAbandoned) -> None:
    """Its lease was broken, and somebody else found it dead: its own end, a moment later, changes that no more."""
    gate = Gate()
    job = nightly(gate, on_abandoned=on_abandoned)
    bench = bench_of(job)
    other = replica(bench)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    key = bench.dispatcher.running[0].claim._keys[1]
    if on_abandoned == "rerun":  # as many deaths as one run may have
        row = bench.stores.runs.get("test", key)
        assert row is not None
        bench.stores.runs.commit(
            "test", [Replace(key, {**row.values, "abandoned": MAX_ABANDONED - 1}, row.etag)]
        )
    bench.stores.leases.break_lease("test/nightly")
    other.execute(job, T, by="request")
    found = run_row(bench, job, T).outcome
    gate.go_on.set()
    assert running.result().outcome is Outcome.ABANDONED
    assert found is (Outcome.UNKNOWN if on_abandoned == "hold" else Outcome.FAILED)
    assert run_row(bench, job, T).outcome is found


def test_a_lost_lease_cancels_an_async_run() -> None:
    """An async body is cancelled when the lease is lost, and nothing is recorded."""

    async def body(run: Run) -> None:
        if run.attempt > 1:
            return
        bench.stores.leases.break_lease("test/nightly")
        await asyncio.to_thread(bench.clock.advance, 20)
        await asyncio.sleep(30)

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.ABANDONED
    assert run_row(bench, job, T).outcome is Outcome.RUNNING


def test_success_after_a_lost_lease_is_not_recorded() -> None:
    """A body that never looks and ends well after its lease was lost records nothing."""

    def body(_: Run) -> None:
        bench.clock.advance(AFTER_LEASE)

    job = nightly(body)
    bench = bench_of(job)
    bench.stores.leases.renew = lambda *_: False  # type: ignore[method-assign]
    assert bench.run(job, T).outcome is Outcome.ABANDONED
    assert run_row(bench, job, T).outcome is Outcome.RUNNING


@pytest.mark.parametrize("retries", [0, 1])
def test_a_run_over_its_time_limit_has_failed(retries: int) -> None:
    """The time limit is told by check() and counts as a failure, to be tried again if retries are left."""
    gate = Gate()
    job = nightly(gate, max_runtime=120, retries=retries)
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    for _ in range(12):
        bench.clock.advance(10)
        wait_for_renewal(bench, job)
    gate.go_on.set()
    result = running.result()
    assert result.outcome is (Outcome.RETRYING if retries else Outcome.FAILED)
    assert isinstance(result.error, TimeLimitExceeded)
    assert "max_runtime of 120 s" in result.reason


@pytest.mark.parametrize("retries", [0, 1])
def test_a_run_that_does_not_heed_its_limit_has_failed_while_it_still_runs(retries: int) -> None:
    """Its host may be about to kill it; then that was no death of its host, and it is not begun anew from its start."""
    gate = Gate()
    job = nightly(gate, max_runtime=120, retries=retries)
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    (started,) = bench.dispatcher.running
    poll = threading.Event()
    for _ in range(17):
        bench.clock.advance(10)
        for _ in range(2000):
            if bench.clock.elapsed() - started.lease.trusted_until + 40 < 20:
                break
            poll.wait(0.002)
    for _ in range(2000):
        if run_row(bench, job, T).outcome is not Outcome.RUNNING:
            break
        poll.wait(0.002)
    recorded = run_row(bench, job, T)
    assert recorded.outcome is (Outcome.RETRYING if retries else Outcome.FAILED)
    assert (recorded.failures, recorded.abandoned) == (1, 0)
    assert "max_runtime of 120 s" in recorded.reason
    gate.go_on.set()
    running.result()
    assert run_row(bench, job, T) == recorded


def wait_for_renewal(bench: Workbench, job: ScheduledJob) -> None:
    """Wait until the run's lease has been renewed if that is due, or the run knows that it must stop."""
    (started,) = bench.dispatcher.running
    poll = threading.Event()
    for _ in range(2000):
        renewed_at = started.lease.trusted_until - 40
        if bench.clock.elapsed() - renewed_at < 20 or started.stop.cause is not None:
            break
        poll.wait(0.002)
    elapsed = bench.clock.elapsed() - 3 * 3600
    while elapsed >= (job.max_runtime or 1e9) and started.stop.cause is None:
        poll.wait(0.002)


def test_an_async_run_over_its_time_limit_is_cancelled() -> None:
    """The time limit cancels an async body, and counts as a failure."""

    async def body(_: Run) -> None:
        await asyncio.to_thread(bench.clock.advance, 30)
        await asyncio.sleep(30)

    job = nightly(body, max_runtime=30)
    bench = bench_of(job)
    result = bench.run(job, T)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("TimeLimitExceeded")


def test_a_run_without_a_time_limit_has_all_the_time() -> None:
    """max_runtime=None never tells a run to stop."""
    remaining: list[float] = []
    job = nightly(lambda run: remaining.append(run.remaining()), max_runtime=None)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    assert remaining == [float("inf")]


# -- storage that does not answer -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["acquire", "get", "commit"])
def test_storage_out_of_reach_is_nobodys_failure(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before a run has begun, silence of the storage is logged, nothing runs, nothing is raised."""
    job = nightly(lambda _: pytest.fail("must not run"))
    bench = bench_of(job)
    boundary = Boundary()
    boundary.next(method, *[Fault.LOST_REQUEST] * 20)
    result = replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert result.outcome is Outcome.SKIPPED
    assert isinstance(result.error, StoreError)
    assert "the next recovery tick tries again" in caplog.text
    assert not bench.stores.leases.held("test/nightly")


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (StoreUnavailableError(), Refusal.OUT_OF_REACH),
        (StoreError("Row job:nightly cannot be read"), Refusal.NOT_CLAIMED),
        (StoreError("403 AuthorizationPermissionMismatch"), Refusal.NOT_CLAIMED),
    ],
)
def test_only_silence_is_called_out_of_reach(error: StoreError, refusal: Refusal) -> None:
    """A row that cannot be read, or a role that is missing, is told as what it is and not as an outage."""
    job = nightly(lambda _: pytest.fail("must not run"))
    bench = bench_of(job)

    def refuse(*_: object) -> None:
        raise error

    bench.stores.runs.get = refuse  # type: ignore[method-assign,assignment]
    result = bench.run(job, T)
    assert (result.outcome, result.refusal, result.error) == (Outcome.SKIPPED, refusal, error)
    assert result.reason == f"{refusal}: {error}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        MemoryError("can't start new thread"),
        BlockingIOError("can't start new thread"),
    ],
    ids=type,
)
def test_a_run_that_gets_no_thread_frees_the_lease(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """No thread to look after it: the host gets a result, nobody renews the lease, and another host goes on."""
    start_it = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("runonce-attend"):
            raise error
        start_it(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job = nightly(lambda _: pytest.fail("must not run"))
    bench = bench_of(job)
    result = bench.run(job, T)
    assert not result.ran
    assert result.reason == "it was not begun: can't start new thread"
    assert not bench.stores.leases.held("test/nightly")
    assert bench.dispatcher.running == []
    assert bench.stop._listeners == []
    monkeypatch.undo()
    job = nightly(lambda _: None)
    assert Outcome.SUCCEEDED in [result.outcome for result in recovered(replica(bench, job), bench.clock)]


def test_a_host_that_gives_runs_up_records_all_before_it_frees_one() -> None:
    """Nobody begins what one of them held while the others' ends are still being written."""
    gates = {name: Gate() for name in ("one", "two")}
    jobs = [scheduled("0 0 3 * * *", name=name)(lambda run: gates[run.job](run)) for name in gates]
    bench = bench_of(*jobs)
    boundary = Boundary()
    host = replica(bench, stores=boundary.around(bench.stores))
    running = [InThread(lambda job=job: host.execute(job, T, by="timer")) for job in jobs]
    assert all(gate.entered.wait(10) for gate in gates.values())
    boundary.calls.clear()
    host.stop.set(HostStopping())
    assert sorted(host.abandon()) == ["one", "two"]
    assert boundary.calls == ["commit", "commit", "release", "release", "send", "send"]
    for gate in gates.values():
        gate.go_on.set()
    assert {run.result().outcome for run in running} == {Outcome.ABANDONED}


def test_with_hold_a_run_that_is_given_up_is_unknown() -> None:
    """Its code is cut off wherever it is, so nobody starts it again but a person."""
    gate = Gate()
    job = nightly(gate, on_abandoned="hold")
    bench = bench_of(job)
    running = InThread(lambda: bench.run(job, T))
    assert gate.entered.wait(10)
    assert not bench.dispatcher.drain(0)
    bench.dispatcher.abandon()
    assert run_row(bench, job, T).outcome is Outcome.UNKNOWN
    gate.go_on.set()
    assert running.result().outcome is Outcome.ABANDONED
    assert work_off(replica(bench)) == []


def test_a_surprise_in_the_claim_frees_the_lease() -> None:
    """An error nobody foresaw goes up, but does not keep the job's lock."""
    job = nightly()
    bench = bench_of(job)

    def surprise(*_: object) -> None:
        raise ZeroDivisionError

    bench.stores.runs.get = surprise  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        bench.run(job, T)
    assert not bench.stores.leases.held("test/nightly")


def test_an_end_that_cannot_be_recorded_is_unknown_here_and_recovered_elsewhere() -> None:
    """When the table refuses the end's record, the result says so, the lease is freed, and the run is found."""
    job = nightly()
    bench = bench_of(job)
    boundary = Boundary()
    dispatcher = replica(bench, stores=boundary.around(bench.stores))
    started = dispatcher.begin(job, T, by="timer")
    assert isinstance(started, Started)

    def refuse() -> None:
        raise StoreError("the table is read-only")

    boundary.meanwhile("commit", refuse)
    result = dispatcher.finish(started, None)
    assert result.outcome is Outcome.UNKNOWN
    assert "ended as succeeded, which could not be recorded" in result.reason
    assert [r.attempt for r in recovered(bench.dispatcher, bench.clock, 1)] == [2]


def test_last_entries_that_the_table_refuses_fail_the_run() -> None:
    """An entry no table takes is the job's mistake: the run is recorded as failed with the reason, not lost."""
    job = nightly(lambda run: run.ledger.record("a"))
    bench = bench_of(job)
    boundary = Boundary()
    dispatcher = replica(bench, stores=boundary.around(bench.stores))
    started = dispatcher.begin(job, T, by="timer")
    assert isinstance(started, Started)

    def refuse() -> None:
        raise StoreError("PropertyNameInvalid")

    boundary.meanwhile("commit", refuse)
    started.run.ledger.record("a")
    assert dispatcher.finish(started, None).outcome is Outcome.FAILED
    assert run_row(bench, job, T).reason == "StoreError: PropertyNameInvalid"


def test_a_request_that_cannot_be_sent_is_left_to_recovery(caplog: pytest.LogCaptureFixture) -> None:
    """The queue is out of reach when a stopped run is handed on: logged, and recovery asks later."""
    job = nightly(lambda run: stop_at(run) if run.attempt == 1 else None)
    bench = bench_of(job)
    boundary = Boundary()
    boundary.next("send", Fault.LOST_REQUEST)
    result = replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert result.outcome is Outcome.STOPPED
    assert "the next recovery tick asks for" in caplog.text
    assert [r.outcome for r in recovered(bench.dispatcher, bench.clock, 1)] == [Outcome.SUCCEEDED]


# -- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("nonsense", "not a request"),
        ('{"job":"nightly"}', "not a request"),
        ('{"job":"nightly","fire_time":"yesterday"}', "not a request"),
        ('{"job":"nightly","fire_time":"2026-01-01T03:00:00"}', "with its offset"),
        ('{"job":"other","fire_time":"2026-01-01T03:00:00Z"}', "deploy the file that defines it"),
        ('{"job":"nightly","fire_time":"2026-01-02T03:00:00Z"}', "not due yet"),
        ("[" * 100_000, "not a request"),
    ],
    ids=range(7),
)
def test_a_request_that_makes_no_sense_is_dropped_and_said(
    body: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A malformed, unknown or premature request runs nothing and is logged with what is wrong."""
    job = nightly(lambda _: pytest.fail("must not run"))
    bench = bench_of(job)
    assert bench.dispatcher.handle_request(body) is None
    assert said in caplog.text


def test_a_request_may_be_doubled() -> None:
    """A request is a hint: the second of two finds the work done."""
    starts: list[int] = []
    job = nightly(lambda run: starts.append(run.attempt))
    bench = bench_of(job)
    body = '{"job":"nightly","fire_time":"2026-01-01T03:00:00Z"}'
    outcomes = [r.outcome for _ in range(2) if (r := bench.dispatcher.handle_request(body)) is not None]
    assert outcomes == [Outcome.SUCCEEDED, Outcome.SKIPPED]
    assert starts == [1]


# -- logs -----------------------------------------------------------------------------------------------------


def test_every_line_of_a_run_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the job logs carries its name, fire time and attempt; so does what is said of its end."""
    caplog.set_level(logging.INFO, "runonce")

    def body(run: Run) -> None:
        run.log.info("100 %% of %s", "all")
        if run.attempt == 1:
            stop_at(run)

    job = nightly(body)
    bench = bench_of(job)
    bench.run(job, T)
    work_off(bench.dispatcher)
    lines = [r.getMessage() for r in caplog.records if r.name == "runonce.jobs.nightly"]
    assert "[nightly 2026-01-01T03:00:00Z #1] 100 % of all" in lines
    assert any("#1] stopped: test was stopping" in line for line in lines)
    assert "[nightly 2026-01-01T03:00:00Z #2] succeeded" in lines


def test_real_threads_and_a_real_clock_agree() -> None:
    """Many threads of several hosts tick one job at once: its body starts once."""
    starts: list[int] = []
    job = nightly(lambda run: starts.append(run.attempt))
    clock = SystemClock()
    stores = memory_stores(clock)
    bench = bench_of(job)
    hosts = [Dispatcher({"nightly": job}, stores, bench.settings, clock, host=f"h{n}") for n in range(5)]
    together = threading.Barrier(20)

    def contend(host: Dispatcher) -> Result:
        together.wait()
        return host.execute(job, T, by="timer")

    threads = [InThread(lambda host=hosts[n % 5]: contend(host)) for n in range(20)]
    results = [thread.result() for thread in threads]
    assert [r.outcome for r in results].count(Outcome.SUCCEEDED) == 1
    assert starts == [1]


def test_a_finished_run_is_forgotten_by_its_host() -> None:
    """A host that runs for months keeps nothing of the runs it has done."""
    job = nightly()
    bench = bench_of(job)
    for day in range(1, 20):
        bench.run(job, at(3, day=day))
    assert bench.dispatcher.running == []
    assert bench.stop._listeners == []


def test_a_run_that_is_tried_again_says_where_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    """The warning of a retry has the body's traceback, as the error of a failure has."""

    def fails(_: Run) -> None:
        raise OSError("the other side is down")

    job = nightly(fails, retries=1)
    bench = bench_of(job)
    for outcome in (Outcome.RETRYING, Outcome.FAILED):
        caplog.clear()
        assert bench.dispatcher.execute(job, T, by="hand").outcome is outcome
        (said,) = [record for record in caplog.records if record.exc_info and record.exc_info[1]]
        assert "the other side is down" in str(said.exc_info and said.exc_info[1])
        assert said.levelname == ("WARNING" if outcome is Outcome.RETRYING else "ERROR")
        assert ("again from " in said.getMessage()) == (outcome is Outcome.RETRYING)
