"""Making messages: their bodies, and ids that are the same when the same message is sent again."""

from __future__ import annotations

import json
import uuid
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runonce.errors import NotKeptError, PermanentError, TransportError, TransportRefusedError
from runonce.execution import hooks
from runonce.execution.events import Sending, Sent
from runonce.messages.definition import Handler
from runonce.messages.message import LONGEST_KEY, Message
from runonce.messages.reading import read_key
from runonce.transports.ids import follow_up_id, known_id, sent_id
from runonce.transports.protocols import Delivery, Outgoing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runonce.messages.rows import MessageRow
    from runonce.transports.protocols import Sender

BATCH = 100
AS_READ: dict[str, Any] = {"by_alias": True, "round_trip": True}
"""How a model is written so that the same model reads it: under its aliases, and without what is computed."""


def outgoing(
    handler: Handler,
    body: Any,
    *,
    key: str | None = None,
    at: datetime | None = None,
    correlation_id: str = "",
) -> Outgoing:
    """A message for a handler.

    Args:
        handler: Whom it is for.
        body: bytes and text as they are; anything else as JSON.
        key: The id it is known by; default is made of the handler's own key. The broker's id is made of it and the
            body, so that duplicate detection drops a message sent twice, and never another one.
        at: When it shall be there, with an offset.
        correlation_id: Passed on to the handler.

    Raises:
        InputError: The body is not JSON, the time has no offset, or a text is not valid Unicode or too long.
    """
    check_handler(handler)
    data = body_bytes(handler.name, body)
    for what, text in (("the key", key or ""), ("the correlation id", correlation_id)):
        _encoded(handler.name, text, what)
    if at is not None and at.tzinfo is None:
        raise NotKeptError(f"enqueue({handler.name}): at={at!r} has no time zone; give an aware datetime.")
    if key is None and handler.key is None:
        message_id, known = str(uuid.uuid4()), ""
    else:
        # A message without its key is refused here already, where its sender sees it.
        own = read_key(handler, Message(handler, Delivery(data, key or "")))
        name = own if key is None else key
        _check_length(handler.name, name)
        message_id = sent_id(handler.target, handler.name, name, data)
        known = known_id(handler.target, name) if key is None else key
    when = None if at is None else at.astimezone(UTC)
    return Outgoing(data, message_id, when, correlation_id, sent_as=known)


def check_one_key(handler: Handler, key: str | None, count: int) -> None:
    """InputError when several messages would get one id, of which the broker's duplicate detection keeps one."""
    if key is not None and count > 1:
        raise NotKeptError(
            f"Handler {handler.name}: {count} messages cannot have one id, made of the key {key!r:.80}; leave it out, "
            f"or send each by itself with a key of its own."
        )


def send_all(sender: Sender, handler: Handler, messages: Sequence[Outgoing]) -> None:
    """Send messages to a handler in batches; raises TransportError."""
    for start in range(0, len(messages), BATCH):
        _send(sender, handler.target, messages[start : start + BATCH])


def _send(sender: Sender, target: str, messages: Sequence[Outgoing]) -> None:
    """Send messages to one queue or topic, and have hooks add their headers; raises TransportError."""
    if not (hooks.listening("before_send") or hooks.listening("after_send")):
        sender.send(target, messages)
        return
    sending = Sending(target=target, message_ids=[message.message_id for message in messages])
    hooks.tell_and_wait("before_send", sending)
    headers = dict(sending.headers)
    if headers:
        messages = [replace(one, properties={**one.properties, **headers}) for one in messages]
    error: BaseException | None = None
    try:
        sender.send(target, messages)
    except BaseException as trouble:
        error = trouble
        raise
    finally:
        hooks.tell("after_send", Sent(sending=sending, error=error))


def check_handler(handler: object) -> None:
    """NotKeptError unless it is one: a job, or the name of a handler, can be sent nothing."""
    if not isinstance(handler, Handler):
        raise NotKeptError(
            f"enqueue({handler!r:.80}): that is no handler; give what @handler made of the function."
        )


