"""The recovery tick: what it asks for, when it asks again, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import (
    AFTER_LEASE,
    AFTER_REQUEST,
    at,
    bodies,
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

from runonce.errors import HostStopping, StoreError, UnknownJobError
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.operate import ask, pause, resume
from runonce.runs.recovery import ask_for_orphans, recover
from runonce.runs.rows import Outcome, Pending, job_key
from runonce.runs.table import read_job, write
from runonce.stores.memory import MemoryLeases
from runonce.stores.protocols import Replace
from runonce.testing import ManualClock, Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock

if TYPE_CHECKING:
    from runonce.runs.run import Run


def hourly(schedule: str = "0 0 * * * *", **options: Any) -> ScheduledJob:
    """A job that works unless told otherwise."""

    def body(run: Run) -> None: ...

    return scheduled(schedule, name="hourly", **options)(body)


def bench_of(*jobs: ScheduledJob, hour: int = 5) -> Workbench:
    bench = Workbench(*jobs)
    bench.clock.advance(hour * 3600)
    return bench


def asked(bench: Workbench) -> list[tuple[int, str]]:
    """Hour and reason of what a recovery tick asks for now."""
    return [(r.fire_time.hour, r.why) for r in recover(bench.dispatcher)]


def change(bench: Workbench, job: ScheduledJob, **values: Any) -> None:
    row, etag = read_job(bench.dispatcher.registry, job.name)
    bench.stores.runs.commit("test", [write(replace(row, **values), etag)])


# -- what is asked for ----------------------------------------------------------------------------------------


def test_a_new_job_is_noted_and_catches_nothing_up() -> None:
    """The first tick that sees a job writes its row, so that from then on a missed fire time can be told."""
    job = hourly(misfire="all")
    bench = bench_of(job)
    bench.clock.advance(40)
    assert asked(bench) == []
    assert (job_row(bench, job).watermark, job_row(bench, job).since) == (at(5, 0, 10), at(5, 0, 40))
    bench.clock.advance(7 * 3600)
    assert asked(bench) == [(6, "missed")]
    assert set(job_row(bench, job).pending) == {at(hour) for hour in range(6, 13)}


def test_a_dead_run_is_asked_for_once_its_lease_is_over() -> None:
    """While the lease lasts the holder is taken to live; then its run is asked for as abandoned."""
    job = hourly()
    bench = bench_of(job)
    die(start(bench.dispatcher, job, at(5)))
    bench.clock.advance(30)
    assert asked(bench) == []
    bench.clock.advance(30)
    assert asked(bench) == [(5, "abandoned")]
    assert [(r.fire_time, r.why) for r in requests(bench)] == [(at(5), "abandoned")]


def test_a_run_whose_lease_is_held_is_left_alone() -> None:
    """A long run goes on for hours, and recovery asks for nothing of that job, not even what it misses."""
    job = hourly(max_runtime=None)
    bench = bench_of(job)
    started = start(bench.dispatcher, job, at(5))
    bench.stores.leases.held = lambda _: True  # type: ignore[method-assign]
    bench.clock.advance(3 * 3600)
    assert asked(bench) == []
    die(started)


def test_an_orphaned_lease_is_a_request_for_the_run_in_hand() -> None:
    """Whose lease ended with its holder's connection is asked for at once, once; a lease without a run is nothing."""

    left = ["test/hourly", "test/runonce-leader-0123456789ab"]

    class Sessions(MemoryLeases):
        def gone(self, name: str, holder: str) -> bool:
            raise NotImplementedError

        def orphaned(self, folder: str) -> list[str]:
            told = [name for name in left if name.startswith(folder)]
            left.clear()
            return told

    job = hourly()
    bench = bench_of(job)
    leases = Sessions(bench.clock)
    die(start(bench.dispatcher, job, at(5)))
    assert ask_for_orphans(bench.dispatcher, leases)
    assert not ask_for_orphans(bench.dispatcher, leases)
    assert [(r.job, r.fire_time, r.why) for r in requests(bench)] == [("hourly", at(5), "abandoned")]


