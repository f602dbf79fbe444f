"""What hooks hear of runs, and that they cannot hurt one."""

from __future__ import annotations

import asyncio
import contextvars
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import (
    AFTER_LEASE,
    AFTER_REQUEST,
    at,
    die,
    job_row,
    replica,
    run_row,
    start,
    stop_at,
    work_off,
)
from support.hooks import Heard, added, hearing

from runonce import hooks
from runonce.errors import LeaseLost, PermanentError
from runonce.execution.options import MAX_ABANDONED
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.operate import pause, resume
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.run import Run

T = at(3)
HOUR = timedelta(hours=1)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What is told meanwhile."""
    with hearing() as one:
        yield one


class Body:
    """A body that does one thing after the other: raises errors, returns for None."""

    def __init__(self, *steps: BaseException | None) -> None:
        self.steps = list(steps)

    def __call__(self, _: Run) -> None:
        step = self.steps.pop(0) if self.steps else None
        if step is not None:
            raise step


def hourly(body: Callable[[Run], Any], *, is_async: bool = False, **options: Any) -> ScheduledJob:
    """A job at each full hour, sync or async."""
    made = scheduled("0 0 * * * *", name="hourly", **options)
    if is_async:

        async def run_async(run: Run) -> None:
            await asyncio.sleep(0)
            body(run)

        return made(run_async)

    def run_sync(run: Run) -> None:
        body(run)

    return made(run_sync)


def bench_of(job: ScheduledJob) -> Workbench:
    """A bench at 03:00 whose job has run before, so that all of its hours are accounted for."""
    bench = Workbench(job, clock=PassingClock())
    bench.clock.advance(3 * 3600)
    return bench


def next_hour(bench: Workbench, job: ScheduledJob) -> Any:
    """The next hour's tick."""
    bench.clock.advance(3600)
    return bench.dispatcher.tick(job)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_is_told_before_and_after(heard: Heard, *, is_async: bool) -> None:
    """Before its code begins and after its outcome is recorded, sync and async alike, with what identifies it."""
    order: list[list[str]] = []
    job = hourly(lambda _: order.append([name for name, _ in heard.calls]), is_async=is_async)
    bench = bench_of(job)
    result = bench.dispatcher.tick(job)
    assert result is not None
    assert heard.names() == ["before_run", "after_run"]
    assert order == [["before_run"]]
    [begun], [ended] = heard.of("before_run"), heard.of("after_run")
    row = run_row(bench, job, T)
    assert (begun.job, begun.fire_time, begun.attempt, begun.by) == ("hourly", T, 1, "timer")
    assert (begun.holder, begun.token, begun.namespace) == (row.holder, row.token, bench.settings.namespace)
    assert begun.idempotency_key == row.idempotency_key
    assert begun.taken_over is None
    assert (ended.run, ended.outcome, ended.error, ended.again_at) == (begun, "succeeded", None, None)


