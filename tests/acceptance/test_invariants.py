"""The nine invariants of the design, each against the real storage emulator where it is about storage."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import die, replayed, start, stop_at, work_off

from runonce.clock import SystemClock
from runonce.errors import Fenced, LeaseLost, ScheduleError, SettingsError
from runonce.execution.lease import Lease
from runonce.execution.options import MAX_ABANDONED
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher, Started
from runonce.runs.recovery import recover
from runonce.runs.rows import JobRow, Outcome, RunRow
from runonce.runs.table import read_job, read_run
from runonce.settings import Settings, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.testing.faults import Boundary, Fault
from runonce.testing.proxy import DROP_REPLY, FAILED_AFTER_APPLY, StorageProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.runs.plan import By
    from runonce.runs.run import Run
    from runonce.stores.protocols import Stores

T = datetime(2026, 1, 1, 3, tzinfo=UTC)


def nightly(body: Callable[[Run], Any] = lambda _: None, **options: Any) -> ScheduledJob:
    def run_it(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly", **options)(run_it)


class Hosts:
    """As many hosts as a test needs, each with connections of its own to one namespace."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stores = azure_stores(settings)

    def host(
        self,
        job: ScheduledJob,
        name: str = "host",
        *,
        clock: Clock | None = None,
        stores: Stores | None = None,
    ) -> Dispatcher:
        return Dispatcher(
            {job.name: job},
            stores or azure_stores(self.settings),
            self.settings,
            clock or SystemClock(),
            host=name,
        )

    def end_lease(self) -> None:
        """What 15 seconds without a renewal do, at once."""
        self.stores.leases.break_lease(f"{self.settings.namespace}/nightly")

    def held(self) -> bool:
        return self.stores.leases.held(f"{self.settings.namespace}/nightly")

    def job_row(self, dispatcher: Dispatcher) -> JobRow:
        return read_job(dispatcher.registry, "nightly")[0]

    def run_row(self, dispatcher: Dispatcher, fire_time: datetime = T) -> RunRow:
        found = read_run(dispatcher.registry, "nightly", fire_time)
        assert found is not None
        return found[0]

    def entries(self) -> list[Any]:
        rows = self.stores.runs.scan(self.settings.namespace, "entry:", "entry;")
        return [row.values["key"] for row in rows]


@pytest.fixture
def hosts(settings: Settings) -> Hosts:
    return Hosts(settings)


class Skewed(SystemClock):
    """A wall clock that is wrong by so many hours."""

    def __init__(self, hours: float) -> None:
        self._skew = timedelta(hours=hours)

    def now(self) -> datetime:
        return super().now() + self._skew


# -- 1 --------------------------------------------------------------------------------------------------------