def test_a_retry_is_asked_for_when_it_is_due() -> None:
    """A retry waits for its back-off and is asked for then."""
    job = hourly(retries=1, retry_delay=100)
    bench = bench_of(job)
    bench.dispatcher.finish(start(bench.dispatcher, job, at(5)), ValueError("no"))
    bench.clock.advance(79)
    assert asked(bench) == []
    bench.clock.advance(42)
    assert asked(bench) == [(5, "retrying")]


def test_a_missed_fire_time_is_asked_for_after_the_grace() -> None:
    """A fire time whose tick may still come is not missed yet; half a minute later it is."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600 + 29)
    assert asked(bench) == []
    bench.clock.advance(1)
    assert asked(bench) == [(6, "missed")]


@pytest.mark.parametrize(
    ("policy", "ran", "skipped"), [("skip", [], 9), ("latest", [9], 8), ("all", [8, 9], 7)]
)
def test_an_outage_is_caught_up_by_policy(policy: Any, ran: list[int], skipped: int) -> None:
    """After hours without any host, recovery runs what the policy says, oldest first, and records the others."""
    order: list[int] = []

    @scheduled("0 0 * * * *", misfire=policy, misfire_cap=2)
    def often(run: Run) -> None:
        order.append(run.fire_time.hour)

    bench = bench_of(often)
    bench.run(often, at(5))
    order.clear()
    bench.clock.advance(4 * 3600 + 310)  # a tick may be five minutes late, so "skip" waits for it so long
    recover(bench.dispatcher)
    work_off(bench.dispatcher)
    assert order == ran
    assert run_row(bench, often, at(skipped)).outcome is Outcome.SKIPPED
    assert job_row(bench, often).pending == {}


def test_an_outage_that_goes_on_coalesces() -> None:
    """With misfire="latest" and no consumer, the newest missed fire time replaces the one asked for before."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600 + 60)
    assert asked(bench) == [(6, "missed")]
    bench.clock.advance(3600)
    assert asked(bench) == [(7, "missed")]
    assert set(job_row(bench, job).pending) == {at(7)}
    assert run_row(bench, job, at(6)).outcome is Outcome.SKIPPED
    assert [r.ran for r in work_off(bench.dispatcher)] == [True]


def test_a_changed_schedule_makes_no_phantoms() -> None:
    """A new version of a job with another schedule has missed nothing before it was deployed."""
    bench = bench_of(hourly())
    bench.run(hourly(), at(5))
    bench.clock.advance(3600 * 10)
    deployed = replica(bench, hourly("0 */5 * * * *", misfire="all"))
    assert recover(deployed) == []
    assert job_row(bench, hourly()).pending == {}
    bench.clock.advance(340)
    assert [r.why for r in recover(deployed)] == ["missed"]


def test_all_of_a_cap_is_kept() -> None:
    """As many missed fire times as the cap allows are run, none of them is dropped."""
    order: list[int] = []

    @scheduled("0 0 * * * *", misfire="all", misfire_cap=4)
    def often(run: Run) -> None:
        order.append(run.fire_time.hour)

    bench = bench_of(often)
    bench.run(often, at(5))
    bench.clock.advance(3 * 3600 + 60)
    recovered(bench.dispatcher, bench.clock, 1)
    assert order == [5, 6, 7, 8]


