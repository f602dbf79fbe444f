"""Functions under `@once` on stores in memory: who runs, who waits, what is kept, what is refused."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import AFTER_CLAIM, LEASE

from runonce import InputError, PermanentError, RunonceError
from runonce.errors import DefinitionError
from runonce.execution.registry import Registry
from runonce.hosts.calls import calling_by
from runonce.hosts.discover import Discovered
from runonce.hosts.purge import purge_job
from runonce.messages.calls import Calls, read
from runonce.messages.once import define
from runonce.messages.rows import SHARDS, MessageRow, State, decode_message, of_calls, partition
from runonce.messages.status import open_claims
from runonce.once import Call, InProgressError, KeyReusedError, once
from runonce.runs.rows import Outcome
from runonce.testing import ManualClock, Workbench
from runonce.testing.faults import Boundary, Died, Fault, PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FALSY = [None, 0, 0.0, False, "", [], {}]


@pytest.fixture(autouse=True)
def bench() -> Iterator[Workbench]:
    """A bench that every call of the test is claimed on; its clock goes on by itself when somebody waits."""
    made = Workbench(clock=PassingClock())
    with made.inside():
        yield made


def calling(result: Any = None, **options: Any) -> tuple[Callable[..., Any], list[int]]:
    """A function under `@once`, and the attempts that have run it; `result` may be a function."""
    ran: list[int] = []

    @once(**{"key": "order", "name": "charge", **options})
    def charge(order: str | int, cents: object = 5) -> Any:
        ran.append(Call.current().attempt)
        return result(order, cents) if callable(result) else result

    return charge, ran


def rows(bench: Workbench, name: str = "charge") -> list[MessageRow]:
    """The claims of the function's calls."""
    registry = of_calls(registry_of(bench))
    found = []
    for shard in range(SHARDS):
        at = partition(registry.namespace, name, shard)
        found += [decode_message(row) for row in bench.stores.claims.scan(at, "claim:", "claim;")]
    return found


def registry_of(bench: Workbench) -> Registry:
    """Of the claims of messages."""
    return Registry(bench.stores.claims, bench.settings.namespace, bench.clock, "test")


def dead_claim(bench: Workbench) -> None:
    """A call of order A-1 whose process dies while it runs."""

    def charge(order: str, cents: int = 5) -> None:
        """Is never called."""

    terms: dict[str, Any] = {
        "retention": timedelta(days=30),
        "busy": "wait",
        "key": "order",
        "fingerprint": "*",
    }
    made = define(charge, "once", name="charge", **terms)
    process = Calls(registry_of(bench), LEASE)
    process._heartbeats.watch = lambda *_: None  # type: ignore[method-assign]
    steps = process.steps(made, *read(made, ("A-1",), {}))
    assert isinstance(next(steps), Call)
    DEAD.append(steps)  # closing it would end it


DEAD: list[Any] = []


@pytest.mark.parametrize("result", [*FALSY, "paid", 17, {"receipt": "r-1", "parts": [1, None]}])
def test_a_repetition_gets_the_result_as_it_was(result: Any) -> None:
    """The function runs once, and each caller gets what it returned, of the same type, however empty."""
    charge, ran = calling(result)
    answers = [charge("A-1") for _ in range(3)]
    assert answers == [result] * 3
    assert {type(answer) for answer in answers} == {type(result)}
    assert ran == [1]


@pytest.mark.parametrize("result", FALSY)
def test_an_async_repetition_gets_the_result_as_it_was(result: Any) -> None:
    """An async function is awaited once, on its caller's loop, in its caller's task."""
    ran = []

    @once(key="order", name="charge_async")
    async def charge(order: str) -> Any:
        await asyncio.sleep(0)
        ran.append((order, Call.current().attempt, asyncio.current_task()))
        return result

    async def twice() -> tuple[Any, Any, object]:
        return await charge("A-1"), await charge("A-1"), asyncio.current_task()

    first, second, task = asyncio.run(twice())
    assert (first, second) == (result, result)
    assert ran == [("A-1", 1, task)]


