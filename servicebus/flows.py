"""The answers Proton does not give: that a link was drained, and why a connection ends.

A receiver that drains waits for a flow that says so, .NET's client for a minute; Proton sends it only for credit that
was left over. What the frame has to say is counted along from the frames of both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from servicebus import values
from servicebus.frames import FrameReader

if TYPE_CHECKING:
    from servicebus.frames import Frame

_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _CLOSE, _ERROR = 0x10, 0x11, 0x12, 0x13, 0x14, 0x18, 0x1D
_HEADER = b"AMQP\x00\x01\x00\x00"
_WINDOW = 0x7FFFFFFF  # as Proton says of itself
_MASK = 0xFFFFFFFF  # ids wrap around
_DRAIN = 8  # place in a flow


@dataclass
class _Session:
    """One channel of the broker's, and the client's channel of the same session."""

    channel: int
    next_outgoing: int


class Flows:
    """What one connection's frames have counted up to."""

    def __init__(self) -> None:
        self._reader = FrameReader(self.went)
        self._greeted = False
        self._said: set[int] = set()  # performatives of the broker's
        self._incoming: dict[int, int] = {}  # client's channel -> its next outgoing id
        self._sessions: dict[int, _Session] = {}  # by the client's channel
        self._client_channel: dict[int, int] = {}  # by the broker's channel
        self._names: dict[tuple[int, int], bytes] = {}  # (client's channel, its handle) -> link
        self._handles: dict[bytes, tuple[int, int]] = {}  # link -> client's channel, broker's handle
        self._limits: dict[bytes, int] = {}  # link that drains -> delivery count that uses its credit up

    def came(self, frame: Frame) -> None:
        """A frame of the client's."""
        if frame.code == _TRANSFER:
            if frame.channel in self._incoming:  # else Proton says what is wrong
                self._incoming[frame.channel] = (self._incoming[frame.channel] + 1) & _MASK
        elif frame.code == _BEGIN:
            self._incoming[frame.channel] = values.integer(frame.fields(2)[1])
        elif frame.code == _ATTACH:
            name, handle = frame.fields(2)
            self._names[frame.channel, values.integer(handle)] = name
        elif frame.code == _FLOW:
            fields = frame.fields(_DRAIN + 1)
            if len(fields) > _DRAIN and values.decode(fields[_DRAIN]) is True:
                link, count, credit = (values.integer(field) for field in fields[4:7])
                if (frame.channel, link) in self._names:
                    self._limits[self._names[frame.channel, link]] = (count + credit) & _MASK

    def write(self, data: bytes) -> None:
        """Bytes of the broker's are on their way."""
        for _ in self._reader.feed(data):
            self._greeted = True

    def went(self, frame: Frame) -> None:
        """A frame of the broker's."""
        self._said.add(frame.code)
        if frame.code == _TRANSFER:
            session = self._sessions[self._client_channel[frame.channel]]
            session.next_outgoing = (session.next_outgoing + 1) & _MASK
        elif frame.code == _BEGIN:
            channel, first = (values.integer(field) for field in frame.fields(2))
            self._client_channel[frame.channel] = channel
            self._sessions[channel] = _Session(frame.channel, first)
        elif frame.code == _ATTACH:
            name, handle = frame.fields(2)
            self._handles[name] = self._client_channel[frame.channel], values.integer(handle)

    def drained(self, link: str) -> bytes:
        """The flow that says that this link has no credit left."""
        name = values.string(link)
        channel, handle = self._handles[name]
        session = self._sessions[channel]
        numbers = (
            self._incoming[channel], _WINDOW, session.next_outgoing, _WINDOW, handle, self._limits[name], 0,
        )  # fmt: skip
        return _frame(_described(_FLOW, *map(values.uint32, numbers), values.NULL, b"\x41"), session.channel)

    def farewell(self, name: str, text: str) -> bytes:
        """What is left to be said for the client to see why its connection ends."""
        if _CLOSE in self._said:
            return b""
        greeting = b"" if self._greeted else _HEADER
        if _OPEN not in self._said:
            greeting += _frame(_described(_OPEN, values.string("local-service-bus")))
        # The SDK looks at all three fields of an error.
        error = _described(_ERROR, values.symbol(name), values.string(text), values.encode_map({}))
        return greeting + _frame(_described(_CLOSE, error))


def _described(code: int, *fields: bytes) -> bytes:
    return bytes((values.DESCRIBED, values.SMALL_ULONG, code)) + values.encode_list(list(fields))


def _frame(body: bytes, channel: int = 0) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body
