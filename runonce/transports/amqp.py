"""An AMQP message as the bytes it travels in: read and copied with every type it has, which no client keeps.

The SDK reads a long, an int and a timestamp alike as an int, and writes each as an int of 32 bits. So what is not
changed in a copy is taken over byte by byte. (AMQP 1.0, parts 1.6 and 3.2.)
"""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION = 0x70, 0x71, 0x72, 0x73, 0x74
NULL = b"\x40"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEDULED = b"x-opt-scheduled-enqueue-time"
BROKERS_OWN = {
    f"x-opt-{name}"
    for name in (
        "sequence-number",
        "enqueue-sequence-number",
        "enqueued-time",
        "locked-until",
        "message-state",
        "scheduled-enqueue-time",
        "deadletter-source",
    )
}
"""Annotations of one message in one queue, which a copy of it must not have."""
LONGEST_LIFE = 2**32 - 1
"""Milliseconds of a time to live."""
TIME_TO_LIVE, MESSAGE_ID, EXPIRY, CREATED = 2, 0, 8, 9
"""Where they stand in the header and in the properties."""


def copied(
    raw: bytes,
    *,
    message_id: str,
    at: float | None,
    passed: float,
    drop: Collection[str],
    add: Mapping[str, str | int],
) -> bytes:
    """The message once more, under another id.

    Args:
        raw: The message as it came.
        message_id: Its new id.
        at: When it shall be there, in seconds since 1970; None is at once.
        passed: Seconds of its time to live that are over when it is there.
        drop: Application properties to leave out.
        add: Application properties to add.

    Raises:
        ValueError: This is not a message.
    """
    header: list[bytes] = []
    annotations: list[tuple[bytes, bytes]] = []
    properties: list[bytes] = []
    application: list[tuple[bytes, bytes]] = []
    rest = b""
    for code, section, value in _sections(raw):
        if code == HEADER:
            header = _values(value)
        elif code == ANNOTATIONS:
            annotations = [pair for pair in _pairs(value) if _text(pair[0]) not in BROKERS_OWN]
        elif code == PROPERTIES:
            properties = _values(value)
        elif code == APPLICATION:
            application = [pair for pair in _pairs(value) if _text(pair[0]) not in {*drop, *add}]
        elif code != DELIVERY_ANNOTATIONS:
            rest += section
    header = _filled(header, TIME_TO_LIVE + 1)
    if (alive := _whole(header[TIME_TO_LIVE])) is not None:
        header[TIME_TO_LIVE] = b"\x70" + struct.pack(
            ">I", min(max(1, alive - round(passed * 1000)), LONGEST_LIFE)
        )
    properties = _filled(properties, CREATED + 1)
    properties[MESSAGE_ID] = _string(message_id)
    properties[EXPIRY] = properties[CREATED] = (
        NULL  # they say the same as the time to live, for a first sending
    )
    if at is not None:
        scheduled = b"\x83" + struct.pack(">q", round(at * 1000))
        annotations.append((b"\xa3" + bytes((len(SCHEDULED),)) + SCHEDULED, scheduled))
    application += [
        (_string(name), _string(value) if isinstance(value, str) else b"\x71" + struct.pack(">i", value))
        for name, value in add.items()
    ]
    return b"".join(
        (
            _section(HEADER, 0xD0, header[: TIME_TO_LIVE + 1]),
            _section(ANNOTATIONS, 0xD1, [part for pair in annotations for part in pair]),
            _section(PROPERTIES, 0xD0, properties),
            _section(APPLICATION, 0xD1, [part for pair in application for part in pair]),
            rest,
        )
    )


def sequence_number(raw: bytes) -> int | None:
    """The number its queue gave a message."""
    for code, _, value in _sections(raw):
        if code == ANNOTATIONS:
            for name, number in _pairs(value):
                if _text(name) == "x-opt-sequence-number":
                    return _whole(number)
    return None


def timestamps(raw: bytes) -> dict[str, datetime]:
    """The application properties that are instants of our calendar; the SDK reads them as whole numbers."""
    found: dict[str, datetime] = {}
    for code, _, value in _sections(raw):
        if code == APPLICATION:
            for name, told in _pairs(value):
                if told[0] == 0x83:  # noqa: PLR2004 - a timestamp: milliseconds since 1970
                    since = int.from_bytes(told[1:], "big", signed=True)
                    with suppress(OverflowError):
                        found[_text(name)] = EPOCH + timedelta(milliseconds=since)
    return found


def _filled(values: list[bytes], count: int) -> list[bytes]:
    return values + [NULL] * (count - len(values))


def _section(code: int, constructor: int, parts: list[bytes]) -> bytes:
    if not parts:
        return b""
    content = b"".join(parts)
    return bytes((0, 0x53, code, constructor)) + struct.pack(">II", len(content) + 4, len(parts)) + content


def _string(text: str) -> bytes:
    data = text.encode()
    return b"\xb1" + struct.pack(">I", len(data)) + data


def _text(value: bytes) -> str:
    """A string or symbol; "" for anything else."""
    if value[0] in (0xA1, 0xA3):
        return value[2:].decode(errors="replace")
    return value[5:].decode(errors="replace") if value[0] in (0xB1, 0xB3) else ""


def _whole(value: bytes) -> int | None:
    """A whole number of any width; None for null."""
    if value == NULL:
        return None
    return int.from_bytes(value[1:], "big", signed=value[0] in (0x54, 0x55, 0x71, 0x81))


def _sections(raw: bytes) -> Iterable[tuple[int, bytes, bytes]]:
    """Each section's code, all of it, and its value alone."""
    start = 0
    while start < len(raw):
        if raw[start] != 0:
            raise ValueError("a section of a message begins with a descriptor")
        value = _end(raw, start + 1)
        end = _end(raw, value)
        yield _whole(raw[start + 1 : value]) or 0, raw[start:end], raw[value:end]
        start = end


def _pairs(value: bytes) -> list[tuple[bytes, bytes]]:
    """A map's names and values."""
    parts = _values(value)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _values(value: bytes) -> list[bytes]:
    """The values in a list or map."""
    kind, found = value[0], []
    start = 1 if kind == 0x45 else 3 if kind in (0xC0, 0xC1) else 9  # noqa: PLR2004 - empty, short, long
    while start < len(value):
        end = _end(value, start)
        found.append(value[start:end])
        start = end
    return found


def _end(raw: bytes, start: int) -> int:
    """Where the value that begins there ends: the high half of its first byte says how its length is told."""
    while raw[start : start + 1] == b"\x00":  # described: the descriptor, then the value
        if raw[start + 1 : start + 2] == b"\x00":
            raise ValueError(f"a descriptor of the message is itself described at byte {start}")
        start = _end(raw, start + 1)
    kind = raw[start] >> 4 if start < len(raw) else 0
    if kind in (0x4, 0x5, 0x6, 0x7, 0x8, 0x9):
        end = start + 1 + (0, 1, 2, 4, 8, 16)[kind - 4]
    elif kind in (0xA, 0xC, 0xE):
        end = start + 2 + int.from_bytes(raw[start + 1 : start + 2], "big")
    elif kind in (0xB, 0xD, 0xF):
        end = start + 5 + int.from_bytes(raw[start + 1 : start + 5], "big")
    else:
        end = len(raw) + 1
    if end > len(raw):
        raise ValueError(f"a value of the message cannot be read at byte {start}")
    return end
