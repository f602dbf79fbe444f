"""Durable steps of runs and messages: called once in all attempts, and given what was kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, at, recovered, replica, run_row, start, stop_at, work_off
from support.messages import handling, row_of

from runonce.errors import Fenced, HostStopping, InputError, LeaseLost, PermanentError
from runonce.execution.checkpoint import LARGEST_STEPS
from runonce.execution.options import MAX_ABANDONED
from runonce.execution.steps import LONGEST_NAME
from runonce.runs import decide
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.rows import Outcome
from runonce.testing import Complete, DeadLetter, Marks, Reschedule, Workbench, crash_everywhere
from runonce.testing.faults import Boundary

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.message import Message
    from runonce.runs.run import Run

T = at(3)


def nightly(body: Callable[[Run], Any]) -> ScheduledJob:
    def run_it(run: Run) -> Any:
        return body(run)

    return scheduled("0 0 3 * * *", name="nightly", retries=3, retry_delay=1)(run_it)


def attempts(body: Callable[[Run], Any], count: int) -> Workbench:
    """Run a body in so many attempts, the last of which succeeds; all others have to raise."""
    job = nightly(body)
    bench = Workbench(job)
    for number in range(1, count + 1):
        result = bench.run(job, T)
        assert result.outcome == ("succeeded" if number == count else "retrying"), result.reason
        bench.clock.advance(3600)
    return bench


@pytest.mark.parametrize(
    "result", [None, 0, False, "", [], {}, 1.5, "çay ☕ \ud800", {"a": [1, None]}, (1, 2)], ids=ascii
)
def test_a_steps_result_is_given_to_later_attempts(result: Any) -> None:
    """Whatever it is, falsy ones too: it is called once, and every attempt is given the same, also the first."""
    called: list[object] = []
    seen: list[Any] = []

    def charge(invoice: int, *, at: str) -> Any:
        called.append((invoice, at))
        return result

    def body(run: Run) -> None:
        seen.append(run.step("charge", charge, 7, at="x"))
        if run.attempt == 1:
            raise ValueError

    attempts(body, 2)
    assert called == [(7, "x")]
    same = list(result) if isinstance(result, tuple) else result
    assert seen == [same, same]
    assert type(seen[0]) is type(same)


def test_what_is_done_to_a_result_changes_nothing_that_is_kept() -> None:
    """A caller's copy is its own, in each attempt."""
    seen: list[Any] = []

    def body(run: Run) -> None:
        got = run.step("list", lambda: [1])
        seen.append(list(got))
        got.append(2)
        run.step(f"other {run.attempt}", lambda: None)
        if run.attempt < 3:
            raise ValueError

    attempts(body, 3)
    assert seen == [[1], [1], [1]]


def test_an_async_step_is_awaited_once() -> None:
    """Of an async function, whichever way it is one, the result is awaited in the first attempt and in later ones."""
    called: Counter[str] = Counter()

    async def charge(invoice: int) -> int:
        await asyncio.sleep(0)
        called["charge"] += 1
        return invoice

    class Email:
        async def __call__(self) -> str:
            called["email"] += 1
            return "sent"

    seen: list[Any] = []

    async def run_it(run: Run) -> None:
        both = await asyncio.gather(run.step("charge", charge, 0), run.step("email", Email()))
        seen.append([*both, run.step("count", lambda: 5)])
        if run.attempt == 1:
            raise ValueError

    job = scheduled("0 0 3 * * *", name="nightly", retries=3)(run_it)
    bench = Workbench(job)
    assert bench.run(job, T).outcome == "retrying"
    bench.clock.advance(3600)
    assert bench.run(job, T).outcome == "succeeded"
    assert seen == [[0, "sent", 5], [0, "sent", 5]]
    assert called == {"charge": 1, "email": 1}


