"""What a body's end means, judged from everything that is known of it. Pure: no I/O, no clock."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from concurrent.futures import BrokenExecutor
from enum import Enum, auto
from typing import TYPE_CHECKING

from runonce.errors import (
    Fenced,
    HostStopping,
    LeaseLost,
    PermanentError,
    RunInterrupted,
    StoreUnavailableError,
    TimeLimitExceeded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.execution.stop import StopSignal

KILLED = {code for number in (signal.SIGTERM, signal.SIGINT) for code in (-number, 128 + number)}
"""Return codes of a child process that a signal to stop has ended: as the system says it, and as a shell does."""


class Ending(Enum):
    """What a body's end means."""

    DONE = auto()
    FAILED = auto()
    STOPPED = auto()
    """Its host stops, and it ended where it chose to."""
    CUT_OFF = auto()
    """Its host stops, and it was ended wherever it was: an effect may have happened and not be noted."""
    OUT_OF_REACH = auto()
    """Storage did not answer for as long as anybody waits: no failure of the body's."""
    LOST = auto()
    """It is somebody else's by now."""


def judge(  # noqa: C901, PLR0911 - one answer for each end
    error: BaseException | None, stop: StopSignal, *, held: bool
) -> tuple[Ending, BaseException | None]:
    """What a body's end means, and the error to be told as its reason: None where it is done.

    Args:
        error: What it raised; None where it returned.
        stop: Its stop signal: whether it had to stop and why, whether it knew, whether it said that it is done.
        held: Whether its lease or claim can be trusted at this instant.
    """
    cause = stop.cause
    lost = isinstance(cause, LeaseLost | Fenced) or not held
    if error is None:
        if isinstance(cause, TimeLimitExceeded):
            return Ending.FAILED, cause
        if stop.done or not stop.told:
            return Ending.DONE, None
        return (Ending.LOST if lost else Ending.STOPPED), cause or LeaseLost()
    parts = list(_parts(error))
    if lost and any(isinstance(part, RunInterrupted | asyncio.CancelledError) for part in parts):
        return Ending.LOST, error
    if isinstance(cause, HostStopping):
        if stop.done and isinstance(error, HostStopping | asyncio.CancelledError):
            return Ending.DONE, None
        if any(isinstance(part, HostStopping) for part in parts):
            return Ending.STOPPED, error
        if any(_cut_off(part) for part in parts):
            return Ending.CUT_OFF, error
    if isinstance(cause, TimeLimitExceeded) and any(
        isinstance(part, TimeLimitExceeded | asyncio.CancelledError) for part in parts
    ):
        return Ending.FAILED, cause
    if not isinstance(error, PermanentError) and any(
        isinstance(part, StoreUnavailableError) for part in parts
    ):
        return Ending.OUT_OF_REACH, error
    return Ending.FAILED, error


def _cut_off(error: BaseException) -> bool:
    """Whether this is what somebody hears who is stopped from outside."""
    if isinstance(error, subprocess.CalledProcessError):
        return error.returncode in KILLED  # a signal to stop often goes to all processes of a group
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit | BrokenExecutor)


def _parts(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and what those are groups of."""
    seen, waiting = set[int](), [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
