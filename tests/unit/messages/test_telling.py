"""What hooks hear of messages, and that they cannot hurt one."""

from __future__ import annotations

import asyncio
import contextvars
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.hooks import Heard, added, hearing
from support.messages import AFTER_CLAIM, KEY, begun, delivery, handling, host_of, row_of, silence

from runonce import hooks
from runonce.errors import LeaseLost, PermanentError
from runonce.execution.options import MAX_ABANDONED
from runonce.testing import Complete, DeadLetter, Reschedule, Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.messages.message import Message


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What is told meanwhile."""
    with hearing() as one:
        yield one


@pytest.fixture
def bench() -> Workbench:
    """A bench on whose clock waiting passes the time."""
    made = Workbench(clock=PassingClock())
    silence(made.deliverer)
    return made


def raising(error: BaseException) -> Callable[[Message], Any]:
    def body(_: Message) -> None:
        raise error

    return body


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_message_is_told_before_and_after(heard: Heard, bench: Workbench, *, is_async: bool) -> None:
    """Before its handler begins and after its end is decided, with what identifies it, and no body or key."""
    order: list[list[str]] = []

    def sync_body(_: Message) -> None:
        order.append([name for name, _ in heard.calls])

    async def async_body(message: Message) -> None:
        await asyncio.sleep(0)
        sync_body(message)

    one = handling(async_body if is_async else sync_body)
    came = delivery(
        {"id": "A-17", "card": "4111-1111"},
        count=2,
        correlation_id="c-1",
        properties={"colour": "red"},
        enqueued_at=bench.clock.now() - timedelta(seconds=7),
    )
    assert bench.deliverer.deliver(one, came) == Complete()
    assert heard.names() == ["before_message", "after_message"]
    assert order == [["before_message"]]
    [told], [ended] = heard.of("before_message"), heard.of("after_message")
    row = row_of(bench, one)
    assert (told.handler, told.queue, told.message_id, told.attempt) == ("send_invoice", "invoices", "m-1", 1)
    assert (told.holder, told.token, told.idempotency_key) == (row.holder, 1, row.idempotency_key)
    assert (told.waited, told.deliveries, told.correlation_id) == (7.0, 2, "c-1")
    assert told.headers == {"colour": "red"}
    assert (ended.message, ended.outcome, ended.error) == (told, "done", None)
    assert "4111" not in repr(heard.calls)
    assert "A-17" not in repr(heard.calls)


def test_a_message_on_a_loop_is_told_too(heard: Heard, bench: Workbench) -> None:
    """`deliver_async` tells what `deliver` tells."""

    async def body(_: Message) -> None:
        await asyncio.sleep(0)

    assert asyncio.run(bench.deliverer.deliver_async(handling(body), delivery())) == Complete()
    assert heard.names() == ["before_message", "after_message"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_hook_sets_a_variable_for_the_handler(bench: Workbench, *, is_async: bool) -> None:
    """A context variable that before_message sets is what the handler reads."""
    variable = contextvars.ContextVar[str]("variable", default="nothing")
    seen: list[str] = []

    class Sets(hooks.Hooks):
        def before_message(self, message: hooks.MessageBegun) -> None:
            message.context.run(variable.set, message.message_id)

    def sync_body(_: Message) -> None:
        seen.append(variable.get())

    async def async_body(message: Message) -> None:
        await asyncio.sleep(0)
        sync_body(message)

    with added(Sets()):
        bench.deliverer.deliver(handling(async_body if is_async else sync_body), delivery())
    assert seen == ["m-1"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "hang"])
def test_hooks_hurt_no_message(heard: Heard, bench: Workbench, how: str) -> None:
    """The message is handled as if nobody had listened."""
    if how == "raise":
        heard.error = SystemExit(3)
    else:
        heard.go_on.clear()
    one = handling()
    assert [bench.deliver(one, {"id": str(n)}) for n in range(5)] == [Complete()] * 5
    heard.go_on.set()
    assert heard.names() == ["before_message", "after_message"] * 5


def test_a_lost_claim_is_told(heard: Heard, bench: Workbench) -> None:
    """on_lease_lost names the message whose claim, or lock, is gone."""
    working = begun(bench.deliverer, handling())
    working.stop.set(LeaseLost("gone"))
    bench.deliverer.finish(working, None, LeaseLost("gone"))
    assert [(lost.work.message_id, lost.reason) for lost in heard.of("on_lease_lost")] == [("m-1", "gone")]


def test_a_takeover_is_told_with_its_length(heard: Heard, bench: Workbench) -> None:
    """The attempt that follows a host's death knows how long ago that gave its last sign of life."""
    one = handling()
    begun(bench.deliverer, one)
    bench.clock.advance(AFTER_CLAIM)
    assert host_of(bench).deliver(one, delivery(count=2)) == Complete()
    assert [told.taken_over for told in heard.of("before_message")] == [None, AFTER_CLAIM]