def test_a_step_that_raised_is_called_again() -> None:
    """In a later attempt and in the same one: an error is not kept."""
    called: list[int] = []

    def flaky() -> str:
        called.append(1)
        if len(called) < 3:
            raise ValueError
        return "now"

    def body(run: Run) -> None:
        try:
            run.step("flaky", flaky)
        except ValueError:
            run.step("flaky", flaky)

    attempts(body, 2)
    assert len(called) == 3


@pytest.mark.parametrize("name", ["", "x" * (LONGEST_NAME + 1), 7, None], ids=repr)
def test_a_name_that_cannot_be_kept_is_refused_before_the_effect(name: Any) -> None:
    """The error names the job and the step, and nothing was called."""

    def body(run: Run) -> None:
        with pytest.raises(InputError, match=r"Job nightly: step .* must be a text of 1 to 200"):
            run.step(name, pytest.fail)

    attempts(body, 1)


def test_a_name_given_twice_is_refused_before_the_effect() -> None:
    """Of two calls of one name, the second would be given the first one's result; it fails the run at once instead."""

    def body(run: Run) -> None:
        run.step("charge", lambda: 1)
        run.step("charge", pytest.fail)

    job = nightly(body)
    result = Workbench(job).run(job, T)
    assert (result.outcome, "there is a step 'charge' already" in result.reason) == ("failed", True)


def test_a_step_inside_itself_is_refused() -> None:
    """A step that is under way counts as given, and others may be made within it."""

    def outer(run: Run) -> int:
        with pytest.raises(InputError, match="already"):
            run.step("outer", pytest.fail)
        return run.step("inner", lambda: 2)

    def body(run: Run) -> None:
        assert run.step("outer", outer, run) == 2
        if run.attempt == 1:
            raise ValueError
        assert run.step("inner", pytest.fail) == 2

    attempts(body, 2)


def test_a_result_that_is_no_json_fails_the_run_and_says_that_it_took_effect() -> None:
    """The next attempt would call it again, so there is none before a person has decided."""
    job = nightly(lambda run: run.step("charge", object))
    result = Workbench(job).run(job, T)
    assert result.outcome == "failed"
    assert (
        "step 'charge' has taken effect, and its result can not be kept: object is no JSON" in result.reason
    )
    assert isinstance(result.error, PermanentError)


def test_results_have_to_fit_together() -> None:
    """What is too large is told after its effect, and what has no room at all before it."""
    effects: list[str] = []

    def large(count: int) -> str:
        effects.append("large")
        return "ç" * count

    def body(run: Run) -> None:
        run.step("first", large, LARGEST_STEPS - 30)
        with pytest.raises(InputError, match=r"step 'second' has taken effect.*together, over 30000"):
            run.step("second", large, 30)
        with pytest.raises(InputError, match=r"step 'a long name.*' is one too many"):
            run.step("a long name " * 3, pytest.fail)
        run.step("3", lambda: 1)

    bench = attempts(body, 1)
    assert effects == ["large", "large"]
    assert list(run_row(bench, nightly(body), T).steps) == ["first", "3"]


def test_a_sync_function_that_returns_a_coroutine_is_refused() -> None:
    """A later attempt could not know that its result is to be awaited; nothing of it has run."""

    async def charge() -> None:
        pytest.fail("it ran")

    job = nightly(lambda run: run.step("charge", lambda: charge()))  # noqa: PLW0108 - that is the mistake
    result = Workbench(job).run(job, T)
    assert (result.outcome, "give it the async function itself" in result.reason) == ("failed", True)


def test_a_step_is_one_storage_call_and_a_kept_one_is_none() -> None:
    """Whoever makes no steps makes no call more; a later attempt has the results with the claim's row."""

    def body(run: Run) -> None:
        for number in range(3):
            run.step(f"{number}", lambda: None)
        if run.attempt == 1:
            raise ValueError

    job = nightly(body)
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    first, second = Boundary(), Boundary()
    replica(bench, stores=first.around(bench.stores)).execute(job, T, by="timer")
    assert first.calls.count("commit") == 1 + 3 + 1
    bench.clock.advance(3600)
    replica(bench, stores=second.around(bench.stores)).execute(job, T, by="timer")
    assert second.calls.count("commit") == 2


