"""What a job is: the decorators and the frozen definitions they make. No I/O, no registry.

A decorated function becomes its definition, which can still be called like the function, so that a test of
the job's logic needs nothing of the toolkit but a `Run`.
"""

from __future__ import annotations

import inspect
import random
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from runonce.errors import DefinitionError
from runonce.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runonce.run import Run

Misfire = Literal["skip", "latest", "all"]
OnAbandoned = Literal["rerun", "hold"]

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Names end up in blob names, row keys and Functions' function names; this fits all of them."""
RESERVED = re.compile(r"host|runonce.*")
"""The Functions host takes no function called host; the toolkit's own functions begin with runonce."""

LONGEST_RETRY_DELAY = 3600.0
MAX_ABANDONED = 5
"""A run whose host died this often is not tried again: the job itself may be what kills its hosts."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed run is tried again, and after how long (seconds; doubled each time, at most 1 h)."""

    retries: int = 0
    delay: float = 60.0

    def wait(self, failures: int, *, spread: Callable[[], float] = random.random) -> float:
        """Seconds to wait after so many failures, give or take a fifth so that replicas do not march in step."""
        doubled = self.delay * 2.0 ** min(failures - 1, 30)
        return min(doubled, LONGEST_RETRY_DELAY) * (0.8 + 0.4 * spread())


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A scheduled job's definition; what `@scheduled` returns."""

    name: str
    body: Callable[[Run], Awaitable[None] | None]
    schedule: Schedule
    misfire: Misfire
    misfire_cap: int
    retry: Retry
    max_runtime: float | None
    """Seconds, or None for no limit."""
    on_abandoned: OnAbandoned

    def __call__(self, run: Run) -> Awaitable[None] | None:
        """Call the function itself, with no lease and no claim: for tests of its logic."""
        return self.body(run)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.body)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.body) or "").partition("\n")[0]


def scheduled(
    schedule: str,
    *,
    name: str | None = None,
    time_zone: str = "UTC",
    misfire: Misfire = "latest",
    misfire_cap: int = 24,
    retries: int = 0,
    retry_delay: float | timedelta = 60.0,
    max_runtime: float | timedelta | None = 1800.0,
    on_abandoned: OnAbandoned = "rerun",
) -> Callable[[Callable[[Run], Awaitable[None] | None]], ScheduledJob]:
    """Run a function once for each fire time of a schedule, whatever restarts, scales out or dies.

    Args:
        schedule: NCRONTAB: second minute hour day month day-of-week; without seconds, second 0 is meant.
        name: The job's name, which its lock, claims and history hang on. Default: the function's name; give
            one before you rename the function.
        time_zone: IANA name of the zone the schedule is meant in. The rule for the nights when clocks change
            is in `runonce.schedule`.
        misfire: What to do about fire times nobody ran: "skip" them, run the "latest", or "all".
        misfire_cap: With misfire="all", how many of them at most (the newest ones).
        retries: How often a run that raised is tried again. `PermanentError` is never tried again.
        retry_delay: Seconds (or a timedelta) before the first retry, doubled for each further one.
        max_runtime: Seconds (or a timedelta) a run may take; then it is told to stop, and counts as failed.
            None means no limit.
        on_abandoned: What to do about a run whose host died: "rerun" it from its last checkpoint, or "hold"
            it as unknown until a person decides.

    Raises:
        DefinitionError: An argument cannot work; the message names the job, the value and the remedy.
    """
    given: object = schedule
    if inspect.isfunction(given):  # which would make the job vanish without a word
        raise DefinitionError(
            f"Job {given.__name__!r}: @scheduled stands there without a schedule; write "
            f'`@scheduled("0 0 3 * * *")` above it.'
        )

    def define(body: Callable[[Run], Awaitable[None] | None]) -> ScheduledJob:
        checked_body("scheduled", body)
        job = checked_name(name if name is not None else body.__name__)
        _one_parameter(job, body, "run")
        checked_choice(job, "misfire", misfire, get_args(Misfire))
        checked_choice(job, "on_abandoned", on_abandoned, get_args(OnAbandoned))
        checked_whole(job, "misfire_cap", misfire_cap, 1, 100)
        checked_whole(job, "retries", retries, 0, 100)
        return ScheduledJob(
            name=job,
            body=body,
            schedule=Schedule.parse(schedule, time_zone, job=job),
            misfire=misfire,
            misfire_cap=misfire_cap,
            retry=Retry(retries, checked_seconds(job, "retry_delay", retry_delay)),
            max_runtime=None if max_runtime is None else checked_seconds(job, "max_runtime", max_runtime),
            on_abandoned=on_abandoned,
        )

    return define


def checked_body(decorator: str, body: object) -> None:
    """DefinitionError unless calling it does the work: a def or async def, and no generator."""
    if not inspect.isfunction(body):
        raise DefinitionError(
            f"@{decorator} goes on a function, not on {body!r}; decorate a def or async def."
        )
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise DefinitionError(
            f"Job {body.__name__!r}: its function has a `yield`, so calling it would do nothing; take the `yield` out."
        )


def checked_name(name: str) -> str:
    """The name; DefinitionError unless it fits a blob's, a row's and a function's name and is not taken."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(
            f"Job {name!r}: a name is 1 to 63 lower-case letters, digits, - and _, and starts with a letter; "
            f'give one with name="…".'
        )
    if RESERVED.fullmatch(name):
        raise DefinitionError(
            f'Job {name!r}: "host" and names that begin with "runonce" are taken; give another with name="…".'
        )
    return name


def _one_parameter(job: str, body: Callable[..., Any], what: str) -> None:
    parameters = list(inspect.signature(body).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if not positional or len(required) > 1:
        raise DefinitionError(
            f"Job {job!r}: its function takes ({', '.join(map(str, parameters))}); "
            f"write `def {body.__name__}({what})`, it is called with that one argument."
        )


def checked_choice(job: str, option: str, value: object, choices: tuple[str, ...]) -> None:
    """DefinitionError unless the value is one of the choices."""
    if value not in choices:
        known = ", ".join(f'"{c}"' for c in choices)
        raise DefinitionError(f"Job {job!r}: {option}={value!r} is not one of {known}.")


def checked_whole(job: str, option: str, value: object, low: int, high: int) -> None:
    """DefinitionError unless the value is a whole number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DefinitionError(f"Job {job!r}: {option}={value!r} must be a whole number from {low} to {high}.")


def checked_seconds(job: str, option: str, value: object, most: timedelta = timedelta(days=7)) -> float:
    """A duration in seconds; DefinitionError unless it is more than 0 and at most `most`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= most.total_seconds()
    ):
        raise DefinitionError(
            f"Job {job!r}: {option}={value!r} must be seconds or a timedelta, more than 0 and at most {most.days} days."
        )
    return float(seconds)
