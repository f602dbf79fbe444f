"""Who is told of each definition that is made: discovery, while it imports a job file."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_listener: ContextVar[Callable[[object], None] | None] = ContextVar("listener", default=None)


def note(definition: object) -> None:
    """Tell of a definition just made; outside a discovery nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(definition)


@contextmanager
def noting(listener: Callable[[object], None]) -> Iterator[None]:
    """Call the listener with every definition made meanwhile in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
