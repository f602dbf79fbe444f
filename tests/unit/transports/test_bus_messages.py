"""Service Bus messages of other producers, byte by byte."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from runonce.messages.backoff import LONGEST_WAIT, backoff
from runonce.transports import amqp
from runonce.transports.bus_receiver import Receiver, received_by
from runonce.transports.copies import copy_of
from tests.support.messages import handling

if TYPE_CHECKING:
    from runonce.transports.protocols import Delivery

BODY = b"\x00\x53\x75\xa0\x02{}"


class Seen(Receiver):
    """A receiver that has seen one message."""

    def __init__(self, name: str, value: bytes) -> None:
        self.source = ("orders", None)
        pairs = amqp._string(name) + value
        self.raw = b"\x00\x53\x74\xd1" + struct.pack(">II", len(pairs) + 4, 2) + pairs + BODY

    def original(self, number: int) -> bytes | None:  # noqa: ARG002 - it has but one
        return self.raw

    def delivery(self) -> Delivery:
        """The message as a handler gets it."""
        return received_by(self, ServiceBusReceivedMessage.from_bytes(self.raw))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x73\x00\x00\x00A", "A"),
        (b"\x73\x00\x01\xf6\x00", "\U0001f600"),
        (b"\x73\x00\x00\xd8\x00", "\ufffd"),
        (b"\x74\xb2\x50\x00\x01", "slAAAQ=="),
        (b"\x84\xb1\xc0" + bytes(6), "scAAAAAAAAA="),
    ],
    ids=["char", "astral", "half a char", "decimal32", "decimal64"],
)
def test_a_type_that_the_sdk_does_not_know_can_be_read(value: bytes, shown: Any) -> None:
    """A property of such a type, as of .NET's char, keeps nobody from reading its message and its queue."""
    came = Seen("kind", value).delivery()
    assert (came.unreadable, came.body, dict(came.properties)) == ("", b"{}", {"kind": shown})


@pytest.mark.parametrize(
    ("value", "times"),
    [
        (b"\x71" + struct.pack(">i", 7), 7),
        (b"\x71" + struct.pack(">i", -7), 0),
        (b"\x71" + struct.pack(">i", 2**31 - 1), 0),
        (b"\x81" + struct.pack(">q", 2**62), 0),
        (b"\x80" + b"\xff" * 8, 0),
    ],
    ids=["ours", "negative", "largest", "long", "unsigned"],
)
def test_a_count_that_nobody_can_have_come_to_does_not_stop_a_copy(value: bytes, times: int) -> None:
    """How often a message was sent back is a property anybody can set; one that is no such count is left."""
    seen = Seen("runonce-reschedules", value)
    came = seen.delivery()
    assert came.reschedules == times
    again = copy_of(handling(), came, 0.0)
    marks: dict[str, str | int] = {"runonce-reschedules": again.reschedules}
    assert amqp.copied(seen.raw, message_id="m", at=None, passed=0.0, drop=(), add=marks)


def test_no_count_makes_a_wait_that_cannot_be_told() -> None:
    """An envelope's count may be any whole number."""
    assert 0 < backoff(-(10**400)) < backoff(10**400) <= 1.2 * LONGEST_WAIT


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x83" + b"\x7f" * 8, 0x7F7F7F7F7F7F7F7F),
        (b"\x00\xa3\x1dcom.microsoft:datetime-offset\x81" + b"\x7f" * 8, 0x7F7F7F7F7F7F7F7F),
        (b"\x00\xa3\x1dcom.microsoft:datetime-offset\x81" + b"\xff" * 8, -1),
    ],
    ids=["timestamp", "datetime-offset", "before the calendar"],
)
def test_an_instant_beyond_the_calendar_is_the_number_it_travels_as(value: bytes, shown: int) -> None:
    """Such a property of a message makes it no less readable: the handler gets the number."""
    came = Seen("at", value).delivery()
    assert (came.unreadable, came.body, dict(came.properties)) == ("", b"{}", {"at": shown})


def test_a_time_to_live_of_another_width_is_copied_as_far_as_amqp_can_say() -> None:
    """One of 64 bits becomes the longest of 32, and the copy is sent."""
    header = b"\x00\x53\x70\xc0\x0d\x03\x41\x50\x04\x80" + b"\x7f" * 8
    copy = amqp.copied(header + BODY, message_id="m-2", at=None, passed=5, drop=(), add={})
    assert b"\x70\xff\xff\xff\xff" in copy


def test_descriptors_of_descriptors_are_no_message() -> None:
    """However deep they go, they are refused as bytes that are no message."""
    with pytest.raises(ValueError, match="itself described"):
        amqp.copied(b"\x00" * 100_000, message_id="m-2", at=None, passed=0, drop=(), add={})


def test_a_message_with_a_section_that_only_the_sdk_can_read_is_handled() -> None:
    """Where the instants among its properties cannot be told from numbers, they are numbers, and its body is read."""
    one = Seen("at", b"\x83" + b"\x00\x00\x01\x9a\xcd\x8d\x97\x80")
    native = ServiceBusReceivedMessage.from_bytes(one.raw)
    one.raw = b"\x01" + one.raw
    came = received_by(one, native)
    assert (came.unreadable, came.body, dict(came.properties)) == ("", b"{}", {"at": 0x19ACD8D9780})


@pytest.mark.parametrize(
    "section", [b"\x00\x53\x72\x82\x3f" + bytes(7), b"\x00\x53\x70\xc0\x08\x05\x40\x40\x40\x40\xa1\x01x"]
)
def test_a_message_whose_own_parts_are_malformed_is_delivered_as_unreadable(section: bytes) -> None:
    """Annotations that are no map, or a count that is no number, keep no others of a batch back."""
    came = received_by(Seen("at", b"\x41"), ServiceBusReceivedMessage.from_bytes(section + BODY))
    assert came.unreadable.startswith("of a form that cannot be read")
    assert came.delivery_count == 1
