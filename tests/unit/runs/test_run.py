"""What a job is handed: checkpoints, batches and the ledger, across attempts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, at, die, recovered, replica, run_row, start, stop_at, work_off

from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    HostStopping,
    InputError,
    LeaseLost,
    TimeLimitExceeded,
)
from runonce.execution.checkpoint import LONGEST_CHECKPOINT
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.rows import Outcome
from runonce.runs.run import MAX_ENTRIES, Run
from runonce.testing import Workbench
from runonce.testing.faults import Boundary

if TYPE_CHECKING:
    from collections.abc import Callable

T = at(3)


def nightly(body: Callable[[Run], Any], **options: Any) -> ScheduledJob:
    def run_it(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly", **options)(run_it)


def bench_of(job: ScheduledJob) -> Workbench:
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    return bench


def in_a_run(body: Callable[[Run], Any], **options: Any) -> Workbench:
    """Run a body once, which must succeed."""
    job = nightly(body, **options)
    bench = bench_of(job)
    result = bench.run(job, T)
    assert result.outcome is Outcome.SUCCEEDED, result.reason
    return bench


# -- checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, 0, "çay ☕ 🎉", [1, [2]], {"page": 3, "ids": ["a"]}, "\ud800"], ids=repr
)
def test_a_checkpoint_comes_back_as_it_was(value: Any) -> None:
    """Any JSON value is there for the same attempt and for the next one."""
    seen: list[Any] = []

    def body(run: Run) -> None:
        if run.attempt == 1:
            assert run.checkpoint.load("nothing") == "nothing"
            run.checkpoint.save(value)
            seen.append(run.checkpoint.load("nothing"))
            stop_at(run)
        seen.append(run.checkpoint.load("nothing"))

    job = nightly(body)
    bench = bench_of(job)
    bench.run(job, T)
    work_off(bench.dispatcher)
    assert seen == [value, value]


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), b"bytes"], ids=lambda v: type(v).__name__)
def test_a_checkpoint_that_is_no_json_is_refused(value: Any) -> None:
    """What cannot be kept is refused with the job's name, and what was kept before stays."""

    def body(run: Run) -> None:
        run.checkpoint.save(1)
        with pytest.raises(InputError, match="Job nightly: a checkpoint is a JSON value"):
            run.checkpoint.save(value)
        assert run.checkpoint.load() == 1

    in_a_run(body)


@pytest.mark.parametrize(("character", "units"), [("x", 1), ("ç", 1), ("🎉", 2)])
def test_a_checkpoint_too_large_is_refused_and_one_that_fits_is_not(character: str, units: int) -> None:
    """The limit is that of a table's column, which counts UTF-16; the message says what to do instead."""
    fitting = (LONGEST_CHECKPOINT - 2) // units  # the quotes of JSON count too

    def body(run: Run) -> None:
        run.checkpoint.save(character * fitting)
        with pytest.raises(InputError, match="keep a position in it, and the data in a blob"):
            run.checkpoint.save(character * (fitting + 1))

    in_a_run(body)


# -- batches --------------------------------------------------------------------------------------------------


def test_batches_hand_out_everything_once_in_order() -> None:
    """All items, in batches of the size asked for, one storage call each."""
    batches: list[list[int]] = []
    job = nightly(lambda run: batches.extend(run.batches(range(7), size=3)))
    bench = bench_of(job)
    boundary = Boundary()
    replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert boundary.calls == ["acquire", "get", "scan", "commit", *["commit"] * 3, "commit", "release"]


