"""Commands for messages that were dead-lettered: dead-letters list, show, replay, purge."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import OPERATE, HandlerName, Json, command_of, group
from runonce.cli.context import Context
from runonce.cli.exits import Exit
from runonce.errors import InputError, StoreError, TransportError
from runonce.hosts.runtime import check_transport
from runonce.messages.dead_letters import DeadLetterView, let_expire, may_have_happened, view
from runonce.messages.dead_letters import replay as replay_one
from runonce.messages.definition import Handler
from runonce.transports.ids import root
from runonce.transports.protocols import Dead, DeadLetters

AT_ONCE, LOOKED_AT_ONCE = 32, 500
"""Dead letters taken in one go: to act on each, or to find some among them."""

dead_letters = group(
    "dead-letters", OPERATE, "Messages that were dead-lettered: look at them, send them again, remove them."
)

Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="This message; may be given several times.")
]
All = Annotated[bool, typer.Option("--all", help="Every one.")]


@contextmanager
def _opened(context: Context, handler: Handler) -> Iterator[DeadLetters]:
    check_transport(context.runtime.settings, handler)
    letters = context.runtime.transport.dead_letters(handler)
    try:
        yield letters
    finally:
        letters.close()


def _view(context: Context, handler: Handler, dead: Dead) -> DeadLetterView:
    return view(context.runtime.claims, handler, dead, max_body=context.runtime.settings.max_body)


def _id(dead: Dead) -> str:
    """The id a person knows the message by: that of its first sending."""
    return dead.delivery.sent_as or dead.delivery.message_id


# -- list -------------------------------------------------------------------------------------------------------


@command_of(
    dead_letters,
    "runonce dead-letters list send_invoice",
    "runonce dead-letters list send_invoice --json",
    name="list",
)
def list_dead_letters(
    ctx: typer.Context,
    handler: HandlerName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List a handler's dead letters and why they are there, the oldest first.

    Bodies are not shown. A Storage queue shows at most 32 messages.
    """
    context = Context.of(ctx)
    found = context.handler(handler)
    with _opened(context, found) as letters:
        views = [_view(context, found, dead) for dead in letters.peek(count)]
    if as_json:
        output.print_json(
            {"handler": found.name, "entity": found.entity, "dead_letters": [_json(one) for one in views]}
        )
        return
    if not views:
        output.note(f"{found.name} has no dead letters")
        return
    made = output.table("Message", "Why", "Attempts")
    made.columns[2].justify = "right"
    now = context.runtime.clock.now()
    for one in views:
        when = one.dead.dead_at or one.dead.delivery.enqueued_at
        since = "" if when is None else f"\n{times.from_now(when, now)}"
        if one.dead.expires_at is not None:
            since += f"\nremoved {times.from_now(one.dead.expires_at, now)}"
        made.add_row(
            output.styled((_id(one.dead) or "(no id)", "bold"), (since, "dim")),
            output.styled((one.reason, "red"), (f"\n{output.short(one.description, 300)}", "")),
            "-" if one.row is None else str(one.row.attempt),
        )
        made.add_section()
    output.console().print(made)
    if expiring := sum(one.dead.expires_at is not None for one in views):
        output.warn(
            f"{expiring} of them were put aside by the Functions host, and are removed when the time shown has come: "
            f"replay or purge them before that"
        )
    if len(views) == count:
        output.note(f"there may be more; -n shows more than {count}")
    elif len(views) == AT_ONCE:
        output.note(f"there may be more; a Storage queue shows {AT_ONCE} at most, replay and purge take all")


def _json(one: DeadLetterView) -> dict[str, Any]:
    delivery, row = one.dead.delivery, one.row
    return {
        "id": _id(one.dead),
        "message_id": delivery.message_id,
        "key": one.key,
        "reason": one.reason,
        "description": one.description,
        "bytes": len(delivery.body),
        "correlation_id": delivery.correlation_id,
        "enqueued_at": delivery.enqueued_at,
        "dead_at": one.dead.dead_at,
        "expires_at": one.dead.expires_at,
        "state": None if row is None else row.state,
        "attempts": 0 if row is None else row.attempt,
        "failures": 0 if row is None else row.failures,
        "abandoned": 0 if row is None else row.abandoned,
        "replays": () if row is None else row.replays,
        "host": "" if row is None else row.host,
        "error": "" if row is None else row.error,
        "progress": {} if row is None else row.progress,
    }


# -- show -------------------------------------------------------------------------------------------------------


