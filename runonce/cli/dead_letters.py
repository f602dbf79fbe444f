"""Commands that act on messages that were dead-lettered: dead-letters replay, purge."""

import sys
from typing import Annotated

import typer

from runonce.cli import output
from runonce.cli.app import HandlerName, Json, command_of
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.cli.letters import dead_letters, opened
from runonce.cli.which import By, Why
from runonce.execution.log import user_name
from runonce.messages.dead_letters import let_expire
from runonce.messages.definition import Handler
from runonce.messages.replaying import Worked, replay_wanted, work
from runonce.runs.trail import Action, note
from runonce.transports.protocols import Dead

Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="This message; may be given several times.")
]
MOST_IDS = 2000
"""Characters of the ids that are written down with an action."""
All = Annotated[bool, typer.Option("--all", help="Every one.")]


# -- replay and purge -------------------------------------------------------------------------------------------


def _wanted(ids: list[str] | None, every: bool) -> set[str] | None:
    if bool(ids) == every:
        raise typer.BadParameter("give --all, or --id for each message")
    return None if every else set(ids or ())


@command_of(
    dead_letters,
    "runonce dead-letters replay send_invoice --id invoices:2026-0117",
    "runonce dead-letters replay send_invoice --all",
)
def replay(
    ctx: typer.Context,
    handler: HandlerName,
    ids: Ids = None,
    every: All = False,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch", help="Also where the claim is gone, and how far it had come is not known."
        ),
    ] = False,
    why: Why = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Send dead letters through again.

    Each becomes a new generation of its claim, with all its retries and another idempotency key. One whose claim is
    done is refused. With --all those are left out whose effect may have happened already (Unknown,
    DoneButNotRecorded): find out, then name them with --id. Ends with 3 when nothing was replayed, with 4 when some
    were refused.
    """
    wanted = _wanted(ids, every)
    context = Context.of(ctx)
    found = context.handler(handler)
    with opened(context, found) as letters:
        claims, sender = context.runtime.claims, context.runtime.sender
        worked = replay_wanted(claims, sender, found, letters, wanted, from_scratch=from_scratch)
    _note(context, found, worked, "replayed dead letters", by, why)
    _end(found, worked, "replayed", as_json=as_json)


@command_of(
    dead_letters,
    "runonce dead-letters purge send_invoice --id invoices:2026-0117",
    "runonce dead-letters purge send_invoice --all --yes",
)
def purge(
    ctx: typer.Context,
    handler: HandlerName,
    ids: Ids = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    why: Why = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    """Remove dead letters for good; their claims keep saying what happened."""
    wanted = _wanted(ids, every)
    context = Context.of(ctx)
    found = context.handler(handler)
    if not yes:
        what = (
            "every dead letter" if wanted is None else f"{len(wanted)} dead letter{'s' * (len(wanted) != 1)}"
        )
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"this removes {what} of {found.name}; add --yes", param_hint="--yes")
        if not typer.confirm(f"Remove {what} of {found.name} for good?", err=True):
            typer.echo("left as it is")
            raise typer.Exit(Exit.NOTHING_RAN)

    with opened(context, found) as letters:

        def remove(dead: Dead) -> str:
            letters.remove(dead)
            let_expire(context.runtime.claims, found, dead)
            return ""

        worked = work(letters, wanted, remove)
    _note(context, found, worked, "purged dead letters", by, why)
    _end(found, worked, "removed", as_json=as_json)


def _note(context: Context, handler: Handler, worked: Worked, did: str, by: str, why: str) -> None:
    """Write down who did it, where something was done."""
    if worked.done:
        ids = output.short(f"{len(worked.done):,}: {', '.join(worked.done)}", MOST_IDS)
        now = context.runtime.clock.now()
        note(context.runtime.runs, Action(now, by or user_name(), did, handler.name, ids, why))


def _end(handler: Handler, worked: Worked, what: str, *, as_json: bool) -> None:
    code = Exit.NOT_FINISHED if worked.refused else Exit.DONE if worked.done else Exit.NOTHING_RAN
    if as_json:
        left_out = {"left_out": worked.left_out} if what == "replayed" else {}
        output.print_json(
            {
                "handler": handler.name,
                what: worked.done,
                "refused": worked.refused,
                **left_out,
                "exit_code": int(code),
            }
        )
    else:
        count = len(worked.done)
        typer.echo(f"{handler.name}: {count:,} dead letter{'' if count == 1 else 's'} {what}")
        for reason in worked.refused.values():
            output.warn(reason)
        if worked.left_out:
            output.note(
                f"{len(worked.left_out):,} left out, whose effect may have happened (Unknown, DoneButNotRecorded); "
                f"find out, then replay each with --id, or purge it"
            )
    raise typer.Exit(code)
