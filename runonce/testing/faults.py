"""Stores that lose requests and replies, and processes that die, at a storage call of the test's choice."""

from __future__ import annotations

import threading
from dataclasses import fields
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from runonce.errors import StoreUnavailableError
from runonce.stores.protocols import Stores
from runonce.testing.workbench import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.errors import RunonceError

    Named = Callable[[str, str, tuple[Any, ...]], str]


class Fault(StrEnum):
    """What happens at a storage call."""

    LOST_REQUEST = "lost request"
    """It is not carried out, and there is no answer."""
    LOST_REPLY = "lost reply"
    """It is carried out, and there is no answer."""
    DEATH_BEFORE = "death before"
    """The process ends before the call."""
    DEATH_AFTER = "death after"
    """The process ends when the call has been carried out, before it learns of it."""


class Died(SystemExit):
    """The process is gone: nothing after this happens any more."""


class Boundary:
    """All storage calls of one process, in order; a fault can be planned for any of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dead = False
        self.noted: set[int] = set()
        """After how many calls something took effect that is no call."""
        self._at: dict[int, Fault] = {}
        self._of: dict[str, list[Fault]] = {}
        self._before: dict[str, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()

    def at(self, call: int, fault: Fault) -> None:
        """Plan a fault for the call of that number, from 1."""
        self._at[call] = fault

    def next(self, method: str, *faults: Fault) -> None:
        """Plan faults for the next calls of that method."""
        self._of.setdefault(method, []).extend(faults)

    def meanwhile(self, method: str, action: Callable[[], object]) -> None:
        """Do something, once, right before the next call of that method is carried out."""
        self._before.setdefault(method, []).append(action)

    def cross(
        self,
        method: str,
        carry_out: Callable[[], Any],
        unknown: type[RunonceError] = StoreUnavailableError,
    ) -> Any:
        """Make one call; `unknown` is what its caller gets when there is no answer."""
        with self._lock:
            if self.dead:
                raise Died
            self.calls.append(method)
            fault = self._at.get(len(self.calls))
            if fault is None and self._of.get(method):
                fault = self._of[method].pop(0)
        for action in self._before.pop(method, []):
            action()
        if fault in (Fault.LOST_REPLY, Fault.DEATH_AFTER, None):
            answer = carry_out()
            if fault is None:
                return answer
        if fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER):
            self.dead = True
            raise Died
        raise unknown(f"{method}: {fault}")

    def around(self, stores: Stores, named: Named = lambda _, method, __: method) -> Stores:
        """The stores as this process reaches them; `named` says what a call is called, by store, method, arguments."""
        wrapped = {
            f.name: cast("Any", _Wrapped(getattr(stores, f.name), self, partial(named, f.name)))
            for f in fields(stores)
        }
        return Stores(**wrapped)


class _Wrapped:
    def __init__(self, store: Any, boundary: Boundary, called: Callable[[str, tuple[Any, ...]], str]) -> None:
        self._store = store
        self._boundary = boundary
        self._called = called

    def __getattr__(self, method: str) -> Any:
        function = getattr(self._store, method)

        def call(*args: Any, **options: Any) -> Any:
            def carry_out() -> Any:
                answer = function(*args, **options)
                return list(answer) if method in ("scan", "names") else answer

            return self._boundary.cross(self._called(method, args), carry_out)

        return call


class PassingClock(ManualClock):
    """A clock on which waiting lets the time pass at once.

    For the toolkit's own threads, such as one that renews a lease, its time never comes: they wait for their
    event.
    """

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let the time pass."""
        if threading.current_thread().name.startswith("runonce"):
            return event.wait()
        if not event.is_set():
            self.advance(max(0.0, seconds))
        return event.is_set()
