"""The options that scheduled jobs and handlers share, and their checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from runonce.errors import DefinitionError
from runonce.execution.spread import spread
from runonce.schedules.setting import SETTING
from runonce.watched import is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.execution.events import Incident

OnAbandoned = Literal["rerun", "hold"]
OnFailure = Callable[["Incident"], object]


NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Names end up in blob names, row keys and Functions' function names; this fits all of them."""
RESERVED = re.compile(r"host|runonce.*")
"""The Functions host takes no function called host; the toolkit's own functions begin with runonce."""

LONGEST_RETRY_DELAY = 3600.0
"""Seconds up to which a retry's delay doubles; a longer one that was asked for stays as it is."""
MAX_ABANDONED = 5
"""A run whose host died this often is not tried again: the job itself may be what kills its hosts."""


CPU_STEP, MOST_CPU, MEMORY_OF_A_CPU = 0.25, 4.0, 2
"""Cores that Container Apps' consumption profile takes, and GiB for each: 0.25 and 0.5Gi to 4 and 8Gi."""


@dataclass(frozen=True, slots=True)
class Size:
    """What an execution on Container Apps has: cores, and memory such as "1Gi"."""

    cpu: float
    memory: str


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed run is tried again, and after how long (seconds; doubled each time, up to an hour)."""

    retries: int = 0
    delay: float = 60.0

    def wait(self, failures: int, *, spread: Callable[[], float] = spread) -> float:
        """Seconds to wait after so many failures, give or take a fifth so that replicas do not march in step."""
        doubled = self.delay * 2.0 ** min(failures - 1, 30)
        return min(doubled, max(LONGEST_RETRY_DELAY, self.delay)) * (0.8 + 0.4 * spread())


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


def checked_choice(job: str, option: str, value: object, choices: tuple[str, ...]) -> None:
    """DefinitionError unless the value is one of the choices."""
    if value not in choices:
        known = ", ".join(f'"{c}"' for c in choices)
        raise DefinitionError(f"Job {job!r}: {option}={value!r} is not one of {known}.")


def checked_whole(job: str, option: str, value: object, low: int, high: int) -> None:
    """DefinitionError unless the value is a whole number from low to high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise DefinitionError(f"Job {job!r}: {option}={value!r} must be a whole number from {low} to {high}.")


def checked_on_failure(job: str, function: object) -> OnFailure | None:
    """The function; DefinitionError unless it is one, and sync."""
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        raise DefinitionError(
            f"Job {job!r}: on_failure={function!r} must be a plain def of the incident; it has a thread of its own."
        )
    return function


def read_url(job: str, option: str, value: object, environ: Mapping[str, str]) -> str:
    """A URL, or that of a setting; empty where there is none. DefinitionError, without the value, unless it is one."""
    text, where = value, f"{option}="
    if isinstance(value, str) and (named := SETTING.fullmatch(value)):
        text, where = environ.get(named[1].replace(":", "__"), "").strip(), f"{option}={value}"
    if text is None or (text == "" and text is not value):
        return ""
    if not isinstance(text, str) or not is_url(text):
        raise DefinitionError(
            f"Job {job!r}: {where} is not a URL: give the whole of it, such as https://hc-ping.com/…, or a setting "
            f'that has it, "%NIGHTLY_PING%".'
        )
    return text


def checked_size(job: str, cpu: object, memory: object) -> Size | None:
    """The size of one or both, None for neither; DefinitionError unless it is one that Container Apps takes."""
    if cpu is None and memory is None:
        return None
    asked = [cpu] if cpu is not None else []
    if memory is not None:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)Gi", memory) if isinstance(memory, str) else None
        asked.append(None if match is None else float(match[1]) / MEMORY_OF_A_CPU)
    cores = asked[0]
    if (
        isinstance(cores, int | float)
        and not isinstance(cores, bool)
        and 0 < cores <= MOST_CPU
        and cores % CPU_STEP == 0
        and asked.count(cores) == len(asked)
    ):
        return Size(float(cores), f"{cores * MEMORY_OF_A_CPU:g}Gi")
    raise DefinitionError(
        f"Job {job!r}: cpu={cpu!r}, memory={memory!r} is no size that Container Apps takes: give cpu, a multiple of "
        f'{CPU_STEP:g} up to {MOST_CPU:g}, or memory, {MEMORY_OF_A_CPU} Gi for each core: cpu=1 or memory="2Gi".'
    )


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
