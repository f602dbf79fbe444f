"""A hook that keeps what it is told."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from runonce import hooks
from runonce.execution import hooks as calls

if TYPE_CHECKING:
    from collections.abc import Iterator


class Heard(hooks.Hooks):
    """Notes each call by name; `block` and `fail` make its methods hang or raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: BaseException | None = None

    def _note(self, name: str, event: Any) -> None:
        self.calls.append((name, event))
        self.go_on.wait(30)
        if self.error is not None:
            raise self.error

    def before_run(self, run: hooks.RunBegun) -> None:
        self._note("before_run", run)

    def after_run(self, ended: hooks.RunEnded) -> None:
        self._note("after_run", ended)

    def before_message(self, message: hooks.MessageBegun) -> None:
        self._note("before_message", message)

    def after_message(self, ended: hooks.MessageEnded) -> None:
        self._note("after_message", ended)

    def on_lease_lost(self, lost: hooks.LeaseLost) -> None:
        self._note("on_lease_lost", lost)

    def on_not_run(self, refused: hooks.NotRun) -> None:
        self._note("on_not_run", refused)

    def on_incident(self, incident: hooks.Incident) -> None:
        self._note("on_incident", incident)

    def before_send(self, sending: hooks.Sending) -> None:
        self._note("before_send", sending)

    def after_send(self, sent: hooks.Sent) -> None:
        self._note("after_send", sent)

    def names(self) -> list[str]:
        """What was called, in order, once all of it was."""
        assert calls.drain(10)
        return [name for name, _ in self.calls]

    def of(self, name: str) -> list[Any]:
        """The events one method was called with."""
        assert calls.drain(10)
        return [event for called, event in self.calls if called == name]


@contextlib.contextmanager
def added(*all_of_them: hooks.Hooks) -> Iterator[None]:
    """Hooks that are added for a while."""
    for one in all_of_them:
        hooks.add(one)
    try:
        yield
    finally:
        for one in all_of_them:
            hooks.remove(one)


@contextlib.contextmanager
def hearing() -> Iterator[Heard]:
    """A hook that hears of everything meanwhile."""
    heard = Heard()
    with added(heard):
        yield heard
