"""How a body is run and how it ends: sync and async, as a job and as a handler."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import subprocess
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, replica, run_row, work_off
from support.messages import delivery, host_of, row_of, silence

from runonce.clock import SystemClock
from runonce.errors import Fenced, HostStopping, LeaseLost, PermanentError, RunInterrupted, TimeLimitExceeded
from runonce.execution import loop as loops
from runonce.messages.definition import handler
from runonce.messages.rows import State
from runonce.runs.definition import scheduled
from runonce.testing import Complete, DeadLetter, Reschedule, Workbench
from runonce.testing.faults import Boundary, PassingClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from runonce.execution.body import Flow
    from runonce.messages.definition import Handler
    from runonce.messages.rows import MessageRow
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.rows import RunRow

T = at(3)


class Runs:
    """A scheduled job of a body, run for one fire time."""

    def __init__(self) -> None:
        self.bench = Workbench()
        self.bench.clock.advance(3 * 3600)
        self.host: Any = self.bench.dispatcher
        self.job: ScheduledJob

    def define(self, body: Callable[..., Any], **options: Any) -> None:
        """Make the body a job."""
        self.job = scheduled("0 0 3 * * *", name="one", **{"retries": 2, **options})(body)
        self.bench.dispatcher.jobs = {"one": self.job}

    def on(self, boundary: Boundary) -> None:
        """Let a host whose storage calls cross the boundary be the one that runs."""
        self.host = replica(self.bench, stores=boundary.around(self.bench.stores))

    def run(self) -> str:
        """Run it once more, when its retry is due: how that ended."""
        retry_at = run_row(self.bench, self.job, T).retry_at if self.ran else None
        if retry_at is not None:
            self.bench.clock.advance((retry_at - self.bench.clock.now()).total_seconds() + 1)
        result = self.host.execute(self.job, T, by="request" if self.ran else "timer")
        self.reason = result.reason
        return {"succeeded": "done", "retrying": "failed"}.get(result.outcome, str(result.outcome))

    async def run_async(self) -> str:
        """The same on the running loop."""
        result = await self.host.execute_async(self.job, T, by="timer")
        return {"succeeded": "done", "retrying": "failed"}.get(result.outcome, str(result.outcome))

    @property
    def ran(self) -> bool:
        """Whether there is a record."""
        with contextlib.suppress(AssertionError):
            return run_row(self.bench, self.job, T) is not None
        return False

    @property
    def row(self) -> RunRow:
        """Its row."""
        return run_row(self.bench, self.job, T)

    @property
    def free(self) -> bool:
        """Whether nothing of it is held any more."""
        return not self.bench.stores.leases.held("test/one")

    def elsewhere(self) -> list[str]:
        """What another host makes of what is left: how that ended."""
        return [str(r.outcome) for r in work_off(replica(self.bench)) if r.ran]

    def lose(self) -> None:
        """Have what the work is held by taken away."""
        self.host.running[0].lease._lose("a test took it")


class Messages:
    """A handler of a body, given one message."""

    def __init__(self) -> None:
        self.bench = Workbench(clock=PassingClock())
        silence(self.bench.deliverer)
        self.host: Any = self.bench.deliverer
        self.handler: Handler
        self._times = 0

    def define(self, body: Callable[..., Any], **options: Any) -> None:
        """Make the body a handler."""
        self.handler = handler(queue="q", key="id", name="one", **{"retries": 2, **options})(body)

    def on(self, boundary: Boundary) -> None:
        """Let a host whose storage calls cross the boundary be the one that handles."""
        self.host = host_of(self.bench, stores=boundary.around(self.bench.stores))

    def _ended(self, settlement: Any) -> str:
        self.reason = getattr(settlement, "reason", "")
        if isinstance(settlement, Complete):
            return "done"
        if isinstance(settlement, DeadLetter):
            self.reason = settlement.description
            return "failed"
        assert isinstance(settlement, Reschedule)
        self.bench.clock.advance(settlement.delay)
        row = row_of(self.bench, self.handler)
        if row.state is State.RELEASED:
            if row.retry_at:
                return "failed"
            assert settlement.delay >= 1  # or a stopping host would take it again itself, at once
            return "stopped"
        return {State.UNKNOWN: "unknown", State.CLAIMED: "abandoned"}[row.state]

    def run(self) -> str:
        """Deliver it once more: how that ended."""
        self._times += 1
        return self._ended(self.host.deliver(self.handler, delivery(count=self._times)))

    async def run_async(self) -> str:
        """The same on the running loop."""
        return self._ended(await self.host.deliver_async(self.handler, delivery()))

    @property
    def row(self) -> MessageRow:
        """Its row."""
        return row_of(self.bench, self.handler)

    @property
    def free(self) -> bool:
        """Whether nothing of it is held any more."""
        return self.row.state is not State.CLAIMED

    def elsewhere(self) -> list[str]:
        """What another host makes of the message."""
        return [self._ended(host_of(self.bench).deliver(self.handler, delivery(count=9)))]

    def lose(self) -> None:
        """Have what the work is held by taken away."""
        claim = self.host.running[0].claim
        claim._lost = LeaseLost("a test took it")


@pytest.fixture(params=[Runs, Messages])
def wing(request: pytest.FixtureRequest) -> Any:
    """Each of what runs bodies."""
    return request.param()


def sync_of(error: BaseException) -> Callable[..., Any]:
    def body(_: Any) -> None:
        raise error

    return body


def async_of(error: BaseException) -> Callable[..., Any]:
    async def body(_: Any) -> None:
        await asyncio.sleep(0)
        raise error

    return body


class UnprintableError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


WRONG = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    StopIteration("x"),
    GeneratorExit(),
    asyncio.CancelledError(),
    UnprintableError(),
    RecursionError("deep"),
    MemoryError(),
    BaseExceptionGroup("several", [SystemExit(1), ValueError("no")]),
    HostStopping("enough for today"),
    LeaseLost("somebody else's"),
    Fenced("by a blob"),
    TimeLimitExceeded("by itself"),
    subprocess.CalledProcessError(-15, ["tar"]),
]


@pytest.mark.slow
@pytest.mark.parametrize("error", WRONG, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("make", [sync_of, async_of])
def test_whatever_a_body_raises_of_its_own_is_a_failure_and_counted(
    wing: Any, make: Callable[..., Any], error: BaseException
) -> None:
    """Nothing that a body raises reaches its host; while nobody tells it to stop, each of it is a failure."""
    wing.define(make(error))
    for attempt in (1, 2, 3):
        assert wing.run() == "failed"
        assert wing.row.failures == attempt
        assert wing.free
    name = "RuntimeError" if make is async_of and isinstance(error, StopIteration) else type(error).__name__
    assert name in wing.reason
    assert name in wing.row.error
    assert wing.host.drain(0)


def test_something_else_that_was_cancelled_is_a_failure(wing: Any) -> None:
    """A body that awaits a task which something cancelled has failed, and is not run again and again at once."""
    calls: list[int] = []

    async def body(_: Any) -> None:
        calls.append(1)
        inner = asyncio.create_task(asyncio.sleep(30))
        await asyncio.sleep(0)
        inner.cancel()
        await inner

    wing.define(body)
    assert [wing.run() for _ in range(3)] == ["failed"] * 3
    assert wing.row.failures == len(calls) == 3


# -- what a body returns ----------------------------------------------------------------------------------------


def passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of async functions."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


@contextlib.contextmanager
def timed() -> Iterator[None]:
    yield


class Custom:
    """An awaitable that is no coroutine."""

    def __init__(self, then: Awaitable[Any]) -> None:
        self._then = then

    def __await__(self) -> Any:
        return self._then.__await__()


async def twice(function: Callable[..., Any], work: Any) -> Any:
    return function(work)


HIDING: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "wrapped": passing_on,
    "a context manager's": timed(),
    "partial": lambda function: lambda work: functools.partial(function, work)(),
    "a custom awaitable": lambda function: lambda work: Custom(function(work)),
    "a coroutine of a coroutine": lambda function: lambda work: twice(function, work),
}


@pytest.mark.slow
@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_an_awaitable_that_is_returned_is_awaited(wing: Any, hide: Callable[..., Any]) -> None:
    """An async function behind a plain one does its work before it counts as done, and what it raises counts."""
    steps: list[Any] = [ValueError("no"), "done"]

    async def body(_: Any) -> Any:
        await asyncio.sleep(0)
        step = steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    wing.define(hide(body))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wing.run() == "failed"
        assert wing.run() == "done"
        gc.collect()
    assert steps == []


def test_a_stop_reaches_an_awaitable_that_was_returned(wing: Any) -> None:
    """An async function behind a plain one is cancelled when its host stops, as any other."""

    async def body(_: Any) -> None:
        wing.bench.stop.set(HostStopping())
        await asyncio.sleep(30)

    wing.define(passing_on(body))
    assert wing.run() == "stopped"


def a_generator(_: Any) -> Iterator[int]:
    yield 1


async def an_async_generator(_: Any) -> AsyncIterator[int]:
    yield 1


async def returning_a_generator(work: Any) -> Any:
    return a_generator(work)


@pytest.mark.parametrize("body", [a_generator, an_async_generator, returning_a_generator])
def test_a_generator_that_is_returned_is_refused(wing: Any, body: Callable[..., Any]) -> None:
    """A generator behind a plain function has done nothing: the body has failed for good, and is told what to do."""
    wing.define(passing_on(body))
    assert wing.run() == "failed"
    assert "take a `yield` out" in wing.reason
    assert "one" in wing.reason
    assert wing.run() in ("failed", "skipped")
    assert wing.row.failures == 1


def a_future(_: Any) -> Any:
    """What a pool hands out for a call that fails a little later."""
    ended: Future[None] = Future()
    threading.Timer(0.05, ended.set_exception, [ValueError("no")]).start()
    return ended


def an_ended_future_in_a_list(_: Any) -> Any:
    ended: Future[None] = Future()
    ended.set_exception(ValueError("no"))
    return [ended]


@pytest.mark.parametrize("body", [a_future, an_ended_future_in_a_list])
def test_what_a_returned_future_raises_counts(wing: Any, body: Callable[..., Any]) -> None:
    """Work that a body hands to a pool, and returns, is waited for, and is tried again when it fails."""
    wing.define(passing_on(body))
    assert wing.run() in ("failed", "retrying")
    assert "ValueError: no" in wing.reason
    assert wing.row.failures == 1


@contextlib.contextmanager
def a_context(_: Any) -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def an_async_context(_: Any) -> AsyncIterator[None]:
    yield


class Awaitable:
    """Something like a coroutine, which would warn at some later time."""

    def __await__(self) -> Iterator[None]:
        yield


async def an_awaitable_in_a_list(_: Any) -> Any:
    return {"sent": [(Awaitable(),)]}


def a_running_future_in_a_list(_: Any) -> Any:
    return [Future()]


LAZY = [
    lambda _: map(print, ["never"]),
    lambda _: filter(print, ["never"]),
    lambda _: print,
    lambda _: lambda: None,
    a_context,
    an_async_context,
    an_awaitable_in_a_list,
    a_running_future_in_a_list,
]


@pytest.mark.parametrize("body", LAZY)
def test_what_has_not_run_is_no_success(
    wing: Any, body: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a body returns for others to run, which nobody would, is a failure for good that names it."""
    wing.define(passing_on(body))
    assert wing.run() == "failed"
    assert "nothing of it has run" in wing.reason
    assert wing.run() in ("failed", "skipped")
    assert wing.row.failures == 1
    assert capsys.readouterr().out == ""


