"""What a job is: the decorators and the frozen definitions they make. No I/O, no registry.

A decorated function becomes its definition, which can still be called like the function, so that a test of
the job's logic needs nothing of the toolkit but a `Run`.
"""

from __future__ import annotations

import inspect
import math
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Concatenate, Literal, get_args

from runonce.errors import DefinitionError
from runonce.execution.noted import note
from runonce.execution.options import (
    OnAbandoned,
    OnFailure,
    Retry,
    Size,
    checked_body,
    checked_choice,
    checked_name,
    checked_on_failure,
    checked_seconds,
    checked_size,
    checked_whole,
    read_url,
)
from runonce.runs.parameters import Parameter, arguments, canonical, parameters_of
from runonce.schedules.misfire import Misfire
from runonce.schedules.setting import read_schedule
from runonce.stores.columns import to_text
from runonce.transports.ids import digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from runonce.runs.run import Run
    from runonce.schedules.schedule import Schedule
    from runonce.schedules.setting import FromSetting

LONGEST_HISTORY = 3650
LONGEST_JITTER = 300
SOME_DAY = datetime(2026, 1, 1, tzinfo=UTC)
SOME_FIRE_TIMES = 1500
"""Where there are more in the year after that day, they are seconds apart, or no other gap is shorter."""

Overlap = Literal["wait", "skip"]
Renewal = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A scheduled job's definition; what `@scheduled` returns."""

    name: str
    body: Callable[..., Awaitable[None] | None]
    schedule: Schedule
    misfire: Misfire
    misfire_cap: int
    retry: Retry
    max_runtime: float | None
    """Seconds, or None for no limit."""
    on_abandoned: OnAbandoned
    history_days: int | None = None
    """Days its runs are kept; None is RUNONCE_HISTORY_DAYS."""
    size: Size | None = None
    """What its executions on Container Apps have; None is what the deployment says."""
    setting: FromSetting | None = None
    """Where its schedule comes from, if not from the code."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)
    """Its function's keyword-only arguments, which a run asked for by hand may give."""
    overlap: Overlap = "wait"
    jitter: float = 0.0
    """Seconds over which its timers' runs are spread."""
    ping_url: str = field(default="", repr=False)
    """Where its runs are pinged; empty is nowhere."""
    on_failure: OnFailure | None = None
    """Called when a run has failed for good, or is held."""
    stall_after: float | None = None
    """Seconds without progress after which its lease may lapse, which a process renews; None: a thread does."""

    def __post_init__(self) -> None:
        note(self)

    def __call__(self, run: Run, **given: Any) -> Awaitable[None] | None:
        """Call the function itself, with no lease and no claim: for tests of its logic."""
        return self.body(run, **given)

    def params(self, given: Mapping[str, Any]) -> str:
        """Parameters, values or texts by name, as a run's row keeps them; raises InputError."""
        return canonical(self.name, self.parameters, given)

    def with_params(self, params: str) -> Callable[[Run], Awaitable[None] | None]:
        """The function with a row's parameters, which raises InputError when called if they do not fit any more."""
        if not params:
            return self.body
        return lambda run: self.body(run, **arguments(self.name, self.parameters, params))

    def delay(self, fire_time: datetime) -> float:
        """Seconds a timer's run waits after its fire time: the same on every replica, less than `jitter`."""
        if not self.jitter:
            return 0.0
        return int(digest(self.name, to_text(fire_time))[:8], 16) / 2**32 * self.jitter

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
    default: str | None = None,
    name: str | None = None,
    time_zone: str = "UTC",
    misfire: Misfire = "latest",
    misfire_cap: int = 24,
    retries: int = 0,
    retry_delay: float | timedelta = 60.0,
    max_runtime: float | timedelta | None = 1800.0,
    on_abandoned: OnAbandoned = "rerun",
    history_days: int | None = None,
    overlap: Overlap = "wait",
    jitter: float | timedelta = 0.0,
    renewal: Renewal = "thread",
    stall_after: float | timedelta | None = None,
    cpu: float | None = None,
    memory: str | None = None,
    ping_url: str | None = None,
    on_failure: OnFailure | None = None,
) -> Callable[[Callable[Concatenate[Run, ...], Awaitable[None] | None]], ScheduledJob]:
    """Run a function once for each fire time of a schedule, whatever restarts, scales out or dies.

    It is called with a `Run`. Keyword-only arguments (`def report(run: Run, *, region: str = "eu")`) keep their
    defaults unless a run is asked for by hand with others.

    Args:
        schedule: NCRONTAB: second minute hour day month day-of-week; without seconds, second 0 is meant. Or a setting
            that has it, "%NIGHTLY_SCHEDULE%", which is read when a process starts; the same on every host.
        default: The schedule where that setting is not set.
        name: The job's name, which its lock, claims and history hang on. Default: the function's name; give
            one before you rename the function.
        time_zone: IANA name of the zone the schedule is meant in. The rule for the nights when clocks change
            is in `runonce.schedules.schedule`.
        misfire: What to do about fire times nobody ran: "skip" them, run the "latest", or "all".
        misfire_cap: With misfire="all", how many of them at most (the newest ones).
        retries: How often a run that raised is tried again. `PermanentError` is never tried again.
        retry_delay: Seconds (or a timedelta) before the first retry, doubled for each further one.
        max_runtime: Seconds (or a timedelta) a run may take; then it is told to stop, and counts as failed.
            None means no limit.
        on_abandoned: What to do about a run whose host died: "rerun" it from its last checkpoint, or "hold"
            it as unknown until a person decides.
        history_days: How many days the records of its runs are kept, 1 to 3,650. Default: RUNONCE_HISTORY_DAYS.
        overlap: What becomes of fire times that come while the job runs: "wait" for it, as `misfire` says, or
            "skip" them.
        jitter: Seconds (or a timedelta, up to five minutes) over which runs are spread, so that jobs of one
            schedule do not begin together. The fire time stays what the schedule names.
        renewal: What renews the lease of a run: a "thread", or a "process" of its own for jobs that hold the
            interpreter for longer than 20 s at a time (a C extension, a long regular expression). It takes about 60 MB,
            and releases the lease within a second of the job's process dying. Only with storage on Azure or its
            emulator.
        stall_after: With renewal="process", seconds (or a timedelta) without progress after which it is renewed no
            more; default: ten minutes. Progress is each `run.check()`, `run.stopping`, batch, checkpoint, ledger entry
            and blob.
        cpu: Cores of its executions on Container Apps, a multiple of 0.25 up to 4. Default: what the deployment says.
            On Functions all have what an instance has, and it is not read.
        memory: The same in memory, 2 Gi for each core ("2Gi" is cpu=1). Either says both.
        ping_url: Of a check at healthchecks.io or its like: `URL/start` is posted to when a run begins, `URL` when it
            has succeeded, `URL/fail` when it has failed for good. Or a setting that has it, "%NIGHTLY_PING%", as the
            URL is a secret; where that is not set nobody is pinged.
        on_failure: Called with the `runonce.hooks.Incident`, in a thread of its own, when a run has failed for good or
            is held.

    Raises:
        DefinitionError: An argument cannot work; the message names the job, the value and the remedy.
    """
    given: object = schedule
    if inspect.isfunction(given):  # which would make the job vanish without a word
        raise DefinitionError(
            f'Job {given.__name__!r}: @scheduled has no schedule; write `@scheduled("0 0 3 * * *")` above it.'
        )

    def define(body: Callable[Concatenate[Run, ...], Awaitable[None] | None]) -> ScheduledJob:
        checked_body("scheduled", body)
        job = checked_name(name if name is not None else body.__name__)
        _one_parameter(job, body, "run")
        checked_choice(job, "misfire", misfire, get_args(Misfire))
        checked_choice(job, "overlap", overlap, get_args(Overlap))
        checked_choice(job, "renewal", renewal, get_args(Renewal))
        checked_choice(job, "on_abandoned", on_abandoned, get_args(OnAbandoned))
        checked_whole(job, "misfire_cap", misfire_cap, 1, 100)
        checked_whole(job, "retries", retries, 0, 100)
        if history_days is not None:
            checked_whole(job, "history_days", history_days, 1, LONGEST_HISTORY)
        when, setting = read_schedule(schedule, default, time_zone, os.environ, job)
        return ScheduledJob(
            name=job,
            body=body,
            schedule=when,
            misfire=misfire,
            misfire_cap=misfire_cap,
            retry=Retry(retries, checked_seconds(job, "retry_delay", retry_delay)),
            max_runtime=None if max_runtime is None else checked_seconds(job, "max_runtime", max_runtime),
            on_abandoned=on_abandoned,
            history_days=history_days,
            size=checked_size(job, cpu, memory),
            setting=setting,
            parameters=parameters_of(job, body),
            ping_url=read_url(job, "ping_url", ping_url, os.environ),
            on_failure=checked_on_failure(job, on_failure),
            overlap=overlap,
            jitter=_checked_jitter(job, jitter, when) if jitter else 0.0,
            stall_after=_checked_stall(job, renewal, stall_after),
        )

    return define


