"""What the Functions host puts on the wire when a trigger fires."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .messages import PROTOCOL


@dataclass(frozen=True)
class Trigger:
    """A trigger's payload and the metadata the host sends beside it."""

    data: Any
    metadata: dict[str, Any]

    def bound(self, binding: Mapping[str, Any]) -> "Trigger":
        """The message as the host hands it over: bytes where the binding says BINARY; else text, and a JSON
        body's top-level fields lie over the message's own metadata, whatever the case of their letters.
        """
        kind = self.data.WhichOneof("data")
        if kind not in ("string", "bytes"):
            return self
        raw = self.data.string.encode() if kind == "string" else self.data.bytes
        if str(binding.get("dataType", "")).lower() == "binary":
            return Trigger(PROTOCOL.TypedData(bytes=raw), self.metadata)
        text = raw.decode(errors="replace")
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        merged = dict(self.metadata)
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if value is not None and not isinstance(value, list):
                own = next((known for known in merged if known.lower() == name.lower()), name)
                merged[own] = _json(value) if isinstance(value, dict) else _value(_text(value))
        return Trigger(_value(text), merged)


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
    return Trigger(_json(info), {"TimerTrigger": _json("2026-11-29T02:30:00.0020000+00:00")})


def queue(
    body: str | bytes | Mapping[str, Any],
    *,
    message_id: str = "5c1d7a52-1f0e-4a6f-9d0a-000000000001",
    dequeue_count: int = 1,
    pop_receipt: str = "AgAAAAMAAAAAAAAA",
    inserted: str = "2026-11-29T13:20:00+00:00",
) -> Trigger:
    """A storage queue message; a mapping is sent as its JSON text, as a producer would."""
    metadata = {
        "QueueTrigger": _body(body),
        "Id": _body(message_id),
        "PopReceipt": _body(pop_receipt),
        "DequeueCount": _json(dequeue_count),
        "InsertionTime": _json(inserted),
        "ExpirationTime": _json("2026-12-06T13:20:00+00:00"),
        "NextVisibleTime": _json("2026-11-29T13:30:00+00:00"),
    }
    return Trigger(_body(body), metadata)


def servicebus(
    body: str | bytes | Mapping[str, Any],
    *,
    message_id: str = "m-1",
    delivery_count: int = 1,
    sequence_number: int = 42,
    properties: Mapping[str, Any] | None = None,
    enqueued: str = "2026-11-29T13:20:00.1234567Z",
    **metadata: Any,
) -> Trigger:
    """A Service Bus message; further keywords become its metadata (`CorrelationId="c-1"`)."""
    properties = dict(properties or {})
    known = {
        "MessageId": message_id,
        "ContentType": "application/json",
        "LockToken": "0d5f3c1e-7f43-4b8e-8d55-000000000001",
        "Subject": None,
        "CorrelationId": None,
        **metadata,
    }
    return Trigger(
        _body(body),
        {name: PROTOCOL.TypedData() if value is None else _value(value) for name, value in known.items()}
        | {
            "DeliveryCount": _json(delivery_count),
            "SequenceNumber": _json(sequence_number),
            "EnqueuedTimeUtc": _json(enqueued),
            "ExpiresAtUtc": _json("2026-12-13T13:20:00.123Z"),
            "ApplicationProperties": _json(properties),
            # The older name of the same thing: the library reads it without asking whether it is there.
            "UserProperties": _json(properties),
        },
    )


def _body(body: str | bytes | Mapping[str, Any]) -> Any:
    return _value(body if isinstance(body, str | bytes) else json.dumps(body))


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return PROTOCOL.TypedData(string=value)
    if isinstance(value, bytes):
        return PROTOCOL.TypedData(bytes=value)
    return _json(value)


def _text(value: str | bool | float) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _json(value: Any) -> Any:
    # Dates go this way too: the host serialises them as JSON, so they arrive within quotation marks.
    return PROTOCOL.TypedData(json=json.dumps(value))
