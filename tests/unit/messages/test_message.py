from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from support.messages import delivery, handling

from runonce.errors import InputError, PermanentError
from runonce.messages.definition import handler
from runonce.messages.message import LONGEST_KEY, BadMessageError, Message
from runonce.messages.reading import body_print, prepare, read_key
from runonce.transports.protocols import Delivery

SECRET = "hunter2"


def message(body: bytes, **options: Any) -> Message:
    """A message that nobody has claimed."""
    return Message(handling(**options), Delivery(body, "m-1"))


def key_of(body: object, **options: Any) -> str:
    """The key that a handler reads from a body."""
    one = handling(**options)
    return read_key(one, Message(one, delivery(body)))


def test_a_message_shows_what_came() -> None:
    """Body, ids, count, time and properties are as the transport delivered them."""
    came = Delivery(b"{}", "m-1", 3, None, "c-1", {"kind": "test"})
    one = Message(handling(), came)
    assert (one.handler, one.body, one.message_id, one.delivery_count) == ("send_invoice", b"{}", "m-1", 3)
    assert (one.enqueued_at, one.correlation_id, one.properties) == (None, "c-1", {"kind": "test"})


def test_text_drops_a_byte_order_mark() -> None:
    """The body as text is UTF-8, with or without a byte order mark."""
    assert message(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe").text == "grüße"
    assert message(b"").text == ""


def test_what_is_no_text_is_refused() -> None:
    """A body that is not UTF-8 is bad, and its bytes are not repeated."""
    with pytest.raises(BadMessageError, match="not UTF-8") as caught:
        _ = message(SECRET.encode() + b"\xff").text
    assert caught.value.reason == "NotText"
    assert SECRET not in str(caught.value)


def test_json_is_read_once() -> None:
    """The body is parsed once and the same value given each time, null too."""
    one = message(b'{"a": [1]}')
    assert one.json is one.json
    assert message(b"null").json is None


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1', b"hunter2", b"[1,]", b"[" * 100_000, b"9" * 5000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """A body that is not JSON is bad, and the message says where and not what."""
    with pytest.raises(BadMessageError) as caught:
        _ = message(body).json
    assert caught.value.reason == "NotJson"
    assert "send_invoice, message m-1" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_field_is_found_by_its_path() -> None:
    """A dotted path leads into objects within objects."""
    one = message(b'{"order": {"id": "A-1", "lines": [1]}, "n": null}')
    assert one.field("order.id") == "A-1"
    assert one.field("order") == {"id": "A-1", "lines": [1]}
    assert one.field("n") is None


@pytest.mark.parametrize("path", ["missing", "order.missing", "order.lines.0", "order.id.more", "n.x", ""])
def test_a_field_that_is_not_there_is_named(path: str) -> None:
    """Without the field the message is bad, and the path is named."""
    one = message(b'{"order": {"id": "hunter2", "lines": [1]}, "n": null}')
    with pytest.raises(BadMessageError, match="no field") as caught:
        one.field(path)
    assert caught.value.reason == "MissingField"
    assert repr(path) in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "A-17",
        "a/b\\c#d?e",
        "ünïcode ключ 🔑",
        " padded ",
        "x" * LONGEST_KEY,
        "'; drop table",
        "%2F",
        "..",
        "|:~",
        "10\u00a0000",
        "A\u200b17",
        "family \U0001f469\u200d\U0001f4bb",
        "line\nline\x00\x1b",
    ],
)
def test_any_text_is_a_key(key: str) -> None:
    """A key is any text of up to 512 characters: what tables and headers refuse does not matter here."""
    assert key_of({"id": key}) == key


def test_a_whole_number_is_a_key() -> None:
    """A whole number is the key of its digits, so that 7 and "7" are the same message."""
    assert key_of({"id": 7}) == key_of({"id": "7"}) == "7"
    assert key_of({"id": 0}) == "0"
    assert key_of({"id": -1}) == "-1"


