"""Commands that keep a host going or do a host's part: serve, work, recover."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from runonce.cli import live, logs, output, times
from runonce.cli.app import EXECUTE, HandlerName, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.foreground import in_foreground
from runonce.cli.run import check_deployed, check_in_code, result_json, told
from runonce.errors import MissingExtraError, SettingsError
from runonce.hosts.explained import where
from runonce.hosts.runtime import check_transport
from runonce.messages.definition import Handler
from runonce.runs.dispatch import Dispatcher
from runonce.runs.requests import Request
from runonce.runs.result import Result
from runonce.runs.rows import Outcome

# -- work -------------------------------------------------------------------------------------------------------


@command(EXECUTE, "runonce work send_invoice", "runonce work send_invoice --max-messages 80 --max-wait 10")
def work(
    ctx: typer.Context,
    handler: HandlerName,
    max_messages: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after that many messages.")
    ] = None,
    max_wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="End when no message has arrived for that long."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Handle a handler's messages here.

    Without --max-messages and --max-wait it continues until Ctrl-C or SIGTERM; with them it is what a Container Apps
    job starts for each handful of messages. What became of each message is recorded and settled, so it ends with 0
    whether handlers succeeded or not; with 6 when the broker or storage is out of reach.
    """
    from runonce.hosts.container_apps import consume  # noqa: PLC0415 - with the rest of what needs storage

    context = Context.of(ctx)
    check_in_code(context, handler, context.runtime.found.handlers, as_json=as_json)
    runtime, found = context.runtime, context.handler(handler)
    check_transport(runtime.settings, found)
    check_deployed(context, handler, as_json=as_json)
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    with (
        contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(),
        live.in_hand(context),
    ):
        ended = in_foreground(runtime.dispatcher, lambda: consume(runtime, found, max_messages, max_wait))
    code = ended.interrupted or int(Exit.DONE)
    if as_json:
        output.print_json({"handler": found.name, "handled": ended.value, "exit_code": code})
    else:
        typer.echo(f"{found.name}: {ended.value} message{'' if ended.value == 1 else 's'} settled")
    raise typer.Exit(code)


# -- serve ------------------------------------------------------------------------------------------------------


@command(EXECUTE, "runonce serve", "runonce serve --jobs other/jobs --verbose")
def serve(ctx: typer.Context) -> None:
    """Run all jobs and handlers on this machine until Ctrl-C.

    It has timers, recovery, a reader of requests and a consumer for each handler. Start as many as you like, on as
    many machines as you like: each fire time runs once, each message has one effect. When it is stopped, it waits
    for its runs to reach a point where they can stop, and ends with 0; with 75 when it had to leave one that would
    not (another host resumes it), with 70 when it failed itself.
    """
    context = Context.of(ctx)
    logs.set_up(verbose=context.verbose, level=logging.INFO)
    runtime = context.runtime
    from runonce.hosts.local import LocalHost  # noqa: PLC0415 - only here
    from runonce.hosts.same_machine import watched  # noqa: PLC0415
    from runonce.runs.table import read_jobs  # noqa: PLC0415

    rows = read_jobs(runtime.runs).rows  # storage out of reach is better said now, in one line
    paused = {name for name, row in rows.items() if row.paused_at is not None}
    served, refused = _carried(context)
    _banner(context, paused, served, refused)
    consumers = []
    if served:
        from runonce.messages.consumer import Consumer  # noqa: PLC0415 - only where there are handlers

        consumers = [Consumer(runtime.deliverer, runtime.transport, handler) for handler in served]
    host = LocalHost(runtime.dispatcher, consumers, runtime.found.every.values())
    with watched(runtime.dispatcher), _dashboard(context), live.in_hand(context, lambda: _coming(context)):
        code = host.serve(lambda: typer.echo("Ctrl-C stops it.", err=True))
    raise typer.Exit(code)


def _coming(context: Context) -> str:
    """What fires next here."""
    now = context.runtime.clock.now()
    upcoming = [
        (at, name) for name, job in context.runtime.found.jobs.items() if (at := job.schedule.next(now))
    ]
    if not upcoming:
        return ""
    at, name = min(upcoming)
    return f"next: {name} at {times.to_utc(at)}, {times.from_now(at, now)}"


@contextlib.contextmanager
def _dashboard(context: Context) -> Iterator[None]:
    """The dashboard beside the jobs, where it can be had: they go on without it."""
    allowed = context.runtime.settings.dashboard
    with contextlib.ExitStack() as stack:
        if allowed != "off":
            try:
                from runonce.hosts.dashboard.local import served  # noqa: PLC0415 - an extra's packages

                url = stack.enter_context(served(context.runtime, may_act=allowed != "read"))
            except ModuleNotFoundError:
                output.note('no dashboard: pip install "runonce[dashboard]"')
            except SettingsError as error:
                output.note(f"no dashboard: {error}")
            else:
                typer.echo(f"dashboard: {url}", err=True)
        yield


