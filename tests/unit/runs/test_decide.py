"""What operators decide about one run: each verb does what it says, and the row says who decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.flows import (
    AFTER_LEASE,
    at,
    die,
    has_run_row,
    job_row,
    recovered,
    replica,
    requests,
    run_row,
    start,
    work_off,
)

from runonce.errors import Fenced, InputError, LeaseLost, UnknownJobError
from runonce.runs.decide import Which, cancel, mark, replay, resume_run
from runonce.runs.definition import scheduled
from runonce.runs.operate import ask
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.testing import Workbench

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

T = at(3)
NIGHTLY = Which("charge", T, by="ada", why="row 4 is corrected")


class Charging:
    """A job that charges six customers, with a fourth that cannot be charged before it is corrected."""

    def __init__(self, **options: Any) -> None:
        self.broken = True
        self.provider: list[tuple[str, int]] = []

        @scheduled("0 0 3 * * *", **options)
        def charge(run: Run) -> None:
            for (number,) in run.batches(range(6), size=1):
                if self.broken and number == 4:
                    raise ValueError("bad row 4")
                self.provider.append((run.idempotency_key, number))

        self.job: ScheduledJob = charge
        self.bench = Workbench(charge)
        self.host = self.bench.dispatcher
        recover(self.host)
        self.bench.clock.advance(3 * 3600)


def failed() -> Charging:
    """One whose run failed after four of its batches."""
    made = Charging()
    assert made.bench.run(made.job, T).outcome is Outcome.FAILED
    made.broken = False
    return made


# -- going on ---------------------------------------------------------------------------------------------------


def test_resume_run_goes_on_from_the_checkpoint_under_the_same_key() -> None:
    """Nothing that was committed is called for again, and the provider can recognise what is."""
    made = failed()
    resume_run(made.host, NIGHTLY)
    recovered(replica(made.bench), made.bench.clock)
    key = "charge:20260101T030000Z"
    assert made.provider == [(key, number) for number in range(6)]
    row = run_row(made.bench, made.job, T)
    assert (row.outcome, row.attempt, row.generation) == (Outcome.SUCCEEDED, 2, 0)
    assert row.decisions == ("2026-01-01T03:00:00Z resumed by ada: row 4 is corrected",)
    assert row.attempts[0]["outcome"] == "failed"


def test_resume_run_of_what_is_held_as_unknown() -> None:
    """A run that on_abandoned="hold" kept back goes on where its host died."""
    made = Charging(on_abandoned="hold")
    made.broken = False
    started = start(made.host, made.job, T)
    loop = iter(started.run.batches(range(6), size=1))
    for _ in range(3):
        made.provider.append((started.run.idempotency_key, next(loop)[0]))
    die(started)
    made.bench.clock.advance(AFTER_LEASE)
    recovered(replica(made.bench), made.bench.clock)
    assert run_row(made.bench, made.job, T).outcome is Outcome.UNKNOWN
    resume_run(made.host, NIGHTLY)
    recovered(replica(made.bench), made.bench.clock)
    assert [number for _, number in made.provider] == [
        0,
        1,
        2,
        2,
        3,
        4,
        5,
    ]  # the batch of the death is repeated
    assert run_row(made.bench, made.job, T).outcome is Outcome.SUCCEEDED


def test_a_resumed_run_has_its_retries_again() -> None:
    """The failures of before the decision are not counted against it."""
    made = Charging(retries=1)
    made.bench.run(made.job, T)
    recovered(replica(made.bench), made.bench.clock)
    assert run_row(made.bench, made.job, T).outcome is Outcome.FAILED
    resume_run(made.host, NIGHTLY)
    assert made.host.execute(made.job, T, by="hand").outcome is Outcome.RETRYING


def test_resume_run_of_a_run_that_waits_makes_it_come_now() -> None:
    """A retry that is due in an hour starts at once."""
    made = Charging(retries=3, retry_delay=3600)
    made.bench.run(made.job, T)
    made.broken = False
    assert made.host.execute(made.job, T, by="request").outcome is Outcome.SKIPPED
    resume_run(made.host, NIGHTLY)
    assert made.host.execute(made.job, T, by="request").outcome is Outcome.SUCCEEDED


# -- again ------------------------------------------------------------------------------------------------------


def test_replay_runs_it_from_its_beginning_under_another_key() -> None:
    """A replay is another generation: everything is called for again, under a key of its own."""
    made = failed()
    replay(made.host, NIGHTLY)
    recovered(replica(made.bench), made.bench.clock)
    assert [number for _, number in made.provider] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert {key for key, _ in made.provider[4:]} == {"charge:20260101T030000Z:1"}
    row = run_row(made.bench, made.job, T)
    assert (row.generation, row.attempt, row.failures, row.abandoned) == (1, 2, 0, 0)
    assert row.decisions == ("2026-01-01T03:00:00Z replayed by ada: row 4 is corrected",)


def test_a_replay_that_is_taken_up_by_a_death_is_one_generation() -> None:
    """A host that dies on a replayed run makes no further generation of it."""
    made = failed()
    replay(made.host, NIGHTLY)
    die(start(made.host, made.job, T))
    made.bench.clock.advance(AFTER_LEASE)
    recovered(replica(made.bench), made.bench.clock)
    row = run_row(made.bench, made.job, T)
    assert (row.outcome, row.generation, row.attempt) == (Outcome.SUCCEEDED, 1, 3)


# -- saying how it ended ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "outcome"), [("done", Outcome.SUCCEEDED), ("failed", Outcome.FAILED)])
def test_mark_says_how_it_ended(said: Any, outcome: Outcome) -> None:
    """A person who knows says so; nothing runs, and nothing runs later."""
    made = Charging(retries=5)
    made.bench.run(made.job, T)
    mark(made.host, NIGHTLY, said)
    recovered(replica(made.bench), made.bench.clock)
    row = run_row(made.bench, made.job, T)
    assert (row.outcome, row.attempt) == (outcome, 1)
    assert row.reason == f"marked {said} by ada: row 4 is corrected"
    assert job_row(made.bench, made.job).pending == {}
    assert job_row(made.bench, made.job).last_outcome == outcome


def test_a_fire_time_that_never_ran_can_be_marked() -> None:
    """What was done by other means is not run when its timer ticks."""
    made = Charging()
    mark(made.host, NIGHTLY, "done")
    assert made.bench.run(made.job, T).outcome is Outcome.SKIPPED
    assert made.provider == []


# -- cancelling ---------------------------------------------------------------------------------------------------


def test_a_cancelled_run_that_waits_is_never_taken_up_again() -> None:
    """Nothing starts it: no retry, no recovery, no timer, no request, nobody by hand."""
    made = Charging(retries=5)
    made.bench.run(made.job, T)
    made.broken = False
    cancel(made.host, NIGHTLY)
    recovered(replica(made.bench), made.bench.clock)
    for by in ("timer", "request", "hand"):
        result = made.host.execute(made.job, T, by=by)  # type: ignore[arg-type]
        assert not result.ran, by
    row = run_row(made.bench, made.job, T)
    assert (row.outcome, row.reason) == (Outcome.CANCELLED, "cancelled by ada: row 4 is corrected")


def test_a_running_run_is_told_at_its_next_checkpoint() -> None:
    """It is refused its next write, and what it did afterwards is recorded nowhere."""
    made = Charging()
    started = start(made.host, made.job, T)
    cancel(replica(made.bench), NIGHTLY)
    with pytest.raises(Fenced, match="cancelled by ada: row 4 is corrected"):
        started.run.checkpoint.save("late")
    assert made.host.finish(started, None).outcome is Outcome.ABANDONED
    assert run_row(made.bench, made.job, T).outcome is Outcome.CANCELLED
    assert recovered(replica(made.bench), made.bench.clock) == []


@pytest.mark.slow
def test_a_running_run_is_told_at_its_next_renewal() -> None:
    """One that never saves loses its lease when it would be renewed; no other run begins before that."""
    made = Charging()
    started = start(made.host, made.job, T)
    told: list[BaseException] = []
    started.stop.listen(told.append)
    cancel(replica(made.bench), NIGHTLY)
    assert replica(made.bench).execute(made.job, at(2), by="hand").reason == "held elsewhere"
    while not started.stop.event.wait(0.01):
        made.bench.clock.advance(1)
    assert isinstance(told[0], LeaseLost)
    assert made.bench.clock.elapsed() - 3 * 3600 < 45
    made.bench.clock.advance(AFTER_LEASE)
    made.broken = False
    assert replica(made.bench).execute(made.job, at(2), by="hand").outcome is Outcome.SUCCEEDED
    made.host.finish(started, None)


def test_cancelling_takes_no_other_runs_lease() -> None:
    """A run that ended just before it was cancelled leaves its successor alone."""
    made = Charging()
    made.broken = False
    first = start(made.host, made.job, T)
    row = job_row(made.bench, made.job)
    made.host.finish(first, None)
    made.bench.clock.advance(24 * 3600)
    second = start(made.host, made.job, at(3, day=2))
    assert not made.bench.stores.leases.break_lease("test/charge", row.holder)
    assert made.bench.stores.leases.renew("test/charge", second.lease.holder)
    made.host.finish(second, None)


def test_a_fire_time_that_was_asked_for_by_mistake_is_cancelled() -> None:
    """It has a record that says who dropped it, and the request in the queue finds nothing to do."""
    made = Charging()
    ask(made.host, made.job, T)
    cancel(made.host, NIGHTLY)
    assert [result.ran for result in work_off(replica(made.bench))] == [False]
    assert run_row(made.bench, made.job, T).outcome is Outcome.CANCELLED


def test_a_fire_time_to_come_is_cancelled() -> None:
    """Tonight's run can be called off before it is due, and only a fire time of the schedule can."""
    made = Charging()
    made.broken = False
    cancel(made.host, Which("charge", at(3, day=2), by="ada"))
    assert not made.bench.run(made.job, at(3, day=2)).ran
    recovered(replica(made.bench), made.bench.clock)
    assert run_row(made.bench, made.job, at(3, day=2)).outcome is Outcome.CANCELLED
    assert made.bench.run(made.job, at(3, day=3)).ran
    with pytest.raises(InputError, match="the schedule does not name it"):
        cancel(made.host, Which("charge", at(5)))