def test_what_is_not_handled_is_told(heard: Heard, bench: Workbench) -> None:
    """In progress elsewhere, done already, unreadable: each with its word."""
    one = handling()
    working = begun(bench.deliverer, one)
    other = host_of(bench)
    assert isinstance(other.deliver(one, delivery(count=2)), Reschedule)
    bench.deliverer.finish(working, None, None)
    other.deliver(one, delivery(count=2))
    other.deliver(one, delivery(b"{", message_id="m-2"))
    told = [(refused.why, refused.name, refused.message_id) for refused in heard.of("on_not_run")]
    assert told == [
        ("rescheduled", "send_invoice", "m-1"),
        ("duplicate", "send_invoice", "m-1"),
        ("dead lettered", "send_invoice", "m-2"),
    ]


# -- incidents ----------------------------------------------------------------------------------------------


def test_a_dead_letter_is_told_once_however_often_it_comes(heard: Heard, bench: Workbench) -> None:
    """Whoever fails its claim tells it; a redelivery, for its settlement was lost, tells nothing; no key is in it."""
    error = PermanentError("no")
    one = handling(raising(error))
    assert isinstance(bench.deliverer.deliver(one, delivery()), DeadLetter)
    for name in "ab":
        assert isinstance(host_of(bench, name=name).deliver(one, delivery(count=3)), DeadLetter)
    [told] = heard.of("on_incident")
    assert (told.kind, told.name, told.message_id, told.error) == (
        "dead_lettered",
        "send_invoice",
        "m-1",
        error,
    )
    assert (told.first, told.attempt) == (True, 1)
    assert "A-17" not in told.id


def test_a_message_that_cannot_be_read_is_told(heard: Heard, bench: Workbench) -> None:
    """It has no claim, and an id of its own all the same."""
    one = handling()
    bench.deliverer.deliver(one, delivery(b"{", message_id="m-1"))
    bench.deliverer.deliver(one, delivery(b"{", message_id="m-2"))
    told = heard.of("on_incident")
    assert [(one.kind, one.message_id) for one in told] == [
        ("dead_lettered", "m-1"),
        ("dead_lettered", "m-2"),
    ]
    assert len({one.id for one in told}) == 2


def test_a_reused_key_is_told_as_the_message_that_reuses_it(heard: Heard, bench: Workbench) -> None:
    """The other message, which has had its effect, is no incident."""
    one = handling()
    bench.deliverer.deliver(one, delivery())
    bench.deliverer.deliver(one, delivery({"id": "A-17", "more": 1}, message_id="m-2", count=2))
    assert [(one.kind, one.message_id) for one in heard.of("on_incident")] == [("dead_lettered", "m-2")]


def test_a_retry_is_no_incident(heard: Heard, bench: Workbench) -> None:
    """A failure that is tried again is told by after_message alone."""
    bench.deliverer.deliver(handling(raising(ValueError("no"))), delivery())
    assert heard.of("on_incident") == []
    assert [ended.outcome for ended in heard.of("after_message")] == ["rescheduled"]


def test_a_message_that_kills_its_hosts_is_told_when_it_is_given_up(heard: Heard, bench: Workbench) -> None:
    """Whoever writes on its claim that it is given up tells it."""
    one = handling()
    for _ in range(MAX_ABANDONED):
        begun(bench.deliverer, one, delivery(count=2))
        bench.clock.advance(AFTER_CLAIM)
    for name in "ab":
        assert isinstance(host_of(bench, name=name).deliver(one, delivery(count=9)), DeadLetter)
    assert [(one.kind, one.message_id) for one in heard.of("on_incident")] == [("dead_lettered", "m-1")]


def test_a_held_message_is_told(heard: Heard, bench: Workbench) -> None:
    """on_abandoned="hold": its host died while handling it."""
    one = handling(on_abandoned="hold")
    begun(bench.deliverer, one)
    bench.clock.advance(AFTER_CLAIM)
    for name in "ab":
        host_of(bench, name=name).deliver(one, delivery(count=2))
    assert [one.kind for one in heard.of("on_incident")] == ["held"]


def test_a_message_that_is_handled_after_all_has_recovered(heard: Heard, bench: Workbench) -> None:
    """Corrected or replayed: it has the id of the incident that it ends."""
    steps: list[BaseException] = [PermanentError("no")]

    def body(_: Message) -> None:
        if steps:
            raise steps.pop()

    one = handling(body)
    bench.deliverer.deliver(one, delivery())
    assert bench.deliverer.deliver(one, delivery({"id": KEY, "corrected": True}, count=2)) == Complete()
    told = heard.of("on_incident")
    assert [one.kind for one in told] == ["dead_lettered", "recovered"]
    assert told[0].id == told[1].id


def test_no_event_has_a_body(heard: Heard, bench: Workbench) -> None:
    """Whatever becomes of a message, what is in it is told to nobody."""
    secret = "4111-1111-1111"
    bodies = [{"id": "1", "card": secret}, {"card": secret}, secret, f"{{{secret}".encode()]
    for number, body in enumerate(bodies):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        bench.deliverer.deliver(handling(raising(ValueError("no"))), delivery(data, message_id=f"m-{number}"))
    assert heard.names()
    assert secret not in repr(heard.calls)
