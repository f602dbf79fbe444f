"""What comes over a connection to the local Service Bus, and over its control channel."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from servicebus import values
from servicebus.entities import Queue, Subscription, Topic
from servicebus.frames import Frame, FrameReader
from servicebus.launcher import available
from servicebus.message import BATCH_FORMAT, Message

if TYPE_CHECKING:
    from collections.abc import Callable


SASL_REFUSED = b"\x44\xc0\x03\x01\x50\x01"
SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
CUT = b"\xfa\xce"
"""Ends a frame in a target's bytes, so that one that is changed still has the size that it says."""
CALM = "calm-e4b1"
"""The queue of the client that keeps to the rules."""
RAW = b"\x01"
"""Begins bytes that are given to the broker as they are."""
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ENTITIES = (
    Queue("q", dedup=600, quota=4096, forward_dead_letters="dead"),
    Queue("dead"),
    Queue(CALM),
    Topic("t", (Subscription("s", filter="sys.Label = 'paid' AND total > 5"), Subscription("all", ttl=60))),
)


class Socket(asyncio.Transport):
    """A client's end, in memory: what the broker wrote, and how it ended the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.end = ""

    def write(self, data: Any) -> None:
        """Called by the broker."""
        self.written += bytes(data)

    def close(self) -> None:
        """Called by the broker, to end politely."""
        self.end = self.end or "closed"

    def abort(self) -> None:
        """Called by the broker, to cut."""
        self.end = self.end or "cut"

    def pause_reading(self) -> None:
        """Nothing is read by itself here."""

    def resume_reading(self) -> None:
        """Nothing is read by itself here."""

    def frames(self) -> list[Frame]:
        """The performatives after the last protocol header."""
        found: list[Frame] = []
        list(FrameReader(found.append).feed(self.written[max(0, self.written.rfind(AMQP)) :]))
        return found


def connection(data: bytes) -> None:
    """Whatever one client sends, it is answered or told in a close frame what is wrong; another is served."""
    asyncio.run(_connection(data))


async def _connection(data: bytes) -> None:
    from servicebus.broker import Broker  # noqa: PLC0415 - these need Proton
    from servicebus.connection import Connection  # noqa: PLC0415

    troubles: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    broker = Broker(ENTITIES)
    ends = []
    for pieces in (_pieces(data), _pieces(_good(CALM))):
        socket, client = Socket(), Connection(broker)
        client.connection_made(socket)
        for piece in pieces:
            if not socket.end:
                client.data_received(piece)
                await _settled()
        ends.append((socket, client))
    (odd, _), (calm, _) = ends
    assert not troubles, troubles
    assert b"amqp:internal-error" not in odd.written
    if odd.end:
        assert odd.end == "closed"
        said = odd.frames()
        assert said or odd.written.endswith(SASL_REFUSED), odd.written
        assert not said or said[-1].code == CLOSE
        assert not said or CLOSED in data or said[-1].fields(1) not in ([], [values.NULL])
    assert [f for f in calm.frames() if f.code == DISPOSITION and b"\x00\x53\x24" in f.data]
    assert [f for f in calm.frames() if f.code == TRANSFER], "the other client got nothing"
    for name in broker.entities:
        list(broker.store.messages(name))
    for socket, client in ends:
        if not socket.end or socket.end == "closed":
            client.connection_lost(None)
    assert not broker.connections
    broker.store.close()


async def _settled() -> None:
    """Let what the loop has been given be done."""
    for _ in range(5):
        await asyncio.sleep(0)


def stored(data: bytes) -> None:
    """What a client sends as a message: refused, or kept so that a broker that starts again reads the same."""
    try:
        message = Message.sent(data)
    except (ValueError, IndexError):
        return
    again = Message.parse(message.encode(locked_until=5.0, with_state=True))
    assert again.body == message.body
    assert again.property_fields() == message.property_fields()
    assert again.application_properties() == message.application_properties()
    assert again.time_to_live == message.time_to_live


def command(data: bytes) -> None:
    """A line of the control channel: one answer, that it is done or what is wrong."""
    asyncio.run(_command(data.decode("utf-8", "replace")))


async def _command(line: str) -> None:
    from servicebus.broker import Broker  # noqa: PLC0415 - these need Proton
    from servicebus.control import obey  # noqa: PLC0415

    broker = Broker(ENTITIES)
    answer = obey(broker, line)
    assert answer["ok"] or answer["error"]
    json.dumps(answer)
    obey(broker, '{"do": "clock", "seconds": 0}')
    for fault in broker.faults._armed:  # each operation looks at these, of whatever client
        assert isinstance(fault.entity, str | None)
        assert isinstance(fault.count, int)
        assert isinstance(fault.skip, int)
    broker.store.close()


def _pieces(data: bytes) -> list[bytes]:
    """What comes over a connection: after a first 0x01 the bytes as they are, else performatives, each in a frame."""
    if data.startswith(RAW):
        return [data[1:]]
    return [AMQP, *(_frame(body) for body in data.split(CUT) if body)]


def _frame(body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def _list(*fields: bytes) -> bytes:
    return values.encode_list(list(fields))


def _said(code: int, *fields: bytes) -> bytes:
    return bytes((values.DESCRIBED, values.SMALL_ULONG, code)) + _list(*fields)


def _uint(number: int) -> bytes:
    return b"\x52" + bytes((number,))


def _attach(name: str, handle: int, address: str, *, receiver: bool) -> bytes:
    modes = (b"\x50\x00", b"\x50\x00")
    ends = (_said(0x28, values.string(address)), _said(0x29, values.string(address)))
    role = b"\x41" if receiver else b"\x42"
    return _said(
        ATTACH, values.string(name), _uint(handle), role, *modes, *ends, values.NULL, b"\x42", _uint(0)
    )


def _transfer(handle: int, number: int, message: bytes, message_format: int = 0) -> bytes:
    kind = values.uint32(message_format)
    return (
        _said(TRANSFER, _uint(handle), _uint(number), b"\xa0\x01" + bytes((number,)), kind, b"\x42", b"\x42")
        + message
    )


def _flow(handle: int, credit: int, *, drain: bool = False) -> bytes:
    window = (_uint(0), values.uint32(5000), _uint(0), values.uint32(5000))
    return _said(
        FLOW, *window, _uint(handle), _uint(0), _uint(credit), values.NULL, b"\x41" if drain else b"\x42"
    )


HELLO = (
    _said(OPEN, values.string("me")),
    _said(BEGIN, values.NULL, _uint(0), values.uint32(5000), values.uint32(5000)),
)
DATA = b"\x00\x53\x75\xa0\x02{}"
CLOSED = _said(CLOSE)[:3]


def _good(queue: str) -> bytes:
    sending = (_attach("s", 0, queue, receiver=False), _transfer(0, 0, DATA))
    return CUT.join((*HELLO, *sending, _attach("r", 1, queue, receiver=True), _flow(1, 50)))


PROPERTIES = b"\x00\x53\x73" + _list(values.string("m-1"), values.NULL, values.NULL, values.string("paid"))
APPLICATION = b"\x00\x53\x74" + values.encode_map({values.string("total"): values.int32(7)})
ASKED = (
    b"\x00\x53\x73" + _list(values.string("1"), values.NULL, values.string("q"), values.NULL, values.string("r"))
    + b"\x00\x53\x74" + values.encode_map({values.string("operation"): values.string("com.microsoft:peek-message")})
    + b"\x00\x53\x77" + values.encode_map(
        {values.string("from-sequence-number"): values.long(0), values.string("message-count"): values.int32(5)}
    )
)  # fmt: skip

TARGETS: dict[Callable[[bytes], None], tuple[bytes, ...]] = {
    stored: (
        DATA,
        b"\x00\x53\x70" + _list(b"\x41", b"\x50\x04", values.uint32(60_000)) + PROPERTIES + APPLICATION + DATA,
        b"\x00\x53\x72"
        + values.encode_map({values.symbol("x-opt-scheduled-enqueue-time"): values.timestamp(4e9)})
        + b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x02{}",
    ),
} | (
    {
        connection: (
            _good("q"),
            CUT.join(
                (*HELLO, _attach("s", 0, "q", receiver=False), _transfer(0, 0, PROPERTIES + APPLICATION + DATA),
                 _attach("r", 1, "q", receiver=True), _flow(1, 5),
                 _said(DISPOSITION, b"\x41", _uint(0), _uint(0), b"\x41", _said(0x25)), _flow(1, 5, drain=True),
                 _said(DETACH, _uint(1), b"\x41"), _said(END), _said(CLOSE))
            ),
            CUT.join(
                (*HELLO, _attach("s", 0, "t", receiver=False), _transfer(0, 0, PROPERTIES + APPLICATION + DATA),
                 _transfer(0, 1, b"\x00\x53\x75\xa0\x05" + DATA, BATCH_FORMAT))
            ),
            CUT.join(
                (*HELLO, _attach("s", 0, "q/$management", receiver=False),
                 _attach("r", 1, "q/$management", receiver=True), _flow(1, 5), _transfer(0, 0, ASKED))
            ),
            RAW + SASL + b"\x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x02\xa3\x07MSSBCBS\xa0\x00" + AMQP
            + _frame(HELLO[0]),
                RAW + SASL + b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x41\x45" + bytes(4),
            RAW + SASL + b"\xff\xff\xff\xff\x02\x01\x00\x00",
            RAW + b"GET / HTTP/1.1\r\n\r\n",
        ),
        command: (
            b'{"fault": "drop-after-apply", "op": "complete", "entity": "q", "count": 1, "skip": 0}',
            b'{"fault": "busy", "op": "send", "entity": ["q"], "count": 1.5}',
            b'{"do": "clock", "seconds": 120}',
            b'{"do": "detach", "entity": "q"}',
            b'{"do": "lose-locks", "entity": ["q"]}',
            b"[[[[",
        ),
    }
    if available()
    else {}
)  # fmt: skip
