"""The one runner of user code: a job's or a handler's body between its begin and its finish, sync or async.

Whatever a body raises becomes a value, for nothing of it may end its host. What it returns is looked at: an
awaitable or a future is awaited, whichever kind of function returned it. What has done nothing yet is refused: a
generator, a `map`, a function, a context nobody entered, and awaitables that are kept in a list.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from runonce.errors import HostStopping, PermanentError
from runonce.execution.inflight import InFlight
from runonce.execution.loop import body_loop
from runonce.execution.stop import StopSignal
from runonce.execution.threads import in_thread
from runonce.stores.columns import LONGEST_TEXT, valid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from runonce.execution.loop import End
    from runonce.execution.registry import Registry
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

NOT_RUN = (Generator, AsyncIterator, map, filter, ContextDecorator, AsyncContextDecorator)
"""Of which nothing runs until somebody goes through it or enters it."""

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B", bound="Begun")


@dataclass(eq=False, slots=True, kw_only=True)
class Begun:
    """Claimed work between its begin and its finish."""

    who: str
    """Such as "Job nightly_report"."""
    body: Callable[..., Any]
    arguments: Sequence[Any]
    stop: StopSignal
    ended: Future[End] = field(default_factory=Future)
    """How an async body ended; set before, it is waited for no longer."""
    context: Context | None = None
    """The context variables to run it with, where hooks may have set some."""

    def within(self, call: Callable[[], T]) -> T:
        """Make a call with its context variables."""
        return call() if self.context is None else self.context.run(call)

    def call(self) -> Any:
        """Call the body."""
        return self.body(*self.arguments)


@dataclass(frozen=True)
class Steps(Generic[B, A]):
    """What surrounds a body; neither step raises anything that its host is not to see."""

    begin: Callable[[], B | A]
    """Makes the claim, or says why nothing runs."""
    finish: Callable[[B, Any, BaseException | None], A]
    """Given what the body returned and raised."""

    def run(self) -> A:
        """Begin, run the body, finish: in this thread, but what is to be awaited on the loop of all bodies."""
        begun = self.begin()
        if not isinstance(begun, Begun):
            return begun
        end: End = None, begun.stop.cause  # a host may have been told to stop meanwhile
        if end[1] is None:
            end = begun.within(lambda: _called(begun))
        return begun.within(lambda: self.finish(cast("B", begun), *end))

    async def run_async(self) -> A:
        """The same for a host with an event loop of its own, which may cancel us at any time."""
        begun, cancelled = await to_its_end(in_thread(self.begin))
        if not isinstance(begun, Begun):
            return begun
        if cancelled:
            begun.stop.set(HostStopping())
        end: End = None, begun.stop.cause
        if end[1] is None:
            run = partial(body_loop().run, lambda: _awaited(begun, begun.call), begun.stop, begun.ended)
            begun.within(run)
            end, _ = await to_its_end(begun.ended, lambda: begun.stop.set(HostStopping()))
        finish = partial(self.finish, cast("B", begun), *end)
        answer, _ = await to_its_end(begun.within(lambda: in_thread(finish)))
        return answer


class Flow(Generic[B]):
    """What a dispatcher and a deliverer are: the parts they work with, and what is in flight on this host."""

    def __init__(
        self, stores: Stores, settings: Settings, registry: Registry, stop: StopSignal | None
    ) -> None:
        self.stores = stores
        self.settings = settings
        self.clock = registry.clock
        self.stop = stop or StopSignal()
        self.registry = registry
        self._inflight: InFlight[B] = InFlight(registry.clock)
        self._began = registry.clock.elapsed()

    @property
    def age(self) -> timedelta:
        """For how long this host has known its jobs and handlers."""
        return timedelta(seconds=self.clock.elapsed() - self._began)

    @property
    def running(self) -> list[B]:
        """What this host is running now."""
        return self._inflight.items()

    def drain(self, timeout: float) -> bool:
        """Tell everything that the host stops and wait for it, `timeout` seconds in all; False when some goes on."""
        self.stop.set(HostStopping())
        return self._inflight.wait(timeout)


def _called(begun: Begun) -> End:
    try:
        result = begun.call()
        if not _is_awaited(result):
            return _looked_at(begun, result), None
        try:
            return body_loop().wait(lambda: _awaited(begun, lambda: result), begun.stop, begun.ended)
        finally:
            if inspect.iscoroutine(result):
                result.close()  # it has ended, unless it could not even begin
    except BaseException as error:  # noqa: BLE001 - see the module
        return None, error


async def _awaited(begun: Begun, call: Callable[[], Any]) -> End:
    # Caught inside the body's task: a loop lets SystemExit through, and would end.
    try:
        result = call()
        while _is_awaited(result):
            result = await (asyncio.wrap_future(result) if isinstance(result, Future) else result)
        return _looked_at(begun, result), None
    except BaseException as error:  # noqa: BLE001 - see the module
        return None, error


def _is_awaited(result: Any) -> bool:
    return inspect.isawaitable(result) or isinstance(result, Future)


def _looked_at(begun: Begun, result: Any) -> Any:
    """The result, where it or anything in it is no work that is still to be done."""
    seen, waiting = set[int](), [result]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            one = list(one.values())
        if isinstance(one, list | tuple | set | frozenset):
            if id(one) not in seen:
                seen.add(id(one))
                waiting += one
        elif isinstance(one, Future | asyncio.Future) and one.done():
            one.result()  # what it raised is the body's
        elif inspect.isroutine(one) or isinstance(one, NOT_RUN) or _is_awaited(one):
            kind = type(one).__name__.replace("_", " ").strip()
            raise PermanentError(
                f"{begun.who}: its function returned {kind} {getattr(one, '__qualname__', '')!r}, so nothing of it has "
                f"run; call it, await it or go through it in the function, and take a `yield` out."
            )
    return result


async def to_its_end(ending: Future[T], on_cancel: Callable[[], None] = lambda: None) -> tuple[T, bool]:
    """Await what must not be left half done, however often we are cancelled; whether we were."""
    # No task: what cancels every task it finds on this loop does not find it.
    future, cancelled = asyncio.wrap_future(ending), False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            cancelled = True
            on_cancel()
    return future.result(), cancelled


def brief(error: BaseException) -> str:
    """Its kind and text in a line."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the job's own error class may fail at this too
        return f"{type(error).__name__}, whose text could not be made"


def told(error: BaseException) -> str:
    """The traceback as it is kept on the row: its end, which says most."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - as above
        text = brief(error)
    text = valid(text)
    return text if len(text) <= LONGEST_TEXT else "…" + text[-LONGEST_TEXT + 1 :]
