"""Commands that look at messages that were dead-lettered: dead-letters list, show."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from runonce.cli import output, times
from runonce.cli.app import OPERATE, HandlerName, Json, command_of, group, handler_names
from runonce.cli.context import Context
from runonce.errors import InputError, TransportError
from runonce.hosts import facts
from runonce.hosts.runtime import check_transport
from runonce.messages.dead_letters import DeadLetterView, view
from runonce.messages.definition import Handler
from runonce.messages.replaying import AT_ONCE, LOOKED_AT_ONCE, id_of, is_called
from runonce.messages.rows import MessageRow
from runonce.messages.status import of_claim
from runonce.transports.protocols import Dead, DeadLetters

dead_letters = group(
    "dead-letters", OPERATE, "Messages that were dead-lettered: look at them, send them again, remove them."
)


@contextmanager
def opened(context: Context, handler: Handler) -> Iterator[DeadLetters]:
    """A handler's dead letters, to be taken."""
    check_transport(context.runtime.settings, handler)
    letters = context.runtime.transport.dead_letters(handler)
    try:
        yield letters
    finally:
        letters.close()


def view_of(context: Context, handler: Handler, dead: Dead) -> DeadLetterView:
    """A dead letter with its claim."""
    return view(context.runtime.claims, handler, dead, max_body=context.runtime.settings.max_body)


# -- list -------------------------------------------------------------------------------------------------------


