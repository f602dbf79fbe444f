"""Commands that change something: pause, resume, break-lease, upload."""

import mimetypes
import sys
from pathlib import Path
from typing import Annotated

import typer

from runonce.cli import output, times
from runonce.cli.app import OPERATE, JobName, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.which import By, Why
from runonce.errors import ConflictError
from runonce.execution.blobs import blob_path
from runonce.execution.log import user_name
from runonce.messages.lock import lock_path
from runonce.messages.reading import lock_name
from runonce.runs.trail import Action, note

TRIES = 3


@command(OPERATE, 'runonce pause nightly_report --why "the ledger is being moved"')
def pause(
    ctx: typer.Context,
    job: JobName,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Shown in `status` and in the logs.")] = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Start no more runs of a job, on any host.

    One that is running continues. Fire times that pass meanwhile are not caught up. `runonce run` still runs the
    job by hand.
    """
    from runonce.runs import operate  # noqa: PLC0415

    context = Context.of(ctx)
    before = context.row(job)
    row = operate.pause(context.runtime.dispatcher, before.name, why, by or user_name())
    if as_json:
        output.print_json({"job": row.name, "paused_at": row.paused_at, "paused_why": row.paused_why})
        return
    typer.echo(f"{row.name} is paused; `runonce resume {row.name}` starts it again")
    if row.running is not None:
        output.note(f"its run for {times.to_utc(row.running)} on {row.host} goes on")


@command(OPERATE, "runonce resume nightly_report")
def resume(ctx: typer.Context, job: JobName, why: Why = "", by: By = "", as_json: Json = False) -> None:
    """Let a paused job run again."""
    from runonce.runs import operate  # noqa: PLC0415

    context = Context.of(ctx)
    before = context.row(job)
    row = operate.resume(context.runtime.dispatcher, before.name, why, by or user_name())
    defined = context.runtime.found.jobs.get(row.name)
    upcoming = None if defined is None else defined.schedule.next(context.runtime.clock.now())
    if as_json:
        was = before.paused_at
        output.print_json({"job": row.name, "was_paused_at": was, "next_fire_time": upcoming})
        return
    if before.paused_at is None:
        typer.echo(f"{row.name} was not paused")
        return
    said = "" if upcoming is None else f"; it fires next at {times.to_utc(upcoming)}"
    typer.echo(f"{row.name} is resumed{said}")


@command(
    OPERATE,
    "runonce break-lease nightly_report",
    "runonce break-lease nightly_report --yes",
    "runonce break-lease --lock tenant:acme",
    name="break-lease",
)
def break_lease(
    ctx: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job's name, as `runonce list` shows it.")
    ] = None,
    lock: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A handler's lock, with the values of its fields filled in."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    why: Why = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Take a job's lease, or a handler's lock, away from a host that hangs.

    The run or message that held it finds out at its next renewal and can record nothing afterwards; the next recovery
    tick starts the fire time again, the message is redelivered. A dead host needs no help: its lease expires by itself.
    """
    if (job is None) == (lock is None):
        raise typer.BadParameter("give a JOB, or --lock and the name of a handler's lock")
    context = Context.of(ctx)
    name, whose, holder = _lease_of(context, job, lock)
    leases = context.runtime.stores.leases
    broken = False
    if leases.held(name):
        if not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter(
                    f"the lease is held by {holder}; add --yes to break it without being asked",
                    param_hint="--yes",
                )
            if not typer.confirm(f"The lease of {whose} is held by {holder}. Break it?", err=True):
                typer.echo("left as it is")
                raise typer.Exit(Exit.NOTHING_RAN)
        broken = leases.break_lease(name)
        said = f"the lease of {whose} had ended by itself; nothing was broken"
    else:
        said = f"nobody holds the lease of {whose}; nothing was broken"
    if broken:
        said = f"the lease of {whose} is broken; it was held by {holder}"
        now = context.runtime.clock.now()
        action = Action(now, by or user_name(), "broke lease", job or lock or "", f"held by {holder}", why)
        note(context.runtime.runs, action)
    if as_json:
        output.print_json({"lease": whose, "broken": broken, "held_by": holder if broken else ""})
    else:
        typer.echo(said)


def _lease_of(context: Context, job: str | None, lock: str | None) -> tuple[str, str, str]:
    """The name of a lease, whose it is, and who holds it, if anybody does."""
    if lock is not None:
        path = lock_path(context.runtime.settings.namespace, lock_name(lock))
        return path, f"lock {lock}", "a handler's message"
    row = context.row(job or "")
    holder = "a host that begins or ends a run"
    if row.running is not None:
        holder = f"{row.host}, which runs {times.to_utc(row.running)}"
    return context.runtime.runs.lock_name(row.name), row.name, holder


@command(OPERATE, "runonce upload orders.csv", "runonce upload orders.csv input/orders.csv")
def upload(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, readable=True, help="The file to put there."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The name jobs read it by. Default: the file's name."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put a file where jobs read their input.

    A job reads it with `run.blobs.read("NAME")`. An existing file of that name is replaced.
    """
    context = Context.of(ctx)
    blob = file.name if name is None else name
    path = blob_path(context.runtime.settings.namespace, blob)
    data = file.read_bytes()
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    store = context.runtime.stores.blobs
    for left in reversed(range(TRIES)):
        current = store.head(path)
        try:
            store.write(path, data, {}, etag=current.etag if current else None, content_type=kind)
        except ConflictError:
            if not left:
                raise
            continue
        if as_json:
            shown = {"name": blob, "bytes": len(data), "blob": path, "replaced": current is not None}
            output.print_json({**shown, "container": context.runtime.settings.data_container})
            return
        replaced = ", replacing what was there" if current else ""
        typer.echo(
            f"{blob}: {len(data):,} bytes in {context.runtime.settings.data_container}/{path}{replaced}"
        )
        return