def test_a_key_comes_from_a_path_a_function_or_the_message_id() -> None:
    """A dotted path, a function of the message, or nothing, which means the message id."""
    assert key_of({"order": {"id": "A-1"}}, key="order.id") == "A-1"
    assert key_of({"a": "x", "b": "y"}, key=lambda m: f"{m.json['a']}-{m.json['b']}") == "x-y"
    assert key_of({}, key=None) == "m-1"


def refuse(_: Message) -> str:
    raise PermanentError("this one never")


def test_a_key_function_may_refuse_the_message() -> None:
    """A PermanentError of a key function is passed on as it is."""
    with pytest.raises(PermanentError, match="this one never"):
        key_of({}, key=refuse)


BAD_KEYS: dict[str, tuple[Any, str, str]] = {
    "missing": ({}, "MissingKey", "no field 'id'"),
    "empty": ({"id": ""}, "MissingKey", "is empty"),
    "blank": ({"id": " \t"}, "MissingKey", "is empty"),
    "null": ({"id": None}, "BadKey", "NoneType"),
    "true": ({"id": True}, "BadKey", "bool"),
    "float": ({"id": 12.5}, "BadKey", "float"),
    "list": ({"id": [SECRET]}, "BadKey", "list"),
    "object": ({"id": {"a": SECRET}}, "BadKey", "dict"),
    "513 characters": ({"id": SECRET * 73 + "xx"}, "BadKey", "513 characters"),
    "2,000 characters": ({"id": SECRET + "x" * 1993}, "BadKey", "2000 characters"),
    "a digit too many": ({"id": 10**512}, "BadKey", "513 characters"),
    "half a surrogate pair": ({"id": SECRET + "\ud800"}, "BadKey", "not valid Unicode"),
    "JSON in a text": (f'{{"id": "{SECRET}"}}', "MissingKey", "encodes it twice"),
    "body is a list": ([SECRET], "MissingKey", "no field 'id'"),
    "body is a text": (SECRET, "MissingKey", "no field 'id'"),
}


@pytest.mark.parametrize(("body", "reason", "said"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_what_can_be_no_key_is_refused(body: Any, reason: str, said: str) -> None:
    """A message without a usable key is bad: its reason says why, names the remedy, and repeats no value."""
    with pytest.raises(BadMessageError) as caught:
        key_of(body)
    text = str(caught.value)
    assert caught.value.reason == reason
    assert said in text
    assert text.startswith("Handler send_invoice, message m-1: ")
    assert "Correct what sends it" in text
    assert SECRET not in text


def test_a_failing_key_function_is_named_without_its_text() -> None:
    """What a key function raises may repeat the body, so only its kind is told."""
    with pytest.raises(BadMessageError, match="its key function raised ValueError") as caught:
        key_of({"id": SECRET}, key=lambda m: str(int(m.json["id"])))
    assert SECRET not in str(caught.value)


def test_without_message_id_and_key_a_message_is_bad() -> None:
    """A handler that goes by the message id refuses a message that has none."""
    one = handling(key=None)
    with pytest.raises(BadMessageError, match="no message id"):
        read_key(one, Message(one, Delivery(b"{}", "")))


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.attempt,
        lambda m: m.fencing_token,
        lambda m: m.idempotency_key,
        lambda m: m.log,
        lambda m: m.blobs,
        lambda m: m.checkpoint,
        lambda m: m.stopping,
        lambda m: m.check(),
        lambda m: m.commit({}),
        lambda m: m.enqueue(handling(), {"id": 1}),
    ],
)
def test_an_unclaimed_message_has_no_rights(use: Any) -> None:
    """What comes with a claim is refused without one, and the message points to the workbench."""
    with pytest.raises(InputError, match="Workbench"):
        use(message(json.dumps({"id": 1}).encode()))