def test_a_missed_fire_time_that_ran_by_hand_is_not_run_again() -> None:
    """The job's row does not know of the run by hand; its record does."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600)
    bench.dispatcher.execute(job, at(6), by="hand")
    bench.clock.advance(60)
    results = recovered(bench.dispatcher, bench.clock, 1)
    assert [r.ran for r in results] == [False]
    assert run_row(bench, job, at(6)).attempt == 1
    assert job_row(bench, job).pending == {}


def test_a_skipped_record_does_not_replace_one_that_exists() -> None:
    """When the last skipped fire time ran by hand, its record stays, and the rows are put in order all the same."""
    job = hourly(misfire="skip")
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600)
    bench.dispatcher.execute(job, at(6), by="hand")
    bench.clock.advance(310)
    assert asked(bench) == []
    assert run_row(bench, job, at(6)).outcome is Outcome.SUCCEEDED
    assert job_row(bench, job).watermark == at(6, 0, 10)


@pytest.mark.parametrize("column", [{"format": 99}, {"pending": "{"}, {"token": "x"}], ids=str)
def test_a_row_that_cannot_be_read_is_left_alone_and_its_fire_times_stay_due(
    column: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A row of a newer version, or edited by hand, stops no other job; read again, nothing of it was lost."""
    job, other = hourly(), scheduled("0 0 * * * *", name="other")(hourly().body)
    bench = bench_of(job, other)
    asked(bench)
    good = bench.stores.runs.get("test", job_key("hourly"))
    assert good is not None
    spoilt = {**good.values, **column}
    [etag] = bench.stores.runs.commit("test", [Replace(good.key, spoilt, good.etag)])
    bench.clock.advance(3700)
    [due] = recover(bench.dispatcher)
    assert due.job == "other"
    assert "Row job:hourly" in caplog.text
    result = bench.dispatcher.execute(job, at(6), by="timer")
    assert (result.outcome, result.ran) == (Outcome.SKIPPED, False)
    assert "Row job:hourly" in result.reason
    assert "out of reach" not in result.reason
    left = bench.stores.runs.get("test", job_key("hourly"))
    assert left is not None
    assert (left.values, left.etag) == (spoilt, etag)
    bench.stores.runs.commit("test", [Replace(left.key, good.values, etag)])
    assert asked(bench) == [(due.fire_time.hour, "missed")]


def test_a_row_that_lacks_a_column_is_no_hindrance() -> None:
    """A row of before a column existed has that column's default, and its job runs on."""
    job = hourly()
    bench = bench_of(job)
    asked(bench)
    row = bench.stores.runs.get("test", job_key("hourly"))
    assert row is not None
    older = {name: value for name, value in row.values.items() if name not in ("paused_why", "format")}
    bench.stores.runs.commit("test", [Replace(row.key, older, row.etag)])
    assert bench.run(job, at(6)).outcome is Outcome.SUCCEEDED


def test_a_paused_job_is_left_alone() -> None:
    """Recovery asks for nothing of a paused job, and does when it is resumed."""
    job = hourly(retries=1, retry_delay=1)
    bench = bench_of(job)
    bench.dispatcher.finish(start(bench.dispatcher, job, at(5)), ValueError("no"))
    pause(bench.dispatcher, "hourly", "migration")
    bench.clock.advance(60)
    assert asked(bench) == []
    resume(bench.dispatcher, "hourly")
    assert asked(bench) == [(5, "retrying")]


def test_jobs_of_other_hosts_are_left_to_them() -> None:
    """A row whose job this host does not know is another deployment's."""
    other = scheduled("0 0 * * * *", name="other")(hourly().body)
    bench = bench_of(hourly(), other)
    die(start(bench.dispatcher, other, at(5)))
    bench.clock.advance(AFTER_LEASE)
    assert [r.job for r in recover(replica(bench, hourly()))] == []
    assert [r.job for r in recover(replica(bench, hourly(), other))] == ["other"]


# -- several at once ------------------------------------------------------------------------------------------


def test_a_dead_run_and_a_retry_are_asked_for_one_after_the_other() -> None:
    """One job, two unfinished fire times: the oldest is asked for, and hands on to the next when it ends."""
    starts: list[int] = []

    @scheduled("0 0 * * * *", retries=1, retry_delay=1)
    def often(run: Run) -> None:
        starts.append(run.fire_time.hour)

    bench = bench_of(often)
    bench.dispatcher.finish(start(bench.dispatcher, often, at(5)), ValueError("no"))
    bench.clock.advance(3600)
    die(start(bench.dispatcher, often, at(6)))
    bench.clock.advance(AFTER_LEASE)
    assert asked(bench) == [(5, "retrying")]
    results = work_off(bench.dispatcher)
    assert starts == [5, 6]
    assert [(r.fire_time.hour, r.attempt) for r in results] == [(5, 2), (6, 2)]
    assert run_row(bench, often, at(6)).abandoned == 1
    assert job_row(bench, often).pending == {}


