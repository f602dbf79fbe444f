"""Commands of deployed hosts and of those who deploy: manifest, work, audit; and `run --scheduled`."""

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from runonce.cli import exits, logs, output, times
from runonce.cli.app import DEPLOY, EXECUTE, LOOK, HandlerName, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.foreground import in_foreground
from runonce.dispatch import Result
from runonce.job import ScheduledJob
from runonce.records import Outcome

DEFAULT_OUTPUT = Path("infra/jobs.json")

# -- manifest ---------------------------------------------------------------------------------------------------


@command(
    DEPLOY,
    "runonce manifest",
    "runonce manifest --check",
    "runonce manifest --emulator -o servicebus/emulator.json",
)
def manifest(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 1 if the file is not up to date.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is the terminal.")
    ] = DEFAULT_OUTPUT,
    emulator: Annotated[
        bool, typer.Option("--emulator", help="Write the Service Bus emulator's configuration instead.")
    ] = False,
) -> None:
    """Write infra/jobs.json from the code, for the infrastructure to loop over.

    Needs no storage. Ends with 5 when a job file could not be used: a manifest without its jobs would remove
    what runs them.
    """
    from runonce.manifest import emulator_config, make_manifest, to_text  # noqa: PLC0415 - only here

    context = Context.of(ctx)
    if context.found.broken:
        for error in context.found.broken:
            output.complain(str(error))
        raise typer.Exit(Exit.CONFIGURATION)
    made = make_manifest(context.found, context.clock.now())
    for job in made["jobs"]:
        if job["container_apps_refusal"]:
            output.warn(f"not for Container Apps: {job['container_apps_refusal']}")
    text = to_text(emulator_config(made) if emulator else made)
    if str(out) == "-":
        typer.echo(text, nl=False)
    elif not check:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")
        typer.echo(f"{out}: {len(made['jobs'])} scheduled jobs, {len(made['handlers'])} handlers")
    elif not out.is_file() or out.read_text(encoding="utf-8") != text:
        output.complain(f"{out} is not what the code says; run `runonce manifest` and commit the file")
        raise typer.Exit(Exit.FAILED)
    else:
        typer.echo(f"{out} is up to date")


# -- run --scheduled --------------------------------------------------------------------------------------------


def run_scheduled(context: Context, job: ScheduledJob, *, as_json: bool) -> int:
    """What `run JOB --scheduled` does; the exit code."""
    from runonce.cli.execute import told  # noqa: PLC0415 - that module calls this one
    from runonce.hosts import container_apps  # noqa: PLC0415 - only here

    fire_time = container_apps.due(job, context.clock.now())
    if fire_time is None:
        if as_json:
            output.print_json({"job": job.name, "fire_time": "", "outcome": "", "exit_code": 0})
        else:
            typer.echo(f"{job.name}: no fire time is due now")
        return Exit.DONE
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    dispatcher = context.dispatcher

    def work() -> Result:
        return dispatcher.execute(job, fire_time, by="timer")

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        ended = in_foreground(dispatcher, work)
    result = ended.value
    code = int(Exit.DONE)
    if ended.interrupted is not None and (result.outcome is Outcome.STOPPED or not result.ran):
        code = ended.interrupted
    elif container_apps.start_again(result):
        code = int(exits.of_result(result))
    elif container_apps.failed_for_good(dispatcher, result):
        code = int(Exit.FAILED)
    if as_json:
        output.print_json(
            {
                "job": job.name,
                "fire_time": fire_time,
                "outcome": result.outcome,
                "reason": result.reason,
                "exit_code": code,
            }
        )
    else:
        typer.echo(told(result))
    return code


# -- work -------------------------------------------------------------------------------------------------------


@command(EXECUTE, "runonce work send_invoice", "runonce work send_invoice --max-messages 80 --max-wait 10")
def work(
    ctx: typer.Context,
    handler: HandlerName,
    max_messages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after so many messages.")
    ] = None,
    max_wait: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="End when none has come for so long.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Handle a handler's messages, here.

    Without the two options it goes on until Ctrl-C or SIGTERM; with them it is what a Container Apps job starts
    for each handful of messages. What became of a message is recorded and settled, so it ends with 0 whether
    handlers succeeded or not; with 6 when the broker or storage is out of reach, so that nobody can say.
    """
    from runonce.hosts.container_apps import consume  # noqa: PLC0415 - with the rest of what needs storage
    from runonce.runtime import Runtime, check_transport  # noqa: PLC0415

    context = Context.of(ctx)
    found = context.handler(handler)
    check_transport(context.settings, found)
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    runtime = Runtime(context.settings, found=context.found, stores=context.stores, clock=context.clock)
    runtime.transport = context.transport
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            ended = in_foreground(runtime.dispatcher, lambda: consume(runtime, found, max_messages, max_wait))
    finally:
        if "sender" in vars(runtime):
            runtime.sender.close()
    code = ended.interrupted or int(Exit.DONE)
    if as_json:
        output.print_json({"handler": found.name, "handled": ended.value, "exit_code": code})
    else:
        typer.echo(f"{found.name}: {ended.value} message{'' if ended.value == 1 else 's'} settled")
    raise typer.Exit(code)


# -- audit ------------------------------------------------------------------------------------------------------


@command(LOOK, "runonce audit", "runonce audit --json")
def audit(ctx: typer.Context, as_json: Json = False) -> None:
    """Show whether every job ran that should have; ends with 4 when one is overdue.

    Overdue is a fire time that is unfinished a quarter of an hour after it was due, or after its run's own time
    limit. Reads the rows in one call.
    """
    from runonce.audit import audit as audit_jobs  # noqa: PLC0415 - with the rest of what needs storage
    from runonce.recovery import read_jobs  # noqa: PLC0415

    context = Context.of(ctx)
    rows = {name: row for name, (row, _) in read_jobs(context.dispatcher).items()}
    audited = audit_jobs(context.found.jobs.values(), rows, context.clock.now())
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
    for error in context.found.broken:
        output.warn(str(error))
    if overdue:
        raise typer.Exit(Exit.NOT_FINISHED)