def test_no_items_are_no_batches() -> None:
    """Nothing to do is done without a call."""
    bench = in_a_run(lambda run: list(run.batches([], size=3)))
    assert run_row(bench, bench.dispatcher.jobs["nightly"], T).progress == {}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_batches_resume_at_the_first_that_was_not_finished(kind: str, fails_at: int) -> None:
    """After a failure in a batch the next attempt begins with that batch, and none before it is seen again."""
    handled: list[list[int]] = []

    def handle(run: Run, batch: list[int]) -> None:
        if run.attempt == 1 and batch[0] == fails_at * 2:
            raise ValueError("in the middle of a batch")
        handled.append(batch)

    def body(run: Run) -> None:
        for batch in run.batches(iter(range(5)), size=2):
            handle(run, batch)

    async def body_async(run: Run) -> None:
        async for batch in run.batches(iter(range(5)), size=2):
            handle(run, batch)

    options: dict[str, Any] = {"name": "nightly", "retries": 1, "retry_delay": 1}
    define = scheduled("0 0 3 * * *", **options)
    job = define(body) if kind == "sync" else define(body_async)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.RETRYING
    assert [r.outcome for r in recovered(bench.dispatcher, bench.clock, 1)] == [Outcome.SUCCEEDED]
    assert handled == [[0, 1], [2, 3], [4]]


def test_batches_stop_between_two() -> None:
    """A run that is told to stop finishes its batch, keeps it, and stops before the next."""
    handled: list[int] = []

    def body(run: Run) -> None:
        for batch in run.batches(range(3), size=1):
            handled.extend(batch)
            if run.attempt == 1 and batch == [1]:
                bench.stop.set(HostStopping())

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.STOPPED
    assert run_row(bench, job, T).progress == {"items": 2}
    work_off(replica(bench))
    assert handled == [0, 1, 2]


def test_several_loops_keep_their_places_apart() -> None:
    """Two loops of one run resume each where it was."""
    handled: list[str] = []

    def body(run: Run) -> None:
        for batch in run.batches("ab", size=1, name="first"):
            handled.extend(batch)
        for batch in run.batches("xyz", size=1, name="second"):
            if run.attempt == 1 and batch == ["y"]:
                stop_at(run)
            handled.extend(batch)

    job = nightly(body)
    bench = bench_of(job)
    bench.run(job, T)
    work_off(bench.dispatcher)
    assert handled == ["a", "b", "x", "y", "z"]


def test_a_checkpoint_and_batches_do_not_overwrite_each_other() -> None:
    """Saving a value keeps the loops' places, and a batch keeps the value."""

    def body(run: Run) -> None:
        run.checkpoint.save("value")
        for batch in run.batches(range(4), size=2):
            if batch == [2, 3]:
                run.checkpoint.save("newer")

    bench = in_a_run(body)
    row = run_row(bench, bench.dispatcher.jobs["nightly"], T)
    assert (row.checkpoint, row.progress) == ('"newer"', {"items": 4})


def test_batches_refuse_what_cannot_work() -> None:
    """No size, a name that would come back as another, a second loop of one name: the error names job and remedy."""

    def body(run: Run) -> None:
        for size in (0, 2.5, True, None):
            with pytest.raises(InputError, match=rf"nightly.*size={size}.*1 or more"):
                run.batches([], size=size)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"nightly.*name=7.*must be text"):
            run.batches([], size=1, name=7)  # type: ignore[arg-type]
        run.batches([], size=1)
        with pytest.raises(InputError, match=r"nightly.*needs a name of its own"):
            run.batches([], size=1)

    in_a_run(body)


@pytest.mark.slow
def test_loops_are_no_more_than_a_row_keeps() -> None:
    """A loop for each of thousands of customers is refused while what is kept of them still fits in a column."""

    def loops(run: Run) -> None:
        for number in range(5000):
            for _ in run.batches([1], size=1, name=f"customer-{number:090}"):
                pass

    def body(run: Run) -> None:
        with pytest.raises(InputError, match=r"nightly.*one loop too many.*one loop over all items"):
            loops(run)

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    kept = run_row(bench, job, T).progress
    assert len(kept) > 200
    assert len(json.dumps(kept)) <= LONGEST_CHECKPOINT


# -- the ledger -----------------------------------------------------------------------------------------------


