"""Which run a command is about: its fire time and its parameters, as people give them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from runonce.cli import times
from runonce.cli.app import read_at
from runonce.errors import InputError
from runonce.execution.log import user_name
from runonce.runs.decide import Which
from runonce.schedules.zones import zone

if TYPE_CHECKING:
    from runonce.cli.context import Context
    from runonce.runs.definition import ScheduledJob

ONE_SECOND = timedelta(seconds=1)
SHOWN = 24
"""Fire times of a day that an error lists."""

At = Annotated[
    str | None,
    typer.Option(
        metavar="INSTANT",
        help="The fire time, ISO 8601; without an offset in the job's time zone. A date is that day's fire time.",
    ),
]
Param = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the job; may be given several times."),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Kept on the run's record.")]
By = Annotated[
    str, typer.Option(metavar="NAME", help="Who decides; kept on the record. Default: this system's user.")
]


def read_fire_time(job: ScheduledJob | None, text: str) -> datetime:
    """The fire time in `--at`; a date alone is that local day's fire time, of a job in the code.

    Raises:
        InputError: It is a date on which the schedule names no fire time, or several.
        typer.BadParameter: It is no instant.
    """
    if job is None or not re.fullmatch(r"\s*\d{4}-\d{2}-\d{2}\s*", text):
        return read_at(text, "UTC" if job is None else job.schedule.time_zone, "--at")
    first, last = day_of(job, text, "--at")
    found = list(job.schedule.fire_times(first - ONE_SECOND, last, limit=SHOWN + 1))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"Job {job.name}: its schedule names no fire time on {text.strip()} ({job.schedule.time_zone}); "
            f"`runonce next {job.name} --after {text.strip()}` shows the next ones."
        )
    more = ", …" if len(found) > SHOWN else ""
    raise InputError(
        f"Job {job.name}: {text.strip()} ({job.schedule.time_zone}) has several fire times: "
        f"{', '.join(times.to_utc(one) for one in found[:SHOWN])}{more}. Give one of them, or `runonce backfill "
        f"{job.name} --from {text.strip()} --to {text.strip()}` for all."
    )


def day_of(job: ScheduledJob, text: str, option: str) -> tuple[datetime, datetime]:
    """The first and the last second of a local day, whatever the clocks do at its midnights; none of one they skip."""
    try:
        day = datetime.combine(date.fromisoformat(text.strip()), time(), zone(job.schedule.time_zone))
        first, last = day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC) - ONE_SECOND
        return first, max(last, first - ONE_SECOND)
    except OverflowError:
        reason = f"{text.strip()} is at an end of the calendar; give instants with their offsets"
    except ValueError as error:
        reason = f"{text.strip()!r} is no date: {error}"
    raise typer.BadParameter(reason, param_hint=option)


def read_params(job: ScheduledJob | None, given: list[str] | None) -> str:
    """The parameters in `--param`, as a run's row keeps them; raises InputError."""
    values = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or name in values:
            raise typer.BadParameter(f"{text!r}: write each name once, as name=value", param_hint="--param")
        values[name] = value
    if job is None and values:
        raise typer.BadParameter(
            "the job is not in the code, which says what they mean", param_hint="--param"
        )
    return "" if job is None else job.params(values)


def which(context: Context, name: str, at: str, param: list[str] | None, by: str, why: str) -> Which:
    """The run a decision is about, of a job that may have left the code."""
    row = context.row(name)
    job = context.runtime.found.jobs.get(row.name)
    return Which(row.name, read_fire_time(job, at), read_params(job, param), by or user_name(), why)