def test_1_what_is_done_never_starts_again(hosts: Hosts) -> None:
    """Timer, request, person, recovery, at once from several hosts: a done fire time starts again by replay only."""
    starts: list[int] = []
    job = nightly(lambda run: starts.append(run.attempt), misfire="skip")  # only T may ever be run
    assert hosts.host(job).execute(job, T, by="timer").outcome is Outcome.SUCCEEDED
    ways: list[By] = ["timer", "request", "hand"]
    together = threading.Barrier(6)

    def start_again(way: By) -> None:
        dispatcher = hosts.host(job)
        together.wait()
        for _ in range(3):
            dispatcher.execute(job, T, by=way)
            recover(dispatcher)
            work_off(dispatcher)

    threads = [threading.Thread(target=start_again, args=(way,)) for way in ways * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert starts == [1]
    assert replayed(hosts.host(job), job, T).outcome is Outcome.SUCCEEDED
    assert starts == [1, 2]


# -- 2 --------------------------------------------------------------------------------------------------------


def test_2_trust_in_a_lease_ends_before_another_can_have_it(hosts: Hosts) -> None:
    """A holder that is silent for the whole lease stops trusting it before the server grants it to anybody else."""
    clock = SystemClock()
    name = f"{hosts.settings.namespace}/nightly"
    silent = Lease.acquire(hosts.stores.leases, name, hosts.settings.lease, clock)
    assert silent is not None
    assert silent.held
    successor = None
    while successor is None:
        trusted_before = silent.held
        successor = Lease.acquire(hosts.stores.leases, name, hosts.settings.lease, clock)
        if successor is None:
            clock.wait(threading.Event(), 0.2)
    assert not trusted_before, "the successor was granted a lease its predecessor still believed in"
    successor.release()


def test_2_trust_in_a_lease_ends_before_it_is_given_up(hosts: Hosts) -> None:
    """While the release is under way somebody else may get the lease already, so trust is over by then."""
    boundary = Boundary()
    stores = boundary.around(hosts.stores)
    lease = Lease.acquire(stores.leases, "t/nightly-2", hosts.settings.lease, SystemClock())
    assert lease is not None
    trusted: list[bool] = []
    boundary.meanwhile("release", lambda: trusted.append(lease.held))
    lease.release()
    assert trusted == [False]


def test_2_at_no_moment_do_two_runs_trust_one_lease(hosts: Hosts) -> None:
    """Hosts that take the lease from each other as fast as they can never find another's still trusted."""
    clock = SystemClock()
    name = f"{hosts.settings.namespace}/nightly"
    taken: list[Lease] = []
    both: list[str] = []

    def take() -> None:
        stores = azure_stores(hosts.settings)
        for _ in range(40):
            lease = Lease.acquire(stores.leases, name, hosts.settings.lease, clock)
            if lease is None:
                continue
            both.extend(other.holder for other in taken if other.held)
            taken.append(lease)
            lease.release()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) > 4
    assert both == []


# -- 3 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("successor", ["is running", "has ended", "ran another fire time"])
def test_3_a_run_that_lost_its_lease_commits_nothing(hosts: Hosts, successor: str) -> None:
    """Record, checkpoint, ledger and blob of the older run are refused by storage itself, whatever it believes."""

    def body(run: Run) -> None:
        run.blobs.write("report", f"token {run.fencing_token}")
        run.checkpoint.save("newer")

    job = nightly(body)
    host = hosts.host(job)
    old = start(host, job, T)
    old.run.checkpoint.save("older")
    old.run.blobs.write("report", "older")
    hosts.end_lease()
    other = hosts.host(job, "successor")
    fire_time = T + timedelta(days=1) if successor == "ran another fire time" else T
    newer = start(other, job, fire_time)
    body(newer.run)
    if successor != "is running":
        other.finish(newer, None)
    # As if the old process had been paused between looking at its lease and writing.
    old.lease._closed.set()
    old.lease._lost = None
    old.lease._trusted_until = float("inf")
    old.run.ledger.record("effect")
    with pytest.raises(Fenced):
        old.run.checkpoint.save("too late")
    with pytest.raises(Fenced):
        old.run.blobs.write("report", "too late")
    assert host.finish(old, None).outcome is Outcome.ABANDONED
    assert newer.run.blobs.read_text("report") == "token 2"
    assert hosts.entries() == []
    row = hosts.run_row(other, fire_time)
    assert (row.token, row.checkpoint) == (2, '"newer"')
    if successor == "is running":
        assert other.finish(newer, None).outcome is Outcome.SUCCEEDED
    else:
        assert row.outcome is Outcome.SUCCEEDED


def test_3_a_run_that_knows_of_its_loss_does_not_even_try(hosts: Hosts) -> None:
    """Once the lease is known to be lost, nothing is sent any more."""
    job = nightly()
    boundary = Boundary()
    host = hosts.host(job, stores=boundary.around(hosts.stores))
    old = start(host, job, T)
    die(old)
    boundary.calls.clear()
    for write in (lambda: old.run.checkpoint.save(1), old.run.check):
        with pytest.raises(LeaseLost):
            write()
    assert host.finish(old, None).outcome is Outcome.ABANDONED
    assert boundary.calls == []
    hosts.end_lease()