def test_entries_are_committed_with_their_batch_or_not_at_all() -> None:
    """A death in a batch leaves neither the batch's place nor its entries; the next attempt records them once."""

    def work(run: Run) -> None:
        for batch in run.batches(["a", "b", "c"], size=1):
            run.ledger.record(batch[0], attempt=run.attempt)

    job = nightly(work)
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    loop = iter(started.run.batches(["a", "b", "c"], size=1))
    for _ in range(2):
        run = started.run
        run.ledger.record(next(loop)[0], attempt=run.attempt)
    assert started.run.ledger.keys() == {"a"}  # "b" is staged, its batch is not finished
    die(started)
    bench.clock.advance(AFTER_LEASE)
    assert replica(bench).execute(job, T, by="request").outcome is Outcome.SUCCEEDED
    entries = [(e["key"], e["attempt"]) for e in started.run.ledger.entries()]
    assert entries == [("a", 1), ("b", 2), ("c", 2)]


def test_entries_left_over_are_written_at_the_end() -> None:
    """What no checkpoint took along is written when the body ends well."""
    bench = in_a_run(lambda run: run.ledger.record("a", amount=1.5, paid=True, shop="İzmir"))
    (entry,) = bench.dispatcher.registry.table.scan("test", "entry:", "entry;")
    assert entry.values == {"key": "a", "amount": 1.5, "paid": True, "shop": "İzmir"}


def test_entries_of_a_body_that_fails_are_not_written() -> None:
    """What was staged when the body raised has not taken effect."""

    def body(run: Run) -> None:
        run.ledger.record("a")
        raise ValueError("after staging")

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.FAILED
    assert list(bench.dispatcher.registry.table.scan("test", "entry:", "entry;")) == []


def test_an_effect_recorded_by_an_earlier_run_is_refused() -> None:
    """A key counts for ever: another fire time's run cannot record it again, and writes nothing of that batch."""

    def body(run: Run) -> None:
        run.ledger.record(f"only-{run.fire_time:%d}")
        run.ledger.record("invoice-1")
        if run.fire_time == T:
            return
        with pytest.raises(AlreadyRecordedError, match="'invoice-1' already"):
            run.checkpoint.save("batch")
        assert run.checkpoint.load() is None
        assert run.ledger.keys() == {"only-01", "invoice-1"}
        raise ZeroDivisionError

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    assert bench.run(job, at(3, day=2)).reason.startswith("ZeroDivisionError")


def test_an_effect_recorded_twice_fails_the_run_at_its_end() -> None:
    """A body that records a key of an earlier run and never commits is failed by the last write, not passed over."""
    job = nightly(lambda run: run.ledger.record("invoice-1"))
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    result = bench.run(job, at(3, day=2))
    assert result.outcome is Outcome.FAILED
    assert isinstance(result.error, AlreadyRecordedError)


def test_keys_tell_what_to_leave_out() -> None:
    """A job that asks first what is recorded does the rest."""
    done: list[str] = []

    def body(run: Run) -> None:
        for batch in run.batches(sorted({"a", "b", "c"} - run.ledger.keys()), size=1):
            run.ledger.record(batch[0])
            done.extend(batch)

    job = nightly(body)
    bench = bench_of(job)
    for day in (1, 2):
        assert bench.run(job, at(3, day=day)).outcome is Outcome.SUCCEEDED
    assert done == ["a", "b", "c"]


def test_a_ledger_is_its_jobs_own() -> None:
    """Two jobs may use the same keys."""
    body = nightly(lambda run: run.ledger.record("1")).body
    jobs = [scheduled("0 0 3 * * *", name=name)(body) for name in ("a", "a-b")]
    bench = Workbench(*jobs)
    for job in jobs:
        assert bench.run(job, T).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("key", ["a/b", "a=2Fb", "a\\b#?", "ğüş", "a b", "x" * 200, "\t"], ids=range(7))
def test_any_short_text_is_a_key(key: str) -> None:
    """Keys come back as they were, whatever tables make of such characters."""

    def body(run: Run) -> None:
        run.ledger.record(key)
        run.checkpoint.save(1)
        assert run.ledger.keys() == {key}

    in_a_run(body)


def test_keys_that_look_alike_are_told_apart() -> None:
    """No two keys share a row."""
    keys = {"a/b", "a=2Fb", "a%2Fb", "a b", "a+b", "A/B"}

    def body(run: Run) -> None:
        for key in keys:
            run.ledger.record(key)
        run.checkpoint.save(1)
        assert run.ledger.keys() == keys

    in_a_run(body)


