"""Storage queues: what others put into them, and what comes again or is put aside without a copy."""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.functions import QueueMessage

from runonce.errors import TransportError
from runonce.execution.registry import Registry
from runonce.hosts.functions.handlers import from_storage, settle
from runonce.hosts.runtime import Runtime
from runonce.messages.dead_letters import may_have_happened, replay, view
from runonce.messages.sending import outgoing
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock, Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock
from runonce.testing.proxy import DROP_REQUEST, StorageProxy
from runonce.testing.proxy import Fault as ProxyFault
from runonce.transports.envelope import unwrap, wrap
from runonce.transports.protocols import Outgoing
from runonce.transports.settlement import Complete, DeadLetter, Reschedule
from runonce.transports.storage import HEADROOM, LARGEST
from tests.support.messages import host_of, ownership
from tests.support.proxy import proxies, proxy
from tests.support.transports import LOCK, StoragePipe, make_handler, none_come, receive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

__all__ = ["proxies", "proxy"]

BODY = b'{"id": 1}'
ODD = {
    "no-break space": "10\u00a0000 TL",
    "narrow no-break space": "3:00\u202fPM",
    "ideographic space": "山田\u3000太郎",
    "joined emoji": "\U0001f469\u200d\U0001f4bb",
    "soft hyphen": "co\u00adop",
    "right-to-left mark": "שלום\u200f",
    "byte order mark": "\ufeff",
    "delete": "\x7f",
    "next line": "\x85",
    "private use": "\ue000",
    "unassigned": "\U0001fabf\u0378",
}


@pytest.fixture
def pipe(azurite: str) -> Iterator[StoragePipe]:
    made = StoragePipe(azurite)
    yield made
    made.close()


def registry() -> Registry:
    clock = ManualClock()
    return Registry(memory_stores(clock).claims, "shop", clock, "test")


def put(pipe: StoragePipe, queue: str, text: str) -> Any:
    """Send a text as another program does."""
    with pipe.client(queue) as client:
        with suppress(ResourceExistsError):
            client.create_queue()
        return client.send_message(text)


def texts(pipe: StoragePipe, queue: str) -> list[str]:
    """The texts in a queue as they are."""
    with pipe.client(queue) as client:
        return [message.content for message in client.peek_messages(32)]


# -- text and Base64 ---------------------------------------------------------------------------------------------


def test_any_text_comes_through_the_toolkit_and_from_others(pipe: StoragePipe) -> None:
    """Characters that cannot be printed change nothing: enqueued, or sent by others in Base64 or plain."""
    to = make_handler(pipe.queue())
    inbox = pipe.inbox(to)
    for name, odd in ODD.items():
        data = json.dumps({"id": name, "note": odd}, ensure_ascii=False)
        pipe.sender.send(to.queue, [outgoing(to, data)])
        put(pipe, to.queue, base64.b64encode(data.encode()).decode())
        if name not in ("delete", "next line"):  # what XML does not carry as it is
            put(pipe, to.queue, data)
        for received in receive(inbox, 2 if name in ("delete", "next line") else 3):
            assert received.delivery.body == data.encode(), name
            inbox.settle(received, Complete())


ENCODED = base64.b64encode(b'{"id": 1, "note": "a longer text"}').decode()


@pytest.mark.parametrize(
    ("text", "told", "base64_", "none"),
    [
        ('{"id": 1}', b'{"id": 1}', b'{"id": 1}', b'{"id": 1}'),
        (
            ENCODED,
            b'{"id": 1, "note": "a longer text"}',
            b'{"id": 1, "note": "a longer text"}',
            ENCODED.encode(),
        ),
        ("SEND", b"SEND", b"HCC", b"SEND"),
        ("PG9yZGVyLz4=", b"PG9yZGVyLz4=", b"<order/>", b"PG9yZGVyLz4="),
        ("MTIz", b"123", b"123", b"MTIz"),
        ("hello world", b"hello world", b"hello world", b"hello world"),
    ],
    ids=["json", "json in Base64", "a word", "xml in Base64", "digits in Base64", "text"],
)
def test_whether_a_text_is_base64(text: str, told: bytes, base64_: bytes, none: bytes) -> None:
    """By default Base64 is what decodes to JSON; the handler may say that all of a queue is, or none."""
    for encoding, body in ((None, told), ("base64", base64_), ("none", none)):
        delivery, _ = unwrap(text, message_id="m", delivery_count=1, enqueued_at=None, encoding=encoding)
        assert delivery.body == body, encoding


