"""Service Bus messages as deliveries, and what is sent as the SDK's messages."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import MessageSizeExceededError

from runonce.transports import amqp
from runonce.transports.protocols import Delivery, Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

RESCHEDULES, ONLY_FOR, SENT_AS = "runonce-reschedules", "runonce-only-for", "runonce-sent-as"
DEAD, DEAD_WHY = "runonce-dead", "runonce-dead-why"
"""Application properties of the toolkit's own messages."""
BROKERS_OWN = ("DeadLetterReason", "DeadLetterErrorDescription")
"""Application properties that say why a message was dead-lettered, which is not so of its replay."""
TICKS = 10
"""In a microsecond, as .NET counts time."""
FIRST, LAST_TICK = datetime(1, 1, 1, tzinfo=UTC), 3_155_378_976_000_000_000
"""Where it counts from, and where the calendar ends."""
MARKS = {RESCHEDULES, ONLY_FOR, SENT_AS, DEAD, DEAD_WHY, *BROKERS_OWN}
MOST_TIMES = 2**31 - 1
"""Beyond that the number of a copy is nothing that the toolkit wrote."""
LONGEST_REASON = 4096
"""UTF-16 units of a dead letter's reason and description (Service Bus' own limit)."""


def add_to(batch: ServiceBusMessageBatch, message: Outgoing) -> None:
    """Put a message into a batch; MessageSizeExceededError when it does not fit."""
    original = None if message.original is None else message.original()
    if original is None:
        batch.add_message(_native(message))
        return
    # The SDK encodes values by what Python calls them, so a copy goes into its batch as the bytes it is.
    raw = _copied(message, original)
    size = batch.size_in_bytes + len(raw) + 8  # 8 frame it
    if size > batch.max_size_in_bytes:
        raise MessageSizeExceededError(message=f"a copy of {len(raw)} bytes does not fit into a batch")
    batch._message[5].append(raw)  # noqa: SLF001 - its data sections
    batch._size, batch._count = size, batch._count + 1  # noqa: SLF001
    if batch._count == 1:  # noqa: SLF001
        known = ServiceBusReceivedMessage.from_bytes(raw)
        batch._amqp_transport.set_batch_envelope_properties(  # noqa: SLF001
            batch._message,  # noqa: SLF001
            known.message_id,
            known.session_id,
            known.partition_key,
        )


def _copied(message: Outgoing, raw: bytes) -> bytes:
    there = _at(message) or _now() + timedelta(seconds=message.skew)
    since = message.alive_since
    return amqp.copied(
        raw,
        message_id=message.message_id,
        at=None if message.at is None else there.timestamp(),
        passed=0.0 if since is None else max(0.0, (there - since).total_seconds()),
        drop=MARKS,
        add=_marks(message),
    )


def cut(reason: str) -> str:
    """A reason or description as long as the broker takes it; where it is cut it ends with "…"."""
    units = reason.encode("utf-16-le")
    if len(units) <= 2 * LONGEST_REASON:
        return reason
    return units[: 2 * (LONGEST_REASON - 1)].decode("utf-16-le", "ignore") + "…"


def _at(message: Outgoing) -> datetime | None:
    """When it shall be there by the broker's clock."""
    return None if message.at is None else message.at + timedelta(seconds=message.skew)


def skew_of(enqueued_at: datetime | None, locked_until: datetime | None) -> float:
    """Seconds the broker's clock is ahead of ours at least, or behind (negative), by a message that came just now.

    It was not enqueued later than now, and its lock has not ended.
    """
    now = _now()
    if enqueued_at is not None and enqueued_at > now:
        return (enqueued_at - now).total_seconds()
    return 0.0 if locked_until is None else min(0.0, (locked_until - now).total_seconds())


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - against the broker's instants


def _marks(message: Outgoing) -> dict[str, str | int]:
    marks: dict[str, str | int] = {}
    if message.reschedules:
        marks[RESCHEDULES] = message.reschedules
    if message.sent_as:
        marks[SENT_AS] = message.sent_as
    if message.dead is not None:
        marks[DEAD], marks[DEAD_WHY] = map(cut, message.dead)
    return marks