@pytest.mark.parametrize(
    ("key", "values"),
    [("", {}), ("x" * 201, {}), (1, {}), ("a", {"when": T}), ("a", {"rows": [1]}), ("a", {"none": None})],
    ids=range(6),
)
def test_an_entry_that_cannot_be_kept_is_refused(key: Any, values: Any) -> None:
    """A key or a column of another kind is refused at once, naming the job."""

    def body(run: Run) -> None:
        with pytest.raises(InputError, match="Job nightly: ledger"):
            run.ledger.record(key, **values)

    in_a_run(body)


def test_a_batch_takes_so_many_entries_and_no_key_twice() -> None:
    """As many entries as a transaction takes are written in one; one more, or one again, is refused."""

    def body(run: Run) -> None:
        for number in range(MAX_ENTRIES):
            run.ledger.record(str(number))
        with pytest.raises(InputError, match="use smaller batches"):
            run.ledger.record("one more")
        run.checkpoint.save(1)
        run.ledger.record("again")
        with pytest.raises(InputError, match="twice in one batch"):
            run.ledger.record("again")

    bench = in_a_run(body)
    assert len(list(bench.dispatcher.registry.table.scan("test", "entry:", "entry;"))) == MAX_ENTRIES + 1


# -- stopping -------------------------------------------------------------------------------------------------


def test_remaining_and_stopping_say_how_long_a_run_may_go_on() -> None:
    """What is left of max_runtime counts down to zero and is zero once the run must stop."""

    def body(run: Run) -> None:
        assert (run.remaining(), run.stopping) == (100, False)
        run.check()
        bench.clock.advance(10)
        assert run.remaining() == 90
        bench.stop.set(HostStopping("told so"))
        assert (run.remaining(), run.stopping) == (0, True)
        with pytest.raises(HostStopping, match="told so"):
            run.check()

    job = nightly(body, max_runtime=100)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.STOPPED


def test_the_time_limit_is_told() -> None:
    """A run over its max_runtime is told by check(), by its own name for it."""

    def body(run: Run) -> None:
        bench.clock.advance(20)
        (started,) = bench.dispatcher.running
        assert started.stop.event.wait(5)
        with pytest.raises(TimeLimitExceeded):
            run.check()

    job = nightly(body, max_runtime=20)
    bench = bench_of(job)
    assert isinstance(bench.run(job, T).error, TimeLimitExceeded)


def test_trust_that_ran_out_is_told_even_before_anybody_noticed() -> None:
    """A process that slept past its lease is told at its first look, renewal or not."""

    def body(run: Run) -> None:
        bench.clock.advance(AFTER_LEASE)
        assert run.stopping
        with pytest.raises(LeaseLost):
            run.check()
        with pytest.raises(LeaseLost):
            run.checkpoint.save(1)
        with pytest.raises(LeaseLost):
            run.blobs.write("late", "late")

    job = nightly(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.ABANDONED
    assert bench.blobs() == {}


def test_blobs_of_an_older_run_are_refused() -> None:
    """A run that still trusts its lease cannot overwrite what a newer run has written."""
    job = nightly(lambda run: run.blobs.write("report", f"attempt {run.attempt}"))
    bench = bench_of(job)
    old = start(bench.dispatcher, job, T)
    old.run.blobs.write("report", "old")
    die(old)
    bench.clock.advance(AFTER_LEASE)
    replica(bench).execute(job, T, by="request")
    old.lease._trusted_until = float("inf")
    with pytest.raises(Fenced, match="fencing token 2, newer than 1"):
        old.run.blobs.write("report", "old again")
    assert bench.blobs() == {"report": b"attempt 2"}


def test_a_checkpoint_in_an_async_job_is_saved_in_a_thread() -> None:
    """The documented way for async jobs works, and the event loop goes on meanwhile."""

    async def body(run: Run) -> None:
        await asyncio.gather(asyncio.to_thread(run.checkpoint.save, "kept"), asyncio.sleep(0))

    job = scheduled("0 0 3 * * *", name="nightly")(body)
    bench = bench_of(job)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    assert run_row(bench, job, T).checkpoint == '"kept"'