@command_of(
    dead_letters,
    "runonce dead-letters list",
    "runonce dead-letters list send_invoice",
    "runonce dead-letters list send_invoice --json",
    name="list",
)
def list_dead_letters(
    ctx: typer.Context,
    handler: Annotated[
        str | None,
        typer.Argument(
            metavar="HANDLER",
            help="The handler's name. Default: all, by reason.",
            autocompletion=handler_names,
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List a handler's dead letters and why they are there, the oldest first; without a name all, by reason.

    Bodies are not shown, and a handler need not be in the code. A Storage queue shows no more than 32 of its messages:
    those beyond are told by their claims, and the count is the queue's own.
    """
    context = Context.of(ctx)
    if handler is None:
        _list_groups(context, as_json=as_json)
        return
    found = _looked_at(context, handler)
    letters = facts.letters(context.runtime, found, count)
    if as_json:
        shown = [*map(_json, letters.shown), *map(_json_of_claim, letters.by_claims)]
        output.print_json(
            {
                "handler": found.name,
                "entity": found.entity,
                "count": letters.count,
                "dead_letters": shown,
            }
        )
        return
    if not letters.count:
        output.note(f"{found.name} has no dead letters")
        return
    output.console().print(_letters_table(letters, context.runtime.clock.now()))
    if expiring := sum(one.dead.expires_at is not None for one in letters.shown):
        output.warn(
            f"{expiring} of them were put aside by the Functions host, and are removed when the time shown has come: "
            f"replay or purge them before that"
        )
    _say_what_is_left(letters, count)


def _looked_at(context: Context, name: str) -> Handler:
    """The handler of that name, or a stand-in for one that is not in the code."""
    found = facts.handler_of(context.runtime, name)
    return context.handler(name) if found is None else found  # which raises, with the nearest names


def _say_what_is_left(letters: facts.Letters, count: int) -> None:
    listed = len(letters.shown) + len(letters.by_claims)
    if letters.by_claims:
        output.note(
            f"the queue shows only the oldest {len(letters.shown)} of its {letters.count:,}; "
            f"{len(letters.by_claims):,} are told by their claims"
        )
    if listed == count and letters.count > count:
        output.note(f"there are {letters.count:,}; -n shows more than {count}")
    elif letters.count > listed:
        output.note(
            f"there are {letters.count:,}: {letters.count - listed:,} have no claim, and a Storage queue shows "
            f"{AT_ONCE} at most, so there may be more than is listed; replay and purge take all"
        )


def _letters_table(letters: facts.Letters, now: datetime) -> Any:
    made = output.table("Message", "Why", "Attempts")
    made.columns[2].justify = "right"
    for one in letters.shown:
        when = one.dead.dead_at or one.dead.delivery.enqueued_at
        since = "" if when is None else f"\n{times.from_now(when, now)}"
        if one.dead.expires_at is not None:
            since += f"\nremoved {times.from_now(one.dead.expires_at, now)}"
        made.add_row(
            output.styled((id_of(one.dead) or "(no id)", "bold"), (since, "dim")),
            output.styled((one.reason, "red"), (f"\n{output.short(one.description, 300)}", "")),
            "-" if one.row is None else str(one.row.attempt),
        )
        made.add_section()
    for row in letters.by_claims:
        told = of_claim(row)
        since = "" if told.at is None else f"\n{times.from_now(told.at, now)}"
        made.add_row(
            output.styled((told.id, "bold"), (since, "dim")),
            output.styled((told.reason, "red"), (f"\n{output.short(told.description, 300)}", "")),
            str(row.attempt),
        )
        made.add_section()
    return made


def _list_groups(context: Context, *, as_json: bool) -> None:
    found = facts.dead_letters(context.runtime)
    if as_json:
        output.print_json({"handlers": found})
        return
    now = context.runtime.clock.now()
    for one in found:
        total = "?" if one.count is None else f"{one.count:,}{'+' * one.at_least}"
        title = f"{one.handler} ({one.entity}): {total} dead letter{'' if one.count == 1 else 's'}"
        made = output.table("Count", "Why", "Oldest", "Such as", title=title)
        made.columns[0].justify = "right"
        for alike in one.groups:
            made.add_row(
                f"{alike.count:,}",
                output.styled((alike.reason, "red"), (f"\n{alike.what}" if alike.what else "", "")),
                "-" if alike.oldest is None else times.from_now(alike.oldest, now),
                output.styled(("\n".join(alike.ids[:3]), "dim")),
            )
        if one.unexplained:
            made.add_row(f"{one.unexplained:,}", "without a claim, and not shown by the queue", "-", "")
        output.console().print(made)
        output.console().print()
        if one.unreachable:
            output.warn(
                f"{one.handler}: by its claims alone, for the broker could not be asked: {one.unreachable}"
            )
    if not found:
        output.note("no handler has dead letters")


def _json(one: DeadLetterView) -> dict[str, Any]:
    delivery = one.dead.delivery
    return {
        "id": id_of(one.dead),
        "message_id": delivery.message_id,
        "key": one.key,
        "reason": one.reason,
        "description": one.description,
        "bytes": len(delivery.body),
        "correlation_id": delivery.correlation_id,
        "enqueued_at": delivery.enqueued_at,
        "dead_at": one.dead.dead_at,
        "expires_at": one.dead.expires_at,
        **_json_of_row(one.row),
        "told_by": "queue",
    }


def _json_of_claim(row: MessageRow) -> dict[str, Any]:
    told = of_claim(row)
    return {
        "id": told.id,
        "message_id": row.message_id,
        "key": row.key,
        "reason": told.reason,
        "description": told.description,
        "bytes": None,
        "correlation_id": "",
        "enqueued_at": None,
        "dead_at": told.at,
        "expires_at": None,
        **_json_of_row(row),
        "told_by": "claim",
    }


def _json_of_row(row: MessageRow | None) -> dict[str, Any]:
    return {
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
    """Show all that is known of one dead letter.

    One beyond the 32 that a Storage queue shows is looked for by taking them all for a moment and putting them back.
    """
    context = Context.of(ctx)
    found = _looked_at(context, handler)
    listed = facts.letters(context.runtime, found, 1000)
    views = [one for one in listed.shown if is_called(one.dead, wanted)]
    if not views and listed.count > len(listed.shown):
        with opened(context, found) as letters:
            dead = [one for one in _all(letters) if is_called(one, wanted)]
        views = [view_of(context, found, one) for one in dead]
    if not views:
        raise InputError(
            f"{found.name} has no dead letter {wanted!r}; `runonce dead-letters list {found.name}`."
        )
    names = sorted({one.dead.delivery.message_id for one in views})
    if len(names) > 1:
        raise InputError(
            f"{found.name} has {len(names)} dead letters called {wanted!r}; name one by its own id: "
            f"{', '.join(names)}."
        )
    one = views[0]
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


def _all(letters: DeadLetters) -> list[Dead]:
    """Every dead letter: taken, and put back."""
    found: dict[str, Dead] = {}
    try:
        while new := [dead for dead in letters.take(LOOKED_AT_ONCE) if dead.place not in found]:
            found |= {dead.place: dead for dead in new}
    finally:
        for dead in found.values():
            with contextlib.suppress(TransportError):  # held for too long, it is back by itself
                letters.put_back(dead)
    return list(found.values())
