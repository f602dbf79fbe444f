from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import typing
from dataclasses import FrozenInstanceError
from datetime import timedelta
from threading import Lock  # noqa: TC003 - a handler's annotation, read as it runs
from typing import Annotated, Any

import pydantic
import pytest

from runonce import Message, handler
from runonce.errors import DefinitionError
from runonce.messages.definition import Handler
from runonce.messages.message import BadMessageError
from runonce.messages.reading import prepare
from runonce.transports.protocols import Delivery


def plain(message: Message) -> None:
    """Sends an invoice.

    And more about it.
    """


def test_defaults_are_those_of_a_careful_person() -> None:
    """A handler with nothing but its queue retries five times, reruns what was abandoned, and keeps claims a month."""
    made = handler(queue="invoices")(plain)
    assert (made.name, made.queue, made.subscription, made.key) == ("plain", "invoices", None, None)
    assert (made.retry.retries, made.retry.delay, made.on_abandoned) == (5, 10.0, "rerun")
    assert made.retention == timedelta(days=30).total_seconds()
    assert (made.max_runtime, made.concurrency, made.lock) == (240.0, 8, None)


def test_a_definition_is_frozen() -> None:
    """A handler's definition cannot be changed after the decorator has checked it."""
    made = handler(queue="invoices")(plain)
    with pytest.raises(FrozenInstanceError):
        made.queue = "others"  # type: ignore[misc]


def test_a_handler_can_still_be_called() -> None:
    """A handler called like a function runs its body with no claim, sync or async."""

    def double(message: Message) -> int:
        return len(message.body) * 2

    async def later(message: Message) -> int:
        return len(message.body)

    class Fake:
        body = b"four"

    fake: Any = Fake()
    assert handler(queue="invoices")(double)(fake) == 8
    made = handler(queue="invoices")(later)
    assert made.is_async
    answer: Any = made(fake)
    assert asyncio.run(answer) == 4


def test_the_summary_is_the_first_line() -> None:
    """The first line of the docstring tells people what the handler is for."""
    assert handler(queue="invoices")(plain).summary == "Sends an invoice."


def test_durations_are_seconds_or_timedeltas() -> None:
    """Every duration may be given as seconds or as a timedelta."""
    made = handler(
        queue="invoices",
        retry_delay=timedelta(minutes=1),
        lock="one",
        lock_wait=timedelta(seconds=3),
        retention=timedelta(days=40),
        max_runtime=timedelta(minutes=2),
    )(plain)
    assert (made.retry.delay, made.lock_wait, made.retention, made.max_runtime) == (60, 3, 40 * 86_400, 120)
    assert handler(queue="invoices", max_runtime=None)(plain).max_runtime is None


def test_a_subscription_is_part_of_where_messages_come_from() -> None:
    """Two subscriptions of a topic are two entities, so that each claims its messages alone."""
    billing = handler(topic="orders", subscription="billing")(plain)
    shipping = handler(topic="orders", subscription="shipping")(plain)
    assert (billing.entity, shipping.entity) == ("orders/billing", "orders/shipping")
    assert handler(queue="orders")(plain).entity == "orders"


def test_a_subscription_forwards_to_a_queue_of_its_own() -> None:
    """The handler reads `topic.subscription`; without forwarding it reads the subscription, and a queue for retries."""
    one = handler(topic="orders", subscription="billing")(plain)
    assert (one.queue, one.target, one.topic, one.forward) == ("orders.billing", "orders", "orders", True)
    assert one.sources == [("orders.billing", None)]
    direct = handler(topic="orders", subscription="billing", forward=False)(plain)
    assert (direct.queue, direct.target, direct.entity) == ("orders.billing.retry", "orders", one.entity)
    assert direct.sources == [("orders", "billing"), ("orders.billing.retry", None)]
    alone = handler(queue="invoices")(plain)
    assert (alone.target, alone.topic, alone.forward) == ("invoices", None, False)
    assert alone.sources == [("invoices", None)]


@pytest.mark.parametrize("queue", ["billing/invoices", "q" * 260, "a", "A.b_c-d/e", "0"])
def test_a_queues_name_is_what_service_bus_takes(queue: str) -> None:
    """Up to 260 characters, and slashes; Storage queues are narrower, which the transport checks."""
    assert handler(queue=queue)(plain).queue == queue


class Invoice(pydantic.BaseModel):
    invoice_id: str


def test_a_model_is_recognised_by_its_annotation() -> None:
    """A parameter annotated with a pydantic model gets the body; any other gets the message; either order works."""

    def both(message: Message, invoice: Invoice) -> None: ...
    def swapped(invoice: Invoice, message: Message) -> None: ...
    def alone(invoice: Invoice) -> None: ...
    def bare(message) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    take = handler(queue="invoices")
    assert take(both).arguments == (None, Invoice)
    assert take(swapped).arguments == (Invoice, None)
    assert take(alone).arguments == (Invoice,)
    assert take(bare).arguments == (None,)