# -- 4 --------------------------------------------------------------------------------------------------------


def test_4_nothing_claimed_is_forgotten(hosts: Hosts) -> None:
    """Whatever its holders do, a claimed fire time ends done, failed or unknown, visible, with nothing pending."""

    def tries(job: ScheduledJob, fire_time: datetime) -> RunRow:
        """One host after another goes on with it, until nobody is asked any more."""
        host = hosts.host(job)
        for _ in range(MAX_ABANDONED + 1):
            results = [*([result] if (result := once(job, fire_time)) else []), *work_off(host)]
            hosts.end_lease()
            if results and results[-1].outcome.is_final:
                break
        row = hosts.job_row(host)
        assert (dict(row.pending), row.running) == ({}, None)
        found = hosts.run_row(host, fire_time)
        assert row.last_outcome == found.outcome
        return found

    def once(job: ScheduledJob, fire_time: datetime) -> Any:
        return hosts.host(job).execute(job, fire_time, by="request")

    def dying(job: ScheduledJob, fire_time: datetime, deaths: int) -> RunRow:
        for n in range(deaths):
            begun = hosts.host(job).begin(job, fire_time, by="request" if n else "timer")
            assert isinstance(begun, Started)
            die(begun)
            hosts.end_lease()
        return tries(job, fire_time)

    days = (T + timedelta(days=n) for n in itertools.count())
    assert dying(nightly(), next(days), 1).outcome is Outcome.SUCCEEDED
    assert dying(nightly(), next(days), MAX_ABANDONED).outcome is Outcome.FAILED
    assert dying(nightly(on_abandoned="hold"), next(days), 1).outcome is Outcome.UNKNOWN

    def stops_once(run: Run) -> None:
        if run.attempt == 1:
            stop_at(run)

    assert tries(nightly(stops_once), next(days)).outcome is Outcome.SUCCEEDED

    def fails(_: Run) -> None:
        raise ValueError

    retrying = nightly(fails, retries=2, retry_delay=0.001)
    row = tries(retrying, next(days))
    assert (row.outcome, row.failures) == (Outcome.FAILED, 3)


# -- 5 --------------------------------------------------------------------------------------------------------


def recording(run: Run) -> None:
    for (item,) in run.batches(["a", "b"], size=1):
        run.ledger.record(f"{run.fire_time:%d}{item}")
    run.ledger.record(f"{run.fire_time:%d}closing")


def test_5_a_lost_reply_is_never_taken_for_a_refusal(hosts: Hosts) -> None:
    """Every write of a run loses its reply once: the run succeeds all the same, in one attempt, each effect once."""
    job = nightly(recording)
    assert (
        hosts.host(job).execute(job, T, by="timer").outcome is Outcome.SUCCEEDED
    )  # its rows are there from now on
    probe = Boundary()
    second = hosts.host(job, stores=probe.around(hosts.stores))
    assert second.execute(job, T + timedelta(days=1), by="timer").outcome is Outcome.SUCCEEDED
    writes = [n for n, call in enumerate(probe.calls, 1) if call != "get"]
    assert len(writes) == 6
    for day, call in enumerate(writes, 2):
        boundary = Boundary()
        boundary.at(call, Fault.LOST_REPLY)
        host = hosts.host(job, stores=boundary.around(hosts.stores))
        fire_time = T + timedelta(days=day)
        result = host.execute(job, fire_time, by="timer")
        assert (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 1), boundary.calls
        row = hosts.run_row(host, fire_time)
        assert (row.outcome, row.attempt, row.abandoned) == (Outcome.SUCCEEDED, 1, 0)
        assert not hosts.held()
    assert hosts.entries() == sorted(
        f"{day:02}{item}" for day in range(1, len(writes) + 3) for item in ("a", "b", "closing")
    )