def test_a_claim_does_not_forget_a_dead_run() -> None:
    """The next tick claims its fire time before recovery has seen the death: the dead run follows it."""
    starts: list[int] = []

    @scheduled("0 0 * * * *")
    def often(run: Run) -> None:
        starts.append(run.fire_time.hour)

    bench = bench_of(often)
    die(start(bench.dispatcher, often, at(5)))
    bench.run(often, at(6))
    work_off(bench.dispatcher)
    assert starts == [6, 5]
    assert run_row(bench, often, at(5)).outcome is Outcome.SUCCEEDED


def test_two_deaths_in_a_row_lose_neither_fire_time() -> None:
    """Host after host dies, each on another fire time of the job: all are finished in the end."""
    job = hourly()
    bench = bench_of(job)
    for hour in (5, 6, 7):
        bench.clock.advance(max(0.0, (at(hour) - bench.clock.now()).total_seconds()))
        die(start(replica(bench, host=f"host-{hour}"), job, at(hour)))
        bench.clock.advance(AFTER_LEASE)
    recovered(bench.dispatcher, bench.clock)
    for hour in (5, 6, 7):
        row = run_row(bench, job, at(hour))
        assert (row.outcome, row.attempt, row.abandoned) == (Outcome.SUCCEEDED, 2, 1)
    assert job_row(bench, job).pending == {}


# -- how often ------------------------------------------------------------------------------------------------


def test_requests_do_not_pile_up() -> None:
    """With a stopped consumer there is at most one live request for an unfinished fire time."""
    job = hourly()
    bench = bench_of(job)
    die(start(bench.dispatcher, job, at(5)))
    bench.clock.advance(AFTER_LEASE)
    assert asked(bench) == [(5, "abandoned")]
    for _ in range(3):
        bench.clock.advance(30)
        assert asked(bench) == []
    bench.clock.advance(30)
    assert asked(bench) == [(5, "abandoned")]
    assert len(requests(bench)) == 1


def test_replicas_ticks_ask_once() -> None:
    """Of two recovery ticks that read the same rows, the row's condition lets one ask."""
    job = hourly()
    bench = bench_of(job)
    die(start(bench.dispatcher, job, at(5)))
    bench.clock.advance(AFTER_LEASE)
    boundary = Boundary()
    boundary.meanwhile("commit", lambda: recover(bench.dispatcher))
    assert recover(replica(bench, stores=boundary.around(bench.stores))) == []
    assert len(requests(bench)) == 1


def test_a_claim_meanwhile_wins() -> None:
    """A run that is claimed between a recovery tick's look and its write is not asked for."""
    job = hourly(retries=1, retry_delay=1)
    bench = bench_of(job)
    bench.dispatcher.finish(start(bench.dispatcher, job, at(5)), ValueError("no"))
    bench.clock.advance(10)
    requests(bench)  # the retry's own
    boundary = Boundary()
    boundary.meanwhile("commit", lambda: bench.dispatcher.execute(job, at(5), by="hand"))
    assert recover(replica(bench, stores=boundary.around(bench.stores))) == []
    assert requests(bench) == []
    assert run_row(bench, job, at(5)).outcome is Outcome.SUCCEEDED


def test_a_stopped_run_is_not_asked_for_twice_at_once() -> None:
    """Its host asked for it when it stopped; recovery asks again only when that request is gone."""
    job = hourly()
    bench = bench_of(job)
    started = start(bench.dispatcher, job, at(5))
    started.stop.set(HostStopping())
    bench.dispatcher.finish(started, started.stop.cause)
    assert len(requests(bench)) == 1
    assert asked(bench) == []
    bench.clock.advance(AFTER_REQUEST)
    assert asked(bench) == [(5, "stopped")]


def test_an_idle_tick_is_one_read() -> None:
    """Nothing unfinished: one range read, however many jobs there are, and no write."""
    jobs = [scheduled("0 0 * * * *", name=f"job{n}")(hourly().body) for n in range(10)]
    bench = bench_of(*jobs)
    for job in jobs:
        bench.run(job, at(5))
    bench.clock.advance(120)
    boundary = Boundary()
    assert recover(replica(bench, stores=boundary.around(bench.stores))) == []
    assert boundary.calls == ["scan"]


# -- clocks ---------------------------------------------------------------------------------------------------


