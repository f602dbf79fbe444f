"""What the flow costs in storage calls, counted on the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support.flows import start

from runonce.clock import SystemClock
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.purge import jobs_with_runs, purge_runs
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome, RunRow
from runonce.runs.run import MAX_ENTRIES, Run
from runonce.runs.table import write
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import MAX_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

T = datetime(2026, 1, 1, 3, tzinfo=UTC)
NEXT = T + timedelta(days=1)


class FixedClock(SystemClock):
    """A wall clock that stands still."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now


def daily(name: str = "daily", body: Callable[[Run], Any] = lambda _: None) -> ScheduledJob:
    def run_it(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name=name)(run_it)


@pytest.fixture
def warm(settings: Settings, azure: Stores) -> Callable[..., Dispatcher]:
    """A host whose jobs have run before, so that container, blob, table and rows are there."""

    def make(*jobs: ScheduledJob, now: datetime = T) -> Dispatcher:
        known = {job.name: job for job in jobs}
        before = Dispatcher(
            {name: daily(name) for name in known},
            azure_stores(settings),
            settings,
            FixedClock(T),
            host="before",
        )
        for job in before.jobs.values():
            assert before.execute(job, T, by="timer").outcome is Outcome.SUCCEEDED
        return Dispatcher(known, azure, settings, FixedClock(now), host="counted")

    return make


def test_the_winner_makes_five_calls(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Lease, read, claim, record, release: nothing else beside renewals."""
    job = daily()
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    kinds = ["lease" if "comp=lease" in c else "batch" if "$batch" in c else "get" for c in calls.made]
    assert kinds == ["lease", "get", "batch", "batch", "lease"], calls.made


def test_a_long_run_makes_two_calls_more_and_one_with_each_renewal(
    warm: Callable[..., Dispatcher], calls: Any
) -> None:
    """After a second it leaves a message for its host's death, hides it with each renewal, and takes it back."""
    job = daily(body=lambda _: time.sleep(6.5))  # a lease of 15 s is renewed after 5
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    made = [call.partition(" ")[0] for call in calls.made if "/messages" in call]
    if made[0] == "POST" and made[1] == "POST":
        made = made[1:]  # the first one found no queue
    assert made == ["POST", "PUT", "DELETE"], calls.made


def test_a_losing_replica_makes_one_call(
    warm: Callable[..., Dispatcher], calls: Any, settings: Settings
) -> None:
    """The lease is held elsewhere: asked once, and that is all."""
    job = daily()
    loser = warm(job)
    winner = Dispatcher({"daily": job}, azure_stores(settings), settings, SystemClock(), host="winner")
    started = start(winner, job, NEXT)
    assert loser.execute(job, NEXT, by="timer").reason == "held elsewhere"
    assert len(calls.made) == 1, calls.made
    winner.finish(started, None)


def test_a_late_replica_reads_and_leaves(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """The work is done already: lease, one read, release."""
    job = daily()
    assert not warm(job).execute(job, T, by="timer").ran
    assert len(calls.made) == 3, calls.made


def test_a_tick_with_nothing_due_makes_no_call(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Between fire times a timer's tick is free."""
    job = daily()
    assert warm(job, now=T + timedelta(hours=5)).tick(job) is None
    assert calls.made == []


def test_a_checkpoint_is_one_call(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Each save is one request."""
    job = daily(body=lambda run: [run.checkpoint.save(n) for n in range(3)])
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    assert len(calls.made) == 5 + 3, calls.made


def test_a_step_is_one_call(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Each step is one request, with the ledger entry that it records."""

    def charge(run: Run, number: int) -> int:
        run.ledger.record(str(number))
        return number

    job = daily(body=lambda run: [run.step(f"charge {n}", charge, run, n) for n in range(3)])
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    assert len(calls.made) == 5 + 3, calls.made


def test_a_batch_with_its_ledger_entries_is_one_call(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Place and entries of a batch go in one request, as many entries as a transaction takes."""

    def body(run: Run) -> None:
        for batch in run.batches(range(2 * MAX_ENTRIES), size=MAX_ENTRIES):
            for number in batch:
                run.ledger.record(str(number), amount=number)

    job = daily(body=body)
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    assert len(calls.made) == 5 + 2, calls.made


def test_entries_left_over_cost_nothing_more(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """Entries that no checkpoint took along travel with the run's outcome."""
    job = daily(body=lambda run: run.ledger.record("one"))
    assert warm(job).execute(job, NEXT, by="timer").outcome is Outcome.SUCCEEDED
    assert len(calls.made) == 5, calls.made


def test_an_idle_recovery_tick_is_one_call(warm: Callable[..., Dispatcher], calls: Any) -> None:
    """However many jobs there are, nothing unfinished is found with one range read."""
    dispatcher = warm(*(daily(f"job-{n}") for n in range(8)), now=T + timedelta(minutes=5))
    for _ in range(3):
        calls.made.clear()
        assert recover(dispatcher) == []
        assert len(calls.made) == 1, calls.made


def test_recovery_of_a_job_that_runs_is_one_call_more(
    warm: Callable[..., Dispatcher], calls: Any, settings: Settings
) -> None:
    """Whether the holder of a running job lives is one look at its lease."""
    job = daily()
    dispatcher = warm(job, now=NEXT + timedelta(minutes=5))
    holder = Dispatcher({"daily": job}, azure_stores(settings), settings, SystemClock(), host="holder")
    started = start(holder, job, NEXT)
    assert recover(dispatcher) == []
    assert len(calls.made) == 2, calls.made
    holder.finish(started, None)


def test_the_purge_of_old_runs_makes_a_call_for_each_hundred(
    warm: Callable[..., Dispatcher], calls: Any, azure: Stores
) -> None:
    """One read of the old rows, the job's row read and written once, and three transactions for 250 rows."""
    host = warm(daily())
    registry = host.registry
    ended = T - timedelta(days=300)
    old = [
        RunRow("daily", ended + timedelta(hours=n), Outcome.SUCCEEDED, finished_at=ended) for n in range(250)
    ]
    for n in range(0, len(old), MAX_TRANSACTION):
        batch = [write(row, None) for row in old[n : n + MAX_TRANSACTION]]
        azure.runs.commit(registry.namespace, batch)
    calls.made.clear()
    assert purge_runs(registry, "daily", T - timedelta(days=90), lambda: None) == 250
    kinds = ["batch" if "$batch" in c else c.partition(" ")[0] for c in calls.made]
    assert kinds == ["GET", "GET", "PUT", "batch", "batch", "batch"], calls.made
    assert list(jobs_with_runs(registry)) == ["daily"]  # its latest run, which is kept
    calls.made.clear()
    assert purge_runs(registry, "daily", T - timedelta(days=90), lambda: None) == 0
    assert len(calls.made) == 1, calls.made