def test_every_caller_gets_the_result_as_json_gives_it_back() -> None:
    """The first caller too gets a list for a tuple, so that a difference shows at once."""
    charge, _ = calling((1, 2))
    assert charge("A-1") == [1, 2]
    assert charge("A-1") == [1, 2]


def test_keys_and_functions_are_told_apart() -> None:
    """Another key is another call, and so is the same key of another function; 7 and "7" are one key."""
    charge, ran = calling(lambda order, _: order, fingerprint=None)
    refund, refunded = calling("back", name="refund", fingerprint=None)
    assert [charge("A-1"), charge("A-2"), charge(7), charge("7")] == ["A-1", "A-2", 7, 7]
    assert refund("A-1") == "back"
    assert (ran, refunded) == ([1, 1, 1], [1])


def test_a_key_is_a_function_of_the_arguments() -> None:
    """A function makes the key of the call as it was written, by place or by name."""
    charge, ran = calling("paid", key=lambda order, cents=5: f"{order}/{cents}")
    assert charge("A-1", 5) == charge("A-1", cents=5) == charge("A-1") == "paid"
    charge("A-1", 6)
    assert ran == [1, 1]


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("", "empty"),
        (None, "NoneType"),
        (1.5, "float"),
        (True, "bool"),
        ("k" * 513, "513"),
        ("\ud800", "Unicode"),
    ],
)
def test_a_call_without_a_key_runs_nothing(bench: Workbench, key: Any, what: str) -> None:
    """What can be no key is an error that names the function and why, and nothing has run."""
    charge, ran = calling()
    with pytest.raises(InputError, match=rf"charge: its key .*{what}"):
        charge(key)
    assert (ran, rows(bench)) == ([], [])


def test_arguments_that_do_not_fit_are_pythons_own_error(bench: Workbench) -> None:
    """A call that the function does not take is a TypeError, and nothing is claimed."""
    charge, _ = calling()
    with pytest.raises(TypeError):
        charge()
    assert rows(bench) == []


def test_another_payload_under_the_key_is_refused() -> None:
    """The same key with other arguments is an error; equal numbers, defaults and names are no other arguments."""
    charge, ran = calling("paid")
    charge("A-1", 5)
    assert charge("A-1", 5.0) == charge("A-1") == charge(cents=5, order="A-1") == "paid"
    with pytest.raises(KeyReusedError, match=r"charge, key 'A-1': that key came before with other arguments"):
        charge("A-1", 6)
    assert ran == [1]


@pytest.mark.parametrize(("counts", "second"), [(("order",), 6), ("order", 6), (None, 6), ("cents", 5)])
def test_the_fingerprint_says_which_arguments_count(counts: Any, second: int) -> None:
    """Arguments that do not count may differ; none need be the same with None."""
    charge, ran = calling("paid", fingerprint=counts)
    assert charge("A-1", 5) == charge("A-1", second) == "paid"
    assert ran == [1]


def test_arguments_that_are_no_json_are_refused_before_anything_runs(bench: Workbench) -> None:
    """The error names the argument, its type and the remedy; with that the call runs."""
    charge, ran = calling("paid")
    with pytest.raises(InputError, match=r"'cents' is a object.*fingerprint=\(\"order\""):
        charge("A-1", object())
    assert (ran, rows(bench)) == ([], [])
    charge, ran = calling("paid", fingerprint=("order",))
    assert charge("A-1", object()) == "paid"


