"""The command that runs one fire time: run, by hand or `--scheduled`."""

import contextlib
import logging
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from runonce.cli import exits, live, logs, output, times
from runonce.cli.app import EXECUTE, JobName, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.foreground import in_foreground
from runonce.cli.which import At, Param, read_fire_time, read_params
from runonce.errors import InputError
from runonce.execution.log import user_name
from runonce.runs.definition import ScheduledJob
from runonce.runs.dispatch import EARLY
from runonce.runs.result import Refusal, Result
from runonce.runs.rows import Outcome

# -- run --------------------------------------------------------------------------------------------------------


@command(
    EXECUTE,
    "runonce run nightly_report",
    "runonce run nightly_report --at 2026-11-29",
    "runonce run nightly_report --at 2026-11-29T03:00:00+03:00 --param region=us",
)
def run(
    ctx: typer.Context,
    job: JobName,
    at: At = None,
    param: Param = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run an instant that the schedule does not name.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Do not run it here: ask the running hosts to.")] = False,
    scheduled: Annotated[
        bool,
        typer.Option("--scheduled", help="Run the fire time that is due, if there is one; for schedulers."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one fire time of a job here: that of --at, or this second.

    The job may be paused. A fire time that is done, here or on another host, is not run again: the command ends with
    3, and `replay` runs it. With parameters it is a run of its own. Ctrl-C lets the run continue to the next point
    where it can stop, and releases its lease; a running host resumes it, and so does the same command.

    --scheduled is what a Container Apps job starts: it ends with 0 when nothing is due, when another host holds the
    lease, and when a failed run waits for its next attempt.
    """
    context = Context.of(ctx)
    if scheduled:
        check_in_code(context, job, context.runtime.found.jobs, as_json=as_json)
    found = context.job(job)
    if scheduled and (at or param or anyway or ask):
        raise typer.BadParameter("it takes no other option but --json", param_hint="--scheduled")
    if scheduled:
        raise typer.Exit(run_scheduled(context, found, as_json=as_json))
    now = context.runtime.clock.now()
    fire_time = read_fire_time(found, at) if at else now.replace(microsecond=0)
    if fire_time > now + EARLY:
        said = f"{times.to_utc(fire_time)} is still to come ({times.from_now(fire_time, now)})"
        raise typer.BadParameter(f"{said}; give one that has passed", param_hint="--at")
    if at and not anyway and found.schedule.snap(fire_time, tolerance=timedelta()) != fire_time:
        near = [one for one in (found.schedule.previous(fire_time), found.schedule.next(fire_time)) if one]
        raise InputError(
            f"Job {found.name}: its schedule does not name {times.to_utc(fire_time)}; the nearest are "
            f"{' and '.join(times.to_utc(one) for one in near) or 'none'}. Add --anyway to run it all the same."
        )
    params = read_params(found, param)
    if ask:
        _ask(context, found, fire_time, params, as_json=as_json)
        return
    raise typer.Exit(run_here(context, found, fire_time, params=params, as_json=as_json))


def run_here(context: Context, job: ScheduledJob, fire_time: datetime, *, params: str, as_json: bool) -> int:
    """Run a fire time in the foreground and say what came of it; the exit code."""
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    # This read is not needed to run; it is what says in one line that storage is out of reach.
    if context.row(job.name).paused_at is not None:
        output.note(f"{job.name} is paused; a run by hand goes ahead")
    dispatcher = context.runtime.dispatcher

    def work() -> Result:
        return dispatcher.execute(job, fire_time, by="hand", params=params)

    started = context.runtime.clock.elapsed()
    with (
        contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
        live.in_hand(context),
    ):
        ended = in_foreground(dispatcher, work)
    result, seconds = ended.value, context.runtime.clock.elapsed() - started
    code = int(exits.of_result(result))
    if ended.interrupted is not None and (result.outcome is Outcome.STOPPED or not result.ran):
        code = ended.interrupted
    if as_json:
        output.print_json({**result_json(result), "seconds": round(seconds, 3), "exit_code": code})
    else:
        typer.echo(told(result, seconds))
        _advise(context, result)
    return code


def result_json(result: Result) -> dict[str, Any]:
    """A result as `--json` prints it."""
    return {
        "job": result.job,
        "fire_time": result.fire_time,
        "outcome": result.outcome,
        "reason": result.reason,
        "attempt": result.attempt,
        "ran": result.ran,
    }


def told(result: Result, seconds: float | None = None) -> str:
    """A result as one line."""
    took = "" if seconds is None else f", {times.to_span(seconds)}"
    said = {
        Outcome.SUCCEEDED: f"succeeded (attempt {result.attempt}{took})",
        Outcome.SKIPPED: "nothing ran",
        Outcome.RETRYING: "failed, to be tried again",
    }.get(result.outcome, str(result.outcome))
    return f"{result.job} {times.to_utc(result.fire_time)}: {said}" + (
        f": {result.reason}" if result.reason else ""
    )


def _advise(context: Context, result: Result) -> None:
    if result.refusal is Refusal.HELD_ELSEWHERE:
        row = context.row(result.job)
        if row.running is not None:
            output.note(f"{row.host} is running it for {times.to_utc(row.running)}")
    if result.outcome in (Outcome.RETRYING, Outcome.STOPPED):
        again = f"runonce run {result.job} --at {times.to_utc(result.fire_time)}"
        output.note(f"a running host goes on with it; so does `{again}`")


def _ask(context: Context, job: ScheduledJob, fire_time: datetime, params: str, *, as_json: bool) -> None:
    from runonce.runs.operate import ask  # noqa: PLC0415
    from runonce.runs.table import read_run  # noqa: PLC0415

    row = context.row(job.name)
    previous = read_run(context.runtime.runs, job.name, fire_time, params)
    at = times.to_utc(fire_time)
    if previous is not None and previous[0].outcome.is_final and previous[0].outcome is not Outcome.SKIPPED:
        reason = f"already {previous[0].outcome}; `runonce replay {job.name} --at {at}` runs it again"
        result = Result(job.name, fire_time, Outcome.SKIPPED, reason)
        if as_json:
            output.print_json({**result_json(result), "asked": False})
        else:
            typer.echo(told(result))
        raise typer.Exit(Exit.NOTHING_RAN)
    request = ask(context.runtime.dispatcher, job, fire_time, params, user_name())
    if as_json:
        output.print_json({"job": request.job, "fire_time": request.fire_time, "asked": True})
    else:
        typer.echo(f"{job.name} {at}: asked; the first host that is free runs it")
    if row.paused_at is not None:
        output.note(f"{job.name} is paused, so it waits until `runonce resume {job.name}`")
    waiting = row.pending.get(fire_time)
    if waiting is not None and waiting.not_before > context.runtime.clock.now():
        output.note(f"it is waiting already: {waiting.why}, not before {times.to_utc(waiting.not_before)}")


# -- run --scheduled --------------------------------------------------------------------------------------------


def check_in_code(context: Context, name: str, known: Iterable[str], *, as_json: bool) -> None:
    """End well where a deployed execution is of something that its image's code does not have."""
    from runonce.hosts.deployed import why_not_in_code  # noqa: PLC0415 - only what deployments start

    _end_if(why_not_in_code(context.runtime, name, known), name, as_json=as_json)


def check_deployed(context: Context, name: str, *, as_json: bool) -> None:
    """The same of something that a newer deployment no longer has."""
    from runonce.hosts.deployed import why_left  # noqa: PLC0415 - as above

    _end_if(why_left(context.runtime, name), name, as_json=as_json)


def _end_if(why: str | None, name: str, *, as_json: bool) -> None:
    if why is None:
        return
    if as_json:
        output.print_json({"name": name, "outcome": "", "reason": why, "exit_code": 0})
    else:
        output.warn(why)
    raise typer.Exit(Exit.DONE)


def run_scheduled(context: Context, job: ScheduledJob, *, as_json: bool) -> int:
    """What `run JOB --scheduled` does; the exit code."""
    from runonce.hosts import container_apps  # noqa: PLC0415 - only here

    fire_time = container_apps.due(job, context.runtime.clock.now())
    if fire_time is None:
        if as_json:
            output.print_json({"job": job.name, "fire_time": "", "outcome": "", "exit_code": 0})
        else:
            typer.echo(f"{job.name}: no fire time is due now")
        return Exit.DONE
    check_deployed(context, job.name, as_json=as_json)
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    dispatcher = context.runtime.dispatcher

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