def test_steps_batches_and_ledger_go_together() -> None:
    """A step takes along what the ledger and the outbox have, and a later batch leaves its result alone."""
    other = handling()

    def charge(run: Run, item: str) -> str:
        run.ledger.record(item, paid=True)
        run.enqueue(other, {"id": item})
        return f"paid {item}"

    def body(run: Run) -> None:
        first = run.step("first", charge, run, "0")
        assert first == "paid 0"
        for (item,) in run.batches(["1", "2", "3"], size=1):
            run.step(f"charge {item}", charge, run, item)
            if item == "2" and run.attempt == 1:
                raise ValueError
        run.checkpoint.save("end")

    bench = attempts(body, 2)
    row = run_row(bench, nightly(body), T)
    assert dict(row.steps) == {"first": "paid 0", **{f"charge {n}": f"paid {n}" for n in "123"}}
    entries = [entry.values["key"] for entry in bench.stores.runs.scan("test", "entry:", "entry;")]
    assert entries == ["0", "1", "2", "3"]
    assert [sent.json["id"] for sent in bench.sent] == ["0", "1", "2", "3"]


def test_a_paused_ex_owner_keeps_no_result() -> None:
    """Its step has taken effect, but whoever took the run over decides what is kept: it calls the step itself."""
    job = nightly(lambda _: None)
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    old = start(bench.dispatcher, job, T)

    def paused() -> str:
        bench.clock.advance(AFTER_LEASE)
        new = start(replica(bench, host="other"), job, T)
        assert new.run.step("charge", lambda: "new") == "new"
        return "old"

    with pytest.raises((Fenced, LeaseLost)):
        old.run.step("charge", paused)
    assert dict(run_row(bench, job, T).steps) == {"charge": "new"}


def test_a_run_that_must_stop_begins_no_step() -> None:
    """As with batches; what is kept already is given all the same, and the next attempt goes on."""
    called: list[int] = []

    def body(run: Run) -> None:
        run.step("first", called.append, 1)
        if run.attempt == 1:
            stop_at(run)
            with pytest.raises(HostStopping):
                run.step("second", called.append, 2)
            run.check()
        run.step("second", called.append, 2)

    job = nightly(body)
    bench = Workbench(job)
    assert bench.run(job, T).outcome is Outcome.STOPPED
    work_off(bench.dispatcher)
    assert run_row(bench, job, T).outcome is Outcome.SUCCEEDED
    assert called == [1, 2]


def test_a_steps_end_is_kept_although_its_task_is_cancelled() -> None:
    """A host that stops between an async step's effect and its record waits for the record."""
    effects: list[str] = []

    async def charge(run: Run) -> str:
        effects.append("charge")
        run._stop.set(HostStopping())  # cancels this task at its next await, which is that of the record
        return "paid"

    async def run_it(run: Run) -> None:
        await run.step("charge", charge, run)
        await asyncio.sleep(0)

    job = scheduled("0 0 3 * * *", name="nightly", retries=3)(run_it)
    bench = Workbench(job)
    assert bench.run(job, T).outcome is Outcome.STOPPED
    assert dict(run_row(bench, job, T).steps) == {"charge": "paid"}
    assert effects == ["charge"]