def test_a_cancelled_run_can_be_resumed_or_replayed_by_an_operator() -> None:
    """Final for the toolkit, not for the person who changes their mind."""
    made = failed()
    mark(made.host, NIGHTLY, "failed")
    replay(made.host, NIGHTLY)
    cancel(made.host, NIGHTLY)  # the replay is taken back before anybody began it
    assert recovered(replica(made.bench), made.bench.clock) == []
    resume_run(made.host, NIGHTLY)
    recovered(replica(made.bench), made.bench.clock)
    row = run_row(made.bench, made.job, T)
    assert row.outcome is Outcome.SUCCEEDED
    assert [line.split()[1] for line in row.decisions] == ["marked", "replayed", "cancelled", "resumed"]


# -- what a verb refuses --------------------------------------------------------------------------------------------


def test_each_verb_says_which_other_one_is_meant() -> None:
    """A verb that does not fit changes nothing, and its error has the command that would."""
    made = Charging()
    made.broken = False
    with pytest.raises(InputError, match=r"never ran; `runonce run charge --at 2026-01-01T03:00:00Z`"):
        resume_run(made.host, NIGHTLY)
    with pytest.raises(InputError, match="never ran; `runonce run"):
        replay(made.host, NIGHTLY)
    assert not has_run_row(made.bench, made.job, T)
    started = start(made.host, made.job, T)
    for verb in (resume_run, lambda host, which: mark(host, which, "done")):
        with pytest.raises(InputError, match=r"is running on test; `runonce cancel charge"):
            verb(made.host, NIGHTLY)
    with pytest.raises(InputError, match=r"not finished: `runonce resume-run .* `runonce cancel"):
        replay(made.host, NIGHTLY)
    made.host.finish(started, None)
    with pytest.raises(InputError, match=r"has succeeded; `runonce replay charge"):
        resume_run(made.host, NIGHTLY)
    with pytest.raises(InputError, match=r"has ended as succeeded; there is nothing to cancel"):
        cancel(made.host, NIGHTLY)
    with pytest.raises(UnknownJobError, match="no job 'nobody'"):
        cancel(made.host, Which("nobody", T))
    assert run_row(made.bench, made.job, T).decisions == ()
    assert requests(made.bench) == []


def test_a_job_that_left_the_code_can_be_decided_about() -> None:
    """Its unfinished runs are cancelled or marked by name, from any deployment."""
    made = Charging(retries=5)
    made.bench.run(made.job, T)

    @scheduled("0 0 4 * * *")
    def other(run: Run) -> None: ...

    cancel(replica(made.bench, other), NIGHTLY)
    assert job_row(made.bench, made.job).pending == {}