def test_data_that_is_returned_is_data(wing: Any) -> None:
    """Lists and dicts of a body, even ones that contain themselves, are no work to be done."""
    data: dict[str, Any] = {"rows": [1, "a", (None, {2})]}
    data["rows"].append(data)
    wing.define(passing_on(lambda _: data))
    assert wing.run() == "done"


# -- the one loop -----------------------------------------------------------------------------------------------


def test_all_async_bodies_of_a_process_share_a_loop() -> None:
    """What is bound to an event loop works in every run and every message, however its host calls them."""
    seen: list[asyncio.AbstractEventLoop] = []
    limit = asyncio.Semaphore(1)

    async def body(_: Any) -> None:
        async with limit:  # bound to the first loop on which somebody has to wait for it
            seen.append(asyncio.get_running_loop())
            await asyncio.sleep(0.02)

    wings: list[Any] = [Runs(), Messages(), Runs(), Messages()]
    for wing in wings:
        wing.define(body)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda wing: wing.run(), wings)) == ["done"] * 4
    for another in (Runs(), Messages()):
        another.define(body)
        assert asyncio.run(another.run_async()) == "done"
    assert len(seen) == 6
    assert len(set(seen)) == 1


@pytest.mark.slow
def test_a_thread_that_a_body_leaves_behind_holds_nothing_up(wing: Any) -> None:
    """A body over its time whose call hangs in a thread has failed then, and its host is free of it."""
    hanging, began = threading.Event(), threading.Event()

    def hangs() -> None:
        began.set()
        hanging.wait(30)

    def stop() -> None:
        assert began.wait(20)
        wing.host.running[0].stop.set(TimeLimitExceeded())

    async def body(_: Any) -> None:
        await asyncio.gather(*(asyncio.to_thread(hangs) for _ in range(loops.AT_ONCE + 8)))

    async def other(_: Any) -> None:
        assert await asyncio.to_thread(lambda: "here") == "here"

    wing.define(body)
    stopping = threading.Thread(target=stop)
    stopping.start()
    started = time.monotonic()
    try:
        assert wing.run() == "failed"
        assert time.monotonic() - started < 25  # a call hangs for longer
        assert wing.host.drain(0)
        after = type(wing)()
        after.define(other)
        assert after.run() == "done"
    finally:
        hanging.set()