def test_an_annotation_for_the_type_checker_only_is_no_model() -> None:
    """A name that exists only for the type checker cannot be a model, so the parameter gets the message."""

    def hidden(message: OnlyForTypes) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert handler(queue="invoices")(hidden).arguments == (None,)


def two(first: Message, second: Message, third: Message) -> None: ...
def none() -> None: ...
def starred(*messages: Message) -> None: ...
def defaulted(message: Message, more: int = 1) -> None: ...
def keyword(*, message: Message) -> None: ...
def models(one: Invoice, other: Invoice) -> None: ...
async def waits(message: Message) -> str:
    return message.key


class Waits:
    """A function of the message that is an object."""

    async def __call__(self, message: Message) -> str:
        return message.key


@dataclasses.dataclass
class Parcel:
    number: str
    grams: int = 0


def later(invoice: Invoice) -> OnlyForTypes: ...  # type: ignore[name-defined]  # noqa: F821
def beside(invoice: Invoice, message: OnlyForTypes) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def named(invoice: Invoice, m: Message) -> None: ...
def unseen(order: OnlyForTypes) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def odd(order: Any, other: Lock) -> None: ...
def optional(invoice: Invoice | None) -> None: ...
def several(invoices: list[Invoice]) -> None: ...
def annotated(invoice: Annotated[Invoice, "as printed"]) -> None: ...
def either(body: Invoice | Parcel) -> None: ...
def parcel(body: Parcel) -> None: ...


def test_each_parameter_is_resolved_by_itself() -> None:
    """A name that only the type checker knows, elsewhere in the signature, does not turn a model's check off."""
    take = handler(queue="invoices")
    assert take(later).arguments == (Invoice,)
    assert take(beside).arguments == (Invoice, None)
    assert take(named).arguments == (Invoice, None)


@pytest.mark.parametrize(
    ("function", "body", "bad"),
    [
        (optional, "null", '{"id": 1}'),
        (several, '[{"invoice_id": "A"}]', '{"invoice_id": "A"}'),
        (annotated, '{"invoice_id": "A"}', "{}"),
        (either, '{"number": "7"}', "{}"),
        (parcel, '{"number": "7", "grams": 5}', '{"number": "7", "grams": "x"}'),
    ],
)
def test_any_type_that_pydantic_knows_is_a_body(function: Any, body: str, bad: str) -> None:
    """Optional, list, annotated and union types and dataclasses are checked like a model."""
    seen: list[Any] = []
    one = handler(queue="invoices", name="h")(function)
    [prepared] = prepare(one, Delivery(body.encode(), "m-1"), 1000).arguments
    seen.append(prepared)
    assert pydantic.TypeAdapter(Any).dump_json(seen) == pydantic.TypeAdapter(Any).dump_json(
        [_made(function, body)]
    )
    with pytest.raises(BadMessageError, match="is not a valid") as caught:
        prepare(one, Delivery(bad.encode(), "m-1"), 1000)
    assert caught.value.reason == "InvalidBody"


def _made(function: Any, body: str) -> Any:
    """What the annotation's type makes of a body."""
    [hint] = [kind for name, kind in typing.get_type_hints(function).items() if name != "return"]
    return pydantic.TypeAdapter(hint).validate_json(body)


BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no source": ({}, plain, "give queue, or topic"),
    "queue and topic": ({"queue": "a", "topic": "b", "subscription": "c"}, plain, "give queue, or topic"),
    "topic without subscription": ({"topic": "b"}, plain, "give queue, or topic"),
    "subscription without topic": ({"queue": "a", "subscription": "c"}, plain, "give queue, or topic"),
    "queue that ends with a slash": ({"queue": "a/"}, plain, "not the name of a queue"),
    "queue that begins with a dot": ({"queue": ".a"}, plain, "not the name of a queue"),
    "subscription with a slash": ({"topic": "a", "subscription": "b/c"}, plain, "name of a subscription"),
    "long subscription": ({"topic": "a", "subscription": "s" * 51}, plain, "name of a subscription"),
    "long topic": ({"topic": "t" * 255, "subscription": "billing"}, plain, "over 260 characters"),
    "queue that does not forward": ({"queue": "a", "forward": False}, plain, "False only with a topic"),
    "forward of another kind": ({"topic": "a", "subscription": "b", "forward": "no"}, plain, "forward='no'"),
    "empty fingerprint": ({"queue": "a", "fingerprint": []}, plain, "fingerprint=[]"),
    "fingerprint of another kind": ({"queue": "a", "fingerprint": 7}, plain, "fingerprint=7"),
    "fingerprint with an empty field": ({"queue": "a", "fingerprint": ["n", "a..b"]}, plain, "fingerprint="),
    "async fingerprint": (
        {"queue": "a", "fingerprint": waits},
        plain,
        "fingerprint=waits is an async function",
    ),
    "empty queue": ({"queue": ""}, plain, "not the name of a queue"),
    "long queue": ({"queue": "q" * 261}, plain, "not the name of a queue"),
    "queue that is no text": ({"queue": 7}, plain, "not the name of a queue"),
    "bad name": ({"queue": "a", "name": "Send Invoice"}, plain, "a name is"),
    "reserved name": ({"queue": "a", "name": "runonce_x"}, plain, "are taken"),
    "negative retries": ({"queue": "a", "retries": -1}, plain, "retries=-1"),
    "boolean retries": ({"queue": "a", "retries": True}, plain, "retries=True"),
    "no delay": ({"queue": "a", "retry_delay": 0}, plain, "retry_delay=0"),
    "no wait": ({"queue": "a", "lock_wait": timedelta(0)}, plain, "lock_wait"),
    "no concurrency": ({"queue": "a", "concurrency": 0}, plain, "concurrency=0"),
    "unknown policy": ({"queue": "a", "on_abandoned": "retry"}, plain, "on_abandoned='retry'"),
    "short retention": ({"queue": "a", "retention": timedelta(days=20)}, plain, "under 21 days"),
    "endless retention": ({"queue": "a", "retention": timedelta(days=4000)}, plain, "at most 3650 days"),
    "no runtime": ({"queue": "a", "max_runtime": 0}, plain, "max_runtime=0"),
    "empty key": ({"queue": "a", "key": ""}, plain, "key=''"),
    "key of dots": ({"queue": "a", "key": ".."}, plain, "key='..'"),
    "key of another kind": ({"queue": "a", "key": 7}, plain, "key=7"),
    "async key with some of its arguments": (
        {"queue": "a", "key": functools.partial(waits)},
        plain,
        "is an async function",
    ),
    "object that is called as an async key": ({"queue": "a", "key": Waits()}, plain, "is an async function"),
    "lock with half an emoji": ({"queue": "a", "lock": "cut \ud83d"}, plain, "must be a name"),
    "async key": ({"queue": "a", "key": waits}, plain, "key=waits is an async function"),
    "reconcile without hold": ({"queue": "a", "reconcile": plain}, plain, 'on_abandoned="hold"'),
    "async reconcile": (
        {"queue": "a", "on_abandoned": "hold", "reconcile": waits},
        plain,
        "reconcile=waits is an async function",
    ),
    "reconcile that is no function": (
        {"queue": "a", "on_abandoned": "hold", "reconcile": True},
        plain,
        "reconcile=True",
    ),
    "empty lock": ({"queue": "a", "lock": ""}, plain, "lock=''"),
    "lock without a field's name": ({"queue": "a", "lock": "x:{}"}, plain, "lock='x:{}'"),
    "lock with an open brace": ({"queue": "a", "lock": "x:{id"}, plain, "lock='x:{id'"),
    "lock with a conversion": ({"queue": "a", "lock": "{id!r}"}, plain, "lock="),
    "lock with a format": ({"queue": "a", "lock": "{id:>5}"}, plain, "lock="),
    "lock with escaped braces": ({"queue": "a", "lock": "{{id}}"}, plain, "lock="),
    "lock that is no text": ({"queue": "a", "lock": 5}, plain, "lock=5"),
    "long lock": ({"queue": "a", "lock": "x" * 201}, plain, "lock="),
    "three parameters": ({"queue": "a"}, two, "its function takes"),
    "no parameter": ({"queue": "a"}, none, "its function takes"),
    "starred parameter": ({"queue": "a"}, starred, "its function takes"),
    "parameter with a default": ({"queue": "a"}, defaulted, "its function takes"),
    "keyword parameter": ({"queue": "a"}, keyword, "its function takes"),
    "two models": ({"queue": "a"}, models, "two models"),
    "no function": ({"queue": "a"}, Message, "goes on a function"),
    "type that is not there": ({"queue": "a"}, unseen, "is not there when the job runs"),
    "type that no body can have": ({"queue": "a"}, odd, "neither a Message nor a type"),
    "unknown encoding": ({"queue": "a", "queue_encoding": "utf-8"}, plain, "queue_encoding='utf-8'"),
}


@pytest.mark.parametrize(("options", "body", "said"), BAD.values(), ids=BAD)
def test_bad_options_are_refused_at_once(options: dict[str, Any], body: Any, said: str) -> None:
    """What cannot work is refused where it is written, naming the option and its value."""
    with pytest.raises(DefinitionError, match=re.escape(said)) as caught:
        handler(**options)(body)
    assert len(str(caught.value)) > 30


@pytest.mark.parametrize(
    "lock", ["search-index", "customer:{customer_id}", "{order.id}", "{a}/{b.c}", "tenant {tenant} ü"]
)
def test_good_locks(lock: str) -> None:
    """A lock is a name, with fields of the body anywhere in it."""
    made = handler(queue="invoices", lock=lock)(plain)
    assert isinstance(made, Handler)
    assert made.lock == lock
