"""Handlers by name, for a program that does not have their code: from a manifest, or by their queue."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runonce.errors import DefinitionError, InputError, PermanentError, UnknownJobError
from runonce.messages.definition import handler

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

MANIFEST = "infra/jobs.json"


def named(
    name: str, *, key: str | None = None, queue: str | None = None, manifest: str | Path = MANIFEST
) -> Handler:
    """What is to be known of a handler to send to it; it cannot be run.

    Args:
        name: Of the handler.
        key: What a message is sent with, where that is said; a key that only the handler's code can make is not missed.
        queue: Its queue or topic; the manifest is not read, and a message's key is the one it is sent with.
        manifest: What `runonce manifest` has written from the code.

    Raises:
        UnknownJobError: The manifest has no such handler; the message lists those it has.
        InputError: There is no such file, or it is no manifest.
        DefinitionError: The name or the queue cannot be one.
    """
    if queue is not None:
        return handler(queue=queue, name=name)(_elsewhere)
    path = Path(manifest)
    try:
        known = _handlers(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(
            f"Handler {name!r} cannot be looked up: {path} cannot be read ({error.strerror}). Say where the file is "
            f"that `runonce manifest` writes, or give the handler's queue."
        ) from None
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownJobError(
            f"{path} has no handler {name!r}; it has: {', '.join(sorted(known)) or 'none'}.{meant}"
        )
    found = known[name]
    return replace(found, key=None) if found.key is _unknown_key and key is not None else found


@cache
def _handlers(path: Path, _: int) -> dict[str, Handler]:
    """The handlers of a manifest, as it was then."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["handlers"]
        return {entry["name"]: _made(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, RecursionError, DefinitionError) as error:
        raise InputError(
            f"{path} is not a manifest of this version ({type(error).__name__}: {error}); write it with "
            f"`runonce manifest`."
        ) from None


def _made(entry: dict[str, Any]) -> Handler:
    source: dict[str, Any] = {"queue": entry["queue"]}
    if entry["topic"]:
        source = {name: entry[name] for name in ("topic", "subscription", "forward")}
    key = _unknown_key if entry["key"] == "()" else entry["key"] or None
    return handler(name=entry["name"], key=key, **source)(_elsewhere)


def _unknown_key(message: Message) -> str:
    raise PermanentError(
        f"Handler {message.handler}: its key is made by a function of its code, which is not here; give key=… with the "
        f"message."
    )


def _elsewhere(message: Message) -> None:
    """Stands for a function whose code is not here."""
    raise NotImplementedError
