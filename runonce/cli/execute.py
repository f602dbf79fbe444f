"""Commands that run jobs: run, serve, recover."""

import contextlib
import logging
import sys
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from runonce.cli import exits, logs, output, times
from runonce.cli.app import EXECUTE, JobName, Json, command, read_at
from runonce.cli.context import Context, where
from runonce.cli.deploy import run_scheduled
from runonce.cli.exits import Exit
from runonce.cli.foreground import in_foreground
from runonce.dispatch import EARLY, Dispatcher, Result
from runonce.errors import SettingsError
from runonce.job import ScheduledJob
from runonce.messages.handler import Handler
from runonce.records import Outcome

# -- run --------------------------------------------------------------------------------------------------------


@command(
    EXECUTE,
    "runonce run nightly_report",
    "runonce run nightly_report --at 2026-11-29T03:00:00+03:00 --replay",
)
def run(
    ctx: typer.Context,
    job: JobName,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT",
            help="The fire time, ISO 8601; without an offset it is in the job's time zone. Default: now.",
        ),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Run it again from its beginning although it is done.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Do not run it here: ask the running hosts to.")] = False,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Run the fire time that is due, if one is: for a scheduler.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one fire time of a job here and now.

    The schedule need not name it, and the job may be paused. A fire time that is done, here or anywhere, is
    not run again without --replay: the command ends with 3. Ctrl-C lets the run come to a good place and
    releases its lease; a running host, or the same command, goes on from there.

    --scheduled is what a Container Apps job starts: it ends with 0 when nothing is due, when another host has
    it, and when a failed run waits for its next attempt.
    """
    context = Context.of(ctx)
    found = context.job(job)
    _check_options(at, replay=replay, ask=ask, scheduled=scheduled)
    if scheduled:
        raise typer.Exit(run_scheduled(context, found, as_json=as_json))
    now = context.clock.now()
    fire_time = read_at(at, found.schedule.time_zone, "--at") if at else now.replace(microsecond=0)
    if fire_time > now + EARLY:
        said = f"{times.to_utc(fire_time)} is still to come ({times.from_now(fire_time, now)})"
        raise typer.BadParameter(f"{said}; give one that has passed", param_hint="--at")
    if at and next(found.schedule.newest_first(fire_time - timedelta(seconds=1), fire_time), None) is None:
        output.note(f"{times.to_utc(fire_time)} is not a fire time of the schedule; it runs all the same")
    if ask:
        _ask(context, found, fire_time, as_json=as_json)
        return
    raise typer.Exit(_run_here(context, found, fire_time, replay=replay, as_json=as_json))


def _run_here(
    context: Context, job: ScheduledJob, fire_time: datetime, *, replay: bool, as_json: bool
) -> int:
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    # This read is not needed to run; it is what says in one line that storage is out of reach.
    if context.row(job.name).paused_at is not None:
        output.note(f"{job.name} is paused; a run by hand goes ahead")
    dispatcher = context.dispatcher

    def work() -> Result:
        return dispatcher.execute(job, fire_time, by="hand", replay=replay)

    started = context.clock.elapsed()
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        ended = in_foreground(dispatcher, work)
    result, seconds = ended.value, context.clock.elapsed() - started
    code = int(exits.of_result(result))
    if ended.interrupted is not None and (result.outcome is Outcome.STOPPED or not result.ran):
        code = ended.interrupted
    if as_json:
        output.print_json({**_result_json(result), "seconds": round(seconds, 3), "exit_code": code})
    else:
        typer.echo(told(result, seconds))
        _advise(context, result)
    return code


def _check_options(at: str | None, *, replay: bool, ask: bool, scheduled: bool) -> None:
    if scheduled and (at or replay or ask):
        raise typer.BadParameter("it takes no other option but --json", param_hint="--scheduled")
    if replay and ask:
        raise typer.BadParameter("a replay is run here and now; leave out one of the two", param_hint="--ask")


def _result_json(result: Result) -> dict[str, Any]:
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
    if result.outcome is Outcome.SKIPPED and result.reason == "held elsewhere":
        row = context.row(result.job)
        if row.running is not None:
            output.note(f"{row.host} is running it for {times.to_utc(row.running)}")
    if result.outcome in (Outcome.RETRYING, Outcome.STOPPED):
        again = f"runonce run {result.job} --at {times.to_utc(result.fire_time)}"
        output.note(f"a running host goes on with it; so does `{again}`")


def _ask(context: Context, job: ScheduledJob, fire_time: datetime, *, as_json: bool) -> None:
    from runonce.claim import read_run  # noqa: PLC0415 - `run` itself does without
    from runonce.recovery import ask  # noqa: PLC0415

    row = context.row(job.name)
    previous = read_run(context.dispatcher.own, job.name, fire_time)
    at = times.to_utc(fire_time)
    if previous is not None and previous[0].outcome.is_final and previous[0].outcome is not Outcome.SKIPPED:
        reason = f"already {previous[0].outcome}; `runonce run {job.name} --at {at} --replay` runs it again"
        result = Result(job.name, fire_time, Outcome.SKIPPED, reason)
        if as_json:
            output.print_json({**_result_json(result), "asked": False})
        else:
            typer.echo(told(result))
        raise typer.Exit(Exit.NOTHING_RAN)
    request = ask(context.dispatcher, job, fire_time)
    if as_json:
        output.print_json({"job": request.job, "fire_time": request.fire_time, "asked": True})
    else:
        typer.echo(f"{job.name} {at}: asked; the first host that is free runs it")
    if row.paused_at is not None:
        output.note(f"{job.name} is paused, so it waits until `runonce resume {job.name}`")
    waiting = row.pending.get(fire_time)
    if waiting is not None and waiting.not_before > context.clock.now():
        output.note(f"it is waiting already: {waiting.why}, not before {times.to_utc(waiting.not_before)}")


# -- serve ------------------------------------------------------------------------------------------------------


@command(EXECUTE, "runonce serve", "runonce serve --jobs other/jobs --verbose")
def serve(ctx: typer.Context) -> None:
    """Run all jobs and handlers on this machine until Ctrl-C.

    It has timers, recovery, a reader of requests and a consumer for each handler. Start it as often as you
    like, on as many machines as you like: each fire time runs once, each message has one effect. Stopped, it
    waits for what runs to come to a good place and ends with 0; with 75 when it had to leave something (which
    goes on elsewhere), with 70 when it failed itself.
    """
    context = Context.of(ctx)
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    runtime = context.runtime
    from runonce.hosts.local import LocalHost  # noqa: PLC0415 - only here
    from runonce.recovery import read_jobs  # noqa: PLC0415

    rows = read_jobs(runtime.dispatcher)  # storage out of reach is better said now, in one line
    paused = {name for name, (row, _) in rows.items() if row.paused_at is not None}
    served, refused = _carried(context)
    _banner(context, paused, served, refused)
    consumers = []
    if served:
        from runonce.hosts.consumer import Consumer  # noqa: PLC0415 - only where there are handlers

        consumers = [Consumer(runtime.deliverer, runtime.transport, handler) for handler in served]
    raise typer.Exit(LocalHost(runtime.dispatcher, consumers).serve())


def _carried(context: Context) -> tuple[list[Handler], dict[str, str]]:
    """The handlers whose messages the transport can carry, and why it cannot those of the others."""
    from runonce.runtime import check_transport  # noqa: PLC0415 - only here

    served: list[Handler] = []
    refused: dict[str, str] = {}
    for name, handler in sorted(context.found.handlers.items()):
        try:
            check_transport(context.settings, handler)
        except SettingsError as error:
            refused[name] = str(error)
        else:
            served.append(handler)
    return served, refused


def _banner(context: Context, paused: set[str], served: list[Handler], refused: dict[str, str]) -> None:
    settings, jobs, now = context.settings, context.found.jobs, context.clock.now()
    count = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    if context.found.handlers:
        count += f" and {len(served)} handler{'' if len(served) == 1 else 's'}"
    lines = [f"runonce serves {count} of {settings.namespace!r}; storage: {where(settings.storage)}"]
    width = max(map(len, [*jobs, *(handler.name for handler in served)]), default=0)
    for name, job in sorted(jobs.items()):
        upcoming = job.schedule.next(now)
        said = "never fires"
        if upcoming is not None:
            said = (
                f"next {times.to_local(upcoming, job.schedule.time_zone)} ({times.from_now(upcoming, now)})"
            )
        lines.append(f"  {name:{width}}  {'paused' if name in paused else said}")
    carrier = "Service Bus" if settings.transport == "servicebus" else "Storage queues"
    lines += [f"  {handler.name:{width}}  messages of {handler.entity} ({carrier})" for handler in served]
    if not jobs and not context.found.handlers:
        lines.append("  no file of the jobs folder defines a job; write a function under @scheduled in one")
    for line in lines:
        typer.echo(line, err=True)
    for reason in refused.values():
        output.warn(reason)
    for error in context.found.broken:
        output.warn(str(error))
    typer.echo("Ctrl-C stops it.", err=True)


# -- recover ----------------------------------------------------------------------------------------------------


@command(EXECUTE, "runonce recover", "runonce recover --work")
def recover(
    ctx: typer.Context,
    work: Annotated[
        bool, typer.Option("--work", help="Then run here what was asked for, until nothing is left.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask the running hosts for what is unfinished and free.

    That is: its host died, its retry is due, nobody ran it in time, or somebody asked for it. This is the
    tick that `serve` and the Functions app do every minute. With --work it is what a Container Apps recovery
    job starts: it ends with 0 when all is well, with 1 when a run failed for good, with 4 when one was not
    finished.
    """
    context = Context.of(ctx)
    logs.set_up(verbose=context.verbose, level=logging.INFO if work else logging.WARNING)
    dispatcher = context.dispatcher
    from runonce.recovery import read_jobs  # noqa: PLC0415 - only here
    from runonce.recovery import recover as tick  # noqa: PLC0415

    read_jobs(dispatcher)  # the tick itself keeps quiet about storage that is out of reach
    asked = tick(dispatcher)
    if not as_json:
        for request in asked:
            typer.echo(f"{request.job} {times.to_utc(request.fire_time)}: asked for ({request.why})")
        if not asked:
            typer.echo("nothing is unfinished and free")
    results: list[Result] = []
    code = 0
    if work:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            ended = in_foreground(dispatcher, lambda: _work_off(dispatcher, results, quiet=as_json))
        code = ended.interrupted or _worst(results)
    if as_json:
        output.print_json(
            {"asked": asked, "worked": [_result_json(result) for result in results], "exit_code": code}
        )
    raise typer.Exit(code)


def _work_off(dispatcher: Dispatcher, results: list[Result], *, quiet: bool) -> None:
    """Handle requests one after the other until the queue is empty or the host stops."""
    queue = dispatcher.stores.requests
    while dispatcher.stop.cause is None and (item := queue.receive(visibility=30)) is not None:
        queue.delete(item)  # before it is run: a request is a hint, and the recovery tick repeats a lost one
        result = dispatcher.handle_request(item.body)
        if result is None:
            continue
        results.append(result)
        if not quiet:
            typer.echo(told(result))


def _worst(results: list[Result]) -> int:
    outcomes = {result.outcome for result in results}
    if Outcome.FAILED in outcomes:
        return Exit.FAILED
    unfinished = {Outcome.STOPPED, Outcome.ABANDONED, Outcome.UNKNOWN}
    return Exit.NOT_FINISHED if outcomes & unfinished else Exit.DONE
