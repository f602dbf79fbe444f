"""Hooks: what a program hears of its runs and messages, without ever being in their way.

Each `Hooks` object is called in a thread of its own, one call after the other. A run waits for `before_run`,
`before_message` and `before_send`, a second at most; for the others it does not wait. What a hook raises is logged
once for each of its methods, and one that hangs is waited for once. With none added nothing is called or made.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import os
import queue
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from runonce.errors import DefinitionError
from runonce.execution.threads import carried

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.events import (
        Event,
        Incident,
        LeaseLost,
        MessageBegun,
        MessageEnded,
        NotRun,
        RunBegun,
        RunEnded,
        Sending,
        Sent,
    )

log = logging.getLogger("runonce.hooks")

PATIENCE = 1.0
"""Seconds that whatever waits for hooks waits at most, however many there are."""
LONGEST_QUEUE = 1000
"""Calls that wait for one hook; further ones are dropped."""


class Hooks:
    """Override what you want to hear of, and add an object of your class with `add`.

    The methods are called in a thread of their own; whatever they raise, and however long they take, the run goes on.
    """

    waited_for = True
    """Whether what happens waits for its `before_…` methods."""

    def before_run(self, run: RunBegun) -> None:
        """A fire time is claimed here; the job's code begins when this returns, or after a second."""

    def after_run(self, ended: RunEnded) -> None:
        """The job's code has ended and its outcome is recorded."""

    def before_message(self, message: MessageBegun) -> None:
        """A message is claimed here; its handler begins when this returns, or after a second."""

    def after_message(self, ended: MessageEnded) -> None:
        """A handler has ended, and what becomes of its message is decided."""

    def on_lease_lost(self, lost: LeaseLost) -> None:
        """A run or message is somebody else's from now on; its code is told to stop."""

    def on_not_run(self, refused: NotRun) -> None:
        """A fire time or message came and was not run here: somebody else has it, it is done, or it must wait."""

    def on_incident(self, incident: Incident) -> None:
        """Failed for good, held, missed, dead-lettered or recovered: told once, on the host that recorded it."""

    def before_send(self, sending: Sending) -> None:
        """Messages are about to be sent; headers that are set within a second travel with them."""

    def after_send(self, sent: Sent) -> None:
        """They are sent, or may not be."""


METHODS = [name for name, value in vars(Hooks).items() if inspect.isfunction(value)]