@command_of(
    dead_letters,
    "runonce dead-letters show send_invoice --id invoices:2026-0117",
    "runonce dead-letters show send_invoice --id invoices:2026-0117 --body",
)
def show(
    ctx: typer.Context,
    handler: HandlerName,
    wanted: Annotated[str, typer.Option("--id", metavar="ID", help="The message, as `list` shows it.")],
    body: Annotated[bool, typer.Option("--body", help="Also show the body; it may be confidential.")] = False,
    as_json: Json = False,
) -> None:
    """Show all that is known of one dead letter."""
    context = Context.of(ctx)
    found = context.handler(handler)
    with _opened(context, found) as letters:
        dead = [one for one in letters.peek(1000) if _is(one, wanted)]
        if not dead:
            raise InputError(
                f"{found.name} has no dead letter {wanted!r}; `runonce dead-letters list {found.name}`."
            )
        names = sorted({one.delivery.message_id for one in dead})
        if len(names) > 1:
            raise InputError(
                f"{found.name} has {len(names)} dead letters called {wanted!r}; name one by its own id: "
                f"{', '.join(names)}."
            )
        one = _view(context, found, dead[0])
    shown = _json(one)
    if body:
        shown["body"] = one.dead.delivery.body.decode("utf-8", "backslashreplace")
    if as_json:
        output.print_json(shown)
        return
    made = output.table("", "")
    made.show_header = False
    for name, value in shown.items():
        text = output.plain(value)
        if text in ("", None, [], {}):
            continue
        if name in ("enqueued_at", "dead_at", "expires_at"):
            text = f"{times.to_utc(value)} ({times.from_now(value, context.runtime.clock.now())})"
        made.add_row(output.styled((name.replace("_", " "), "dim")), str(text))
    output.console().print(made)


def _is(dead: Dead, wanted: str) -> bool:
    return wanted in (_id(dead), dead.delivery.message_id)


# -- replay and purge -------------------------------------------------------------------------------------------


@dataclass
class _Worked:
    """What became of the dead letters that were wanted."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


class _LeftOut(Exception):  # noqa: N818 - no error
    """This one is not for `--all`."""


def _work(letters: DeadLetters, wanted: set[str] | None, act: Callable[[Dead], str]) -> _Worked:
    """Act on each that is wanted (None: on all there are), and leave the others where they were.

    A replayed message can come back as a dead letter while this goes on; `act` says under which id it was sent,
    and that one is left.
    """
    worked, seen, sent = _Worked(), set[str](), set[str]()
    left: list[Dead] = []
    try:
        while True:
            # Those that are not wanted are held until the end, so they are gone through in large steps.
            taken = letters.take(AT_ONCE if wanted is None else LOOKED_AT_ONCE)
            if all(dead.place in seen for dead in taken):
                left += taken
                break
            for dead in taken:
                if dead.place in seen or not _is_wanted(dead, wanted, sent):
                    left.append(dead)
                    continue
                try:
                    sent.add(act(dead))
                except _LeftOut:
                    worked.left_out.append(_id(dead))
                    left.append(dead)
                except (StoreError, TransportError) as error:  # one that cannot be sent keeps no other back
                    worked.refused[_id(dead)] = str(error)
                    left.append(dead)
                else:
                    worked.done.append(_id(dead))
            seen |= {dead.place for dead in taken}
    finally:
        for dead in left:
            with contextlib.suppress(TransportError):  # held for too long, it is back by itself
                letters.put_back(dead)
    return worked


def _is_wanted(dead: Dead, wanted: set[str] | None, sent: set[str]) -> bool:
    if root(dead.delivery.message_id) in sent - {""}:
        return False  # this command sent it, and it is here again
    return wanted is None or any(_is(dead, one) for one in wanted)


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
    with _opened(context, found) as letters:
        claims, sender = context.runtime.claims, context.runtime.sender

        def act(dead: Dead) -> str:
            if wanted is None and may_have_happened(claims, found, dead):
                raise _LeftOut
            return replay_one(claims, sender, found, letters, dead, from_scratch=from_scratch)

        worked = _work(letters, wanted, act)
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

    with _opened(context, found) as letters:

        def remove(dead: Dead) -> str:
            letters.remove(dead)
            let_expire(context.runtime.claims, found, dead)
            return ""

        worked = _work(letters, wanted, remove)
    _end(found, worked, "removed", as_json=as_json)


def _end(handler: Handler, worked: _Worked, what: str, *, as_json: bool) -> None:
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
