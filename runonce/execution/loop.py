"""The one event loop that the async bodies of this process run on, whatever its host: on a daemon thread of its own.

So a client, a pool or a semaphore that a job file keeps works in every run and every message. What a body does to
its loop (block it, stop it, cancel every task it finds) meets other bodies, and nothing of the host or the toolkit.
A forked child has no part in its parent's loop and gets one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import logging
import os
import threading
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from runonce.errors import HostStopping
from runonce.execution.threads import classic_invocation, classic_worker, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from runonce.execution.stop import StopSignal

    End = tuple[Any, BaseException | None]
    """What a body returned, and what it raised."""

T = TypeVar("T")

log = logging.getLogger("runonce.execution.loop")

AT_ONCE = 32
"""Calls of one body's `asyncio.to_thread` that run at the same time."""
PATIENCE = 5.0
"""Seconds for what bodies left on the loop to end when it is closed."""


class _Calls:
    """One body's calls into threads: so many at once, the others wait."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._free = threading.Semaphore(AT_ONCE)

    def work(self) -> None:
        """Begin what waits, if a thread is free."""
        if self._free.acquire(blocking=False):
            start_thread(self._until_empty, "to-thread")

    def _until_empty(self) -> None:
        try:
            while True:
                self.waiting.get_nowait()()
        except Empty:
            self._free.release()
        if not self.waiting.empty():  # it came between the last look and the release
            self.work()


_of_no_body = _Calls()
_calls: contextvars.ContextVar[_Calls] = contextvars.ContextVar("runonce_calls", default=_of_no_body)


class _Threads(ThreadPoolExecutor):
    """Daemon threads for `asyncio.to_thread`: a call that never returns holds up no other body, and no host's end."""

    def submit(self, call: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        ended: Future[T] = Future()
        calls = _calls.get()

        def carry_out() -> None:
            if ended.set_running_or_notify_cancel():
                try:
                    ended.set_result(call(*arguments, **options))
                except BaseException as error:  # noqa: BLE001 - for whoever awaits it
                    ended.set_exception(error)

        calls.waiting.put(carry_out)
        calls.work()
        return ended


@contextlib.contextmanager
def _inside(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> Iterator[None]:
    """While a task of another loop is taken for the current one of this loop."""
    if task is None:
        yield
        return
    asyncio.tasks._enter_task(loop, task)  # noqa: SLF001 - documented, for those who write loops or tasks
    try:
        yield
    finally:
        asyncio.tasks._leave_task(loop, task)  # noqa: SLF001 - as above


def _of_classic_kind(loop: asyncio.AbstractEventLoop, body: Any, **options: Any) -> asyncio.Task[Any]:
    """A task as the classic worker makes them, which hand their invocation on to those they start."""
    kind: type[asyncio.Task[Any]] = getattr(classic_worker(), "ContextEnabledTask", asyncio.Task)
    return kind(body, loop=loop, **options)


def _end_of(task: asyncio.Task[End]) -> End:
    return (None, asyncio.CancelledError()) if task.cancelled() else task.result()


class BodyLoop:
    """An event loop on a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads())
        self._closed = False
        # Not by start_thread: it belongs to no invocation.
        self._thread = threading.Thread(target=self._run, name="runonce-bodies", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closed:
            try:
                self._loop.run_forever()  # returns early where a body stops the loop
            except BaseException:
                log.exception("a task that nobody awaits raised out of the event loop, which goes on")
        self._loop.close()

    def run(self, body: Callable[[], Coroutine[Any, Any, End]], stop: StopSignal, ended: Future[End]) -> None:
        """Run a body, in a task of its own and the caller's context; the stop signal cancels it.

        `ended` is set to how it ended, unless somebody has set it before: then nobody waits for it any more.
        """
        host = asyncio._get_running_loop()  # noqa: SLF001 - the public function raises where there is none
        # The Functions worker keeps the invocation's id, by which log lines are attributed, on tasks of its own kind,
        # and each has it from the task that starts it.
        factory = None if host is None else host.get_task_factory()
        outer = None if host is None else asyncio.current_task(host)
        invocation = classic_invocation()
        if factory is None and invocation is not None:  # called in a thread of the classic worker's pool
            factory = _of_classic_kind

        def begin() -> None:
            if factory is not None:
                self._loop.set_task_factory(factory)
            _calls.set(_Calls())
            with _inside(self._loop, outer):
                task = self._loop.create_task(body())
            if outer is None and invocation is not None:
                task.set_azure_invocation_id(invocation)  # type: ignore[attr-defined]
            task.add_done_callback(end)
            stop.listen(lambda _: self._soon(lambda: cancel(task)))

        def end(task: asyncio.Task[End]) -> None:
            with contextlib.suppress(InvalidStateError):
                ended.set_result(_end_of(task))

        def cancel(task: asyncio.Task[End]) -> None:
            stop.told = task.cancel() or stop.told

        self._loop.call_soon_threadsafe(begin, context=contextvars.copy_context())

    def wait(self, body: Callable[[], Coroutine[Any, Any, End]], stop: StopSignal, ended: Future[End]) -> End:
        """The same, waiting for its end.

        Raises:
            RuntimeError: This is the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("An async job or handler cannot be run to its end inside another one.")
        self.run(body, stop, ended)
        try:
            return ended.result()
        except KeyboardInterrupt:  # not the body's: it came to whoever waits here
            stop.set(HostStopping())
            return ended.result()

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the task is over
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Cancel what bodies left behind, shut down their async generators, end the thread."""
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE)
            self._thread.join(PATIENCE)
        except TimeoutError:
            log.warning("what async bodies left running did not end within %g s", PATIENCE)

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._closed = True
        self._loop.call_soon(self._loop.stop)


_lock = threading.Lock()
_loops: list[BodyLoop] = []
"""The process's loop, last. A forked child has its parents' before it, which share descriptors and are never closed."""
_inherited = 0


def body_loop() -> BodyLoop:
    """The loop, begun with its first use."""
    with _lock:
        if len(_loops) == _inherited:
            _loops.append(BodyLoop())
        return _loops[-1]


def close_body_loop() -> None:
    """Close the loop, if there is one; a later body gets a new one."""
    with _lock:
        loop = _loops.pop() if len(_loops) > _inherited else None
    if loop is not None:
        loop.close()


def _after_fork() -> None:
    global _lock, _inherited
    _lock, _inherited = threading.Lock(), len(_loops)


atexit.register(close_body_loop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
