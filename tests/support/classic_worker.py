"""How the classic Functions worker (4.x, for Python up to 3.12) knows the invocation of a log line: a stand-in.

That worker is not on PyPI, whose newest is 1.1.9 of 2021. The three names are the ones of its `dispatcher` module that
matter here, and do what they do there: a task hands its invocation on to those that are made while it is the current
one, a function that is not async has it in a thread-local of the pool's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ID = "__azure_function_invocation_id__"


class ContextEnabledTask(asyncio.Task[Any]):
    """A task of an invocation."""

    def __init__(
        self, coro: Any, loop: asyncio.AbstractEventLoop, context: Any = None, **options: Any
    ) -> None:
        super().__init__(coro, loop=loop, context=context, **options)
        outer = getattr(asyncio.current_task(loop), _ID, None)
        if outer is not None:
            self.set_azure_invocation_id(outer)

    def set_azure_invocation_id(self, invocation_id: str) -> None:
        """Say whose task it is."""
        setattr(self, _ID, invocation_id)


def worker_module() -> ModuleType:
    """What is in `sys.modules` as `azure_functions_worker.dispatcher` while that worker runs an app."""
    module, local = ModuleType("azure_functions_worker.dispatcher"), threading.local()

    def get_current_invocation_id() -> str | None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return getattr(task, _ID, None) or getattr(local, "invocation_id", None)

    module.__dict__.update(
        ContextEnabledTask=ContextEnabledTask,
        _invocation_id_local=local,
        get_current_invocation_id=get_current_invocation_id,
    )
    return module


def invoke(module: Any, invocation_id: str, function: Callable[[], object]) -> threading.Thread:
    """Run a function as the worker runs one that is not async: in a thread that has the invocation's id."""

    def run() -> None:
        module._invocation_id_local.invocation_id = invocation_id
        function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class HostLog(logging.Handler):
    """The lines that the host gets, each with the invocation it is attributed to."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._module = module
        self.lines: list[tuple[str | None, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a line."""
        self.lines.append((self._module.get_current_invocation_id(), record.getMessage()))
