"""Run rows end with their job's history, and nothing that is still needed does."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, replayed, replica, run_row, start

from runonce.errors import HostStopping, InputError, StoreError, StoreUnavailableError
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.operate import ask
from runonce.runs.purge import jobs_with_runs, purge_runs
from runonce.runs.rows import JobRow, Outcome, Pending, RunRow, key_range
from runonce.runs.table import change_job, read_job, write
from runonce.stores.protocols import Delete, Replace
from runonce.testing import Workbench
from runonce.testing.faults import Boundary, Fault

if TYPE_CHECKING:
    from runonce.execution.registry import Registry
    from runonce.runs.run import Run

DAY = timedelta(days=1)
NOW = at(0) + 400 * DAY
"""When the purge runs; runs are from January on."""


@scheduled("0 0 * * * *", name="hourly", misfire="skip")
def hourly(run: Run) -> None:
    """Has one effect a run."""
    run.ledger.record(f"{run.fire_time:%H%M}")


def never() -> None:
    """Nothing stops the purge."""


def ran(bench: Workbench, *hours: int, job: ScheduledJob = hourly) -> None:
    """The job has run at those hours of the first day."""
    for hour in hours:
        assert bench.run(job, at(hour)).outcome is Outcome.SUCCEEDED


def registry(bench: Workbench) -> Registry:
    return bench.dispatcher.registry


def left(bench: Workbench, name: str = "hourly") -> list[datetime]:
    """The fire times of the runs that are on record, the oldest first."""
    rows = bench.stores.runs.scan("test", *key_range("run", name))
    return sorted(datetime.fromisoformat(str(row.values["fire_time"])) for row in rows)


def made(bench: Workbench, *rows: RunRow | JobRow) -> None:
    """Those rows are there."""
    for row in rows:
        bench.stores.runs.commit("test", [write(row, None)])


def bygone(count: int) -> list[RunRow]:
    """Runs of the job from a hundred days before."""
    ended = at(0) - 100 * DAY
    hours = (ended + n * timedelta(hours=1) for n in range(count))
    return [RunRow("hourly", fire_time, Outcome.SUCCEEDED, finished_at=ended) for fire_time in hours]


def test_old_runs_are_removed_and_the_latest_is_kept() -> None:
    """Runs from before the history go; the latest stays, so that `status` can say what it came to."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3, 4)
    assert purge_runs(registry(bench), "hourly", at(2, 30), never) == 2
    assert left(bench) == [at(3), at(4)]
    assert purge_runs(registry(bench), "hourly", NOW, never) == 1
    assert left(bench) == [at(4)]
    assert purge_runs(registry(bench), "hourly", NOW, never) == 0


def test_ledger_entries_are_forever() -> None:
    """What a run recorded in its ledger outlasts the run's own record."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    purge_runs(registry(bench), "hourly", NOW, never)
    entries = bench.stores.runs.scan("test", *key_range("entry", "hourly"))
    assert [row.values["key"] for row in entries] == ["0100", "0200", "0300"]


def test_a_run_that_ended_lately_is_kept_however_old_its_fire_time() -> None:
    """History goes by the end of a run: one replayed yesterday stays."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    bench.clock.advance(10 * 86_400)
    replayed(bench.dispatcher, hourly, at(1))
    assert purge_runs(registry(bench), "hourly", at(0, day=9), never) == 2
    assert left(bench) == [at(1)]


@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in ("succeeded", "failed", "skipped", "cancelled")]
)
def test_what_somebody_has_to_finish_or_decide_is_never_removed(outcome: Outcome) -> None:
    """A run that is unfinished, waits, or is held as unknown stays, whatever its age."""
    bench = Workbench(hourly)
    ran(bench, 5)
    made(bench, RunRow("hourly", at(1), outcome, finished_at=at(1)))
    assert purge_runs(registry(bench), "hourly", NOW, never) == 0
    assert left(bench) == [at(1), at(5)]


def test_a_run_that_has_begun_is_never_removed() -> None:
    """A run without an end is somebody's, however long ago it began."""
    bench = Workbench(hourly)
    bench.clock.advance(3600)
    start(bench.dispatcher, hourly, at(1))
    assert purge_runs(registry(bench), "hourly", NOW, never) == 0
    assert run_row(bench, hourly, at(1)).outcome is Outcome.RUNNING


def test_a_fire_time_that_is_to_run_keeps_its_record() -> None:
    """What the job's row still has as pending keeps its record: it says what a claim may do."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    pending = {at(2): Pending("asked", at(2))}
    change_job(registry(bench), "hourly", lambda row, _: replace(row, pending=pending))
    assert purge_runs(registry(bench), "hourly", NOW, never) == 1
    assert left(bench) == [at(2), at(3)]


def test_the_accounting_of_missed_fire_times_is_as_before() -> None:
    """After the purge no fire time that was done is taken for one nobody ran, by a timer or by a request."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    purge_runs(registry(bench), "hourly", NOW, never)
    for by in ("timer", "request"):
        result = bench.dispatcher.execute(hourly, at(1), by=by)  # type: ignore[arg-type]
        assert (result.outcome, result.ran) == (Outcome.SKIPPED, False)
    assert left(bench) == [at(3)]