def ahead(bench: Workbench, seconds: float) -> ManualClock:
    """A host's clock that differs from the bench's by so much."""
    clock = ManualClock()
    clock.advance(bench.clock.elapsed() + seconds)
    return clock


def test_a_fast_clock_of_a_dead_host_holds_nobody_up() -> None:
    """A host an hour ahead asked, claimed and died; the others take over as soon as its lease is over."""
    job = hourly()
    bench = bench_of(job)
    fast = replica(bench, clock=ahead(bench, 3600))
    die(start(fast, job, at(5)))
    bench.clock.advance(AFTER_LEASE)
    recover(fast)
    bodies(bench.stores)
    bench.clock.advance(AFTER_REQUEST)
    assert asked(bench) == [(5, "abandoned")]
    assert [r.outcome for r in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]


def test_a_clock_a_little_behind_takes_what_was_asked_just_now() -> None:
    """What one host asks for, another takes although its own clock says that instant is still to come."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600 + 60)
    assert asked(bench) == [(6, "missed")]
    behind = replica(bench, clock=ahead(bench, -3))
    assert [r.outcome for r in work_off(behind)] == [Outcome.SUCCEEDED]


def test_a_clock_far_ahead_takes_no_held_lease() -> None:
    """However late a host believes it is, a run whose lease is held is not asked for and not taken."""
    job = hourly()
    bench = bench_of(job)
    started = start(bench.dispatcher, job, at(5))
    fast = replica(bench, clock=ahead(bench, 86400))
    assert recover(fast) == []
    assert fast.execute(job, at(5), by="request").reason == "held elsewhere"
    bench.dispatcher.finish(started, None)
    assert run_row(bench, job, at(5)).attempt == 1


# -- trouble --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["scan", "held", "commit", "send"])
def test_recovery_raises_nothing_and_finds_it_again(method: str) -> None:
    """Storage that does not answer costs a tick, or a request's life; nothing is forgotten."""
    job = hourly()
    bench = bench_of(job)
    die(start(bench.dispatcher, job, at(5)))
    bench.clock.advance(AFTER_LEASE)
    boundary = Boundary()
    boundary.next(method, Fault.LOST_REQUEST)
    assert recover(replica(bench, stores=boundary.around(bench.stores))) == []
    bench.clock.advance(AFTER_REQUEST)
    assert asked(bench) == [(5, "abandoned")]


def test_one_jobs_trouble_is_not_the_others() -> None:
    """A row that fails to be written, or cannot be read, keeps no other job from being recovered."""
    jobs = [scheduled("0 0 * * * *", name=name)(hourly().body) for name in ("first", "second", "third")]
    bench = bench_of(*jobs)
    for job in jobs:
        die(start(bench.dispatcher, job, at(5)))
    row = bench.stores.runs.get("test", "job:second")
    assert row is not None
    broken = {**row.values, "pending": "not json"}
    bench.stores.runs.commit("test", [Replace("job:second", broken, row.etag)])
    bench.clock.advance(AFTER_LEASE)
    boundary = Boundary()
    boundary.next("commit", Fault.LOST_REQUEST)
    assert [r.job for r in recover(replica(bench, stores=boundary.around(bench.stores)))] == ["third"]


# -- by hand --------------------------------------------------------------------------------------------------


def test_what_is_asked_for_by_hand_is_run_and_survives_a_lost_request() -> None:
    """A person asks: a request goes out at once, and recovery repeats it if it gets lost."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    ask(bench.dispatcher, job, at(2))
    assert [r.why for r in requests(bench)] == ["asked"]
    bench.clock.advance(AFTER_REQUEST)
    assert asked(bench) == [(2, "asked")]
    assert [r.outcome for r in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]


def test_a_skipped_fire_time_that_is_asked_for_runs() -> None:
    """Asking for a fire time that was let go runs it: that is what asking is for."""
    job = hourly(misfire="skip")
    bench = bench_of(job)
    bench.run(job, at(5))
    bench.clock.advance(3600 + 310)
    recover(bench.dispatcher)
    assert run_row(bench, job, at(6)).outcome is Outcome.SKIPPED
    ask(bench.dispatcher, job, at(6))
    assert [r.outcome for r in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]
    assert run_row(bench, job, at(6)).outcome is Outcome.SUCCEEDED


def test_asking_for_what_is_done_runs_nothing() -> None:
    """Asking is no replay."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    ask(bench.dispatcher, job, at(5))
    assert [r.ran for r in work_off(bench.dispatcher)] == [False]
    assert job_row(bench, job).pending == {}