@pytest.mark.parametrize(
    "broken", ["\n".join(ENCODED[n : n + 8] for n in range(0, 60, 8)), ENCODED + "\r\n", " " + ENCODED]
)
def test_white_space_in_base64_does_not_count(broken: str) -> None:
    """Wrapped into lines, or with blanks around it, Base64 is the same."""
    delivery, _ = unwrap(broken, message_id="m", delivery_count=1, enqueued_at=None)
    assert json.loads(delivery.body) == {"id": 1, "note": "a longer text"}


def test_the_toolkits_own_messages_are_known_in_every_queue(pipe: StoragePipe) -> None:
    """Its envelope is found whatever the handler says of others' texts, and when the host has decoded it."""
    for encoding in (None, "base64", "none"):
        to = make_handler(pipe.queue(), queue_encoding=encoding)
        [sent] = pipe.send(to, BODY)
        [raw] = texts(pipe, to.queue)
        assert receive(pipe.inbox(to))[0].delivery.message_id == sent
        for by_host in (raw.encode(), base64.b64decode(raw)):
            delivery, _ = unwrap(by_host, message_id="m", delivery_count=1, enqueued_at=None)
            assert (delivery.body, delivery.message_id) == (BODY, sent)


def test_what_the_host_has_decoded_is_not_decoded_again() -> None:
    """A text that the Functions host hands over is what was meant, even where it looks like Base64 of JSON."""
    delivery, _ = unwrap(ENCODED.encode(), message_id="m", delivery_count=1, enqueued_at=None)
    assert delivery.body == ENCODED.encode()


# -- coming again ------------------------------------------------------------------------------------------------


def test_what_comes_again_is_the_message_itself_hidden(pipe: StoragePipe) -> None:
    """Sent back three times it has the same id and text, and says how often; nothing else was sent."""
    to = make_handler(pipe.queue())
    sent = put(pipe, to.queue, '{"id": 1}')
    inbox = pipe.inbox(to)
    for times in range(3):
        [received] = receive(inbox)
        assert (received.delivery.message_id, received.delivery.reschedules) == (sent.id, times)
        inbox.settle(received, Reschedule(0.0, "busy"))
        assert texts(pipe, to.queue) == ['{"id": 1}']


def test_a_text_with_no_room_for_an_envelope_comes_again_and_is_put_aside(pipe: StoragePipe) -> None:
    """60,000 characters of another sender's are sent back, dead-lettered as they came, and replayed."""
    to = make_handler(pipe.queue())
    for text in ("x" * 60_000, json.dumps({"id": "A", "pad": "y" * 60_000})):
        put(pipe, to.queue, text)
        inbox, letters = pipe.inbox(to), pipe.dead_letters(to)
        inbox.settle(receive(inbox)[0], Reschedule(0.0, "busy"))
        inbox.settle(receive(inbox)[0], DeadLetter("Failed", "why"))
        assert (texts(pipe, to.queue), texts(pipe, f"{to.queue}-poison")) == ([], [text])
        shown = view(registry(), to, letters.peek(1)[0])
        assert (shown.key, shown.reason) == (
            ("", "NotJson") if text[0] == "x" else ("A", "MaxDeliveryCountExceeded")
        )
        replay(registry(), pipe.sender, to, letters, letters.take(1)[0])
        assert (texts(pipe, to.queue), texts(pipe, f"{to.queue}-poison")) == ([text], [])
        inbox.settle(receive(inbox)[0], Complete())


LONG = "y" * 60_000
THEIRS = {
    "plain": '{"id": "A-17", "note": "Zürich"}',
    "Base64": base64.b64encode(b'{"id": "A-17"}').decode(),
    "Base64 in lines": base64.encodebytes(b'{"id": "A-17", "pad": "' + b"z" * 60 + b'"}').decode(),
    "no room": json.dumps({"id": "A-17", "pad": LONG}),
}


def fails(message: Message) -> None:
    raise message.bad("OutOfStock", "there is none left")


def put_aside(pipe: StoragePipe, bench: Workbench, to: Handler) -> None:
    """Handle the one message of a queue, which must end among the dead letters."""
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    settlement = bench.deliverer.deliver(to, received.delivery)
    assert isinstance(settlement, DeadLetter)
    inbox.settle(received, settlement)
    inbox.close()


