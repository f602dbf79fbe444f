"""AMQP frame by frame, for what a client of another language does and the Python client never would."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Self

from servicebus import values
from servicebus.frames import FrameReader

if TYPE_CHECKING:
    from servicebus.frames import Frame

SASL_INIT, SASL_OUTCOME = 0x41, 0x44
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DETACH = 0x10, 0x11, 0x12, 0x13, 0x14, 0x16
_SASL_HEADER, _HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
_SECONDS = 10.0


def described(code: int, *fields: bytes) -> bytes:
    """A described list of encoded fields."""
    return bytes((values.DESCRIBED, values.SMALL_ULONG, code)) + values.encode_list(list(fields))


def binary(data: bytes) -> bytes:
    """A short binary."""
    return bytes((0xA0, len(data))) + data


class Wire:
    """One connection, past its SASL layer; what it reads is (performative, its fields)."""

    def __init__(self, port: int, mechanism: str = "MSSBCBS", response: bytes = b"") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._frames: list[Frame] = []
        self._reader = FrameReader(self._frames.append)
        self._socket.sendall(_SASL_HEADER)
        assert self._read(8) == _SASL_HEADER
        self.offered = self._read_sasl()
        self._send(described(SASL_INIT, values.symbol(mechanism), binary(response)), kind=1)
        self.outcome = self._read_sasl()[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def open(self, *, idle_timeout: int | None = None) -> list[Any]:
        """Open the connection and one session; returns the fields of the answer."""
        idle = values.NULL if idle_timeout is None else values.uint32(idle_timeout)
        self._socket.sendall(_HEADER)
        self.send(OPEN, values.string("wire"), *[values.NULL] * 3, idle)
        assert self._read(8) == _HEADER
        answer = self.receive(OPEN)
        self.send(BEGIN, values.NULL, values.uint32(0), values.uint32(5000), values.uint32(5000))
        self.receive(BEGIN)
        return answer

    def attach(self, name: str, *, receiver: bool, source: bytes, target: bytes) -> None:
        """Attach the link of handle 0; source and target are encoded."""
        role = b"\x41" if receiver else b"\x42"
        modes = (b"\x50\x00", b"\x50\x00")
        count = (values.NULL, b"\x42", values.uint32(0))
        self.send(ATTACH, values.string(name), values.uint32(0), role, *modes, source, target, *count)

    def drain(self, credit: int, count: int = 0) -> None:
        """Ask for that many messages or, if there are fewer, for the credit back."""
        window = (values.uint32(0), values.uint32(5000), values.uint32(0), values.uint32(5000))
        link = (values.uint32(0), values.uint32(count), values.uint32(credit), values.NULL, b"\x41")
        self.send(FLOW, *window, *link)

    def send(self, code: int, *fields: bytes) -> None:
        """Send one performative on channel 0."""
        self._send(described(code, *fields))

    def receive(self, code: int) -> list[Any]:
        """The fields of the next frame of this kind; frames of other kinds before it are dropped."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.code == code:
                    return [values.decode(field) for field in frame.fields(20)]
            self._feed()

    def bytes_within(self, seconds: float) -> bytes:
        """What comes in that time, none of it read as frames."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(4096)
        finally:
            self._socket.settimeout(_SECONDS)

    def _send(self, body: bytes, *, kind: int = 0) -> None:
        self._socket.sendall((8 + len(body)).to_bytes(4, "big") + bytes((2, kind, 0, 0)) + body)

    def _feed(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        list(self._reader.feed(data))

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = self._socket.recv(size - len(found))
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            found += data
        return found

    def _read_sasl(self) -> bytes:
        size = int.from_bytes(head := self._read(4), "big")
        return head + self._read(size - 4)
