"""The SASL layer of a connection, answered here: Proton's server offers none of the mechanisms .NET's client wants."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from servicebus import values

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = b"AMQP\x03\x01\x00\x00"
_SIZE = 8  # of a protocol header, and of a frame's own header
_LONGEST = 65_536
_SASL_FRAME = 1
_MECHANISMS, _INIT, _OUTCOME = 0x40, 0x41, 0x44
_OFFERED = ("MSSBCBS", "PLAIN", "EXTERNAL", "ANONYMOUS")  # all but PLAIN put a token to $cbs afterwards
_OK, _WRONG = 0, 1


class Sasl:
    """Feed it what arrives until it is `done`; it says what to answer."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self.done = False
        self.failed = False
        self.trusted = False
        """Whether the client showed a key, with which it may do everything."""
        self.rest = b""
        """What came after this layer and belongs to the next."""
        self._keys = keys
        self._greeted = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes in; returns the answer. ValueError when this is no SASL."""
        self.rest += data
        answer = b""
        if not self._greeted:
            if len(self.rest) < _SIZE:
                return b""
            self._greeted = True
            if not self.rest.startswith(HEADER):  # a client may do without this layer
                self.done = True
                return b""
            self.rest = self.rest[_SIZE:]
            answer = HEADER + _frame(_MECHANISMS, _symbols(_OFFERED))
        size = int.from_bytes(self.rest[:4], "big")
        if len(self.rest) >= _SIZE and not _SIZE <= size <= _LONGEST:
            raise ValueError(f"a frame of {size} bytes")
        if len(self.rest) < _SIZE or len(self.rest) < size:
            return answer
        frame, self.rest = self.rest[:size], self.rest[size:]
        start = 4 * frame[4]
        if frame[5] != _SASL_FRAME or frame[start : start + 3] != bytes(
            (values.DESCRIBED, values.SMALL_ULONG, _INIT)
        ):
            raise ValueError("this is no answer to the mechanisms offered")
        mechanism, *response = values.elements(frame, start + 3, 2)
        outcome = self._judge(mechanism, *response)
        self.done, self.failed = outcome == _OK, outcome != _OK
        return answer + _frame(_OUTCOME, bytes((0x50, outcome)))

    def _judge(self, mechanism: bytes, response: bytes = values.NULL) -> int:
        if not self._keys or values.decode(mechanism) != "PLAIN":
            return _OK
        _, name, key = values.binary_of(response).split(b"\0")
        self.trusted = hmac.compare_digest(self._keys.get(name.decode(), "").encode(), key)
        return _OK if self.trusted else _WRONG


def _symbols(names: tuple[str, ...]) -> bytes:
    items = b"".join(bytes((len(name),)) + name.encode() for name in names)
    return b"\xe0" + bytes((len(items) + 2, len(names), 0xA3)) + items


def _frame(code: int, field: bytes) -> bytes:
    """A frame whose performative has this one field."""
    body = bytes((values.DESCRIBED, values.SMALL_ULONG, code, 0xC0, len(field) + 1, 1)) + field
    return (_SIZE + len(body)).to_bytes(4, "big") + bytes((2, _SASL_FRAME, 0, 0)) + body
