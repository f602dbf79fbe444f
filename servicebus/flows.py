"""The answer Proton does not give: the flow that says a link was drained although its credit was used up.

A receiver that drains waits for that flow, .NET's client for a minute. Proton sends it only for credit that was
left over. What the frame has to say is counted along from the frames of both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from servicebus import values
from servicebus.frames import FrameReader

if TYPE_CHECKING:
    from servicebus.frames import Frame

_BEGIN, _ATTACH, _FLOW, _TRANSFER = 0x11, 0x12, 0x13, 0x14
_WINDOW = 0x7FFFFFFF  # as Proton says of itself
_MASK = 0xFFFFFFFF  # ids wrap around
_DRAIN = 8  # place in a flow


@dataclass
class _Session:
    """One channel of the broker's, and the client's channel of the same session."""

    channel: int
    next_incoming: int
    next_outgoing: int


class Flows:
    """What one connection's frames have counted up to."""

    def __init__(self) -> None:
        self._reader = FrameReader(self.went)
        self._begun: dict[int, int] = {}  # client's channel -> its next outgoing id at the start
        self._sessions: dict[int, _Session] = {}  # by the client's channel
        self._client_channel: dict[int, int] = {}  # by the broker's channel
        self._names: dict[tuple[int, int], bytes] = {}  # (client's channel, its handle) -> link
        self._handles: dict[bytes, tuple[int, int]] = {}  # link -> client's channel, broker's handle
        self._limits: dict[bytes, int] = {}  # link that drains -> delivery count that uses its credit up

    def came(self, frame: Frame) -> None:
        """A frame of the client's."""
        if frame.code == _TRANSFER:
            session = self._sessions[frame.channel]
            session.next_incoming = (session.next_incoming + 1) & _MASK
        elif frame.code == _BEGIN:
            self._begun[frame.channel] = values.integer(frame.fields(2)[1])
        elif frame.code == _ATTACH:
            name, handle = frame.fields(2)
            self._names[frame.channel, values.integer(handle)] = name
        elif frame.code == _FLOW:
            fields = frame.fields(_DRAIN + 1)
            if len(fields) > _DRAIN and values.decode(fields[_DRAIN]) is True:
                link, count, credit = (values.integer(field) for field in fields[4:7])
                self._limits[self._names[frame.channel, link]] = (count + credit) & _MASK

    def write(self, data: bytes) -> None:
        """Bytes of the broker's are on their way."""
        for _ in self._reader.feed(data):
            pass

    def went(self, frame: Frame) -> None:
        """A frame of the broker's."""
        if frame.code == _TRANSFER:
            session = self._sessions[self._client_channel[frame.channel]]
            session.next_outgoing = (session.next_outgoing + 1) & _MASK
        elif frame.code == _BEGIN:
            channel, first = (values.integer(field) for field in frame.fields(2))
            self._client_channel[frame.channel] = channel
            self._sessions[channel] = _Session(frame.channel, self._begun[channel], first)
        elif frame.code == _ATTACH:
            name, handle = frame.fields(2)
            self._handles[name] = self._client_channel[frame.channel], values.integer(handle)

    def drained(self, link: str) -> bytes:
        """The flow that says that this link has no credit left."""
        name = values.string(link)
        channel, handle = self._handles[name]
        session = self._sessions[channel]
        numbers = (
            session.next_incoming, _WINDOW, session.next_outgoing, _WINDOW, handle, self._limits[name], 0,
        )  # fmt: skip
        fields = b"".join(map(values.uint32, numbers)) + values.NULL + b"\x41"
        body = (
            bytes((values.DESCRIBED, values.SMALL_ULONG, _FLOW, 0xC0, len(fields) + 1, _DRAIN + 1)) + fields
        )
        return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + session.channel.to_bytes(2, "big") + body
