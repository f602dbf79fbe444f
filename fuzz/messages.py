"""Messages: their bodies, how Storage queues have them, and how they travel on Service Bus."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import pydantic
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload

from fuzz.texts import SECRET
from runonce import Message, handler
from runonce.errors import InputError, PermanentError
from runonce.messages.sending import body_bytes, outgoing
from runonce.testing import Complete, DeadLetter, Workbench
from runonce.transports import amqp
from runonce.transports.bus_receiver import Receiver, received_by
from runonce.transports.copies import copy_of, dead_copy
from runonce.transports.envelope import unwrap, wrap
from runonce.transports.protocols import Delivery, Outgoing
from runonce.transports.storage import StorageInbox, StorageSender, put_aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.definition import Handler

AT = datetime(2026, 11, 29, 3, tzinfo=UTC)


class Line(pydantic.BaseModel):
    """A model in the model."""

    cents: int
    currency: Literal["EUR", "TRY"]


class Invoice(pydantic.BaseModel):
    """What a handler may ask for."""

    id: str
    lines: list[Line] = []
    due: datetime | None = None


def _handling(**options: Any) -> Handler:
    @handler(**{"queue": "invoices", "key": "id", "name": "send_invoice", **options})
    def handle(message: Message) -> None:
        _ = message.text, message.find("id")

    return handle


@handler(queue="invoices", key="id", name="send_invoice")
def modelled(invoice: Invoice) -> None:
    """Takes a model."""


HANDLERS = (
    _handling(),
    modelled,
    _handling(key="order.id", fingerprint=("order.total", "id")),
    _handling(key=lambda m: m.json["id"] + m.json["order"]["id"]),
    _handling(key=None, lock="customer:{id}:{order.id}"),
    _handling(fingerprint=lambda m: m.json["order"]),
)


def body(data: bytes) -> None:
    """A body: done, or dead-lettered with a reason and no word of what is private; and the same when it comes again."""
    for one in HANDLERS:
        bench = Workbench()
        delivery = Delivery(data, "m-1", 1, AT)
        first = bench.deliverer.deliver(one, delivery)
        assert isinstance(first, Complete | DeadLetter), first
        if isinstance(first, DeadLetter):
            assert first.reason
            assert "message m-1" in first.description
            assert SECRET not in first.description
        again = bench.deliverer.deliver(one, replace(delivery, delivery_count=2))
        assert type(again) is type(first)
        with suppress(PermanentError, InputError):
            assert outgoing(one, data).body == data == body_bytes(one.name, data)


def envelope(data: bytes) -> None:
    """A text of a Storage queue: a delivery with parts of their types, which loses nothing when it is put aside."""
    put: list[str] = []
    sender = cast("StorageSender", SimpleNamespace(put=lambda _, text: put.append(text)))
    text = data.decode("utf-8", "replace")
    for encoding in (None, "base64", "none"):
        one = replace(HANDLERS[0], queue_encoding=encoding)
        native = SimpleNamespace(content=text, id="q-1", dequeue_count=2, inserted_on=AT, pop_receipt="p")
        delivery = StorageInbox(sender, one, 30)._delivery(native)
        _check(delivery)
        assert delivery.reschedules >= 0
        put.clear()
        put_aside(sender, "invoices", delivery, DeadLetter("NotJson", "it is not", on_claim=False))
        kept, _ = unwrap(put[0], message_id="q-2", delivery_count=1, enqueued_at=AT, encoding=encoding)
        assert delivery.unreadable or kept.body == delivery.body
        again, _ = unwrap(
            wrap(Outgoing(delivery.body, "m-2", properties=delivery.properties, sent_as=delivery.sent_as)),
            message_id="q-3",
            delivery_count=1,
            enqueued_at=AT,
            encoding=encoding,
        )
        assert (again.body, again.message_id, again.sent_as) == (delivery.body, "m-2", delivery.sent_as)


def amqp_message(data: bytes) -> None:
    """A message as it travels: what the SDK reads of it is a delivery, and its copies are whole or refused by name."""
    with suppress(ValueError):
        amqp.sequence_number(data)
    with suppress(ValueError):
        amqp.timestamps(data)
    copied: bytes | None = None
    with suppress(ValueError):
        copied = amqp.copied(
            data, message_id="m-2", at=1e9, passed=5, drop={"runonce-dead"}, add={"runonce-reschedules": 3}
        )
    if copied is not None:
        assert amqp.copied(copied, message_id="m-3", at=None, passed=0, drop=(), add={})
    try:
        native = ServiceBusReceivedMessage(decode_payload(memoryview(data)), receiver=None)
    except Exception:  # noqa: BLE001 - what the SDK itself cannot read never comes to us
        return
    receiver = cast("Receiver", SimpleNamespace(original=lambda _: data))
    delivery = received_by(receiver, native)
    _check(delivery)
    for one in HANDLERS[:1]:
        settlement = Workbench().deliverer.deliver(one, delivery)
        assert isinstance(settlement, Complete | DeadLetter), settlement
        copy_of(one, delivery, 5.0)
        dead_copy(one, delivery, "NotJson", "it is not")


def _check(delivery: Delivery) -> None:
    texts = (
        delivery.message_id,
        delivery.correlation_id,
        delivery.sent_as,
        delivery.only_for,
        delivery.unreadable,
    )
    assert all(isinstance(text, str) for text in (*texts, delivery.subject, delivery.content_type))
    assert isinstance(delivery.body, bytes)
    assert isinstance(delivery.reschedules, int)
    assert all(isinstance(v, str | int | float | bool | None) for v in delivery.properties.values())
    assert all(isinstance(name, str) for name in delivery.properties)
    assert delivery.dead is None or all(isinstance(text, str) for text in delivery.dead)


def _string(text: str) -> bytes:
    return b"\xa1" + bytes((len(text),)) + text.encode()


def _map(*parts: bytes) -> bytes:
    inner = b"".join(parts)
    return b"\xd1" + (len(inner) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big") + inner


WHOLE = (
    b"\x00\x53\x70\xc0\x09\x03\x41\x50\x04\x70\x00\x00\xea\x60"
    + b"\x00\x53\x72"
    + _map(b"\xa3\x15x-opt-sequence-number", b"\x81" + bytes(7) + b"\x07", b"\xa3\x15x-opt-enqueued-time--", b"\x40")
    + b"\x00\x53\x73\xc0\x0f\x03" + _string("m-1") + b"\x40" + _string("to-who")[:8]
    + b"\x00\x53\x74"
    + _map(
        _string("runonce-reschedules"), b"\x54\x03",
        _string("at"), b"\x83" + (1_764_385_200_000).to_bytes(8, "big"),
        _string("far"), b"\x83" + b"\x7f" * 8,
        _string("span"), b"\x00\xa3\x16com.microsoft:timespan\x81" + b"\x80" + bytes(7),
        _string("when"), b"\x00\xa3\x1dcom.microsoft:datetime-offset\x81" + b"\x7f" * 8,
        _string("runonce-dead"), _string("NotJson"),
    )
    + b'\x00\x53\x75\xa0\x0d{"id":"A-17"}'
)  # fmt: skip

TARGETS: dict[Callable[[bytes], None], tuple[bytes, ...]] = {
    body: (
        b'{"id": "A-17", "order": {"id": "7", "total": 1.10}}',
        b'\xef\xbb\xbf{"id": "A-17", "lines": [{"cents": 5, "currency": "EUR"}], "due": "2026-11-29"}',
        b'{"id": 17, "order": {"id": "hunter2"}, "lines": "hunter2"}',
        b'{"id": "\\ud83d", "order": [1e400, NaN, -0, 123456789012345678901234567890]}',
        b"[[[[]]]]",
        b'"{\\"id\\": 1}"',
    ),
    envelope: (
        base64.b64encode(b'{"id": "A-17"}'),
        b'{"id": "A-17"}',
        b'{"runonce":1,"id":"m-1","correlation_id":"c","reschedules":2,"sent_as":"s","body":"{\\"id\\": 1}"}',
        b'{"runonce":1,"id":"m-1","correlation_id":"","reschedules":-3,"properties":{"a":"b"},"body64":"/w==","form":"none"}',
        wrap(Outgoing(b"\xff{", "m-1", properties={"a": 1}), reason="NotJson", description="why").encode(),
        b"SEND",
    ),
    amqp_message: (
        WHOLE,
        b"\x00\x53\x75\xa0\x02{}",
        b"\x00\x53\x77\xa1\x02{}",
        b"\x00\x53\x76\x45\x00\x53\x78\xc1\x01\x00",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x02{}",
        b"\x00\x53\x70\xc0\x0d\x03\x41\x50\x04\x80\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x53\x75\xa0\x02{}",
    ),
}