@pytest.mark.parametrize(
    ("fingerprint", "same", "other"),
    [
        ("*", b'{ "id": "A", "n": 1.0 }', {"id": "A", "n": 2}),
        ("n", {"id": "A", "n": 1, "sent_at": "later"}, {"id": "A", "n": 2}),
        (["n", "lines.0"], {"id": "A", "n": 1, "x": 1}, {"id": "A"}),
        (["n", "at"], {"id": "A", "n": 1}, {"id": "A", "n": 1, "at": None}),
        ("n", b'{"id":"A","n":1.00}', b'{"id":"A","n":1.00000000000000000001}'),
        (lambda m: m.json["n"] % 2, {"id": "A", "n": 3}, {"id": "A", "n": 2}),
    ],
    ids=["whole", "field", "fields", "missing is not null", "digits", "function"],
)
def test_what_counts_of_a_body(fingerprint: Any, same: Any, other: Any) -> None:
    """By the handler's word a body is the same as another one: all of it, some fields, or what a function gives."""
    one = handling(fingerprint=fingerprint)
    of = [body_print(one, Message(one, delivery(body))) for body in ({"id": "A", "n": 1}, same, other)]
    assert of[0] == of[1] != of[2]


def test_a_body_may_count_for_nothing() -> None:
    """With fingerprint=None one key is one message whatever its body, even one that is not JSON."""
    one = handling(fingerprint=None)
    assert body_print(one, Message(one, delivery(b"1"))) == body_print(one, Message(one, delivery(b"\xff")))


def test_a_failing_fingerprint_function_is_named_without_its_text() -> None:
    """What it raises, and what it gives that is no JSON, make the message a bad one, whose values are not told."""
    for function in (lambda m: m.json[SECRET], lambda _: {SECRET}):
        one = handling(fingerprint=function)
        with pytest.raises(BadMessageError, match="its fingerprint function raised") as caught:
            body_print(one, Message(one, delivery({"id": 1})))
        assert SECRET not in str(caught.value)
        assert caught.value.reason == "BadFingerprint"


def test_named_fields_count_with_all_their_digits() -> None:
    """Two amounts that a float would make one are two bodies, and the second is not taken for the first again."""
    one = handling(fingerprint="amount")
    bodies = (b'{"id":"A","amount":12345678901234567.89}', b'{"id":"A","amount":12345678901234567.90}')
    assert len({body_print(one, Message(one, delivery(body))) for body in bodies}) == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_code_that_reads_a_message_ends_no_host(error: BaseException) -> None:
    """A key or fingerprint function, or a validator, that exits makes the message a bad one, whatever it raises."""

    def leave(_: object) -> Any:
        raise error

    class Order(BaseModel):
        id: Annotated[str, AfterValidator(leave)]

    def typed(order: Order) -> None: ...

    typed.__annotations__ = {"order": Order}
    handlers = {
        "MissingKey": handling(key=leave),
        "BadFingerprint": handling(fingerprint=leave),
        "InvalidBody": handler(queue="invoices", key="id")(typed),
    }
    for reason, one in handlers.items():
        with pytest.raises(BadMessageError) as caught:
            prepare(one, delivery({"id": "A"}), 1000)
        assert caught.value.reason == reason


def test_a_dot_of_a_fields_own_name_is_escaped() -> None:
    """A path goes down at its dots, except at those with a backslash before them; the same in a lock."""
    body = {"event.id": {"a\\b": "K"}, "tenant-id": "acme"}
    assert key_of(body, key=r"event\.id.a\\b") == "K"
    one = handling(key="tenant-id", lock=r"t:{tenant-id}:{event\.id.a\\b}")
    assert prepare(one, delivery(body), 1000).lock == "t%3Aacme%3AK"


@pytest.mark.parametrize("value", [".", "..", "../x", "acme.", "a/../../b"])
def test_a_lock_of_dots_is_no_other_blob(value: str) -> None:
    """Whatever is in the lock's field, the blob's name has no part that a path would go up by."""
    one = handling(lock="{tenant}")
    lock = prepare(one, delivery({"id": 1, "tenant": value}), 1000).lock
    assert lock is not None
    assert "/" not in lock
    assert not lock.endswith(".")


def test_half_a_character_in_a_lock_is_told() -> None:
    """A lock's field that is no valid Unicode makes the message a bad one, not an error of the toolkit's."""
    one = handling(lock="customer:{name}")
    with pytest.raises(BadMessageError, match="not valid Unicode") as caught:
        prepare(one, delivery(b'{"id": 1, "name": "Ada \\ud83d"}'), 1000)
    assert caught.value.reason == "BadLock"
