"""What each host does by itself, again and again: `@every` and the definition it makes. No lease, no claim, no I/O."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runonce.errors import DefinitionError
from runonce.execution.noted import note
from runonce.execution.options import checked_body, checked_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runonce.execution.log import RunLogger
    from runonce.execution.stop import StopSignal

DURATION = re.compile(r"([0-9]+(?:[.][0-9]+)?) ?(ms|s|m|h)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SHORTEST, LONGEST = 0.1, 86_400.0
"""Seconds between two ticks."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """What each host does by itself; what `@every` returns."""

    name: str
    body: Callable[..., Awaitable[Any] | Any]
    interval: float
    """Seconds."""
    takes_tick: bool

    def __post_init__(self) -> None:
        note(self)

    def __call__(self, *arguments: Any) -> Awaitable[Any] | Any:
        """Call the function itself: for tests of its logic, or to do at once what its next tick would."""
        return self.body(*arguments)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.body) or "").partition("\n")[0]


class Tick:
    """One call of such a function, where it wants to know."""

    def __init__(self, name: str, stop: StopSignal, log: RunLogger) -> None:
        self.name = name
        self.log = log
        """A logger that names the function in every line."""
        self._stop = stop

    @property
    def stopping(self) -> bool:
        """Whether the host stops, so that the function must end."""
        return self._stop.cause is not None

    def check(self) -> None:
        """Return if the function may go on.

        Raises:
            HostStopping: The host stops.
        """
        if self._stop.cause is not None:
            raise self._stop.cause


def every(
    interval: str | float | timedelta, *, name: str | None = None
) -> Callable[[Callable[..., Awaitable[Any] | Any]], Periodic]:
    """Call a function on every host again and again: a cache to be refreshed, a sign of life.

    No lease and no claim: each process of `runonce serve`, and each instance of a Function app while it lives, does it
    for itself, first when it starts. The calls of one process do not overlap: one that takes longer than the interval
    leaves out the ticks it meets, and the next one is on the grid of the first. An error is logged and ends nothing.

    The function, sync or async, takes nothing, or a `Tick`.

    Args:
        interval: "30s", "500ms", "5m" or "1h", seconds or a timedelta; from 0.1 s to a day.
        name: What it is called in logs. Default: the function's name.

    Raises:
        DefinitionError: An argument cannot work; the message names the function, the value and the remedy.
    """
    called = getattr(interval, "__name__", None)  # of a function, where the brackets were forgotten
    if called is not None:
        raise DefinitionError(
            f'@every takes an interval; write `@every("30s")` above the function {called!r}.'
        )

    def define(body: Callable[..., Awaitable[Any] | Any]) -> Periodic:
        checked_body("every", body)
        known = checked_name(name if name is not None else body.__name__)
        return Periodic(known, body, _seconds(known, interval), _takes_tick(known, body))

    return define


def _seconds(name: str, interval: object) -> float:
    seconds = interval.total_seconds() if isinstance(interval, timedelta) else interval
    if isinstance(interval, str):
        match = DURATION.fullmatch(interval.strip())
        seconds = float(match[1]) * SECONDS[match[2]] if match is not None else None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and SHORTEST <= seconds <= LONGEST:
        return float(seconds)
    raise DefinitionError(
        f"Job {name!r}: every({interval!r}) is no interval from {SHORTEST:g} s to a day: write a number with its unit, "
        f'"500ms", "30s", "5m" or "1h", seconds, or a timedelta. What happens more rarely is a job, @scheduled.'
    )


def _takes_tick(name: str, body: Callable[..., Any]) -> bool:
    parameters = [
        one for one in inspect.signature(body).parameters.values() if one.default is inspect.Parameter.empty
    ]
    if len(parameters) > 1 or any(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters):
        shown = ", ".join(map(str, parameters))
        raise DefinitionError(
            f"Job {name!r}: its function takes ({shown}); write `def {body.__name__}()`, or "
            f"`def {body.__name__}(tick: Tick)`."
        )
    return bool(parameters)
