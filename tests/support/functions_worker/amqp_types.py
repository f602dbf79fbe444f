"""AMQP types that the Python client does not tell apart, told apart: the Functions host does.

The client decodes strings and binaries to the same bytes, timestamps to numbers, and knows no characters. Its table
of decoders is changed so that binaries and timestamps are marked; to all other users of it they stay what they were.
"""

import datetime as dt
from typing import Any

from azure.servicebus._pyamqp import _decode

_CHARACTER, _TIMESTAMP = 0x73, 0x83
_BINARIES = (0xA0, 0xB0)
_TICKS_PER_MICROSECOND = 10


class Binary(bytes):
    """Bytes sent as such, and not as a string."""


class Timestamp(int):
    """Milliseconds since 1970."""


def plain(value: Any) -> Any:
    """A decoded value as Python has it: str, bytes, datetime, timedelta, number, bool, UUID, or None."""
    descriptor = getattr(value, "descriptor", None)
    if isinstance(value, Binary):
        return bytes(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Timestamp):
        return dt.datetime.fromtimestamp(value / 1000, dt.UTC)
    if descriptor == b"com.microsoft:timespan":
        return dt.timedelta(microseconds=value // _TICKS_PER_MICROSECOND)
    if descriptor == b"com.microsoft:datetime-offset":
        since = dt.timedelta(microseconds=value // _TICKS_PER_MICROSECOND)
        return dt.datetime(1, 1, 1, tzinfo=dt.UTC) + since
    return value


def _marking(decode: Any, mark: type) -> Any:
    def marked(buffer: memoryview, depth: int = 0) -> tuple[memoryview, Any]:
        rest, value = decode(buffer, depth)
        return rest, mark(value)

    return marked


def _decode_character(buffer: memoryview, _depth: int = 0) -> tuple[memoryview, bytes]:
    return buffer[4:], bytes(buffer[:4]).decode("utf-32-be", "replace").encode()


def _tell_apart() -> None:
    decoders = _decode._DECODE_BY_CONSTRUCTOR
    for code in _BINARIES:
        decoders[code] = _marking(decoders[code], Binary)
    decoders[_TIMESTAMP] = _marking(decoders[_TIMESTAMP], Timestamp)
    decoders[_CHARACTER] = _decode_character


_tell_apart()