@command(EXECUTE, "runonce dashboard", "runonce dashboard --port 0 --read-only")
def dashboard(
    ctx: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes a free one.")] = 8391,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, and change nothing.")] = False,
) -> None:
    """Show what ran, what did not and why as pages in a browser, until Ctrl-C.

    It is on this machine only, and runs no job: `runonce serve` has it beside the jobs. RUNONCE_DASHBOARD (off, read or
    act) says what may be done there.
    """
    context = Context.of(ctx)
    try:
        from runonce.hosts.dashboard.local import served  # noqa: PLC0415 - an extra's packages
    except ModuleNotFoundError as error:
        raise MissingExtraError("The dashboard", "dashboard") from error
    may_act = not read_only and context.runtime.settings.dashboard in ("", "act")
    with served(context.runtime, port, may_act=may_act) as url:
        typer.echo(f"{url}   (Ctrl-C stops it)")
        stop = context.runtime.stop
        ended = in_foreground(context.runtime.dispatcher, stop.event.wait)
    raise typer.Exit(ended.interrupted or int(Exit.DONE))


def _carried(context: Context) -> tuple[list[Handler], dict[str, str]]:
    """The handlers whose messages the transport can carry, and why it cannot those of the others."""
    served: list[Handler] = []
    refused: dict[str, str] = {}
    for name, handler in sorted(context.runtime.found.handlers.items()):
        try:
            check_transport(context.runtime.settings, handler)
        except SettingsError as error:
            refused[name] = str(error)
        else:
            served.append(handler)
    return served, refused


def _banner(context: Context, paused: set[str], served: list[Handler], refused: dict[str, str]) -> None:
    settings, jobs, now = context.runtime.settings, context.runtime.found.jobs, context.runtime.clock.now()
    count = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    if context.runtime.found.handlers:
        count += f" and {len(served)} handler{'' if len(served) == 1 else 's'}"
    lines = [f"runonce serves {count} of {settings.namespace!r}; storage: {where(settings.storage)}"]
    found = context.runtime.found
    width = max(map(len, [*jobs, *(handler.name for handler in served), *found.every]), default=0)
    for name, job in sorted(jobs.items()):
        upcoming = job.schedule.next(now)
        said = "never fires"
        if upcoming is not None:
            said = (
                f"next {times.to_local(upcoming, job.schedule.time_zone)} ({times.from_now(upcoming, now)})"
            )
        lines.append(f"  {name:{width}}  {'paused' if name in paused else said}")
    carrier = "Service Bus" if settings.transport == "servicebus" else "Storage queues"
    lines += [
        f"  {handler.name:{width}}  messages of {settings.queue_prefix}{handler.entity} ({carrier})"
        for handler in served
    ]
    if not (jobs or found.handlers or found.every):
        lines.append("  no file of the jobs folder defines a job; write a function under @scheduled in one")
    lines += [f"  {one.name:{width}}  every {one.interval:g} s, on each host" for one in found.every.values()]
    for line in lines:
        typer.echo(line, err=True)
    for reason in refused.values():
        output.warn(reason)
    output.warn_of_broken(context.runtime.found)


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

    That is every fire time whose host died, whose retry is due, that nobody ran in time, or that somebody asked for.
    `serve` and the Functions app do this every minute. With --work it is what a Container Apps recovery job starts:
    it ends with 0 when all is well, with 1 when a run failed for good, with 4 when one was not finished.
    """
    context = Context.of(ctx)
    logs.set_up(verbose=context.verbose, level=logging.INFO if work else logging.WARNING)
    dispatcher = context.runtime.dispatcher
    from runonce.hosts.manifest import RECOVERY  # noqa: PLC0415
    from runonce.runs.presence import Presence  # noqa: PLC0415
    from runonce.runs.recovery import recover as tick  # noqa: PLC0415
    from runonce.runs.table import read_jobs  # noqa: PLC0415

    # The tick itself keeps quiet about storage that is out of reach; a read before it does not.
    if work and context.runtime.settings.deployment:
        check_deployed(context, RECOVERY, as_json=as_json)  # each minute, so that its names are soon known
    else:
        read_jobs(context.runtime.runs)
    if work:
        Presence(
            context.runtime.runs,
            dispatcher.jobs,
            context.runtime.clock.now(),
            kind="tick",
            name=os.environ.get("CONTAINER_APP_JOB_NAME") or f"recover on {socket.gethostname()}",
        ).say()
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
            {
                "asked": [_asked_json(one) for one in asked],
                "worked": [result_json(result) for result in results],
                "exit_code": code,
            }
        )
    raise typer.Exit(code)


def _asked_json(request: Request) -> dict[str, Any]:
    return {"job": request.job, "fire_time": request.fire_time, "why": request.why}


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