class _Caller:
    """Calls one Hooks object, in a thread that begins with the first call."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.methods = _methods(hooks)
        self._calls: queue.Queue[tuple[Callable[[], object], Future[None]] | None] = queue.Queue(
            LONGEST_QUEUE
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()
        self.latest: Future[None] | None = None
        """What ends once all that was put so far has been called."""
        self.stuck = False
        """Whether a call was waited for in vain, and its thread has not caught up since."""

    @property
    def is_waited_for(self) -> bool:
        """Whether its calls are waited for."""
        return self.hooks.waited_for and not self.stuck

    def put(self, name: str, event: Event) -> Future[None] | None:
        """Have a method called; what ends with the call, or None where there is nothing to call or no room."""
        if name not in self.methods or threading.current_thread() is self._thread:
            return None  # what a hook does itself it does not hear of
        ended: Future[None] = Future()
        with self._lock:
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="runonce-hooks", daemon=True)
                    thread.start()
                    self._thread = thread
                self._calls.put_nowait((carried(lambda: self._call(name, event)), ended))
            except queue.Full:
                self._say("", "%s takes too long: it is not told what happens until it has caught up")
                return None
            except RuntimeError as error:  # no thread can be started, as at the interpreter's end
                self._say("thread", "%s is not told what happens: %s", error)
                return None
            self.latest = ended
        return ended

    def close(self) -> None:
        """Let its thread end once it has called what it was given."""
        with contextlib.suppress(queue.Full):  # it ends with the process then
            self._calls.put_nowait(None)

    def _work(self) -> None:
        while (next_one := self._calls.get()) is not None:
            call, ended = next_one
            try:
                call()
            finally:
                self.stuck = self.stuck and not self._calls.empty()
                ended.set_result(None)

    def _call(self, name: str, event: Event) -> None:
        try:
            getattr(self.hooks, name)(event)
        except BaseException as error:  # noqa: BLE001 - nothing that a hook raises may end its thread
            self._say(name, "%s: its %s failed; further failures of it are not logged", name, error=error)

    def late(self, name: str) -> None:
        """It was waited for in vain: it is not waited for again before it has caught up."""
        self.stuck = True
        self._say(name, "%s: its %s took over %g s, so what it is told of went on", name, PATIENCE)

    def _say(self, about: str, text: str, *values: object, error: BaseException | None = None) -> None:
        if about not in self._said:
            self._said.add(about)
            log.error(text, f"Hooks {type(self.hooks).__qualname__}", *values, exc_info=error)


def _methods(hooks: Hooks) -> set[str]:
    """The methods that its class overrides.

    Raises:
        DefinitionError: It is no Hooks object, or has a method that nobody would ever call.
    """
    if not isinstance(hooks, Hooks):
        raise DefinitionError(
            f"hooks.add({hooks!r}): add an object of a class of yours that derives from runonce.hooks.Hooks, such as "
            f"hooks.add(MyHooks())."
        )
    where = type(hooks).__qualname__
    for name in dir(hooks):
        if name.startswith(("before_", "after_", "on_")) and name not in METHODS:
            close = difflib.get_close_matches(name, METHODS, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(METHODS)}."
            raise DefinitionError(f"Hooks {where}: nothing calls its {name}; {meant}")
    found = {name for name in METHODS if getattr(type(hooks), name) is not getattr(Hooks, name)}
    for name in sorted(found):
        if inspect.iscoroutinefunction(getattr(hooks, name)):
            raise DefinitionError(
                f"Hooks {where}: its {name} is async; make it a plain def, it has a thread of its own."
            )
    return found


_callers: list[_Caller] = []


def add(hooks: Hooks) -> None:
    """Have an object's methods called from now on, in this process.

    A class is added once: another object of it takes the place of the one before, so that a job file may be imported
    again.

    Raises:
        DefinitionError: It is not a Hooks object, or one of its methods is none that is called.
    """
    made = _Caller(hooks)
    _keep(lambda other: not _same(other, hooks), made)


def remove(hooks: Hooks) -> None:
    """Call an object's methods no more."""
    _keep(lambda other: other is not hooks)


def added(kind: type[Hooks]) -> bool:
    """Whether an object of that class is added already."""
    return any(type(caller.hooks) is kind for caller in _callers)


def _keep(wanted: Callable[[Hooks], bool], *new: _Caller) -> None:
    gone = [caller for caller in _callers if not wanted(caller.hooks)]
    _callers[:] = [*(caller for caller in _callers if caller not in gone), *new]
    for caller in gone:
        caller.close()


def _same(one: Hooks, other: Hooks) -> bool:
    first, second = type(one), type(other)
    return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)


def listening(name: str) -> bool:
    """Whether anybody wants to hear of it, so that an event is worth making."""
    return any(name in caller.methods for caller in _callers)


def tell(name: str, event: Event) -> None:
    """Have everybody called who wants to hear of it; nothing is waited for."""
    for caller in _callers:
        caller.put(name, event)


def tell_and_wait(name: str, event: Event) -> None:
    """The same, waiting until all have been called, `PATIENCE` at most."""
    told = {
        ended: caller for caller in _callers if (ended := caller.put(name, event)) and caller.is_waited_for
    }
    for ended in wait(told, PATIENCE).not_done:
        told[ended].late(name)


def drain(timeout: float) -> bool:
    """Wait until everything told so far was heard, `timeout` seconds at most; whether it was."""
    latest = [caller.latest for caller in _callers if caller.latest is not None]
    return not wait(latest, timeout).not_done


def _after_fork() -> None:
    _callers[:] = [_Caller(caller.hooks) for caller in _callers]  # its threads are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
