"""Messages that cannot be handled are put aside with a reason, and the reason repeats nothing of their bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pydantic
import pytest
from support.messages import delivery, handling, row_of
from support.namespaces import fresh_settings

from runonce import Message, handler
from runonce.clock import SystemClock
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.messages.message import LONGEST_KEY
from runonce.messages.rows import State
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import services
from runonce.testing import Complete, DeadLetter, Workbench
from runonce.transports.protocols import Delivery, Outgoing
from runonce.transports.storage import StorageTransport

if TYPE_CHECKING:
    from runonce.messages.definition import Handler

SECRET = "hunter2"
DEEP = 200_000


class Line(pydantic.BaseModel):
    cents: int
    currency: Literal["EUR", "TRY"]


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: str
    lines: list[Line]
    note: str = ""

    @pydantic.field_validator("note")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if value:
            raise ValueError(f"{value} is not allowed")
        return value


class Fragile(pydantic.BaseModel):
    id: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _careless(cls, value: Any) -> Any:
        return {"id": value["id"] + value[SECRET]}


@handler(queue="invoices", key="id", name="send_invoice")
def modelled(invoice: Invoice) -> None:
    """Takes a model."""


@handler(queue="invoices", key="id", name="send_invoice")
def fragile(invoice: Fragile) -> None:
    """Takes a model whose validator has a mistake."""


PLAIN = handling()
PATH = handling(key="order.id")
COMPUTED = handling(key=lambda m: f"{m.json['a']}-{int(m.json['b'])}")
BY_ID = handling(key=None)
LOCKED = handling(lock="customer:{customer}")


def invoice(**change: Any) -> dict[str, Any]:
    return {"id": "A-17", "lines": [{"cents": 5, "currency": "EUR"}], **change}


def text(value: object) -> bytes:
    return json.dumps(value).encode()


BAD: dict[str, tuple[Handler, bytes, str, str]] = {
    "empty": (PLAIN, b"", "NotJson", "not JSON"),
    "not JSON": (PLAIN, SECRET.encode(), "NotJson", "not JSON"),
    "cut off": (PLAIN, b'{"id": "hunter2', "NotJson", "not JSON"),
    "two values": (PLAIN, b'{"id": "hunter2"} {}', "NotJson", "not JSON"),
    "a bad escape": (PLAIN, b'{"id": "hunter2\\q"}', "NotJson", "not JSON"),
    "Latin-1": (PLAIN, '{"id": "hunter2 ü"}'.encode("latin-1"), "NotText", "not UTF-8"),
    "UTF-16": (PLAIN, '{"id": "hunter2"}'.encode("utf-16"), "NotText", "not UTF-8"),
    "bytes": (PLAIN, bytes(range(256)), "NotText", "not UTF-8"),
    "1 MiB": (PLAIN, text({"id": "A", "pad": SECRET * 150_000}), "TooLarge", "put the data in a blob"),
    "deep nesting": (PLAIN, b"[" * DEEP + b"]" * DEEP, "TooLarge", "put the data in a blob"),
    "nesting that fits": (
        PLAIN,
        b'{"id":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        "NotJson",
        "nested too deeply",
    ),
    "a long number": (PLAIN, b'{"id": ' + b"7" * 5000 + b"}", "NotJson", "not JSON"),
    "a list": (PLAIN, text([SECRET]), "MissingKey", "no field 'id'"),
    "a text": (PLAIN, text(SECRET), "MissingKey", "no field 'id'"),
    "null": (PLAIN, b"null", "MissingKey", "no field 'id'"),
    "no key": (PLAIN, text({"number": SECRET}), "MissingKey", "no field 'id'"),
    "no path to the key": (PATH, text({"order": [SECRET]}), "MissingKey", "no field 'order.id'"),
    "an empty key": (PLAIN, text({"id": ""}), "MissingKey", "is empty"),
    "a blank key": (PLAIN, text({"id": "  "}), "MissingKey", "is empty"),
    "a key of 2,000 characters": (PLAIN, text({"id": SECRET + "x" * 1993}), "BadKey", "2000 characters"),
    "a key with half an emoji": (PLAIN, b'{"id": "hunter2 \\ud83d"}', "BadKey", "not valid Unicode"),
    "a body encoded twice": (PLAIN, text(json.dumps({"id": SECRET})), "MissingKey", "encodes it twice"),
    "a list as key": (PLAIN, text({"id": [SECRET]}), "BadKey", "of type list"),
    "an object as key": (PLAIN, text({"id": {SECRET: 1}}), "BadKey", "of type dict"),
    "a boolean as key": (PLAIN, text({"id": True}), "BadKey", "of type bool"),
    "a float as key": (PLAIN, text({"id": 7.5}), "BadKey", "of type float"),
    "NaN as key": (PLAIN, b'{"id": NaN}', "BadKey", "of type float"),
    "null as key": (PLAIN, text({"id": None}), "BadKey", "of type NoneType"),
    "a key function that finds nothing": (COMPUTED, text({SECRET: 1}), "MissingKey", "raised KeyError"),
    "a key function that stumbles": (
        COMPUTED,
        text({"a": 1, "b": SECRET}),
        "MissingKey",
        "raised ValueError",
    ),
    "a wrong type in the model": (
        modelled,
        text(invoice(lines=[{"cents": SECRET, "currency": "EUR"}])),
        "InvalidBody",
        "lines.0.cents",
    ),
    "a wrong choice in the model": (
        modelled,
        text(invoice(lines=[{"cents": 5, "currency": SECRET}])),
        "InvalidBody",
        "lines.0.currency",
    ),
    "a field missing from the model": (modelled, text({"id": "A"}), "InvalidBody", "lines: Field required"),
    "what the model's validator says": (
        modelled,
        text(invoice(note=SECRET)),
        "InvalidBody",
        "note: value_error",
    ),
    "a model's validator with a mistake": (fragile, text({"id": "A"}), "InvalidBody", "KeyError"),
    "no field for the lock": (LOCKED, text({"id": "A"}), "MissingField", "no field 'customer'"),
    "a list for the lock": (LOCKED, text({"id": "A", "customer": [SECRET]}), "BadLock", "is list"),
    "a boolean for the lock": (LOCKED, text({"id": "A", "customer": False}), "BadLock", "is bool"),
    "a float for the lock": (LOCKED, text({"id": "A", "customer": 1.5}), "BadLock", "is float"),
    "null for the lock": (LOCKED, text({"id": "A", "customer": None}), "BadLock", "is NoneType"),
    "an empty text for the lock": (LOCKED, text({"id": "A", "customer": ""}), "BadLock", "is empty"),
    "a long text for the lock": (
        LOCKED,
        text({"id": "A", "customer": SECRET * 100}),
        "BadLock",
        "has 700 characters",
    ),
}


@pytest.mark.parametrize(("one", "body", "reason", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("count", [1, 4])
def test_a_bad_body_is_put_aside_with_its_reason(
    one: Handler, body: bytes, reason: str, said: str, count: int
) -> None:
    """The reason names the handler, the message and the remedy, and contains nothing of the body; no row is left."""
    bench = Workbench()
    settlement = bench.deliverer.deliver(one, Delivery(body, "m-1", count))
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == reason
    assert said in settlement.description
    assert settlement.description.startswith("Handler send_invoice, message m-1: ")
    assert "Correct what sends it, then send it again" in settlement.description
    assert "runonce dead-letters show send_invoice" in settlement.description
    assert SECRET not in settlement.description
    assert len(settlement.description) < 600
    assert bench.stores.claims._rows == {}  # type: ignore[attr-defined]


def test_a_message_without_an_id_is_named_as_such() -> None:
    """A handler that goes by the message id refuses a message without one."""
    settlement = Workbench().deliverer.deliver(BY_ID, Delivery(b"{}", ""))
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "MissingKey"
    assert "message (no id): it has no message id" in settlement.description


@pytest.mark.parametrize(
    "key", ["a/b", "a\\b", "a#b", "a?b", "/", "..", "%00", "x" * LONGEST_KEY, "ключ/🔑", "a|b:c~d", "'"]
)
def test_a_key_that_tables_refuse_is_fine(azurite: str, key: str) -> None:
    """Keys with / \\ # ? and of 512 characters work on the real table, since rows lie under a hash of them."""
    settings = fresh_settings(azurite)
    bench = Workbench()
    one = handling(lambda m: m.commit({m.key: {"n": 1}}), lock="customer:{id}")
    for host in (
        bench.deliverer,
        Deliverer(azure_stores(settings), bench.sender, settings, SystemClock(), host="azure"),
    ):
        assert host.deliver(one, delivery({"id": key})) == Complete()
        assert host.deliver(one, delivery({"id": key}, count=2)) == Complete(duplicate=True)
    assert row_of(bench, one, key).state is State.DONE
    assert [(row["name"], row["key"]) for row in bench.effects(one)] == [(key, key)]