@pytest.mark.parametrize("fault", [DROP_REPLY, FAILED_AFTER_APPLY], ids=["dropped", "500"])
@pytest.mark.parametrize("write", range(4), ids=["claim", "batch a", "batch b", "end"])
def test_5_a_reply_lost_on_the_wire_is_read_back(
    azurite: str, settings: Settings, fault: Any, write: int
) -> None:
    """The connection breaks after the table has carried a write out: the writer recognises its own work."""
    job = nightly(recording)
    warm = Hosts(settings)
    warm.host(job).execute(job, T, by="timer")
    fire_time = T + timedelta(days=1)
    with StorageProxy(azurite) as proxy:
        through = Settings(settings.namespace, StorageConnection(proxy.connection_string), settings.lease)
        host = Hosts(through).host(job)
        # As many writes as come before it pass, with a fault that changes nothing.
        nothing = type(fault)()
        proxy.table.inject(nothing, r"POST .*\$batch", times=write)
        proxy.table.inject(fault, r"POST .*\$batch")
        result = host.execute(job, fire_time, by="timer")
        assert (result.outcome, result.attempt) == (Outcome.SUCCEEDED, 1)
        batches = [request for request in proxy.table.requests if "$batch" in request]
    assert len(batches) == 4
    assert warm.run_row(warm.host(job), fire_time).attempt == 1
    assert warm.entries() == ["01a", "01b", "01closing", "02a", "02b", "02closing"]


# -- 6 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-48, -1, 1, 48])
def test_6_no_client_clock_decides_who_owns_what(hosts: Hosts, hours: float) -> None:
    """However wrong a host's clock is, it takes no held lease; and it takes over once the lease is free."""
    starts: list[str] = []
    job = nightly(lambda run: starts.append(run.idempotency_key))
    right = hosts.host(job, "right")
    wrong = hosts.host(job, "wrong", clock=Skewed(hours))
    started = start(right, job, T)
    assert recover(wrong) == []
    assert wrong.execute(job, T, by="request").reason == "held elsewhere"
    assert hosts.run_row(right).attempt == 1
    die(started)
    hosts.end_lease()
    assert next((r.fire_time, r.why) for r in recover(wrong)) == (T, "abandoned")
    assert next(r.outcome for r in work_off(wrong)) is Outcome.SUCCEEDED
    assert hosts.run_row(right).attempt == 2


@pytest.mark.parametrize("hours", [-48, 48])
def test_6_what_a_wrong_clock_wrote_holds_nobody_up(hosts: Hosts, hours: float) -> None:
    """A host with a wrong clock claims, asks, and dies: hosts with the right time take over at once."""
    job = nightly()
    wrong = hosts.host(job, "wrong", clock=Skewed(hours))
    die(start(wrong, job, T))
    hosts.end_lease()
    recover(wrong)
    right = hosts.host(job, "right")
    asked_at = hosts.job_row(right).pending[T].asked_at
    assert asked_at is not None
    assert abs(asked_at - right.clock.now()) < timedelta(minutes=1), (
        "by storage's clock, or it would wait for days"
    )
    assert Outcome.SUCCEEDED in [r.outcome for r in work_off(right)]


def test_6_a_wall_clock_that_is_set_back_prolongs_no_trust(hosts: Hosts) -> None:
    """Trust is counted on elapsed time, whatever happens to the wall clock."""
    clock = Skewed(0)
    lease = Lease.acquire(hosts.stores.leases, "t/clock", hosts.settings.lease, clock)
    assert lease is not None
    until = lease.trusted_until
    clock._skew = timedelta(hours=-5)
    assert lease.trusted_until == until
    assert lease.held
    elapsed = clock.elapsed
    clock.elapsed = lambda: elapsed() + 14  # type: ignore[method-assign]
    assert not lease.held
    hosts.stores.leases.release("t/clock", lease.holder)