@pytest.mark.parametrize("bad", [object(), {1, 2}, float("nan"), "x" * 40_000, "\ud800", lambda: 1])
def test_a_result_that_cannot_be_kept_is_told_and_not_run_again(bench: Workbench, bad: Any) -> None:
    """The first caller hears why, nobody runs it again, and every later caller hears the same: its effect is there."""
    charge, ran = calling(lambda *_: bad)
    with pytest.raises(PermanentError, match="charge, key 'A-1': it ran, but its result"):
        charge("A-1")
    (row,) = rows(bench)
    assert row.state is State.FAILED
    with pytest.raises(PermanentError, match="it ran, but its result"):
        charge("A-1")
    assert ran == [1]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), StopIteration(1)])
def test_a_call_that_raises_is_released(error: BaseException) -> None:
    """Its caller gets what was raised; the next caller runs the next attempt, with the same idempotency key."""
    keys = []

    def body(*_: object) -> str:
        keys.append(Call.current().idempotency_key)
        if len(keys) == 1:
            raise error
        return "paid"

    charge, ran = calling(body)
    with pytest.raises(type(error)) as raised:
        charge("A-1")
    assert raised.value is error
    assert charge("A-1") == charge("A-1") == "paid"
    assert ran == [1, 2]
    assert len(set(keys)) == 1


def test_a_permanent_error_is_the_end() -> None:
    """A call that fails for good fails its repetitions too, with the reason."""

    def declined(*_: object) -> None:
        raise PermanentError("card declined")

    charge, ran = calling(declined)
    with pytest.raises(PermanentError, match=r"^card declined"):
        charge("A-1")
    with pytest.raises(
        PermanentError, match="charge, key 'A-1': it failed for good before: PermanentError: card declined"
    ):
        charge("A-1")
    assert ran == [1]


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """The call in a thread of its own, and what comes of it."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(call())
        except RunonceError as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


class StillClock(ManualClock):
    """A clock that stands still; waiting takes a moment all the same."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for a moment."""
        return event.wait(min(seconds, 0.01))


@pytest.mark.parametrize("busy", ["wait", "refuse"])
def test_a_second_caller_waits_or_is_refused(busy: Any) -> None:
    """While one caller is at work another one waits for its result, or is told so at once."""
    with Workbench(clock=StillClock()).inside():
        wait_or_refuse(busy)


def wait_or_refuse(busy: Any) -> None:
    """One caller at work, and others who come meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        begun.set()
        assert go_on.wait(30)
        return "paid"

    charge, ran = calling(slow, busy=busy)
    first, came = in_thread(lambda: charge("A-1"))
    assert begun.wait(30)
    if busy == "refuse":
        with pytest.raises(InProgressError, match=r"charge, key 'A-1': another call of that key is at work"):
            charge("A-1")
        go_on.set()
        first.join(30)
        assert charge("A-1") == "paid"
    else:
        others = [in_thread(lambda: charge("A-1")) for _ in range(3)]
        go_on.set()
        for thread, answer in [(first, came), *others]:
            thread.join(30)
            assert answer == ["paid"]
    assert came == ["paid"]
    assert ran == [1]


def test_a_killed_caller_is_taken_over_when_its_lease_is_over(bench: Workbench) -> None:
    """Before that another caller waits; then it runs the call as the second attempt."""
    dead_claim(bench)
    charge, ran = calling("paid", busy="refuse")
    with pytest.raises(InProgressError):
        charge("A-1")
    bench.clock.advance(AFTER_CLAIM)
    assert charge("A-1") == "paid"
    assert ran == [2]


def test_a_call_that_kills_its_processes_is_given_up(bench: Workbench) -> None:
    """After five deaths nobody runs it any more, and the error says so."""
    charge, ran = calling("paid")
    for _ in range(5):
        dead_claim(bench)
        bench.clock.advance(AFTER_CLAIM)
    for _ in range(2):
        with pytest.raises(PermanentError, match="its process died in 5 attempts"):
            charge("A-1")
    assert ran == []


def test_a_caller_that_was_paused_gets_what_the_next_one_recorded(bench: Workbench) -> None:
    """A caller whose claim was taken over while it ran records nothing, and gets the other one's result."""
    other, _ = calling("second")

    def paused(*_: object) -> str:
        bench.clock.advance(AFTER_CLAIM)
        thread, came = in_thread(lambda: other("A-1"))  # in this one it would be a call within a call
        thread.join(30)
        assert came == ["second"]
        with pytest.raises(BaseException, match=r"could not be kept alive|now"):
            Call.current().check()
        return "first"

    first, ran = calling(paused)
    assert first("A-1") == "second"
    assert ran == [1]
    (row,) = rows(bench)
    assert (row.attempt, row.returned) == (2, '"second"')