def test_threads_of_a_body_are_so_many_at_once() -> None:
    """A body's calls into threads wait for one another when they are many, and all of them are made."""
    most, now, lock = [0], [0], threading.Lock()

    def call(number: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1
        return number

    async def body(_: Any) -> None:
        answers = await asyncio.gather(*(asyncio.to_thread(call, n) for n in range(200)))
        assert answers == list(range(200))

    wing = Runs()
    wing.define(body)
    assert wing.run() == "done"
    assert 1 < most[0] <= loops.AT_ONCE


async def cancels_all(_: Any) -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


async def stops_the_loop(_: Any) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def leaves_a_task_that_exits(_: Any) -> None:
    async def exit_it() -> None:
        raise SystemExit(3)

    asyncio.get_running_loop().create_task(exit_it())
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("body", [cancels_all, stops_the_loop, leaves_a_task_that_exits])
@pytest.mark.parametrize("on", ["a thread", "a loop"])
def test_what_a_body_does_to_its_loop_is_no_matter_to_its_host(
    wing: Any, body: Callable[..., Any], on: str
) -> None:
    """A body that cancels all tasks, stops its loop or leaves an exit behind ends as done, and so does the next one."""
    for _ in range(2):
        one = type(wing)()
        one.define(body)
        assert (one.run() if on == "a thread" else asyncio.run(one.run_async())) == "done"
        assert one.host.drain(0)


@pytest.mark.slow
def test_a_body_that_waits_for_another_on_its_own_loop_fails(wing: Any) -> None:
    """A run started and waited for inside an async body would wait for ever: it is refused instead."""
    inner = type(wing)()

    async def inside(_: Any) -> None:
        await asyncio.sleep(0)

    async def body(_: Any) -> None:
        inner.define(inside)
        assert inner.run() == "failed"
        assert "inside another one" in inner.reason

    wing.define(body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wing.run() == "done"
        gc.collect()


# -- being stopped ----------------------------------------------------------------------------------------------


def told(work: Any, stop: Callable[[], None]) -> None:
    stop()
    work.check()


def looks_and_returns(work: Any, stop: Callable[[], None]) -> None:
    stop()
    assert work.stopping


def says_it_is_done(work: Any, stop: Callable[[], None]) -> None:
    stop()
    assert work.stopping
    work.done()


def is_done_and_told(work: Any, stop: Callable[[], None]) -> None:
    stop()
    work.done()
    work.check()


def is_done_and_fails(work: Any, stop: Callable[[], None]) -> None:
    stop()
    work.done()
    raise ValueError("no")


def its_items_end_with_the_stop(work: Any, stop: Callable[[], None]) -> None:
    def items() -> Iterator[int]:
        for number in range(5):
            if work.stopping:
                return
            yield number

    for (number,) in work.batches(items(), size=1):
        if number == 1:
            stop()


def never_looks(_: Any, stop: Callable[[], None]) -> None:
    stop()


def last_batch(work: Any, stop: Callable[[], None]) -> None:
    for (number,) in work.batches(range(3), size=1):
        if number == 2:
            stop()
            assert work.stopping


def before_the_last_batch(work: Any, stop: Callable[[], None]) -> None:
    for (number,) in work.batches(range(3), size=1):
        if number == 1:
            stop()


def everyday(work: Any, stop: Callable[[], None]) -> None:
    for number in range(5):
        try:
            if number == 1:
                stop()
            work.check()
        except Exception:  # noqa: BLE001 - what people write
            continue


def wraps_it(work: Any, stop: Callable[[], None]) -> None:
    try:
        told(work, stop)
    except BaseException as error:
        raise ValueError("an item failed") from error


def groups_it(work: Any, stop: Callable[[], None]) -> None:
    try:
        told(work, stop)
    except RunInterrupted as error:
        raise BaseExceptionGroup("several", [ValueError("no"), error]) from None


def fails_in_cleaning_up(work: Any, stop: Callable[[], None]) -> None:
    try:
        told(work, stop)
    finally:
        raise OSError("the connection was closed already")


def catches_it_and_returns(work: Any, stop: Callable[[], None]) -> None:
    with contextlib.suppress(HostStopping):
        told(work, stop)


def its_child_is_killed(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise subprocess.CalledProcessError(-15, ["tar"])


def its_pool_is_killed(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise BrokenProcessPool("a process ended abruptly")


def its_child_fails(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise subprocess.CalledProcessError(2, ["tar"])


def ctrl_c(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise KeyboardInterrupt


def fails_meanwhile(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise ValueError("no")


def fenced_meanwhile(_: Any, stop: Callable[[], None]) -> None:
    stop()
    raise Fenced("by a blob")


STOPPED = {
    told: "stopped",
    looks_and_returns: "stopped",
    says_it_is_done: "done",
    is_done_and_told: "done",
    is_done_and_fails: "failed",
    its_items_end_with_the_stop: "stopped",
    never_looks: "done",
    last_batch: "done",
    before_the_last_batch: "stopped",
    everyday: "stopped",
    wraps_it: "stopped",
    groups_it: "stopped",
    fails_in_cleaning_up: "stopped",
    catches_it_and_returns: "stopped",
    its_child_is_killed: "stopped",
    its_pool_is_killed: "stopped",
    its_child_fails: "failed",
    ctrl_c: "stopped",
    fails_meanwhile: "failed",
    fenced_meanwhile: "failed",
}
CUT_OFF = {its_child_is_killed, its_pool_is_killed, ctrl_c}


def stopping_in(wing: Any, does: Callable[..., None]) -> Callable[[Any], None]:
    """A body that does that while its host stops, and nothing when it is run again."""

    def body(work: Any) -> None:
        if work.attempt == 1:
            does(work, lambda: wing.bench.stop.set(HostStopping()))

    return body


@pytest.mark.parametrize("does", STOPPED, ids=lambda f: f.__name__)
def test_a_body_that_was_told_to_stop_is_stopped_unless_it_is_finished_or_fails(
    wing: Any, does: Callable[..., None]
) -> None:
    """Stopped is what ends because of the stop, however that looks; finished is done, and a fault stays one."""
    wing.define(stopping_in(wing, does))
    assert wing.run() == STOPPED[does]
    if STOPPED[does] != "failed":
        assert wing.row.failures == 0
    if STOPPED[does] == "stopped":
        assert wing.elsewhere() in (["done"], ["succeeded"])


@pytest.mark.parametrize("does", STOPPED, ids=lambda f: f.__name__)
def test_with_hold_a_body_that_was_cut_off_is_unknown(wing: Any, does: Callable[..., None]) -> None:
    """What stopped where it chose to goes on by itself; what was ended wherever it was is for a person to look at."""
    ran: list[Any] = []
    body = stopping_in(wing, does)

    def noting(work: Any) -> None:
        ran.append(work.attempt)
        body(work)

    wing.define(noting, on_abandoned="hold")
    assert wing.run() == ("unknown" if does in CUT_OFF else STOPPED[does])
    if does in CUT_OFF:
        wing.elsewhere()
        assert ran == [1]


@pytest.mark.parametrize("does", STOPPED, ids=lambda f: f.__name__)
def test_over_its_time_a_body_has_failed_whatever_it_does(
    wing: Any, does: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Past max_runtime a body has failed, returned or not, finished or not; the log has said so when it struck."""
    reasons: list[str] = []

    def body(work: Any) -> None:
        def strike() -> None:
            wing.bench.clock.advance(31)
            wing.host.running[0].stop.set(TimeLimitExceeded("over its max_runtime"))
            reasons.append("struck")

        does(work, strike)

    wing.define(body, max_runtime=30)
    assert wing.run() == "failed"
    assert reasons == ["struck"]
    assert caplog.records


def test_a_limit_that_nobody_has_told_yet_counts_and_is_logged(
    wing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that returns after its time has failed, although the thread that would tell it has not woken."""
    wing.define(lambda _: wing.bench.clock.advance(30), max_runtime=30)
    assert wing.run() == "failed"
    assert "TimeLimitExceeded" in wing.reason
    assert any(r.levelname == "ERROR" and "over its max_runtime" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("does", [told, looks_and_returns, everyday], ids=lambda f: f.__name__)
def test_a_body_that_has_lost_its_right_is_abandoned(wing: Any, does: Callable[..., None]) -> None:
    """Whoever is told that it was taken over and ends has no outcome to record."""
    wing.define(lambda work: does(work, wing.lose))
    assert wing.run() == "abandoned"


def test_a_stop_cancels_an_async_body_which_may_clean_up(wing: Any) -> None:
    """An async body hears of the stop as a cancellation, may clean up, and counts as stopped."""
    cleaned: list[str] = []

    async def body(_: Any) -> None:
        wing.bench.stop.set(HostStopping())
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.append("yes")

    wing.define(body)
    assert wing.run() == "stopped"
    assert cleaned == ["yes"]
    assert wing.row.failures == 0


@pytest.mark.parametrize("hold", [True, False])
def test_an_async_body_cancelled_in_mid_effect_is_cut_off(wing: Any, hold: bool) -> None:
    """At an `await` of its own nobody knows whether the effect happened, so with "hold" it is unknown."""

    async def body(_: Any) -> None:
        wing.bench.stop.set(HostStopping())
        await asyncio.sleep(30)

    wing.define(body, on_abandoned="hold" if hold else "rerun")
    assert wing.run() == ("unknown" if hold else "stopped")


def test_a_host_that_cancels_the_call_gets_a_recorded_stop(wing: Any) -> None:
    """However often the host cancels it, a call ends with its outcome recorded, what it holds let go."""
    begun = threading.Event()

    async def body(work: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            work.checkpoint.save("tidy")
            await asyncio.sleep(0.02)

    wing.define(body)

    async def host() -> str:
        call = asyncio.create_task(wing.run_async())
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0.005)
        return await call

    assert asyncio.run(host()) == "stopped"
    assert wing.row.checkpoint == '"tidy"'
    assert wing.free
    assert wing.host.drain(0)
    assert wing.row.failures == 0


def test_a_call_cancelled_while_it_claims_begins_nothing(wing: Any) -> None:
    """A cancellation that comes during the claim leaves no claim and no lease behind, and the body not begun."""
    claiming, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    async def body(_: Any) -> None:
        ran.append(1)

    boundary = Boundary()
    wing.on(boundary)
    wing.define(body)
    boundary.meanwhile("commit", lambda: (claiming.set(), go_on.wait(10)))

    async def host() -> str:
        call = asyncio.create_task(wing.run_async())
        await asyncio.to_thread(claiming.wait, 10)
        call.cancel()
        await asyncio.sleep(0.01)
        go_on.set()
        return await call

    assert asyncio.run(host()) == "stopped"
    assert ran == []
    assert wing.free
    assert wing.host.drain(0)


def test_an_async_body_cannot_end_its_hosts_loop(wing: Any) -> None:
    """SystemExit and its like inside an async body end the body, and not the loop that its host calls it from."""

    async def host() -> str:
        ends = []
        for error in (SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()):
            one = type(wing)()
            one.define(async_of(error))
            ends.append(await one.run_async())
        await asyncio.sleep(0)
        return " ".join(ends)

    assert asyncio.run(host()) == "failed failed failed"


def test_a_permanent_error_is_never_tried_again(wing: Any) -> None:
    """PermanentError fails an async body at once, whatever retries are left."""
    wing.define(async_of(PermanentError("no such account")), retries=5)
    assert wing.run() == "failed"
    assert wing.run() in ("failed", "skipped")
    assert wing.row.failures == 1


def test_what_a_host_runs_is_drained(wing: Any) -> None:
    """A draining host tells what runs, waits so long, and says whether all has ended."""
    entered, go_on = threading.Event(), threading.Event()

    def body(work: Any) -> None:
        entered.set()
        assert go_on.wait(10)
        work.check()

    wing.define(body)
    host: Flow[Any] = wing.host
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(wing.run)
        assert entered.wait(10)
        assert not host.drain(0)
        go_on.set()
        assert running.result(10) == "stopped"
    assert host.drain(0)


async def hangs(_: Any) -> None:
    await asyncio.to_thread(threading.Event().wait)


@pytest.mark.slow
def test_a_limit_on_a_real_clock_ends_an_async_body_whose_thread_hangs() -> None:
    """The limit strikes an async body in mid-await, and its host is free soon after."""
    clock = SystemClock()
    bench = Workbench()
    bench.clock.advance(3 * 3600)
    job = scheduled("0 0 3 * * *", name="one", max_runtime=0.2)(hangs)
    host = replica(bench, job, clock=clock)  # type: ignore[arg-type]
    began = clock.elapsed()
    result = host.execute(job, T, by="timer")
    assert isinstance(result.error, TimeLimitExceeded)
    assert clock.elapsed() - began < 10
