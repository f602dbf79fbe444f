"""Batches: one call for several messages, each with a claim and an end of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import AFTER_CLAIM, delivery, host_of, raw_row, row_of

from runonce.errors import (
    DefinitionError,
    HostStopping,
    InputError,
    PermanentError,
    StoreUnavailableError,
)
from runonce.execution.stop import StopSignal
from runonce.messages.batch import deliver_batch
from runonce.messages.definition import Handler, handler
from runonce.messages.ended import Working
from runonce.messages.rows import SHARDS, State, place
from runonce.testing import Complete, DeadLetter, Reschedule, Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.deliver import Deliverer
    from runonce.messages.message import Message
    from runonce.testing import Settlement


def batching(body: Callable[[list[Message]], Any] = lambda _: None, **options: Any) -> Handler:
    """A handler of lists with that body."""

    def handle(messages: list[Message]) -> Any:
        return body(messages)

    return handler(**{"queue": "invoices", "key": "id", "name": "send", "batch": 50, **options})(handle)


def bodies(count: int) -> list[dict[str, str]]:
    return [{"id": f"{number}"} for number in range(count)]


def delivered(host: Deliverer, one: Handler, keys: Sequence[object], **options: Any) -> dict[int, Settlement]:
    """Deliver messages with those keys together."""
    ends: dict[int, Settlement] = {}
    many = [delivery({"id": f"{key}"}, message_id=f"m-{key}-{n}", **options) for n, key in enumerate(keys)]
    deliver_batch(host, one, many, ends.__setitem__)
    return ends


def states(bench: Workbench, one: Handler, count: int) -> list[State]:
    return [row_of(bench, one, f"{number}").state for number in range(count)]


def test_a_batch_is_one_call_and_each_message_is_done() -> None:
    """The function gets all of them in order, and each has a claim of its own."""
    calls: list[list[str]] = []
    one = batching(lambda messages: calls.append([message.key for message in messages]))
    bench = Workbench()
    assert bench.deliver_batch(one, bodies(20)) == [Complete()] * 20
    assert calls == [[f"{number}" for number in range(20)]]
    assert states(bench, one, 20) == [State.DONE] * 20
    assert len({row_of(bench, one, f"{n}").idempotency_key for n in range(20)}) == 20
    assert {row_of(bench, one, f"{n}").returned for n in range(20)} == {""}


def test_an_async_batch_is_awaited() -> None:
    """The same of an async function."""

    async def handle(messages: list[Message]) -> int:
        await asyncio.sleep(0)
        return len(messages)

    one = handler(queue="invoices", key="id", name="send", batch=5)(handle)
    assert Workbench().deliver_batch(one, bodies(3)) == [Complete(result=3)] * 3


def test_claims_and_done_marks_are_a_transaction_for_each_partition() -> None:
    """Fifty messages cost as many calls as there are partitions, twice; one by one they are a hundred."""
    bench, boundary = Workbench(), Boundary()
    one = batching()
    host = host_of(bench, stores=boundary.around(bench.stores))
    assert set(delivered(host, one, range(50)).values()) == {Complete()}
    assert boundary.calls == ["commit"] * SHARDS * 2


def test_those_that_fail_come_again_alone() -> None:
    """The others are done; a permanent error puts its message aside at once, and a later success is one."""
    calls: list[list[str]] = []

    def body(messages: list[Message]) -> None:
        calls.append([message.key for message in messages])
        for message in messages:
            if message.key == "1" and message.attempt == 1:
                message.fail(ValueError("not now"))
            if message.key == "2":
                message.fail(PermanentError("never"))

    one, bench = batching(body, retries=1), Workbench()
    first = bench.deliver_batch(one, bodies(4))
    assert [type(end) for end in first] == [Complete, Reschedule, DeadLetter, Complete]
    assert states(bench, one, 4) == [State.DONE, State.RELEASED, State.FAILED, State.DONE]
    row = row_of(bench, one, "1")
    assert (row.failures, row.reason) == (1, "ValueError: not now")
    assert isinstance(first[1], Reschedule)
    bench.clock.advance(first[1].delay)
    again = delivered(bench.deliverer, one, range(4), reschedules=1)
    assert [again[n] for n in (0, 1, 3)] == [Complete(duplicate=True), Complete(), Complete(duplicate=True)]
    assert isinstance(again[2], DeadLetter)
    assert calls == [["0", "1", "2", "3"], ["1"]]


def test_a_batch_that_raises_is_no_failure_of_its_messages_until_one_raises_alone() -> None:
    """Nobody knows which of them it was: each comes again alone, with all its retries, and the bad one is found."""

    def body(messages: list[Message]) -> None:
        if any(message.key == "2" for message in messages):
            raise PermanentError("the third")

    one, bench = batching(body, retries=0), Workbench()
    first = bench.deliver_batch(one, bodies(4))
    assert {type(end) for end in first} == {Reschedule}
    assert {row_of(bench, one, f"{n}").failures for n in range(4)} == {0}
    bench.clock.advance(1)
    again = delivered(bench.deliverer, one, range(4), reschedules=1)
    assert [type(again[n]) for n in range(4)] == [Complete, Complete, DeadLetter, Complete]


def test_what_was_committed_or_had_failed_before_a_batch_raised_stands() -> None:
    """Only the others are undecided."""

    def body(messages: list[Message]) -> None:
        messages[0].commit({"row": {"of": messages[0].key}})
        messages[1].fail(PermanentError("its own"))
        raise ValueError

    one, bench = batching(body), Workbench()
    ends = bench.deliver_batch(one, bodies(3))
    assert [type(end) for end in ends] == [Complete, DeadLetter, Reschedule]
    assert states(bench, one, 3) == [State.DONE, State.FAILED, State.RELEASED]
    assert [row["of"] for row in bench.effects(one)] == ["0"]


def test_one_that_is_taken_is_settled_alone_and_the_others_go_through() -> None:
    """Whether it is done, failed or in progress elsewhere; also where the broker says that it is its first delivery."""
    seen: list[list[str]] = []
    bench = Workbench()
    done = batching()
    bench.deliver(done, {"id": "1"})
    elsewhere = host_of(bench).begin(done, delivery({"id": "3"}))
    one = batching(lambda messages: seen.append([message.key for message in messages]))
    ends = bench.deliver_batch(one, bodies(8))
    assert seen == [["0", "2", "4", "5", "6", "7"]]
    assert ends[1] == Complete(duplicate=True)
    assert isinstance(ends[3], Reschedule)
    assert elsewhere is not None
    assert {end for n, end in enumerate(ends) if n not in (1, 3)} == {Complete()}


def test_of_two_with_one_key_one_is_handled() -> None:
    """The other finds it in progress, comes again, and is then a duplicate."""
    one, bench = batching(), Workbench()
    ends = delivered(bench.deliverer, one, [1, 1, 2])
    assert [type(ends[n]) for n in range(3)] == [Complete, Reschedule, Complete]


def test_one_that_was_taken_over_meanwhile_keeps_no_other_from_being_done() -> None:
    """Its mark is refused, those of the same partition are written all the same."""
    bench = Workbench()
    stolen: list[str] = []

    def body(_: list[Message]) -> None:
        bench.clock.advance(AFTER_CLAIM)
        again = host_of(bench).begin(plain, delivery({"id": "7"}, message_id="m-7", count=2))
        stolen.append(type(again).__name__)

    plain, one = batching(), batching(body)
    host = host_of(bench, name="first")
    ends = delivered(host, one, range(20))
    assert stolen == ["Working"]
    assert isinstance(ends[7], Reschedule)
    assert "token 1 is older" in ends[7].reason
    assert [n for n in range(20) if ends[n] != Complete()] == [7]
    assert row_of(bench, one, "7").host == "other"


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST], ids=str)
@pytest.mark.parametrize("call", range(1, 2 * SHARDS + 1))
def test_a_lost_request_or_reply_of_a_transaction_loses_and_doubles_nothing(call: int, fault: Fault) -> None:
    """What came of it is found out message by message: every one is handled once and done."""
    seen: list[str] = []
    one, bench = batching(lambda messages: seen.extend(message.key for message in messages)), Workbench()
    boundary = Boundary()
    boundary.at(call, fault)
    ends = delivered(host_of(bench, stores=boundary.around(bench.stores)), one, range(30))
    assert set(ends.values()) == {Complete()}
    assert sorted(seen, key=int) == [f"{number}" for number in range(30)]
    assert states(bench, one, 30) == [State.DONE] * 30


def test_no_message_is_lost_where_the_host_dies() -> None:
    """Another host takes each over by itself once its claim has ended."""
    one, bench = batching(), Workbench()
    host = host_of(bench)
    begun = host.begin_all(
        one, [delivery({"id": f"{n}"}, message_id=f"m-{n}") for n in range(6)], None, print
    )
    assert len(begun) == 6
    bench.clock.advance(AFTER_CLAIM)
    ends = delivered(bench.deliverer, one, range(6), count=2)
    assert set(ends.values()) == {Complete()}
    assert {row_of(bench, one, f"{n}").abandoned for n in range(6)} == {1}


@pytest.mark.parametrize("others", [0, 1])
def test_one_that_was_given_up_meanwhile_keeps_its_end(others: int) -> None:
    """It is settled as it was then, also where it is alone, and the others by what came of the call."""
    one, bench = batching(), Workbench()
    given: dict[int, Settlement] = {}
    host = host_of(bench)
    many = [delivery({"id": f"{n}"}, message_id=f"m-{n}") for n in range(1 + others)]
    works = [each for each in host.begin_all(one, many, None, given.__setitem__) if isinstance(each, Working)]
    works[0].stop.set(HostStopping())
    host._give_up(works[0])
    assert given == {0: Reschedule(1.0, "other was stopping")}
    assert host.finish_all(works, None, None) == [given[0], Complete()][: 1 + others]
    assert states(bench, one, 1 + others) == [State.RELEASED, State.DONE][: 1 + others]


def test_bad_messages_are_put_aside_and_the_others_handled() -> None:
    """One without its key, and one whose body is no JSON."""
    one, bench = batching(), Workbench()
    ends = bench.deliver_batch(one, [{"id": "0"}, {}, b"{", {"id": "3"}])
    assert [type(end) for end in ends] == [Complete, DeadLetter, DeadLetter, Complete]


def test_follow_ups_checkpoints_and_steps_are_each_messages_own() -> None:
    """Nothing of one message goes with another."""

    def body(messages: list[Message]) -> None:
        for message in messages:
            message.enqueue(to, {"id": f"after {message.key}"})
            assert message.step("charge", lambda message=message: message.key) == message.key
            if message.key == "1":
                message.fail(ValueError())

    to, one, bench = batching(name="other", queue="others"), batching(body), Workbench()
    bench.deliver_batch(one, bodies(3))
    # The step of the failed one took its follow-up along.
    assert sorted(sent.json["id"] for sent in bench.sent) == ["after 0", "after 1", "after 2"]
    assert [dict(row_of(bench, one, f"{n}").steps) for n in range(3)] == [
        {"charge": f"{n}"} for n in range(3)
    ]


def test_one_message_alone_is_a_list_of_one() -> None:
    """As it comes on Functions, and to everybody who delivers one; a raise is then its own failure."""
    sizes: list[int] = []

    def body(messages: list[Message]) -> None:
        sizes.append(len(messages))
        if messages[0].key == "bad":
            raise PermanentError
        if messages[0].key == "failed":
            messages[0].fail(PermanentError("so"))

    one, bench = batching(body), Workbench()
    assert bench.deliver(one, {"id": "1"}) == Complete()
    assert isinstance(bench.deliver(one, {"id": "bad"}), DeadLetter)
    assert isinstance(bench.deliver(one, {"id": "failed"}), DeadLetter)
    assert sizes == [1, 1, 1]


def test_a_host_that_stops_marks_none_done_that_was_not_worked_on() -> None:
    """A function that sees the stop on one message and returns has done those it said `done` of, and no others."""
    stop = StopSignal()

    def body(messages: list[Message]) -> None:
        for message in messages:
            if message.stopping:
                return
            message.done()
            if message.key == "1":
                stop.set(HostStopping())

    one, bench = batching(body), Workbench()
    ends = delivered(host_of(bench, stop=stop), one, range(4))
    assert [type(ends[n]) for n in range(4)] == [Complete, Complete, Reschedule, Reschedule]
    assert states(bench, one, 4) == [State.DONE, State.DONE, State.RELEASED, State.RELEASED]
    assert row_of(bench, one, "2").failures == 0


def test_an_async_batch_is_cancelled_by_a_stop_and_comes_again() -> None:
    """None of it has failed, and none is done."""
    stop = StopSignal()

    async def handle(_: list[Message]) -> None:
        stop.set(HostStopping())
        await asyncio.sleep(30)

    one, bench = handler(queue="invoices", key="id", name="send", batch=5)(handle), Workbench()
    ends = delivered(host_of(bench, stop=stop), one, range(3))
    assert {type(end) for end in ends.values()} == {Reschedule}
    assert {(row_of(bench, one, f"{n}").state, row_of(bench, one, f"{n}").failures) for n in range(3)} == {
        (State.RELEASED, 0)
    }


def test_a_batch_over_its_time_comes_again_alone() -> None:
    """Its max_runtime is of the call; which message took so long is found out one by one."""
    bench = Workbench()

    def body(messages: list[Message]) -> None:
        bench.clock.advance(61 if len(messages) > 1 else 1)

    one = batching(body, max_runtime=60)
    ends = delivered(host_of(bench), one, range(3))
    assert {type(end) for end in ends.values()} == {Reschedule}
    assert {row_of(bench, one, f"{n}").failures for n in range(3)} == {0}
    bench.clock.advance(5)
    assert set(delivered(bench.deliverer, one, range(3), reschedules=1).values()) == {Complete()}


def test_the_table_away_before_a_batch_runs_nothing() -> None:
    """Every message comes again, and none has used a delivery up."""
    one, bench = batching(lambda _: pytest.fail("it ran")), Workbench()
    host = host_of(bench)

    def away(*_: Any) -> None:
        raise StoreUnavailableError("away")

    host.registry = type(host.registry)(_Away(away), "test", bench.clock, "away")  # type: ignore[arg-type]
    ends = delivered(host, one, range(3))
    assert {type(end) for end in ends.values()} == {Reschedule}
    assert raw_row(bench, one, "0") is None


class _Away:
    """A table that does not answer."""

    def __init__(self, away: Callable[..., None]) -> None:
        self.get = self.commit = away


def test_fail_is_for_batches_and_takes_an_exception() -> None:
    """A handler of one message raises; a text is no error."""

    def body(message: Message) -> None:
        with pytest.raises(InputError, match="raise the error instead"):
            message.fail(ValueError())

    single = handler(queue="invoices", key="id", name="single")(body)
    assert Workbench().deliver(single, {"id": "1"}) == Complete()

    def with_text(messages: list[Message]) -> None:
        with pytest.raises(InputError, match=r"message.fail\('why'\) takes an exception"):
            messages[0].fail("why")  # type: ignore[arg-type]

    assert Workbench().deliver(batching(with_text), {"id": "1"}) == Complete()


@pytest.mark.parametrize("size", [0, 101, -1, True, 2.5, "50"], ids=repr)
def test_a_batch_has_one_to_a_hundred_messages(size: Any) -> None:
    """As many as one transaction takes."""
    with pytest.raises(DefinitionError, match="batch"):
        batching(batch=size)


def test_a_batch_has_no_lock() -> None:
    """A lock is of one message."""
    with pytest.raises(
        DefinitionError, match=r"Job 'send': lock='x' is of one message, and batch=50 takes several"
    ):
        batching(lock="x")


def test_a_batchs_function_takes_a_list_of_messages() -> None:
    """Anything else is refused when the file is loaded, with how it is written."""

    def one(message: Message) -> None: ...
    def two(messages: list[Message], more: int) -> None: ...
    def numbers(messages: list[int]) -> None: ...
    def none() -> None: ...
    def named(*, messages: list[Message]) -> None: ...

    for function in (one, two, numbers, none, named):
        with pytest.raises(DefinitionError, match=r"messages: list\[Message\]"):
            handler(queue="q", batch=2)(function)
    assert handler(queue="q", batch=2, name="plain")(lambda _: None).batch == 2


def test_partitions_are_those_of_single_messages() -> None:
    """A message has the same row whether it came in a batch or alone."""
    one, bench = batching(), Workbench()
    bench.deliver_batch(one, bodies(2))
    assert bench.stores.claims.get(*place("test", one.entity, one.name, "0")) is not None
    assert bench.deliver(one, {"id": "0"}) == Complete(duplicate=True)