def test_a_removed_fire_time_is_not_run_again_by_hand_without_replay() -> None:
    """Nobody knows any more whether it ran, so running it again has to be said; it has another key then."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    purge_runs(registry(bench), "hourly", NOW, never)
    keys: list[str] = []

    @scheduled("0 0 * * * *", name="hourly", misfire="skip")
    def noting(run: Run) -> None:
        keys.append(run.idempotency_key)

    refused = bench.dispatcher.execute(noting, at(1), by="hand")
    assert (refused.outcome, refused.ran) == (Outcome.SKIPPED, False)
    assert "runonce replay" in refused.reason
    with pytest.raises(InputError, match=r"hourly.*2026-01-01T01:00:00Z.*runonce replay"):
        ask(bench.dispatcher, noting, at(1))
    assert replayed(bench.dispatcher, noting, at(1)).outcome is Outcome.SUCCEEDED
    assert keys == ["hourly:20260101T010000Z:1"]


def test_a_fire_time_within_the_history_that_never_ran_runs_by_hand() -> None:
    """Where a record would still be there, its absence says that the fire time is new."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 5)
    purge_runs(registry(bench), "hourly", at(2, 30), never)
    assert bench.dispatcher.execute(hourly, at(4), by="hand").outcome is Outcome.SUCCEEDED


def test_a_job_that_left_the_code_is_purged_too() -> None:
    """Runs of any job of the namespace are found, with or without a row of the job, and only theirs."""
    bench = Workbench(hourly)
    ran(bench, 1, 2)
    made(bench, RunRow("hour", at(1), Outcome.FAILED, finished_at=at(1)))
    made(bench, *(RunRow("hourly_2", at(hour), Outcome.SKIPPED, finished_at=at(hour)) for hour in (1, 2)))
    made(bench, JobRow("hourly_2", last_fire_time=at(2)))
    assert list(jobs_with_runs(registry(bench))) == ["hour", "hourly", "hourly_2"]
    assert purge_runs(registry(bench), "hour", NOW, never) == 1
    assert purge_runs(registry(bench), "hourly_2", NOW, never) == 1
    assert (left(bench), left(bench, "hour"), left(bench, "hourly_2")) == ([at(1), at(2)], [], [at(2)])
    assert read_job(registry(bench), "hour")[1] is None


def test_the_highest_token_outlives_the_jobs_row() -> None:
    """The run that was given it stays, whatever its fire time, so that a lost row does not give it again."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    replayed(bench.dispatcher, hourly, at(1))
    row, etag = read_job(registry(bench), "hourly")
    assert etag is not None
    bench.stores.runs.commit("test", [Delete("job:hourly", etag)])
    assert purge_runs(registry(bench), "hourly", NOW, never) == 2
    assert left(bench) == [at(1)]
    assert read_job(registry(bench), "hourly")[0].token == row.token == 4


def test_rows_go_a_hundred_in_one_transaction() -> None:
    """Two hundred and fifty rows: a scan, the job's row read and written once, and three transactions."""
    bench = Workbench(hourly)
    ran(bench, 1)
    made(bench, *bygone(250))
    boundary = Boundary()
    counted = replica(bench, stores=boundary.around(bench.stores)).registry
    assert purge_runs(counted, "hourly", at(0), never) == 250
    assert boundary.calls == ["scan", "get", "commit", "commit", "commit", "commit"]
    boundary.calls.clear()
    assert purge_runs(counted, "hourly", at(0), never) == 0
    assert boundary.calls == ["scan"]


def test_a_run_that_changes_meanwhile_is_kept() -> None:
    """A run that is replayed between reading and removing it stays, and the others of its batch still go."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3, 4)
    table = bench.stores.runs
    scan = table.scan

    def racing(*args: Any, **more: Any) -> Any:
        found = list(scan(*args, **more))
        changed = found[1]
        table.commit("test", [Replace(changed.key, {**changed.values, "generation": 1}, changed.etag)])
        return found

    table.scan = racing  # type: ignore[method-assign, assignment]
    assert purge_runs(registry(bench), "hourly", at(3, 30), never) == 2
    table.scan = scan  # type: ignore[method-assign]
    assert left(bench) == [at(2), at(4)]


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
def test_a_purge_that_was_broken_off_goes_on_from_what_is_left(fault: Fault) -> None:
    """Whether or not the lost transaction was carried out, the next purge removes the rest."""
    bench = Workbench(hourly)
    ran(bench, 1)
    made(bench, *bygone(150))
    boundary = Boundary()
    boundary.at(4, fault)
    with pytest.raises(StoreUnavailableError):
        purge_runs(replica(bench, stores=boundary.around(bench.stores)).registry, "hourly", at(0), never)
    removed = purge_runs(registry(bench), "hourly", at(0), never)
    assert removed == (150 if fault is Fault.LOST_REQUEST else 50)
    assert left(bench) == [at(1)]


def test_it_stops_between_two_transactions() -> None:
    """A host that stops is heeded before each hundred rows."""
    bench = Workbench(hourly)
    ran(bench, 1, 2)

    def stopping() -> None:
        raise HostStopping

    with pytest.raises(HostStopping):
        purge_runs(registry(bench), "hourly", NOW, stopping)
    assert left(bench) == [at(1), at(2)]


def test_a_row_that_cannot_be_read_is_left_alone() -> None:
    """A run's row of a newer release stays; when the job's own row is such a one, none of its runs is removed."""
    bench = Workbench(hourly)
    ran(bench, 1, 2, 3)
    table = bench.stores.runs
    newest_first = list(table.scan("test", *key_range("run", "hourly")))
    odd = newest_first[-1]
    table.commit("test", [Replace(odd.key, {**odd.values, "outcome": "newer"}, odd.etag)])
    assert purge_runs(registry(bench), "hourly", NOW, never) == 1
    assert left(bench) == [at(1), at(3)]

    ran(bench, 4)
    job = table.get("test", "job:hourly")
    assert job is not None
    table.commit("test", [Replace(job.key, {**job.values, "pending": "{"}, job.etag)])
    with pytest.raises(StoreError, match="job:hourly"):
        purge_runs(registry(bench), "hourly", NOW, never)
    assert left(bench) == [at(1), at(3), at(4)]
