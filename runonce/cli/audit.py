"""The command that says whether every job ran that should have: audit."""

import typer

from runonce.cli import output, times
from runonce.cli.app import LOOK, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit


@command(LOOK, "runonce audit", "runonce audit --json")
def audit(ctx: typer.Context, as_json: Json = False) -> None:
    """Show whether every job that should have run has; ends with 4 when one is overdue.

    A job is overdue when a fire time is unfinished a quarter of an hour after it was due, or after its run's own time
    limit. Reads all rows in one call.
    """
    from runonce.runs.audit import audit as audit_jobs  # noqa: PLC0415 - with the rest of what needs storage
    from runonce.runs.table import read_jobs  # noqa: PLC0415

    context = Context.of(ctx)
    read = read_jobs(context.runtime.runs)
    audited = audit_jobs(context.runtime.found.jobs.values(), read, context.runtime.clock.now())
    overdue = any(one.state == "overdue" for one in audited)
    if as_json:
        listed = [
            {
                "job": one.job,
                "state": one.state,
                "overdue_seconds": int(one.overdue.total_seconds()),
                "expected": one.expected,
                "last_fire_time": one.last_fire_time,
                "last_outcome": one.last_outcome,
            }
            for one in audited
        ]
        output.print_json({"jobs": listed, "overdue": overdue})
    elif audited:
        made = output.table("Job", "State", "Should have run (UTC)", "Ran last (UTC)")
        for one in audited:
            late = f" for {times.to_span(one.overdue)}" if one.overdue else ""
            made.add_row(
                output.styled((one.job, "bold")),
                output.styled((one.state, "red" if late else ""), (late, "")),
                "-" if one.expected is None else times.to_utc(one.expected),
                "-"
                if one.last_fire_time is None
                else f"{times.to_utc(one.last_fire_time)} {one.last_outcome}",
            )
        output.console().print(made)
    output.warn_of_broken(context.runtime.found)
    if overdue:
        raise typer.Exit(Exit.NOT_FINISHED)