def test_a_steps_key_is_the_same_in_every_attempt_and_another_one_for_each_step_and_replay() -> None:
    """It says which effect this is: of which job, fire time, replay and step."""
    keys: list[str] = []

    def body(run: Run) -> None:
        keys.append(run.step_key("charge"))
        run.step("charge", lambda: None)
        assert run.step_key("email") != keys[-1]
        if run.attempt == 1:
            raise ValueError

    job = nightly(body)
    bench = Workbench(job)
    bench.run(job, T)
    bench.clock.advance(3600)
    bench.run(job, T)
    decide.replay(bench.dispatcher, decide.Which("nightly", T, "", "me", "why"))
    assert dict(run_row(bench, job, T).steps) == {}
    recovered(bench.dispatcher, bench.clock)
    assert keys[:2] == ["nightly:20260101T030000Z/charge"] * 2
    assert keys[2:] == ["nightly:20260101T030000Z:1/charge"]


# -- messages ---------------------------------------------------------------------------------------------------


def test_a_messages_step_is_not_called_again_when_it_is_redelivered() -> None:
    """Its result stands on the claim's row, and its key is made of handler, message and step."""
    called: list[str] = []

    def body(message: Message) -> Any:
        result = message.step("charge", lambda: called.append(message.step_key("charge")) or 0)
        if message.attempt == 1:
            raise ValueError
        return result

    one, bench = handling(body), Workbench()
    first = bench.deliver(one, {"id": "1"})
    assert isinstance(first, Reschedule)
    bench.clock.advance(first.delay)
    assert bench.deliver(one, {"id": "1"}, reschedules=1) == Complete(result=0)
    assert len(called) == 1
    assert called[0].startswith("send_invoice:")
    assert called[0].endswith("/charge")


def test_a_corrected_message_begins_its_steps_anew() -> None:
    """What was charged for the body that failed says nothing about the corrected one."""

    def body(message: Message) -> None:
        message.step("charge", lambda: message.json["amount"])
        if message.json["amount"] == 1:
            raise PermanentError("wrong")

    one, bench = handling(body), Workbench()
    assert isinstance(bench.deliver(one, {"id": "1", "amount": 1}), DeadLetter)
    assert bench.deliver(one, {"id": "1", "amount": 2}, message_id="m-2") == Complete()
    assert dict(row_of(bench, one, "1").steps) == {"charge": 2}


def test_a_step_after_the_commit_is_refused_before_its_effect() -> None:
    """There is no record left that it could be kept with."""

    def body(message: Message) -> None:
        message.commit({})
        with pytest.raises(InputError, match=r"step 'late' comes after message.commit"):
            message.step("late", pytest.fail)

    assert Workbench().deliver(handling(body), {"id": "1"}) == Complete()


# -- deaths -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_death_repeats_a_step_that_is_kept() -> None:
    """Killed at each storage call: a step is repeated by the one death between its effect and its record."""
    marks = Marks()

    def body(run: Run) -> None:
        run.step("charge", marks, "charge")
        run.step("email", marks, "email")
        run.checkpoint.save("both")

    report = crash_everywhere(nightly(body), marks=marks)
    assert {effect: len(deaths) for effect, deaths in report.repeated.items()} == {"charge": 1, "email": 1}
    assert all(deaths[0].startswith("before") for deaths in report.repeated.values()), report
    report.check(may_repeat=["charge", "email"])


@pytest.mark.slow
def test_no_death_repeats_a_messages_step_that_is_kept() -> None:
    """The same of a handler."""
    marks = Marks()

    def body(message: Message) -> None:
        message.step("charge", marks, "charge")
        message.checkpoint.save("charged")

    report = crash_everywhere(handling(body), {"id": "1"}, marks=marks)
    assert {effect: len(deaths) for effect, deaths in report.repeated.items()} == {"charge": 1}
    report.check(may_repeat=["charge"])


def test_deaths_count_anew_after_a_step() -> None:
    """A step is progress: what kills a host is not what lies behind it."""

    def body(run: Run) -> None:
        for number in range(1, run.attempt):
            run.step(f"step {number}", lambda: None)

    job = nightly(body)
    bench = Workbench(job)
    for _ in range(MAX_ABANDONED + 2):
        bench.kill(job, T)
    assert [result.outcome for result in bench.recover()] == ["succeeded"]
