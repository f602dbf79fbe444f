"""How a job's or a handler's own code ends, as values: whatever it raises must not end its host."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from runonce.stores.columns import LONGEST_TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def ending(body: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Result and error of an async body. Caught inside its task: a loop lets SystemExit through and would end."""
    try:
        return await body(*arguments), None
    except BaseException as error:  # noqa: BLE001 - see the module
        return None, error


async def to_its_end(awaitable: Awaitable[T], on_cancel: Callable[[], None] = lambda: None) -> tuple[T, bool]:
    """Await what must not be left half done, however often we are cancelled; whether we were."""
    future, cancelled = asyncio.ensure_future(awaitable), False
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
    except Exception:  # noqa: BLE001 - the job's own error class may fail at this too
        return f"{type(error).__name__}, whose text could not be made"


def told(error: BaseException) -> str:
    """The traceback as it is kept on the row: its end, which says most."""
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= LONGEST_TEXT else "…" + text[-LONGEST_TEXT + 1 :]
