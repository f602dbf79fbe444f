"""The command that runs a range of past fire times."""

import contextlib
import logging
import sys
from typing import Annotated

import typer

from runonce.cli import exits, live, logs, output, times
from runonce.cli.app import EXECUTE, JobName, Json, command, read_at
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.foreground import in_foreground
from runonce.cli.run import result_json, told
from runonce.cli.which import Param, day_of, read_params
from runonce.runs.backfill import backfill as run_all
from runonce.runs.backfill import is_done, to_backfill
from runonce.runs.result import Result

DATE = 10
"""Characters of a date."""


@command(
    EXECUTE,
    "runonce backfill nightly_report --from 2026-11-01 --to 2026-11-29 --dry-run",
    "runonce backfill nightly_report --from 2026-11-01 --to 2026-11-29 --param region=us",
)
def backfill(
    ctx: typer.Context,
    job: JobName,
    since: Annotated[
        str, typer.Option("--from", metavar="INSTANT", help="The first fire time; a date is a whole day.")
    ],
    until: Annotated[str, typer.Option("--to", metavar="INSTANT", help="The last one, included.")],
    param: Param = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would run.")] = False,
    as_json: Json = False,
) -> None:
    """Run every fire time of a range here, the oldest first.

    What is done already is left out, so the same command goes on where it was stopped. One that fails does not keep
    the later ones back; the command then ends with 1.
    """
    context = Context.of(ctx)
    found = context.job(job)
    params = read_params(found, param)
    zone, now = found.schedule.time_zone, context.runtime.clock.now()
    first = (
        day_of(found, since, "--from")[0] if len(since.strip()) == DATE else read_at(since, zone, "--from")
    )
    if len(until.strip()) == DATE:
        begins, last = day_of(found, until, "--to")
        last = now.replace(microsecond=0) if begins <= now < last else last  # today, as far as it has come
    else:
        last = read_at(until, zone, "--to")
    known = to_backfill(context.runtime.dispatcher, found, first, last, params)
    left = [fire_time for fire_time, outcome in known if not is_done(outcome)]
    output.note(f"{found.name}: {len(left)} fire times to run, {len(known) - len(left)} done already")
    if dry_run:
        if as_json:
            output.print_json({"job": found.name, "to_run": left, "done": len(known) - len(left)})
        else:
            typer.echo("\n".join(times.to_utc(fire_time) for fire_time in left) or "nothing to run")
        return
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    dispatcher = context.runtime.dispatcher

    results: list[Result] = []

    def work() -> list[Result]:
        for number, result in enumerate(run_all(dispatcher, found, left, params), 1):
            output.note(f"{number} of {len(left)}: {told(result)}")
            results.append(result)
        return results

    with (
        contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
        live.in_hand(context, lambda: f"{len(results)} of {len(left)} fire times"),
    ):
        ended = in_foreground(dispatcher, work)
    codes = {exits.of_result(result) for result in ended.value} - {Exit.DONE, Exit.NOTHING_RAN}
    code = int(min(codes, default=Exit.DONE))
    if ended.interrupted is not None and len(ended.value) < len(left):
        code = ended.interrupted
    if as_json:
        runs = [result_json(result) for result in ended.value]
        output.print_json(
            {"job": found.name, "runs": runs, "done": len(known) - len(left), "exit_code": code}
        )
    else:
        typer.echo(f"{found.name}: {sum(result.ran for result in ended.value)} of {len(left)} run")
    raise typer.Exit(code)