@pytest.mark.parametrize("text", THEIRS.values(), ids=THEIRS)
def test_anothers_message_is_put_aside_as_it_came(pipe: StoragePipe, text: str) -> None:
    """Whatever its size, whoever looks into the poison queue finds what its sender sent; its claim has the reason."""
    bench, to = Workbench(), make_handler(pipe.queue(), fails)
    put(pipe, to.queue, text)
    put_aside(pipe, bench, to)
    assert texts(pipe, f"{to.queue}-poison") == [text]
    letters, claims = pipe.dead_letters(to), ownership(bench)
    shown = view(claims, to, letters.peek(1)[0])
    assert (shown.key, shown.reason) == ("A-17", "OutOfStock")
    assert "there is none left" in shown.description
    replay(claims, pipe.sender, to, letters, letters.take(1)[0])
    put_aside(pipe, bench, to)  # after the replay it is another's message still
    [again] = texts(pipe, f"{to.queue}-poison")
    assert again == text.replace("\n", "")
    assert view(claims, to, letters.peek(1)[0]).row.generation == 1  # type: ignore[union-attr]


def test_on_functions_too_anothers_message_is_put_aside_as_it_came(pipe: StoragePipe) -> None:
    """Also after it was sent again with a delay there, which takes an envelope."""

    def body(message: Message) -> None:
        if message.attempt == 1:
            raise ConnectionError("the provider hung up")
        fails(message)

    to = make_handler(pipe.queue(), body, retry_delay=0.1)
    bench, text = Workbench(clock=PassingClock()), THEIRS["Base64"]
    storage = StorageConnection(pipe.connection_string)
    runtime = Runtime(Settings("shop", storage), stores=bench.stores, sender=pipe.sender)
    put(pipe, to.queue, text)
    for came in range(2):
        [native] = [received.native for received in receive(pipe.inbox(to))]
        given = QueueMessage(id=native.id, body=base64.b64decode(native.content))
        delivery = from_storage(given)
        assert delivery.reschedules == came
        settle(runtime, to, delivery, bench.deliverer.deliver(to, delivery))
        with pipe.client(to.queue) as client:
            client.delete_message(native.id, native.pop_receipt)
        bench.clock.advance(60)
    assert (texts(pipe, to.queue), texts(pipe, f"{to.queue}-poison")) == ([], [text])


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ('{"id": "A-17", "n": 2}', "KeyReused"),
        ('{"ID": "A-17"}', "MissingKey"),
        ("<order/>", "NotJson"),
        (json.dumps({"id": "B", "pad": "y" * 3000}), "TooLarge"),
    ],
)
def test_why_anothers_message_was_put_aside_is_told_again(
    pipe: StoragePipe, second: str, reason: str
) -> None:
    """What was never handled is judged from its body and the claim of its key, as it was at first."""
    bench, to = Workbench(), make_handler(pipe.queue())
    bench.settings = bench._runtime._settings = bench.deliverer.settings = replace(
        bench.settings, max_body=2000
    )
    assert bench.deliver(to, {"id": "A-17"}) == Complete()
    put(pipe, to.queue, second)
    put_aside(pipe, bench, to)
    assert texts(pipe, f"{to.queue}-poison") == [second]
    [dead] = pipe.dead_letters(to).peek(1)
    assert view(ownership(bench), to, dead, max_body=2000).reason == reason


def test_anothers_body_that_was_corrected_says_so(pipe: StoragePipe) -> None:
    """The dead letter of a body that failed keeps its reason apart from what became of the corrected one."""
    bench, bodies = Workbench(), [b'{"id": "A-17", "n": 1}', b'{"id": "A-17", "n": 2}']

    def body(message: Message) -> None:
        if message.json["n"] == 1:
            fails(message)

    to = make_handler(pipe.queue(), body)
    put(pipe, to.queue, bodies[0].decode())
    put_aside(pipe, bench, to)
    assert bench.deliver(to, bodies[1]) == Complete()
    shown = view(ownership(bench), to, pipe.dead_letters(to).peek(1)[0])
    assert (shown.reason, "another body" in shown.description) == ("Failed", True)


@pytest.mark.parametrize("key", [None, lambda message: message.message_id], ids=["none", "a function"])
def test_a_message_known_by_its_id_alone_keeps_it_when_it_is_put_aside(pipe: StoragePipe, key: Any) -> None:
    """Its text has no room for the id that its claim is filed under, so it travels in an envelope with its reason."""
    bench, to = Workbench(), make_handler(pipe.queue(), fails, key=key)
    sent = put(pipe, to.queue, '{"id": 1}')
    put_aside(pipe, bench, to)
    letters, claims = pipe.dead_letters(to), ownership(bench)
    [dead] = letters.peek(1)
    assert (dead.delivery.message_id, dead.reason, dead.delivery.body) == (
        sent.id,
        "OutOfStock",
        b'{"id": 1}',
    )
    replay(claims, pipe.sender, to, letters, letters.take(1)[0])
    put_aside(pipe, bench, to)
    assert view(claims, to, letters.peek(1)[0]).row.generation == 1  # type: ignore[union-attr]