# -- 7 --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_7_the_toolkit_raises_nothing_into_the_host() -> None:
    """With no storage at all, no entry raises, nothing runs, and every answer comes within the call time-outs."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
    nowhere = Settings(
        "nowhere",
        StorageConnection(
            "AccountName=devstoreaccount1;AccountKey=bm8ga2V5;"
            f"BlobEndpoint={endpoint};QueueEndpoint={endpoint};TableEndpoint={endpoint}"
        ),
    )
    job = nightly(lambda _: pytest.fail("must not run"))
    host = Hosts(nowhere).host(job)
    clock = SystemClock()
    began = clock.elapsed()
    assert host.execute(job, T, by="timer").outcome is Outcome.SKIPPED
    result = host.handle_request('{"job":"nightly","fire_time":"2026-01-01T03:00:00Z"}')
    assert result is not None
    assert "the next recovery tick tries again" in result.reason
    assert recover(host) == []
    assert clock.elapsed() - began < 10


# -- 8 --------------------------------------------------------------------------------------------------------


def test_8_a_malformed_request_is_named_and_loses_nothing(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    """Nonsense in the internal queue is logged with the way to write it right, and what is behind it is run."""
    job = nightly(retries=1, retry_delay=0.001)
    host = hosts.host(job)
    host.finish(start(host, job, T), ValueError("first"))
    for body in ("\x00\x01", "{", '{"job":"nightly","fire_time":"31 December"}'):
        hosts.stores.requests.send(body)
    hosts.stores.requests.send('{"job":"nightly","fire_time":"2026-01-01T03:00:00Z"}')
    results = work_off(hosts.host(job))
    assert [r.outcome for r in results if r.ran] == [Outcome.SUCCEEDED]
    complaints = [r.getMessage() for r in caplog.records if "is not a request" in r.getMessage()]
    assert len(complaints) == 3
    assert all('a request is {"job"' in complaint for complaint in complaints)
    assert "31 December" in complaints[2]


@pytest.mark.parametrize("expression", ["0 0 25 * * *", "every night", "0 0 3 31 2 *"])
def test_8_a_malformed_schedule_names_the_job_and_the_value(expression: str) -> None:
    """A schedule that cannot be meant is refused where it is declared, with job, value and remedy."""
    with pytest.raises(ScheduleError) as caught:
        scheduled(expression, name="nightly")(nightly().body)
    assert "nightly" in str(caught.value)
    assert any(field in str(caught.value) for field in (expression, "25", "31"))


def test_8_a_malformed_setting_names_the_variable_and_the_value() -> None:
    """A setting that cannot work is refused at the start, with variable, value and remedy."""
    environ = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true", "RUNONCE_LEASE_DURATION": "90"}
    with pytest.raises(SettingsError, match=r"RUNONCE_LEASE_DURATION=90 must be 15 to 60 seconds"):
        Settings.from_env(environ)


# -- 9 --------------------------------------------------------------------------------------------------------


def test_9_no_secret_and_no_content_in_logs(
    hosts: Hosts, caplog: pytest.LogCaptureFixture, settings: Settings
) -> None:
    """Through success, failure and lost replies, at the most talkative level, no key and no content is logged."""
    caplog.set_level(logging.DEBUG)

    def body(run: Run) -> None:
        run.checkpoint.save({"card": "4111-checkpoint"})
        run.ledger.record("4111-key", holder="4111-value")
        run.blobs.write("report", "4111-blob")
        if run.attempt == 1:
            raise ValueError("the first time")

    job = nightly(body, retries=1, retry_delay=0.001)
    boundary = Boundary()
    boundary.next("commit", Fault.LOST_REPLY, Fault.LOST_REPLY)
    host = hosts.host(job, stores=boundary.around(hosts.stores))
    assert host.execute(job, T, by="timer").outcome is Outcome.RETRYING
    hosts.host(job, clock=Skewed(1)).execute(job, T, by="request")
    key = (settings.storage.connection_string or "").partition("AccountKey=")[2].partition(";")[0]
    assert len(key) > 20
    said = caplog.text + repr(settings) + repr(host.registry) + str(hosts.run_row(host))
    assert "the first time" in said
    for secret in (key, "SharedKey ", "4111-key", "4111-value", "4111-blob"):
        assert secret not in said
    assert "4111" not in caplog.text