def follow_up(
    row: MessageRow, ordinal: int, handler: Handler, body: Any, key: str | None
) -> Mapping[str, Any]:
    """A follow-up as it is kept on the claim's row, with an id that is the same in every attempt."""
    check_handler(handler)
    try:
        text = body_bytes(handler.name, body).decode()
    except UnicodeDecodeError as error:
        raise NotKeptError(
            f"Handler {row.handler}: a follow-up's body is kept as text until it is sent, and this one is not UTF-8; "
            f"put the data in a blob and send its name."
        ) from error
    sender = (row.entity, row.handler, row.key, row.generation)
    message_id = follow_up_id(
        handler.target, handler.name, text.encode(), sender=sender, ordinal=ordinal, key=key or ""
    )
    # An operator's replay sends its follow-ups anew, so a handler without a key must not know them already.
    known = f"{key}~g{row.generation}" if key and row.generation else key or ""
    _encoded(handler.name, known, "the key")
    if handler.key is not None or key is not None:
        try:
            read_key(handler, Message(handler, Delivery(text.encode(), message_id if key is None else known)))
        except PermanentError as bad:
            raise PermanentError(f"Handler {row.handler}: it would send a message in vain: {bad}") from bad
        _check_length(handler.name, key or "")
    return {"to": handler.target, "id": message_id, "body": text, "sent_as": known}


def send_outbox(sender: Sender, outbox: Sequence[Mapping[str, Any]], correlation_id: str) -> None:
    """Send the follow-ups, grouped by where they go; one that is refused keeps no other back.

    Raises:
        TransportError: Some may not have been sent.
        TransportRefusedError: Some never can be; all others were sent.
    """
    troubles: list[TransportError] = []
    for entity in dict.fromkeys(str(item["to"]) for item in outbox):
        batch = [
            Outgoing(
                str(item["body"]).encode(),
                str(item["id"]),
                None,
                correlation_id,
                sent_as=str(item.get("sent_as", "")),
            )
            for item in outbox
            if item["to"] == entity
        ]
        troubles += _send_each(sender, entity, batch)
    if troubles:
        raise min(troubles, key=lambda one: isinstance(one, TransportRefusedError))


def _send_each(sender: Sender, entity: str, batch: Sequence[Outgoing]) -> list[TransportError]:
    """Send the messages together, or where one of them is refused, each by itself; what went wrong."""
    try:
        _send(sender, entity, batch)
    except TransportRefusedError as refused:
        if len(batch) == 1:
            return [refused]
        return [trouble for one in batch for trouble in _send_each(sender, entity, [one])]
    except TransportError as trouble:
        return [trouble]
    return []


def body_bytes(name: str, body: Any) -> bytes:
    """A body for the handler of that name as it is sent; raises InputError."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return _encoded(name, body)
    try:
        if hasattr(body, "model_dump_json"):
            return str(body.model_dump_json(**AS_READ)).encode()
        return json.dumps(
            body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_modelled
        ).encode()
    except (TypeError, ValueError, RecursionError, ImportError) as error:
        raise NotKeptError(f"enqueue({name}): the body is not a JSON value: {error}.") from error


def _modelled(value: Any) -> Any:
    """A model or dataclass within a body as JSON; raises TypeError for anything else."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", **AS_READ)
    if is_dataclass(value) and not isinstance(value, type):
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra; where it is missing the dataclass is refused

        return TypeAdapter(type(value)).dump_python(value, mode="json", **AS_READ)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _check_length(name: str, key: str) -> None:
    """NotKeptError when a key is too long; it is kept as the message's id, whatever the handler's own key is."""
    if len(key) > LONGEST_KEY:
        raise NotKeptError(
            f"enqueue({name}): the key has {len(key)} characters, over {LONGEST_KEY}; use a shorter one."
        )


def _encoded(name: str, body: str, what: str = "the body") -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise NotKeptError(f"enqueue({name}): {what} is text that cannot be sent: {error.reason}.") from error