def test_a_run_of_a_host_with_its_own_loop_is_told_too(heard: Heard) -> None:
    """`execute_async` tells what `execute` tells."""
    job = hourly(lambda _: None, is_async=True)
    bench = bench_of(job)
    result = asyncio.run(bench.dispatcher.execute_async(job, T, by="timer"))
    assert result.outcome is Outcome.SUCCEEDED
    assert heard.names() == ["before_run", "after_run"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("own_loop", [False, True], ids=["in a thread", "on a loop"])
def test_a_hook_sets_a_variable_for_the_code(*, is_async: bool, own_loop: bool) -> None:
    """A context variable that before_run sets is what the job's code, and what it calls, reads."""
    variable = contextvars.ContextVar[str]("variable", default="nothing")
    seen: list[str] = []

    class Sets(hooks.Hooks):
        def before_run(self, run: hooks.RunBegun) -> None:
            run.context.run(variable.set, f"{run.job} {run.attempt}")

    job = hourly(lambda _: seen.append(variable.get()), is_async=is_async)
    bench = bench_of(job)
    with added(Sets()):
        if own_loop:
            asyncio.run(bench.dispatcher.execute_async(job, T, by="timer"))
        else:
            bench.dispatcher.execute(job, T, by="timer")
    assert seen == ["hourly 1"]
    assert variable.get() == "nothing"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_hooks_that_raise_hurt_no_run(heard: Heard, *, is_async: bool) -> None:
    """The run begins, ends and is recorded as if nobody had listened."""
    heard.error = RuntimeError("a broken hook")
    job = hourly(lambda _: None, is_async=is_async)
    bench = bench_of(job)
    result = bench.dispatcher.execute(job, T, by="timer")
    assert result.outcome is Outcome.SUCCEEDED
    assert run_row(bench, job, T).outcome is Outcome.SUCCEEDED
    assert heard.names() == ["before_run", "after_run"]


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_hooks_that_hang_cost_one_second_in_all(heard: Heard, *, is_async: bool) -> None:
    """Twenty runs under a hook that hangs take a second longer, and none fails."""
    heard.go_on.clear()
    job = hourly(lambda _: None, is_async=is_async)
    bench = bench_of(job)
    bench.clock.advance(24 * 3600)
    began = time.monotonic()
    results = [bench.dispatcher.execute(job, T + n * HOUR, by="hand") for n in range(20)]
    assert {result.outcome for result in results} == {Outcome.SUCCEEDED}
    assert time.monotonic() - began < 5
    heard.go_on.set()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no"), "retrying"),
        (PermanentError("never"), "failed"),
        (None, "succeeded"),
    ],
)
def test_the_outcome_is_told(heard: Heard, error: BaseException | None, outcome: str) -> None:
    """after_run has the outcome, the error itself and when it comes again."""
    job = hourly(Body(error), retries=1)
    bench = bench_of(job)
    result = bench.dispatcher.execute(job, T, by="timer")
    [ended] = heard.of("after_run")
    assert (ended.outcome, ended.error, ended.again_at) == (outcome, error, result.again_at)


def test_a_stop_is_told(heard: Heard) -> None:
    """A run that its host's stop ends is told as stopped."""
    job = hourly(stop_at)
    bench = bench_of(job)
    bench.dispatcher.execute(job, T, by="timer")
    assert [ended.outcome for ended in heard.of("after_run")] == ["stopped"]


def test_a_lost_lease_is_told_while_the_code_works(heard: Heard) -> None:
    """on_lease_lost comes before after_run, whose outcome is abandoned."""

    def body(run: Run) -> None:
        run._stop.set(LeaseLost("somebody broke it"))
        run.check()

    job = hourly(body)
    bench = bench_of(job)
    bench.dispatcher.execute(job, T, by="timer")
    assert heard.names() == ["before_run", "on_lease_lost", "after_run"]
    [lost] = heard.of("on_lease_lost")
    assert (lost.work.job, lost.reason) == ("hourly", "somebody broke it")
    assert heard.of("after_run")[0].outcome == "abandoned"