def test_bad_messages_go_through_a_real_queue(azurite: str) -> None:
    """On a real queue bad messages end among the dead letters, each with its reason; good ones beside them are done."""
    settings = fresh_settings(azurite)
    queue = f"q{settings.namespace}"
    seen: list[str] = []

    def handle(message: Message) -> None:
        seen.append(message.key)

    one = handler(queue=queue, key="id", name="send_invoice")(handle)
    transport = StorageTransport(services(settings.storage, "queue")[0], 30)
    small = {name: case for name, case in BAD.items() if case[0] is PLAIN and len(case[1]) < 30_000}
    sender = transport.sender()
    sender.send(queue, [Outgoing(case[1], name) for name, case in small.items()])
    sender.send(queue, [Outgoing(text({"id": f"good {n}"}), f"good {n}") for n in range(3)])
    others = sender.queue(
        queue
    )  # and what others send: without our envelope, in Base64 or not, or with one like it
    for foreign in (
        "plain text",
        "bm8ganNvbg==",
        '{"runonce": 1, "reschedules": "many"}',
        '{"id": "from outside"}',
    ):
        others.send(foreign, hidden=0, lives=-1)
    host = Deliverer(azure_stores(settings), sender, settings, SystemClock(), host="host")
    Consumer(host, transport, one).run(max_wait=1)
    letters = transport.dead_letters(one)
    found = {dead.delivery.message_id: dead for dead in letters.peek(32)}
    assert sorted(seen) == ["from outside", "good 0", "good 1", "good 2"]
    assert len(found) == len(small) + 3
    for name, (_, body, reason, said) in small.items():
        assert (found[name].reason, found[name].delivery.body) == (reason, body)
        assert said in found[name].description
        assert f"message {name}" in found[name].description
    for closing in (letters, sender):
        closing.close()
