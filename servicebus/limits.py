"""What a message may measure, as Azure's page of quotas says for the Standard tier. One that is over is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebus import values
from servicebus.errors import Refused

if TYPE_CHECKING:
    from servicebus.message import Message

MAX_MESSAGE = 262_144
"""The largest message or batch, bytes."""
_MAX_ID = 128  # characters
_MAX_PROPERTY = 32_768  # bytes
_MAX_PROPERTIES = 65_536  # bytes of all together, the system's included
_FIELDS = (
    "message id", "user id", "to", "subject", "reply-to", "correlation id", "content type", "content encoding",
    "expiry time", "creation time", "session id", "group sequence", "reply-to session id",
)  # fmt: skip
_IDS = ("message id", "session id", "reply-to session id", "partition key")
_PARTITION_KEY = values.symbol("x-opt-partition-key")


def check_size(size: int) -> None:
    """Refuse a message or batch of this many bytes if that is too many."""
    if size > MAX_MESSAGE:
        text = f"The message has {size} bytes; {MAX_MESSAGE} are allowed."
        raise Refused("amqp:link:message-size-exceeded", text)


def check(message: Message) -> None:
    """Refuse a message whose ids or properties are too long."""
    fields = message.property_fields() if len(message.properties) > _MAX_ID else []
    properties = dict(zip(_FIELDS, fields, strict=False))
    properties["partition key"] = message.annotations.get(_PARTITION_KEY, values.NULL)
    for name in _IDS:
        text = values.decode(properties.get(name, values.NULL))
        if isinstance(text, str) and len(text) > _MAX_ID:
            raise _too_long(f"The {name} has {len(text)} characters; {_MAX_ID} are allowed.")
    if len(message.application) > _MAX_PROPERTY:
        own = values.map_of(message.application[3:])
        properties |= {f"application property {values.decode(key)!r}": raw for key, raw in own.items()}
    for name, raw in properties.items():
        if len(raw) > _MAX_PROPERTY:
            raise _too_long(f"The {name} has {len(raw)} bytes; {_MAX_PROPERTY} are allowed.")
    size = len(message.properties) + len(message.application)
    if size > _MAX_PROPERTIES:
        raise _too_long(f"The properties together have {size} bytes; {_MAX_PROPERTIES} are allowed.")


def _too_long(text: str) -> Refused:
    return Refused("com.microsoft:argument-error", text)