def test_a_takeover_is_told_with_its_length(heard: Heard) -> None:
    """The attempt that follows a host's death knows how long ago that wrote last."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    die(start(bench.dispatcher, job, T))
    bench.clock.advance(AFTER_LEASE)
    assert replica(bench).execute(job, T, by="request").outcome is Outcome.SUCCEEDED
    assert [(run.attempt, run.taken_over) for run in heard.of("before_run")] == [(1, None), (2, AFTER_LEASE)]


def test_what_is_not_run_is_told(heard: Heard) -> None:
    """Held elsewhere, done already, storage away: each with its word."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    other = replica(bench)
    other.execute(job, T, by="timer")
    bench.dispatcher.finish(started, None)
    other.execute(job, T, by="timer")
    boundary = Boundary()
    boundary.next("acquire", Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    replica(bench, stores=boundary.around(bench.stores)).execute(job, T, by="timer")
    assert [(refused.why, refused.name, refused.fire_time) for refused in heard.of("on_not_run")] == [
        ("held elsewhere", "hourly", T),
        ("turned away", "hourly", T),
        ("out of reach", "hourly", T),
    ]


# -- incidents ----------------------------------------------------------------------------------------------


def test_a_job_that_fails_again_and_again_is_one_incident(heard: Heard) -> None:
    """Each failure is told, the first as first; the success that ends it says so, under the same id; then anew."""
    no = PermanentError("no")
    job = hourly(Body(no, no, no, None, None, no))
    bench = bench_of(job)
    for _ in range(6):
        next_hour(bench, job)
    told = heard.of("on_incident")
    assert [(one.kind, one.first) for one in told] == [
        ("failed", True),
        ("failed", False),
        ("failed", False),
        ("recovered", True),
        ("failed", True),
    ]
    assert len({one.id for one in told[:4]}) == 1
    assert told[4].id != told[0].id
    assert {one.since for one in told[:4]} == {told[0].at}
    assert (told[0].name, told[0].fire_time, told[0].attempt, told[0].error) == ("hourly", at(4), 1, no)
    assert told[0].reason == "PermanentError: no"


def test_a_failure_that_is_retried_is_no_incident(heard: Heard) -> None:
    """Only the last attempt's is."""
    job = hourly(Body(ValueError("a"), ValueError("b")), retries=1, retry_delay=1)
    bench = bench_of(job)
    bench.dispatcher.execute(job, T, by="timer")
    assert heard.of("on_incident") == []
    bench.clock.advance(AFTER_REQUEST)
    recover(bench.dispatcher)
    assert [result.outcome for result in work_off(bench.dispatcher)] == [Outcome.FAILED]
    assert [(one.kind, one.attempt) for one in heard.of("on_incident")] == [("failed", 2)]


def test_several_replicas_tell_an_incident_once(heard: Heard) -> None:
    """Three replicas tick each fire time and recover: whoever records the failure tells it, and nobody else."""
    no = PermanentError("no")
    job = hourly(Body(no, no, None))
    bench = bench_of(job)
    replicas = [bench.dispatcher, replica(bench, host="b"), replica(bench, host="c")]
    for _ in range(3):
        bench.clock.advance(3600)
        for one in replicas:
            one.tick(job)
        for one in replicas:
            recover(one)
            work_off(one)
    assert [(one.kind, one.first) for one in heard.of("on_incident")] == [
        ("failed", True),
        ("failed", False),
        ("recovered", True),
    ]


def test_a_night_without_hosts_is_one_missed_incident(heard: Heard) -> None:
    """Nobody ran for five hours: the first recovery tick to see it tells it, and the run that comes then ends it."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    bench.dispatcher.tick(job)
    bench.clock.advance(5 * 3600 + 600)
    for one in (bench.dispatcher, replica(bench, host="b"), replica(bench, host="c")):
        recover(one)
    assert [(one.kind, one.first, one.fire_time) for one in heard.of("on_incident")] == [
        ("missed", True, at(8))
    ]
    work_off(bench.dispatcher)
    assert [one.kind for one in heard.of("on_incident")] == ["missed", "recovered"]
    assert len({one.id for one in heard.of("on_incident")}) == 1
    assert job_row(bench, job).troubles == {}


def test_what_recovery_found_is_told_although_its_write_got_no_answer(heard: Heard) -> None:
    """The write that found missed fire times was carried out and its reply lost: later ticks would not tell."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    bench.dispatcher.tick(job)
    bench.clock.advance(5 * 3600 + 600)
    boundary = Boundary()
    boundary.next("commit", Fault.LOST_REPLY)
    recover(replica(bench, job, stores=boundary.around(bench.stores)))
    for _ in range(3):
        recover(bench.dispatcher)
    told = [(one.kind, one.first) for one in heard.of("on_incident") if one.name == job.name]
    assert told == [("missed", True)]


def test_a_tick_that_comes_first_tells_what_was_missed(heard: Heard) -> None:
    """After an outage the next fire time's tick may be faster than recovery."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    bench.dispatcher.tick(job)
    bench.clock.advance(5 * 3600)
    bench.dispatcher.tick(job)
    recover(bench.dispatcher)
    assert [(one.kind, one.fire_time) for one in heard.of("on_incident")] == [
        ("missed", at(7)),
        ("recovered", at(8)),
    ]


def test_fire_times_that_come_while_the_job_runs_are_not_missed(heard: Heard) -> None:
    """A run of three hours passes over two fire times; that is the job's own doing, and no incident."""
    job = hourly(lambda _: None, max_runtime=None)
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    for _ in range(3 * 60):
        bench.clock.advance(60)
        started.lease._trusted_until = bench.clock.elapsed() + 40
        bench.stores.leases.renew(started.lease.name, started.lease.holder)
        recover(bench.dispatcher)
    bench.dispatcher.finish(started, None)
    work_off(bench.dispatcher)
    bench.clock.advance(60)
    recover(bench.dispatcher)
    assert [one for one in heard.of("on_incident") if one.name == job.name] == []


def test_a_pause_is_no_incident(heard: Heard) -> None:
    """What a person wanted is not told as missed."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    bench.dispatcher.tick(job)
    pause(bench.dispatcher, job.name, "maintenance", "ada")
    bench.clock.advance(5 * 3600 + 600)
    recover(bench.dispatcher)
    resume(bench.dispatcher, job.name)
    recover(bench.dispatcher)
    assert heard.of("on_incident") == []


def test_a_run_that_kills_its_hosts_is_told_when_it_is_given_up(heard: Heard) -> None:
    """After five deaths nobody runs it any more; the replica that writes so tells it."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    for _ in range(MAX_ABANDONED):
        die(start(bench.dispatcher, job, T))
        bench.clock.advance(AFTER_LEASE)
    for one in (bench.dispatcher, replica(bench, host="b")):
        assert not one.execute(job, T, by="request").ran
    told = heard.of("on_incident")
    assert [(one.kind, one.first, one.fire_time, one.attempt) for one in told] == [("failed", True, T, 5)]
    assert "during 5 attempts" in told[0].reason


def test_a_held_run_is_told(heard: Heard) -> None:
    """on_abandoned="hold": its host died, and a person has to say whether it took effect."""
    job = hourly(lambda _: None, on_abandoned="hold")
    bench = bench_of(job)
    die(start(bench.dispatcher, job, T))
    bench.clock.advance(AFTER_LEASE)
    bench.dispatcher.execute(job, T, by="request")
    assert [(one.kind, one.first) for one in heard.of("on_incident")] == [("held", True)]


def test_a_failure_whose_record_got_no_answer_is_told_once(heard: Heard) -> None:
    """The write was carried out and its reply lost: read back, and told."""
    job = hourly(Body(PermanentError("no")))
    bench = bench_of(job)
    boundary = Boundary()
    other = replica(bench, stores=boundary.around(bench.stores))
    started = start(other, job, T)
    boundary.next("commit", Fault.LOST_REPLY)
    other.finish(started, PermanentError("no"))
    assert [(one.kind, one.first) for one in heard.of("on_incident")] == [("failed", True)]


def test_a_takeover_whose_claim_got_no_answer_tells_what_was_missed_once(heard: Heard) -> None:
    """The claim that found missed fire times was carried out and its reply lost: told once."""
    job = hourly(lambda _: None)
    bench = bench_of(job)
    bench.dispatcher.tick(job)
    bench.clock.advance(5 * 3600)
    boundary = Boundary()
    boundary.next("commit", Fault.LOST_REPLY)
    other = replica(bench, stores=boundary.around(bench.stores))
    other.tick(job)
    assert [(one.kind, one.first) for one in heard.of("on_incident")] == [
        ("missed", True),
        ("recovered", True),
    ]
