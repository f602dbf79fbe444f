"""What breaks the rules of AMQP: told to whoever sent it, and nobody else's messages are touched."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage

from servicebus import values
from servicebus.entities import Queue
from servicebus.errors import Refused
from servicebus.message import Message
from tests.support import service_bus
from tests.support.amqp import ATTACH, BEGIN, Wire

if TYPE_CHECKING:
    from servicebus.launcher import Broker
    from servicebus.queue import MessageQueue
    from tests.support.service_bus import Bus

pytestmark = service_bus.sdk_forgets_sockets
broker = service_bus.broker_fixture(Queue("q"))
bus = service_bus.client_fixture()
CLOSE = 0x18
BODY = b"\x00\x53\x75\xa0\x02{}"


@pytest.mark.parametrize("code", [BEGIN, ATTACH], ids=["begin", "attach"])
def test_a_malformed_frame_is_told_and_others_are_served(broker: Broker, bus: Bus, code: int) -> None:
    """The connection that a frame without its fields came over ends with an error in words; another one's does not."""
    bus.sender("q").send_messages(ServiceBusMessage("x"))
    with Wire(broker.port) as wire:
        wire.open()
        wire.send(code)
        (error,) = wire.receive(CLOSE)
        assert b"amqp:decode-error" in error
        with pytest.raises(ConnectionError):
            wire.receive(CLOSE)
    (message,) = bus.receiver("q").receive_messages(max_wait_time=20)
    bus.receiver("q").complete_message(message)


def test_whoever_speaks_no_amqp_is_told_what_is_spoken_here(broker: Broker) -> None:
    """An HTTP request gets AMQP's greeting and an error, and the end of the connection."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said = b""
        while data := client.recv(4096):
            said += data
    assert said.startswith(b"AMQP\x00\x01\x00\x00")
    assert b"amqp:decode-error" in said


def _managed(name: str, asked: dict[str, Any]) -> tuple[Exception | None, dict[str, int], int]:
    """What becomes of a locked message that such a request is about: the error, the counts, how many are kept."""
    service_bus.require_broker()
    from servicebus.broker import Broker as InProcess  # noqa: PLC0415 - these need Proton
    from servicebus.management import perform  # noqa: PLC0415

    class Taker:
        waiting, deletes, has_credit = False, False, True

        def send(self, _message: bytes, lock: Any) -> None:
            self.token = lock.token

        def cut(self) -> None: ...

    async def act() -> tuple[Exception | None, dict[str, int], int]:
        one = InProcess([Queue("q")])
        queue: MessageQueue = one.entities["q"]
        queue.publish([BODY])
        taker = Taker()
        queue.attach(taker)
        queue.dispatch()
        body = {"lock-tokens": [taker.token, taker.token], **asked}
        error: Exception | None = None
        try:
            perform(one, queue, name, body)
        except (Refused, TypeError, ValueError) as found:
            error = found
        return error, queue.counts(), len(list(one.store.messages("q")))

    return asyncio.run(act())


@pytest.mark.parametrize("field", ["deadletter-reason", "deadletter-description"])
def test_a_reason_that_is_no_text_loses_no_message(field: str) -> None:
    """To dead-letter with a number for a reason is refused, and the message stays locked as it was."""
    error, counts, kept = _managed("update-disposition", {"disposition-status": "suspended", field: 7})
    assert isinstance(error, TypeError)
    assert (counts["locked"], kept) == (1, 1)


def test_a_lock_that_is_named_twice_is_settled_once() -> None:
    """The message is gone, in memory and in the store alike."""
    error, counts, kept = _managed("update-disposition", {"disposition-status": "completed"})
    assert (error, counts["locked"], counts["active"], kept) == (None, 0, 0, 0)


def test_a_message_whose_bytes_are_a_number_is_refused() -> None:
    """A count in the place of a scheduled message is an error, and not so many zeros."""
    error, _, kept = _managed("schedule-message", {"messages": [{"message": 2**40}]})
    assert isinstance(error, TypeError)
    assert kept == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x53\x74" + values.encode_map({values.int32(7): values.int32(7)}) + BODY,
        b"\x00\x53\x70" + values.encode_list([values.NULL, values.NULL, values.string("soon")]) + BODY,
        b"\x00\x53\x73\xc0\x05\x01\xa1\x09id" + BODY,
        b"\x00" * 100_000,
    ],
    ids=[
        "a property named by a number",
        "a text for a time to live",
        "a value cut short",
        "descriptors of descriptors",
    ],
)
def test_a_message_that_could_not_be_read_later_is_refused_at_once(raw: bytes) -> None:
    """Whatever filters, limits or a restart would stumble over is refused when it is sent."""
    with pytest.raises((ValueError, IndexError)):
        Message.sent(raw)


def test_a_long_header_is_kept() -> None:
    """A header of more than 255 bytes is taken, and read again from what is stored."""
    header = [values.string("x" * 200), values.string("y" * 200)]
    message = Message.sent(b"\x00\x53\x70" + values.encode_list(header) + BODY)
    assert Message.parse(message.encode()).header[:2] == header