def test_asking_brings_a_retry_forward() -> None:
    """A fire time that waits for its retry keeps its reason, and is tried now when somebody asks for it."""
    job = hourly(retries=1, retry_delay=100)
    bench = bench_of(job)
    bench.dispatcher.finish(start(bench.dispatcher, job, at(5)), ValueError("no"))
    ask(bench.dispatcher, job, at(5))
    pending = job_row(bench, job).pending[at(5)]
    assert (pending.why, pending.not_before) == ("retrying", bench.clock.now())


def test_asking_does_not_disturb_what_is_running() -> None:
    """A fire time that is being run stays as it is when somebody asks for it too."""
    job = hourly()
    bench = bench_of(job)
    start(bench.dispatcher, job, at(5))
    before = job_row(bench, job).pending
    ask(bench.dispatcher, job, at(5))
    assert job_row(bench, job).pending == before


def test_a_change_by_hand_is_made_on_top_of_others() -> None:
    """A pause that meets a concurrent change is made again on the row as it is then."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    boundary = Boundary()
    entry = {at(2): Pending("asked", at(5))}
    boundary.meanwhile("commit", lambda: change(bench, job, pending=entry))
    clock = PassingClock()
    clock.advance(5 * 3600)
    pause(replica(bench, stores=boundary.around(bench.stores), clock=clock), "hourly", "migration")
    row = job_row(bench, job)
    assert (row.paused_at, row.paused_why, dict(row.pending)) == (at(5), "migration", entry)


def test_a_change_by_hand_gives_up_on_a_row_that_never_stands_still() -> None:
    """A row that changes at every try for a minute is reported."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    boundary = Boundary()
    counter = iter(range(100))

    def again() -> None:
        change(bench, job, paused_why=str(next(counter)))
        boundary.meanwhile("commit", again)

    boundary.meanwhile("commit", again)
    with pytest.raises(StoreError, match="changed again and again for a minute"):
        pause(replica(bench, stores=boundary.around(bench.stores), clock=PassingClock()), "hourly")
    assert next(counter) > 20


def test_pausing_and_resuming_are_idempotent() -> None:
    """A second pause keeps the first instant; resuming what is not paused changes nothing."""
    job = hourly()
    bench = bench_of(job)
    bench.run(job, at(5))
    before = job_row(bench, job)
    assert resume(bench.dispatcher, "hourly") == before
    pause(bench.dispatcher, "hourly", "one")
    bench.clock.advance(60)
    assert pause(bench.dispatcher, "hourly", "two").paused_at == at(5)
    resumed = resume(bench.dispatcher, "hourly")
    assert (resumed.paused_at, resumed.paused_why, resumed.watermark) == (None, "", at(5, 1))


def test_a_job_nobody_knows_cannot_be_paused() -> None:
    """A misspelt name is an error with a way on, not a new row."""
    bench = bench_of(hourly())
    with pytest.raises(UnknownJobError, match=r"'hurly'.*runonce list"):
        pause(bench.dispatcher, "hurly")
    assert not has_run_row(bench, hourly(), at(5))
    assert bench.stores.runs.get("test", "job:hurly") is None


def test_a_run_that_gets_on_is_not_given_up() -> None:
    """A host that dies after each batch is no sign of a job that kills it: deaths count anew with progress."""
    job = hourly()
    bench = bench_of(job)
    started = start(bench.dispatcher, job, at(5))
    for batch in range(1, 9):
        started.run.checkpoint.save({"batch": batch})
        die(started)
        bench.clock.advance(AFTER_LEASE)
        started = start(bench.dispatcher, job, at(5))
    assert run_row(bench, job, at(5)).attempt == 9
    for _ in range(3):
        die(started)
        bench.clock.advance(AFTER_LEASE)
        started = start(bench.dispatcher, job, at(5))
    row = run_row(bench, job, at(5))
    assert row.abandoned - row.survived == 4