def test_a_call_of_itself_is_refused() -> None:
    """A function that calls itself with its key would wait for itself; with another key it may."""

    def again(order: str, _: object) -> Any:
        return charge("A-1") if order != "end" else "end"

    charge, _ = calling(again)
    with pytest.raises(InputError, match="would wait for itself"):
        charge("A-1")
    charge, _ = calling(lambda order, _: "end" if order == "end" else charge("end"))
    assert charge("A-2") == "end"


def test_an_async_call_that_is_cancelled_is_released() -> None:
    """A cancelled caller leaves nothing claimed: the next one runs at once."""
    ran = []

    @once(key="order", name="charge_cancelled")
    async def charge(order: str) -> str:
        ran.append(f"{order}/{Call.current().attempt}")
        if len(ran) == 1:
            begun.set()
            await asyncio.sleep(60)
        return "paid"

    begun = asyncio.Event()

    async def cancel_the_first() -> str:
        first = asyncio.create_task(charge("A-1"))
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await charge("A-1")

    assert asyncio.run(cancel_the_first()) == "paid"
    assert ran == ["A-1/1", "A-1/2"]


def test_async_callers_share_one_result() -> None:
    """Ten tasks that call at the same time run it once."""
    ran = []

    @once(key="order", name="charge_together")
    async def charge(order: str) -> str:
        ran.append(order)
        await asyncio.sleep(0.05)
        return "paid"

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(charge("A-1") for _ in range(10)))

    assert asyncio.run(all_of_them()) == ["paid"] * 10
    assert ran == ["A-1"]


def test_a_call_has_its_facts_and_nobody_else() -> None:
    """Inside the function a call knows its key, its tokens and that it is held; outside there is none."""
    seen = []

    def look(*_: object) -> None:
        call = Call.current()
        call.check()
        seen.append((call.name, call.key, call.attempt, call.fencing_token))

    charge, _ = calling(look)
    charge("A-1")
    assert seen == [("charge", "A-1", 1, 1)]
    with pytest.raises(InputError, match=r"Call\.current"):
        Call.current()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("call", [1, 2])
def test_a_fault_at_any_storage_call_repeats_nothing_but_in_one_place(
    bench: Workbench, call: int, fault: Fault
) -> None:
    """A lost request, a lost reply or a death at either call: one effect, or two for a death before the record."""
    charge, ran = calling("paid")
    boundary = Boundary()
    boundary.at(call, fault)
    claims = replace(registry_of(bench), table=boundary.around(bench.stores).claims)
    with calling_by(Calls(claims, LEASE)):
        if fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER):
            with pytest.raises(Died):
                charge("A-1")
        else:
            assert charge("A-1") == "paid"
    bench.clock.advance(AFTER_CLAIM)
    assert charge("A-1") == "paid"
    assert len(ran) == (2 if (call, fault) == (2, Fault.DEATH_BEFORE) else 1)


def test_no_handler_and_no_list_takes_a_call_for_a_message(bench: Workbench) -> None:
    """Calls lie beside the messages' claims: what looks at those does not see them."""
    dead_claim(bench)
    charge, _ = calling("paid", name="other")
    charge("A-1")
    assert open_claims(registry_of(bench)) == {}


