"""Helper threads that keep the invocation they were started in."""

from __future__ import annotations

import contextvars
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread that logs under the invocation that starts it."""
    thread = threading.Thread(target=carried(target), name=name, daemon=True)
    thread.start()
    return thread


def carried(target: Callable[[], object]) -> Callable[[], None]:
    """The call as another thread can make it: with this one's context variables, and under its invocation."""
    context = contextvars.copy_context()
    invocation_id = getattr(_thread_local(), "invocation_id", None)

    def run() -> None:
        if invocation_id is not None:
            _thread_local().invocation_id = invocation_id
        context.run(target)

    return run


def in_thread(call: Callable[[], T], name: str = "begin-or-finish") -> Future[T]:
    """What comes of a call in a daemon thread of its own, which no other call can keep waiting."""
    ended: Future[T] = Future()

    def carry_out() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001 - for whoever waits for it
            ended.set_exception(error)

    start_thread(carry_out, name)
    return ended


def _thread_local() -> Any:
    """The classic Functions worker's thread-local, where that worker is what runs us."""
    dispatcher = sys.modules.get("azure_functions_worker.dispatcher")
    return getattr(dispatcher, "_invocation_id_local", None)