def test_a_reason_that_no_claim_has_travels_with_the_message(pipe: StoragePipe) -> None:
    """That an effect could not be recorded is known to nobody else, so another's message has it in an envelope."""
    boundary = Boundary()
    bench = Workbench(clock=PassingClock())

    def body(_: Message) -> None:
        boundary.next("commit", *[Fault.LOST_REQUEST] * 60)
        boundary.next("get", *[Fault.LOST_REQUEST] * 60)

    to = make_handler(pipe.queue(), body)
    host = host_of(bench, stores=boundary.around(bench.stores))
    put(pipe, to.queue, '{"id": 1}')
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    inbox.settle(received, host.deliver(to, received.delivery))
    [dead] = pipe.dead_letters(to).peek(1)
    assert (dead.reason, dead.delivery.body) == ("DoneButNotRecorded", b'{"id": 1}')
    assert may_have_happened(ownership(bench), to, dead)


def test_whatever_is_taken_can_be_dead_lettered_with_its_reason(pipe: StoragePipe) -> None:
    """The largest body that is sent can be sent back and put aside, reason and all; a byte more is refused."""
    to = make_handler(pipe.queue())
    size = (LARGEST - HEADROOM) * 3 // 4
    while len(wrap(Outgoing(b"x" * size, "m-123456789012"))) > LARGEST - HEADROOM:
        size -= 1
    with pytest.raises(TransportError, match="use Service Bus"):
        pipe.send(to, b"x" * (size + 3))
    pipe.send(to, b"x" * size)
    inbox = pipe.inbox(to)
    inbox.settle(receive(inbox)[0], DeadLetter("MaxDeliveryCountExceeded", "because " * 3000))
    [dead] = pipe.dead_letters(to).peek(1)
    assert (dead.reason, len(dead.delivery.body)) == ("MaxDeliveryCountExceeded", size)
    assert dead.description.startswith("because ")


def test_sending_back_that_fails_leaves_the_message(proxy: StorageProxy) -> None:
    """When the queue does not answer, the message is still there, once, and comes when its time is over."""
    pipe = StoragePipe(proxy.connection_string)
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    [received] = receive(inbox)
    proxy.queue.inject(DROP_REQUEST, "^PUT")
    proxy.queue.inject(DROP_REQUEST, "^PUT")
    with pytest.raises(TransportError, match="sending back"):
        inbox.settle(received, Reschedule(30.0, "busy"))
    assert pipe.count(to.queue) == 1
    receive(inbox, patience=LOCK + 12)
    pipe.close()


def test_an_answer_that_is_none_is_trouble_with_the_broker(proxy: StorageProxy) -> None:
    """A reply without a body, as of a gateway, ends no host: it is tried again like one that did not come."""
    pipe = StoragePipe(proxy.connection_string)
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox = pipe.inbox(to)
    proxy.queue.inject(ProxyFault(status=200), "^GET")
    with pytest.raises(TransportError, match="ParseError"):
        inbox.receive(1, 0)
    assert receive(inbox)
    pipe.close()


def test_what_somebody_else_has_by_now_is_left_to_them(pipe: StoragePipe) -> None:
    """Sending back a message whose time was over changes nothing for its new holder."""
    to = make_handler(pipe.queue())
    pipe.send(to, BODY)
    inbox, other = pipe.inbox(to), pipe.inbox(to)
    [received] = receive(inbox)
    [theirs] = receive(other, patience=LOCK + 12)
    inbox.settle(received, Reschedule(0.0, "busy"))
    assert none_come(inbox)
    other.settle(theirs, Complete())
    assert pipe.count(to.queue) == 0


def test_a_message_is_hidden_no_longer_than_it_lives(pipe: StoragePipe) -> None:
    """A delay that goes beyond the sender's time to live brings it once more before that is over."""
    to = make_handler(pipe.queue())
    with pipe.client(to.queue) as client:
        client.create_queue()
        client.send_message('{"id": 1}', time_to_live=12)
    inbox = pipe.inbox(to)
    started = time.monotonic()
    inbox.settle(receive(inbox)[0], Reschedule(3600.0, "busy"))
    receive(inbox, patience=14)
    assert time.monotonic() - started < 14
