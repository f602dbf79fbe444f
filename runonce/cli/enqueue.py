"""The command that sends messages: enqueue."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from runonce.cli import output
from runonce.cli.app import EXECUTE, HandlerName, Json, command, read_at
from runonce.cli.context import Context
from runonce.errors import InputError
from runonce.hosts.runtime import check_transport


@command(
    EXECUTE,
    'runonce enqueue send_invoice --body \'{"invoice_id": "2026-0117", "email": "ada@example.com"}\'',
    "runonce enqueue send_invoice --file invoices.jsonl --lines",
    "producer | runonce enqueue reindex_tenant --file - --lines",
    "runonce enqueue send_invoice --body '{\"invoice_id\": 7}' --manifest shop/infra/jobs.json",
)
def enqueue(
    ctx: typer.Context,
    handler: HandlerName,
    text: Annotated[
        str | None, typer.Option("--body", metavar="TEXT", help="The body, as JSON.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="PATH", help="A file that is the body; - is standard input."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line that is not empty is a message of its own, as JSON.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the message id is made from. Default: the handler's key."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT", help="Deliver it no earlier than this; ISO 8601, without an offset UTC."
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the handler's code is not here: what `runonce manifest` wrote."
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="As --manifest, without a file: its queue or topic.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send messages to a handler.

    Sending a message again is safe: it has the same key, so it takes effect once. All messages are checked before the
    first is sent; if one lacks the handler's key, none is sent.
    """
    from runonce.messages.sending import check_one_key, outgoing, send_all  # noqa: PLC0415 - only here

    context = Context.of(ctx)
    if manifest is None and queue is None:
        found = context.handler(handler)
    elif manifest is None or queue is None:
        from runonce.messages.named import named  # noqa: PLC0415 - only here

        found = named(handler, key=key, queue=queue, manifest=manifest or "")
    else:
        raise typer.BadParameter("give one of them", param_hint="--manifest, --queue")
    if (text is None) == (file is None):
        raise typer.BadParameter(
            "give the body once: --body TEXT, --file PATH, or --file - for standard input"
        )
    if text is not None:
        bodies = _lines(text, "--body") if lines else [_checked(text, "--body")]
    else:
        content, name = _content(file or Path("-"))
        bodies = _lines(content, name) if lines else [content]
    try:
        check_one_key(found, key, len(bodies))
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--key") from None
    when = read_at(at, "UTC", "--at") if at else None
    settings = context.runtime.settings
    check_transport(settings, found)
    messages = [outgoing(found, body, key=key, at=when) for body in bodies]
    if messages:
        send_all(context.runtime.sender, found, messages)
    else:
        output.note("there was no message in it; nothing was sent")
    ids = [message.sent_as or message.message_id for message in messages]
    if as_json:
        output.print_json(
            {"handler": found.name, "target": f"{settings.queue_prefix}{found.target}", "sent": ids}
        )
    elif ids:
        what = f"message {ids[0]}" if len(ids) == 1 else f"{len(ids):,} messages"
        typer.echo(f"{found.name}: {what} sent to {settings.queue_prefix}{found.target}")


def _content(file: Path) -> tuple[bytes, str]:
    if str(file) == "-":
        return sys.stdin.buffer.read(), "standard input"
    try:
        return file.read_bytes(), str(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); name a file, or - for standard input."
        ) from None


def _lines(content: bytes | str, name: str) -> list[bytes]:
    data = content.encode() if isinstance(content, str) else content
    listed = enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1)
    return [_checked(line, f"{name}, line {number}") for number, line in listed if line.strip()]


def _checked(text: str | bytes, where: str) -> bytes:
    """The text, if it is JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: this is not valid JSON ({error}); nothing was sent.") from None
    return text.encode() if isinstance(text, str) else text.strip()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")