def _checked_stall(job: str, renewal: Renewal, value: float | timedelta | None) -> float | None:
    if renewal == "process":
        return 600.0 if value is None else checked_seconds(job, "stall_after", value)
    if value is not None:
        raise DefinitionError(f'Job {job!r}: stall_after={value!r} is for renewal="process" only; add that.')
    return None


def _checked_jitter(job: str, value: float | timedelta, schedule: Schedule) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= LONGEST_JITTER
    ):
        raise DefinitionError(f"Job {job!r}: jitter={value!r} must be seconds from 0 to {LONGEST_JITTER}.")
    some = schedule.fire_times(SOME_DAY, SOME_DAY + timedelta(days=400), limit=SOME_FIRE_TIMES)
    between = min(((later - t).total_seconds() for t, later in pairwise(some)), default=math.inf)
    if (
        seconds >= between
    ):  # else a fire time could begin before the one that came before it, which then would not run
        raise DefinitionError(
            f"Job {job!r}: jitter={value!r} must be shorter than the {between:g} s between its fire times."
        )
    return float(seconds)


def _one_parameter(job: str, body: Callable[..., Any], what: str) -> None:
    parameters = list(inspect.signature(body).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if not positional or len(required) > 1:
        raise DefinitionError(
            f"Job {job!r}: its function takes ({', '.join(map(str, parameters))}); "
            f"write `def {body.__name__}({what})`, it is called with that one argument."
        )
