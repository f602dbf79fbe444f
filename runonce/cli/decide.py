"""Commands that decide about one run: resume-run, replay, mark, cancel."""

from typing import Annotated, Literal

import typer

from runonce.cli import output, times
from runonce.cli.app import OPERATE, JobName, Json, command
from runonce.cli.context import Context
from runonce.cli.run import run_here
from runonce.cli.which import At, By, Param, Why, which
from runonce.errors import InputError
from runonce.execution.log import user_name
from runonce.runs import decide
from runonce.runs.rows import RunRow

TheAt = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="INSTANT",
        help="The fire time, ISO 8601; without an offset in the job's time zone. A date is that day's fire time.",
    ),
]
Ask = Annotated[bool, typer.Option("--ask", help="Do not run it here: the running hosts take it up.")]


@command(
    OPERATE,
    'runonce resume-run charge --at 2026-11-29T03:00:00Z --why "row 4 is corrected"',
    name="resume-run",
)
def resume_run(
    ctx: typer.Context,
    job: JobName,
    at: TheAt,
    param: Param = None,
    why: Why = "",
    by: By = "",
    ask: Ask = False,
    as_json: Json = False,
) -> None:
    """Go on with a run that failed, is unknown, or was cancelled.

    It keeps its idempotency key and begins from its checkpoint, so what was committed is not repeated. One that waits
    for its retry comes now.
    """
    context = Context.of(ctx)
    chosen = which(context, job, at, param, by, why)
    decide.resume_run(context.runtime.dispatcher, chosen)
    _carry_out(context, chosen, "resumed", ask=ask, as_json=as_json)


@command(
    OPERATE, "runonce replay charge --at 2026-11-29T03:00:00Z", "runonce replay charge --at 2026-11-29 --ask"
)
def replay(
    ctx: typer.Context,
    job: JobName,
    at: TheAt,
    param: Param = None,
    why: Why = "",
    by: By = "",
    ask: Ask = False,
    as_json: Json = False,
) -> None:
    """Run a fire time that has ended again, from its beginning.

    It is a new generation: its idempotency key is another one, so what it calls does everything again.
    """
    context = Context.of(ctx)
    chosen = which(context, job, at, param, by, why)
    decide.replay(context.runtime.dispatcher, chosen)
    _carry_out(context, chosen, "to be replayed", ask=ask, as_json=as_json)


@command(
    OPERATE, 'runonce mark charge --at 2026-11-29T03:00:00Z done --why "charged at the provider by hand"'
)
def mark(
    ctx: typer.Context,
    job: JobName,
    outcome: Annotated[
        Literal["done", "failed"], typer.Argument(metavar="OUTCOME", help="How it ended: done or failed.")
    ],
    at: TheAt,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Kept on the run's record.")],
    param: Param = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Say how a run ended, where only a person can know. Nothing is run.

    A fire time that is marked is not run by its timer, a retry or a recovery tick.
    """
    context = Context.of(ctx)
    chosen = which(context, job, at, param, by, why)
    _say(decide.mark(context.runtime.dispatcher, chosen, outcome), as_json=as_json)


@command(
    OPERATE,
    'runonce cancel charge --why "wrong prices"',
    "runonce cancel charge --at 2026-12-01T03:00:00Z --why holiday",
)
def cancel(
    ctx: typer.Context,
    job: JobName,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Kept on the run's record.")],
    at: At = None,
    param: Param = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """End a fire time for good: what runs, what waits, or what is still to come.

    Without --at it is the one that runs, or the only one that waits. A run under way is told at its next renewal or
    checkpoint, within 20 seconds, and records nothing any more. Nothing takes the fire time up again but resume-run
    or replay.
    """
    context = Context.of(ctx)
    row = context.row(job)
    if at is None:
        found = decide.unfinished(row)
        if len(found) != 1:
            listed = ", ".join(times.to_utc(fire_time) for fire_time, _ in found[:10]) or "none"
            raise InputError(f"Job {row.name}: say which fire time with --at; unfinished are: {listed}.")
        chosen = decide.Which(row.name, *found[0], by or user_name(), why)
    else:
        chosen = which(context, job, at, param, by, why)
    _say(decide.cancel(context.runtime.dispatcher, chosen), as_json=as_json)


def _carry_out(context: Context, chosen: decide.Which, said: str, *, ask: bool, as_json: bool) -> None:
    job = None if ask else context.runtime.found.jobs.get(chosen.job)
    if job is not None:
        raise typer.Exit(run_here(context, job, chosen.fire_time, params=chosen.params, as_json=as_json))
    decide.send(context.runtime.dispatcher, chosen)
    if as_json:
        output.print_json({"job": chosen.job, "fire_time": chosen.fire_time, "asked": True})
    else:
        typer.echo(
            f"{chosen.job} {times.to_utc(chosen.fire_time)}: {said}; the first host that is free takes it up"
        )


def _say(run: RunRow, *, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {"job": run.job, "fire_time": run.fire_time, "outcome": run.outcome, "reason": run.reason}
        )
    else:
        typer.echo(f"{run.job} {times.to_utc(run.fire_time)}: {run.reason}")
