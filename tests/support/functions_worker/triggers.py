"""What the Functions host puts on the wire when a trigger fires."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import wire
from .messages import PROTOCOL

NOON = dt.datetime(2026, 11, 29, 13, 20, 0, 123_000, dt.UTC)
"""When the messages of these triggers were sent, unless a test says otherwise."""


class BindingError(Exception):
    """The host cannot make a message into what the function takes; the function is not called."""


@dataclass(frozen=True)
class AmqpValue:
    """The body of a Service Bus message that is an AMQP value and not bytes."""

    content: Any


_TEXTS = (
    "MessageId",
    "ContentType",
    "CorrelationId",
    "Subject",
    "Label",
    "To",
    "ReplyTo",
    "SessionId",
    "PartitionKey",
)
"""Of a Service Bus message: absent when unset, yet a body's field of such a name takes the place."""

Body = str | bytes | Mapping[str, Any]
Bound = tuple[Any, dict[str, Any]]
"""The payload and the metadata beside it."""


@dataclass(frozen=True)
class Trigger:
    """A timer's payload and metadata, ready for the wire."""

    data: Any
    metadata: dict[str, Any]

    def bound(self, binding: Mapping[str, Any]) -> Bound:
        """What the function gets, by its trigger's binding."""
        del binding
        return self.data, self.metadata


@dataclass(frozen=True)
class QueueTrigger(Trigger):
    """A Storage queue message; `data` is its body in bytes."""

    def bound(self, binding: Mapping[str, Any]) -> Bound:
        """Bytes where the binding says BINARY, else text with its own fields over the metadata."""
        if _binary(binding):
            return wire.raw(self.data), self.metadata
        try:
            return _text(self.data.decode(), self.metadata)
        except UnicodeDecodeError as error:
            raise BindingError(f"the body is not UTF-8: {error}") from None


@dataclass(frozen=True)
class ServiceBusTrigger(Trigger):
    """A Service Bus message; `data` is its body, bytes or an `AmqpValue`."""

    def bound(self, binding: Mapping[str, Any]) -> Bound:
        """Bytes where the binding says BINARY, else text with its own fields over the metadata."""
        body, binary = self.data, _binary(binding)
        if isinstance(body, AmqpValue):
            if binary or not isinstance(body.content, str):
                kind = type(body.content).__name__
                raise BindingError(f"the body is an AMQP value ({kind}), not bytes")
            return _text(body.content, self.metadata, _TEXTS)
        if binary:
            return wire.raw(body), self.metadata
        return _text(body.decode(errors="replace"), self.metadata, _TEXTS)


def timer(
    *,
    past_due: bool = False,
    last: str = "2026-11-28T02:30:00.0012345+00:00",
    upcoming: str = "2026-11-30T02:30:00+00:00",
    monitored: bool = True,
) -> Trigger:
    """A timer firing; a schedule more frequent than the host monitors has no status (`monitored=False`)."""
    status = {"Last": last, "Next": upcoming, "LastUpdated": last} if monitored else None
    info = {"Schedule": {"AdjustForDST": True}, "ScheduleStatus": status, "IsPastDue": past_due}
    return Trigger(wire.as_json(info), {"TimerTrigger": wire.as_json("2026-11-29T02:30:00.0020000+00:00")})


def http(
    method: str = "POST", url: str = "https://app.example/api/orders", *, body: Body = b"", **headers: str
) -> Trigger:
    """A request; the names of its headers are as keywords are, with _ for -."""
    request = PROTOCOL.RpcHttp(
        method=method,
        url=url,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        body=wire.raw(_bytes(body)),
    )
    return Trigger(PROTOCOL.TypedData(http=request), {})


def queue(
    body: Body,
    *,
    message_id: str = "5c1d7a52-1f0e-4a6f-9d0a-000000000001",
    dequeue_count: int = 1,
    pop_receipt: str = "AgAAAAMAAAAAAAAA",
    inserted: str = "2026-11-29T13:20:00+00:00",
    expires: str = "2026-12-06T13:20:00+00:00",
    visible: str = "2026-11-29T13:30:00+00:00",
) -> Trigger:
    """A storage queue message; a mapping is sent as its JSON text, as a producer would."""
    content = _bytes(body)
    metadata = {
        "QueueTrigger": wire.text(content.decode(errors="replace")),
        "Id": wire.text(message_id),
        "PopReceipt": wire.text(pop_receipt),
        "DequeueCount": wire.as_json(dequeue_count),
        "InsertionTime": wire.as_json(inserted),
        "ExpirationTime": wire.as_json(expires),
        "NextVisibleTime": wire.as_json(visible),
    }
    return QueueTrigger(content, metadata)


def servicebus(
    body: Body | AmqpValue,
    *,
    message_id: str | None = "m-1",
    delivery_count: int = 1,
    sequence_number: int = 42,
    properties: Mapping[str, Any] | None = None,
    enqueued: dt.datetime = NOON,
    expires: dt.datetime = NOON + dt.timedelta(days=14),
    lock_token: str = "0d5f3c1e-7f43-4b8e-8d55-000000000001",
    content_type: str | None = "application/json",
    **metadata: str | None,
) -> Trigger:
    """A Service Bus message; further keywords become its metadata (`CorrelationId="c-1"`).

    What is None is left out, as the host does with what the sender did not set.
    """
    texts = {
        "MessageId": message_id,
        "ContentType": content_type,
        "LockToken": lock_token,
        **metadata,
    }
    sent = wire.application_properties(properties or {})
    return ServiceBusTrigger(
        body if isinstance(body, AmqpValue) else _bytes(body),
        {name: wire.text(value) for name, value in texts.items() if value is not None}
        | {
            "DeliveryCount": wire.as_json(delivery_count),
            "SequenceNumber": wire.as_json(sequence_number),
            "EnqueuedTimeUtc": wire.naive_time(enqueued),
            "ExpiresAtUtc": wire.naive_time(expires),
            "EnqueuedTime": wire.zoned_time(enqueued),
            "ExpiresAt": wire.zoned_time(expires),
            "ApplicationProperties": sent,
            # The older name of the same thing: the library reads it without asking whether it is there.
            "UserProperties": sent,
        },
    )


def _binary(binding: Mapping[str, Any]) -> bool:
    return str(binding.get("dataType", "")).lower() == "binary"


def _text(body: str, metadata: Mapping[str, Any], absent: tuple[str, ...] = ()) -> Bound:
    """Text, and its fields over the metadata, whatever the case of their letters."""
    known = {name.lower(): name for name in (*absent, *metadata)}
    fields = {known.get(name.lower(), name): value for name, value in wire.body_fields(body).items()}
    return wire.text(body), {**metadata, **fields}


def _bytes(body: Body) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
