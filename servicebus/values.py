"""AMQP 1.0 values in their encoded form.

A broker reads few parts of a message and must return the others exactly as they came, so values are kept as
bytes and only those that matter are decoded. Codes are those of the AMQP 1.0 type system.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Raw = bytes
"""One encoded value, constructor included."""

NULL = b"\x40"
EMPTY_LIST = 0x45
DESCRIBED = 0x00
SMALL_ULONG = 0x53

_FIXED_WIDTH = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_ONE_BYTE_SIZE = (0xA, 0xC, 0xE)
_FOUR_BYTE_SIZE = (0xB, 0xD, 0xF)
_SMALL_LISTS_AND_MAPS = (0xC0, 0xC1)
_LISTS_AND_MAPS = (0xD0, 0xD1)
_SIGNED = (0x51, 0x54, 0x55, 0x61, 0x71, 0x81)
_TIMESTAMP = 0x83
INTEGERS = (0x43, 0x44, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x80, 0x81)
_LONGEST_SHORT = 0xFF


def end_of(data: bytes | bytearray, start: int) -> int:
    """Offset just past the value that starts at `start`."""
    while data[start] == DESCRIBED:
        if data[start + 1] == DESCRIBED:
            raise ValueError("a descriptor is itself described")
        start = end_of(data, start + 1)
    code = data[start]
    kind = code >> 4
    if kind in _FIXED_WIDTH:
        return start + 1 + _FIXED_WIDTH[kind]
    if kind in _ONE_BYTE_SIZE:
        return start + 2 + data[start + 1]
    if kind in _FOUR_BYTE_SIZE:
        return start + 5 + int.from_bytes(data[start + 1 : start + 5], "big")
    raise ValueError(f"0x{code:02x} starts no AMQP value")


def elements(data: bytes | bytearray, start: int = 0, limit: int | None = None) -> list[Raw]:
    """The first `limit` values of the list or map at `start`; a map's keys and values take turns."""
    code = data[start]
    if code == EMPTY_LIST:
        return []
    if code in _SMALL_LISTS_AND_MAPS:
        count, position = data[start + 2], start + 3
    elif code in _LISTS_AND_MAPS:
        count, position = int.from_bytes(data[start + 5 : start + 9], "big"), start + 9
    else:
        raise ValueError(f"0x{code:02x} starts neither a list nor a map")
    found: list[Raw] = []
    for _ in range(count if limit is None else min(count, limit)):
        end = end_of(data, position)
        if end > len(data):
            raise ValueError("a value is cut short")
        found.append(bytes(data[position:end]))
        position = end
    return found


def map_of(raw: Raw) -> dict[Raw, Raw]:
    """A map, its keys and values still encoded."""
    flat = elements(raw)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def integer(raw: Raw) -> int:
    """Any AMQP integer, boolean excluded; ValueError when it is none."""
    if raw[0] not in INTEGERS:
        raise ValueError(f"0x{raw[0]:02x} starts no integer")
    return int.from_bytes(raw[1:], "big", signed=raw[0] in _SIGNED)


def seconds_of(raw: Raw | None) -> float:
    """A timestamp in seconds since 1970; 0 when there is none."""
    return int.from_bytes(raw[1:], "big", signed=True) / 1000 if raw and raw[0] == _TIMESTAMP else 0.0


def encode_map(values: dict[Raw, Raw]) -> Raw:
    """A map of encoded keys and values."""
    body = b"".join(key + value for key, value in values.items())
    return b"\xd1" + struct.pack(">II", len(body) + 4, 2 * len(values)) + body


def encode_list(fields: list[Raw]) -> Raw:
    """A list of encoded values."""
    body = b"".join(fields)
    return b"\xd0" + struct.pack(">II", len(body) + 4, len(fields)) + body


def binary_of(raw: Raw) -> bytes:
    """The content of a binary."""
    return raw[2:] if raw[0] == 0xA0 else raw[5:]  # noqa: PLR2004 - the short form


def _encode_bytes(short_code: int, data: bytes) -> Raw:
    size = len(data)
    if size <= _LONGEST_SHORT:
        return bytes((short_code, size)) + data
    return bytes((short_code + 0x10,)) + struct.pack(">I", size) + data


def symbol(text: str) -> Raw:
    """A symbol."""
    return _encode_bytes(0xA3, text.encode("ascii"))


def string(text: str) -> Raw:
    """A string."""
    return _encode_bytes(0xA1, text.encode())


def timestamp(seconds: float) -> Raw:
    """A timestamp, which AMQP counts in milliseconds."""
    return b"\x83" + struct.pack(">q", int(seconds * 1000))


def long(number: int) -> Raw:
    """A signed 64-bit integer."""
    return b"\x81" + struct.pack(">q", number)


def int32(number: int) -> Raw:
    """A signed 32-bit integer."""
    return b"\x71" + struct.pack(">i", number)


def uint32(number: int) -> Raw:
    """An unsigned 32-bit integer."""
    return b"\x70" + struct.pack(">I", number)


def decode(raw: Raw) -> Any:
    """A simple value as Python has it: what a filter compares. Of other kinds, its encoded form."""
    known = _DECODERS.get(raw[0])
    return known(raw) if known else raw


_DECODERS: dict[int, Callable[[Raw], Any]] = (
    dict.fromkeys(INTEGERS, integer)
    | dict.fromkeys((0xA1, 0xA3), lambda raw: raw[2:].decode())
    | dict.fromkeys((0xB1, 0xB3), lambda raw: raw[5:].decode())
    | {
        0x40: lambda _: None,
        0x41: lambda _: True,
        0x42: lambda _: False,
        0x56: lambda raw: raw[1] == 1,
        0x72: lambda raw: struct.unpack(">f", raw[1:])[0],
        0x82: lambda raw: struct.unpack(">d", raw[1:])[0],
        0x98: lambda raw: uuid.UUID(bytes=raw[1:]),
    }
)