def purge(bench: Workbench) -> set[tuple[str, str]]:
    """Run the nightly purge; name and state of what is left."""
    job = purge_job(bench.dispatcher.registry, registry_of(bench), Discovered(), 90)
    bench.dispatcher.jobs[job.name] = job  # type: ignore[index]
    result = bench.run(job, bench.clock.now() + timedelta(seconds=1))
    assert result.outcome is Outcome.SUCCEEDED, result.error
    return {(row.key, str(row.state)) for name in ("charge", "fail") for row in rows(bench, name)}


def test_records_go_after_their_retention(bench: Workbench) -> None:
    """Done, failed, released and forsaken calls go when their retention is over; one that is at work stays."""
    charge, _ = calling("paid", retention=timedelta(days=2))
    fail, _ = calling(lambda *_: 1 / 0, name="fail", retention=timedelta(days=1))
    reject, _ = calling(
        lambda *_: object(), name="fail", retention=timedelta(days=1), key=lambda order: f"r-{order}"
    )
    charge("A-2")
    with pytest.raises(ZeroDivisionError):
        fail("A-3")
    with pytest.raises(PermanentError):
        reject("A-4")
    dead_claim(bench)  # 30 days
    assert len(purge(bench)) == 4
    bench.clock.advance(86_400)
    assert purge(bench) == {("A-1", "claimed"), ("A-2", "done")}
    bench.clock.advance(86_400)
    assert purge(bench) == {("A-1", "claimed")}
    bench.clock.advance(29 * 86_400)
    assert purge(bench) == set()


def test_a_call_that_is_at_work_outlives_its_retention(bench: Workbench) -> None:
    """A purge removes no claim whose caller gives signs of life, however short its retention."""

    def purged(*_: object) -> set[tuple[str, str]]:
        bench.clock.advance(LEASE / 2)
        return purge(bench)

    charge, _ = calling(lambda *_: sorted(map(list, purged())), retention=1)
    assert charge("A-1") == [["A-1", "claimed"]]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": "oder"}, r"key='oder' is no argument.*order, cents"),
        ({"key": 7}, "key=7 is no argument"),
        ({"fingerprint": ("order", "sum")}, r"fingerprint='sum' is no argument"),
        ({"busy": "drop"}, r"busy='drop' is not one of \"wait\", \"refuse\""),
        ({"retention": 0}, "retention=0"),
        ({"retention": timedelta(days=4000)}, "retention=.*3650"),
        ({"name": "Charge Me"}, "Charge Me"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_defined(options: dict[str, Any], what: str) -> None:
    """The error names the function, the value and the remedy."""
    with pytest.raises(DefinitionError, match=what):
        calling(**options)


def test_two_functions_of_one_name_are_refused() -> None:
    """They would share keys and results; the same function defined once more is no other."""
    define: dict[str, Any] = {"__name__": "shop"}
    code = "from runonce.once import once\n@once(key='a')\ndef unique_pay(a): ...\n"
    exec(code, define)
    exec(code, define)
    with pytest.raises(DefinitionError, match=r"'unique_pay': shop\.unique_pay has that name already"):
        exec(code, {"__name__": "store"})


def test_a_generator_is_refused() -> None:
    """Calling it would do nothing."""
    with pytest.raises(DefinitionError, match="yield"):

        @once(key="a")
        def pay(a: str) -> Iterator[str]:
            yield a


def test_the_storage_calls_are_counted(bench: Workbench) -> None:
    """A first call makes two storage calls, a repetition two: a claim is tried, and read."""
    made: list[str] = []
    store = bench.stores.claims
    for name in ("get", "commit"):
        plain = getattr(store, name)

        def counted(*arguments: Any, name: str = name, plain: Any = plain) -> Any:
            made.append(name)
            return plain(*arguments)

        object.__setattr__(store, name, counted)
    charge, _ = calling("paid")
    charge("A-1")
    assert made == ["commit", "commit"]
    charge("A-1")
    assert made[2:] == ["commit", "get"]
