"""The envelope of the toolkit's messages on Storage queues, and how their texts are told from those of others."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runonce.stores.columns import to_text
from runonce.transports.protocols import Delivery, Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK = '{"runonce":'


def wrap(message: Outgoing, **more: str) -> str:
    """The text of a message in its envelope, in Base64 as the Functions trigger expects.

    Another sender's message has its form noted in it, so that it can be put aside as it came.
    """
    envelope: dict[str, Any] = {
        "runonce": 1,
        "id": message.message_id,
        "correlation_id": message.correlation_id,
        "reschedules": message.reschedules,
        "sent_as": message.sent_as,
        "sent_at": to_text(datetime.now(UTC)),  # noqa: TID251 - it decides nothing
        **more,
    }
    if message.properties:
        envelope["properties"] = {name: str(value) for name, value in message.properties.items()}
    if message.original is not None:
        envelope["form"] = "none" if message.original() == message.body else "base64"
    try:
        envelope["body"] = message.body.decode()
    except UnicodeDecodeError:
        envelope["body64"] = base64.b64encode(message.body).decode()
    return base64.b64encode(json.dumps(envelope, ensure_ascii=False).encode()).decode()


def unwrap(
    text: str | bytes,
    *,
    message_id: str,
    delivery_count: int,
    enqueued_at: datetime | None,
    encoding: str | None = None,
) -> tuple[Delivery, Mapping[str, Any]]:
    """A message as a delivery, with the envelope's other fields where there is one.

    Args:
        text: As it is in the queue; bytes where the Functions host has decoded it.
        message_id: The queue's own id of it, if it has no envelope.
        delivery_count: 1 on the first delivery.
        enqueued_at: When the queue took it.
        encoding: "base64" or "none" where the handler says so; None tells by looking.
    """
    data = _bytes(text, encoding)
    envelope = _envelope(data)
    original = text.encode() if isinstance(text, str) else text
    if envelope is None:
        return Delivery(data, message_id, delivery_count, enqueued_at, original=lambda: original), {}
    body = envelope["body"].encode() if "body" in envelope else base64.b64decode(envelope["body64"])
    return (
        Delivery(
            body=body,
            message_id=envelope["id"] or message_id,
            delivery_count=delivery_count,
            enqueued_at=enqueued_at,
            correlation_id=envelope["correlation_id"],
            properties=envelope.get("properties", {}),
            reschedules=envelope["reschedules"],
            sent_as=envelope.get("sent_as", ""),
            original=_form(body, envelope.get("form")),
        ),
        envelope,
    )


def _form(body: bytes, form: object) -> Callable[[], bytes] | None:
    """How a body came before it was put into an envelope, if another sender's it is."""
    if form == "none":
        return lambda: body
    return (lambda: base64.b64encode(body)) if form == "base64" else None


def _bytes(text: str | bytes, encoding: str | None) -> bytes:
    """What a text says: many senders encode it, as the Functions host does by default, and many do not."""
    plain = text if isinstance(text, bytes) else text.encode()
    inner = decoded(plain)
    if inner is None or encoding == "base64":
        return plain if inner is None else inner
    # "SEND" is Base64 too, of three letters; what nobody would have encoded is the text itself.
    host_decoded = isinstance(text, bytes)
    if _envelope(inner) is not None or (encoding is None and not host_decoded and _is_json(inner)):
        return inner
    return plain


def decoded(text: bytes) -> bytes | None:
    """A Base64 text's bytes, or None when it is not Base64; lines and blanks in it do not count, as in .NET."""
    try:
        return base64.b64decode(text.translate(None, b" \t\r\n"), validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return True


def _envelope(data: bytes) -> dict[str, Any] | None:
    """The envelope, if the message is in one that is whole; anything else is somebody else's message."""
    if not data.startswith(MARK.encode()):
        return None
    try:
        envelope: dict[str, Any] = json.loads(data)
        base64.b64decode(envelope.get("body64", ""), validate=True)
        envelope.get("body", "").encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    properties = envelope.get("properties", {})
    texts = [envelope.get("id"), envelope.get("correlation_id"), envelope.get("sent_as", "")]
    texts += properties.values() if isinstance(properties, dict) else [properties, None]
    times = envelope.get("reschedules")
    whole = all(isinstance(text, str) for text in texts) and isinstance(times, int) and times >= 0
    return envelope if whole and ("body" in envelope or "body64" in envelope) else None