def _native(message: Outgoing) -> ServiceBusMessage:
    properties: dict[Any, Any] = {name: _typed(value) for name, value in message.properties.items()}
    properties |= _marks(message)
    return ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        application_properties=properties,
        correlation_id=message.correlation_id or None,
        scheduled_enqueue_time_utc=_at(message),
    )


def _typed(value: Any) -> Any:
    """A property as the SDK can encode it: it makes 32 bits of every whole number unless told otherwise."""
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        return {"TYPE": "LONG" if value < 2**63 else "ULONG", "VALUE": value}
    return value


def delivery_of(
    native: ServiceBusReceivedMessage, original: Callable[[], bytes | None] | None = None
) -> Delivery:
    """A received message as a delivery; the SDK counts deliveries from 0."""
    properties = {str(_plain(k)): _plain(v) for k, v in (native.application_properties or {}).items()}
    # Of today's instants the SDK makes numbers over 32 bits; only the message itself tells them from long ones.
    if original is not None and any(isinstance(v, int) and abs(v) >= 2**31 for v in properties.values()):
        with suppress(ValueError):  # what the SDK can read nevertheless
            instants = amqp.timestamps(original() or b"")
            properties |= {name: _instant(at) for name, at in instants.items() if name in properties}
    own = take_own(properties)
    body, unreadable = _body(native)
    return Delivery(
        body=body,
        message_id=str(native.message_id or ""),
        delivery_count=(native.delivery_count or 0) + 1,
        enqueued_at=native.enqueued_time_utc,
        correlation_id=str(native.correlation_id or ""),
        properties=properties,
        skew=skew_of(native.enqueued_time_utc, native.locked_until_utc),
        sequence=str(native.sequence_number or ""),
        subject=str(native.subject or ""),
        content_type=str(native.content_type or ""),
        unreadable=unreadable,
        original=original,
        **own,
    )


def take_own(properties: dict[str, Any]) -> dict[str, Any]:
    """Take the toolkit's own properties out, as a delivery's: how often sent back, whom for, as what, why dead."""
    times, only_for, sent_as = (properties.pop(name, None) for name in (RESCHEDULES, ONLY_FOR, SENT_AS))
    dead, why = properties.pop(DEAD, None), properties.pop(DEAD_WHY, "")
    return {
        "reschedules": times if isinstance(times, int) and 0 <= times < MOST_TIMES else 0,
        "only_for": only_for if isinstance(only_for, str) else "",
        "sent_as": sent_as if isinstance(sent_as, str) else "",
        "dead": (dead, str(why)) if isinstance(dead, str) else None,
    }


def _plain(value: Any) -> Any:
    """A property in the types that every host has: text, number, boolean or None; on Functions it comes as JSON."""
    descriptor = getattr(value, "descriptor", None)
    if descriptor == b"com.microsoft:timespan":
        return _span(int(value))
    if descriptor == b"com.microsoft:datetime-offset":
        ticks = int(value)
        in_calendar = 0 <= ticks < LAST_TICK
        return _instant(FIRST + timedelta(microseconds=ticks // TICKS)) if in_calendar else ticks
    if isinstance(value, bytes):  # the SDK's form of text, symbols and bytes
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, float | Decimal):
        number = float(value)
        infinity = "Infinity" if number > 0 else "-Infinity"
        return number if isfinite(number) else "NaN" if isnan(number) else infinity
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _instant(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _span(ticks: int) -> str:
    """A length of time as .NET writes it: [-][days.]hours:minutes:seconds[.fraction]."""
    seconds, fraction = divmod(abs(ticks), TICKS * 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{'-' * (ticks < 0)}{f'{days}.' * bool(days)}{clock}{f'.{fraction:07}' * bool(fraction)}"


def _body(native: ServiceBusReceivedMessage) -> tuple[bytes, str]:
    """The body, or why it cannot be read: bytes and text are data, other AMQP values are not."""
    kind, body = native.body_type, native.body
    if body is None:
        return b"", ""
    if kind is AmqpMessageBodyType.DATA:
        return b"".join(body), ""
    if isinstance(body, bytes):
        return body, ""
    if isinstance(body, str):
        return body.encode(), ""
    what = "sequence" if kind is AmqpMessageBodyType.SEQUENCE else f"value ({type(body).__name__})"
    return b"", f"an AMQP {what}"
