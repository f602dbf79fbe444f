"""Durable steps: calls that are not made again once their results are kept with the work's own record.

A result is kept by the same conditional write as a checkpoint, so whoever has lost the work keeps none.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runonce.errors import NotKeptError
from runonce.execution.body import to_its_end
from runonce.execution.threads import in_thread
from runonce.stores.columns import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.execution.checkpoint import Checkpoint

T = TypeVar("T")

LONGEST_NAME = 200
"""Characters of a step's name."""


def step(who: str, check: Callable[[], None], checkpoint: Checkpoint, name: str, call: partial[T]) -> T:
    """What the call returns, or returned in an earlier attempt; of an async function to be awaited."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call.func).__call__):
        return cast("T", _async_step(who, check, checkpoint, name, call))
    with _first(who, checkpoint, name):
        if name in checkpoint.steps:
            return cast("T", _copy(checkpoint.steps[name]))
        check()
        result = call()
        if inspect.isawaitable(result) or isinstance(result, Future):
            if inspect.iscoroutine(result):
                result.close()
            raise NotKeptError(
                f"{who}: step {name!r} returned something to be awaited; give it the async function itself."
            )
    return cast("T", _kept(who, checkpoint, name, result))


async def _async_step(
    who: str, check: Callable[[], None], checkpoint: Checkpoint, name: str, call: partial[Any]
) -> Any:
    with _first(who, checkpoint, name):
        if name in checkpoint.steps:
            return _copy(checkpoint.steps[name])
        check()
        result = await call()
    # It has taken effect, so that is noted whatever happens to this task meanwhile.
    kept, cancelled = await to_its_end(in_thread(partial(_kept, who, checkpoint, name, result), "keep-step"))
    if cancelled:
        raise asyncio.CancelledError
    return kept


@contextmanager
def _first(who: str, checkpoint: Checkpoint, name: str) -> Iterator[None]:
    """For the one call of a step in an attempt; one that raises may be made again.

    Raises:
        NotKeptError: Its name cannot be kept, or was given before.
    """
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise NotKeptError(f"{who}: step {name!r:.80} must be a text of 1 to {LONGEST_NAME} characters.")
    if name not in checkpoint.steps and not checkpoint.room_for(name):
        raise NotKeptError(
            f"{who}: step {name!r} is one too many, for there is no room left to keep its result; use batches for many "
            f"items."
        )
    mine = object()
    if checkpoint.begun_steps.setdefault(name, mine) is not mine:
        raise NotKeptError(
            f"{who}: there is a step {name!r} already; in a loop, put what differs into the name, such as an id."
        )
    try:
        yield
    except BaseException:
        del checkpoint.begun_steps[name]
        raise


def _kept(who: str, checkpoint: Checkpoint, name: str, result: Any) -> Any:
    """Keep the result; as any later attempt will have it."""
    try:
        text = json_text(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotKeptError(
            f"{who}: step {name!r} has taken effect, and its result can not be kept: {type(result).__name__} is no "
            f"JSON value: {error}. Return text, numbers, booleans, None, or lists and dicts of those."
        ) from error
    checkpoint.keep(name, json.loads(text))
    return json.loads(text)


def _copy(value: Any) -> Any:
    """So that what the caller does to it changes nothing that is kept."""
    return json.loads(json_text(value))
