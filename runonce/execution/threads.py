"""Helper threads that keep the invocation they were started in, by which the Functions host attributes log lines.

The worker finds it in a context variable (Python 3.13 and later), or on the current task and in a thread-local (the
classic worker, before).
"""

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
    worker, invocation_id = classic_worker(), classic_invocation()

    def run() -> None:
        if worker is not None and invocation_id is not None:
            worker._invocation_id_local.invocation_id = invocation_id  # noqa: SLF001 - there is no other way
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


def log_as(invocation_id: str) -> None:
    """Log under an invocation from here on, and in the threads started from here, on a worker's event loop.

    The worker of Python 3.13 and later sees to that itself only in its pool's threads, the classic one in each task.
    """
    runtime = sys.modules.get("azure_functions_runtime")
    if runtime is not None:
        runtime.invocation_id_cv.set(invocation_id)


def classic_worker() -> Any:
    """The module of the classic Functions worker that knows invocations, or None where it is not what runs us."""
    return sys.modules.get("azure_functions_worker.dispatcher")


def classic_invocation() -> str | None:
    """The invocation that the classic worker would attribute a log line of here and now to."""
    ask = getattr(classic_worker(), "get_current_invocation_id", None)
    return None if ask is None else ask()
