from __future__ import annotations

import asyncio
import re
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pydantic
import pytest

from runonce import Message, handler
from runonce.errors import DefinitionError
from runonce.messages.definition import Handler


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


BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no source": ({}, plain, "give queue, or topic"),
    "queue and topic": ({"queue": "a", "topic": "b", "subscription": "c"}, plain, "give queue, or topic"),
    "topic without subscription": ({"topic": "b"}, plain, "give queue, or topic"),
    "subscription without topic": ({"queue": "a", "subscription": "c"}, plain, "give queue, or topic"),
    "queue with a slash": ({"queue": "a/b"}, plain, "not the name of a queue"),
    "empty queue": ({"queue": ""}, plain, "not the name of a queue"),
    "long queue": ({"queue": "q" * 51}, plain, "not the name of a queue"),
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
