"""AMQP frames out of a byte stream, for the one fact Proton does not tell: a delivery's message-format.

The format alone says whether a delivery is a batch. It stands in a delivery's first transfer frame, so the
stream is handed to Proton in pieces that each complete at most one delivery, and the format goes along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from servicebus import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROTOCOL_HEADER = b"AMQP"
_HEADER_SIZE = 8
_MAX_FRAME = 1 << 21
_AMQP_FRAME = 0
_PERFORMATIVE = bytes((values.DESCRIBED, values.SMALL_ULONG))
_TRANSFER = 0x14
_TRUE = (b"\x41", b"\x56\x01")
_MESSAGE_FORMAT, _MORE = 3, 5  # positions in a transfer's list of fields


class Frame(NamedTuple):
    """One frame with a performative."""

    data: bytes
    body: int
    """Where the performative starts."""

    @property
    def channel(self) -> int:
        """The session, by the sender's number."""
        return int.from_bytes(self.data[6:8], "big")

    @property
    def code(self) -> int:
        """Which performative it is."""
        return self.data[self.body + 2]

    def fields(self, limit: int) -> list[values.Raw]:
        """Its first fields; those at the end may be missing."""
        return values.elements(self.data, self.body + 3, limit)


class Piece(NamedTuple):
    """Whole frames, and the message-format of the delivery they complete (0 if none)."""

    data: bytes
    message_format: int


class FrameReader:
    """Feed it what arrives; it gives back pieces for Proton and keeps the rest of an unfinished frame.

    Each frame with a performative is shown to `watch` first.
    """

    def __init__(self, watch: Callable[[Frame], None] = lambda _: None) -> None:
        self._watch = watch
        self._buffer = bytearray()
        self._open: dict[tuple[int, bytes], int] = {}  # (channel, handle) -> format of an unfinished delivery

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete now; ValueError when this is no AMQP."""
        self._buffer += data
        buffer, start, position = self._buffer, 0, 0
        pieces: list[Piece] = []
        while (size := self._frame_size(position)) is not None:
            position += size
            message_format = self._completed(bytes(buffer[position - size : position]))
            if message_format is not None:
                pieces.append(Piece(bytes(buffer[start:position]), message_format))
                start = position
        if position > start:
            pieces.append(Piece(bytes(buffer[start:position]), 0))
        del buffer[:position]
        yield from pieces

    def _frame_size(self, position: int) -> int | None:
        if len(self._buffer) - position < _HEADER_SIZE:
            return None
        head = self._buffer[position : position + 4]
        if head == _PROTOCOL_HEADER:
            return _HEADER_SIZE
        size = int.from_bytes(head, "big")
        if not _HEADER_SIZE <= size <= _MAX_FRAME:
            raise ValueError(f"a frame of {size} bytes")
        return size if len(self._buffer) - position >= size else None

    def _completed(self, data: bytes) -> int | None:
        """The message-format, if this frame is a delivery's last transfer."""
        frame = Frame(data, 4 * data[4])
        if (
            data[:4] == _PROTOCOL_HEADER
            or data[5] != _AMQP_FRAME
            or data[frame.body : frame.body + 2] != _PERFORMATIVE
        ):
            return None
        self._watch(frame)
        if frame.code != _TRANSFER:
            return None
        fields = frame.fields(_MORE + 1)
        delivery = (frame.channel, fields[0])
        if len(fields) > _MESSAGE_FORMAT and fields[_MESSAGE_FORMAT] != values.NULL:
            self._open.setdefault(delivery, values.integer(fields[_MESSAGE_FORMAT]))
        if len(fields) > _MORE and fields[_MORE] in _TRUE:
            return None
        return self._open.pop(delivery, 0)
