"""Whose clock decides: storage's. A host's own only proposes."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest
from support.flows import at, job_row, replica, work_off

from runonce.runs.definition import scheduled
from runonce.runs.operate import ask
from runonce.runs.recovery import recover
from runonce.runs.requests import send_request
from runonce.runs.rows import Outcome
from runonce.runs.table import read_job, write
from runonce.stores.protocols import Replace
from runonce.testing import ManualClock, Workbench

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.run import Run


def job(schedule: str = "0 * * * * *", **options: Any) -> ScheduledJob:
    def body(run: Run) -> None: ...

    return scheduled(schedule, name="minutely", **options)(body)


def world(one: ScheduledJob, *, seconds_ahead: float) -> tuple[Workbench, Dispatcher]:
    """A bench at 03:00:10 whose clock is storage's, and a host whose own clock is so much ahead."""
    bench = Workbench(one)
    bench.clock.advance(3 * 3600 + 10)
    clock = ManualClock()
    clock.advance(bench.clock.elapsed() + seconds_ahead)
    return bench, replica(bench, clock=clock)


@pytest.mark.slow
def test_a_clock_a_day_ahead_takes_nobodys_fire_times() -> None:
    """It claims nothing of tomorrow, and the others' fire times of today run as before."""
    one = job()
    bench, fast = world(one, seconds_ahead=86400)
    refused = fast.tick(one)
    assert refused is not None
    assert not refused.ran
    assert "it is not due before" in refused.reason
    recover(fast)
    for minute in range(1, 31):
        assert bench.run(one, at(3, minute)).outcome is Outcome.SUCCEEDED


def test_a_watermark_that_such_a_clock_left_is_pulled_back() -> None:
    """What an earlier version let a fast clock do is undone by the first host that looks."""
    one = job()
    bench, _ = world(one, seconds_ahead=0)
    bench.run(one, at(3))
    registry = bench.dispatcher.registry
    row = registry.table.get("test", "job:minutely")
    assert row is not None
    spoilt = {**row.values, "watermark": "2026-02-01T00:00:00Z"}
    registry.table.commit("test", [Replace(row.key, spoilt, row.etag)])
    recover(bench.dispatcher)
    assert bench.run(one, at(3, 1)).outcome is Outcome.SUCCEEDED
    assert job_row(bench, one).watermark == at(3, 1)


def test_recovery_of_a_fast_host_skips_nothing_before_it_is_due() -> None:
    """With misfire="skip", a host a minute ahead does not record as skipped what storage says is still to come."""
    one = job("0 0 4 * * *", misfire="skip")
    bench, fast = world(one, seconds_ahead=7 * 60)
    recover(bench.dispatcher)
    bench.clock.advance(3580)  # 03:59:50 by storage's clock
    fast.clock._clock.advance(3580)  # type: ignore[attr-defined]
    assert recover(fast) == []
    assert bench.run(one, at(4)).outcome is Outcome.SUCCEEDED


def test_a_request_that_is_not_due_yet_is_put_back() -> None:
    """A slow host does not lose what another asked for: it comes again when it is due."""
    one = job()
    bench, slow = world(one, seconds_ahead=-20)
    bench.run(one, at(3))
    send_request(bench.stores.requests, "minutely", at(3), "asked")
    assert work_off(slow) == []
    bench.clock.advance(20)
    slow.clock._clock.advance(20)  # type: ignore[attr-defined]
    assert [result.reason.split(" at ")[0] for result in work_off(slow)] == [
        "this fire time is done, or was skipped"
    ]


@pytest.mark.parametrize(
    ("ahead", "said", "corrected"), [(2, False, False), (8, True, False), (-8, True, False), (90, True, True)]
)
def test_a_clock_that_is_off_is_named(
    ahead: int, said: bool, corrected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """From five seconds on the host is named, once; from thirty on it takes storage's time."""
    caplog.set_level(logging.WARNING)
    one = job()
    bench, host = world(one, seconds_ahead=ahead)
    bench.run(one, at(3))
    recover(host)
    recover(host)
    warned = [line for line in caplog.messages if "the clock of other is" in line]
    assert len(warned) == said
    off = abs(host.clock.now() - bench.clock.now())
    assert (off < timedelta(seconds=3)) == (corrected or not said)


def test_an_early_tick_waits_for_its_fire_time() -> None:
    """A timer that fires seconds early means the coming fire time, which runs when it has come."""
    one = job("0 0 4 * * *")
    bench, _ = world(one, seconds_ahead=0)
    bench.clock.advance((at(3, 59, 57) - bench.clock.now()).total_seconds())
    waited: list[float] = []
    real = bench.clock.wait

    def wait(event: Any, seconds: float) -> bool:
        if event is not bench.dispatcher.stop.event:
            return real(event, seconds)
        waited.append(seconds)
        bench.clock.advance(seconds)
        return False

    bench.clock.wait = wait  # type: ignore[method-assign]
    result = bench.dispatcher.tick(one)
    assert result is not None
    assert (result.fire_time, result.outcome, waited[0]) == (at(4), Outcome.SUCCEEDED, 3.0)


class OfAHost(ManualClock):
    """A clock that is ahead of the bench's, and moves with it when the host waits for a fire time."""

    def __init__(self, bench: Workbench, ahead: float) -> None:
        super().__init__(bench.clock.now() + timedelta(seconds=ahead))
        self.bench = bench

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let the time pass for both, if it is a wait of the host's thread."""
        if threading.current_thread() is threading.main_thread():
            self.advance(seconds)
            self.bench.clock.advance(seconds)
            return False
        return super().wait(event, seconds)


@pytest.mark.parametrize("misfire", ["skip", "latest"])
@pytest.mark.parametrize("ahead", [2, 4, 10, 29])
def test_the_tick_of_a_clock_that_is_ahead_waits_until_storage_says_that_it_is_due(
    ahead: float, misfire: Any
) -> None:
    """The only host's clock is seconds ahead: each fire time runs when it has come, with one call more at the first."""
    one = job(misfire=misfire)
    bench, _ = world(one, seconds_ahead=0)
    bench.clock.advance(50 - ahead)
    clock = OfAHost(bench, ahead)
    host = replica(bench, clock=clock)
    acquired = 0
    acquire = host.stores.leases.acquire

    def counting(*args: Any) -> Any:
        nonlocal acquired
        acquired += 1
        return acquire(*args)

    with patch.object(host.stores.leases, "acquire", counting):
        for minute in range(1, 4):
            result = host.tick(one)
            assert result is not None
            assert (result.fire_time, result.outcome) == (at(3, minute), Outcome.SUCCEEDED)
            assert bench.clock.now() >= at(3, minute) - timedelta(seconds=2)  # storage tells whole seconds
            to_next = (at(3, minute + 1) - clock.now()).total_seconds()
            for each in (clock, bench.clock):
                each.advance(to_next)
    assert acquired == (3 if ahead <= 2 else 4)


@pytest.mark.parametrize("seconds", [-14 * 3600, 14 * 3600])
def test_the_accounts_of_a_first_job_begin_at_storages_time(seconds: float) -> None:
    """The very first host of a namespace has a wrong clock: nothing of its past is missed, nothing to come is lost."""
    one = job("0 0 * * * *", misfire="all")
    bench, wrong = world(one, seconds_ahead=seconds)
    recover(wrong, starting=True)
    row = job_row(bench, one)
    assert row.since is not None
    assert abs((row.since - at(3)).total_seconds()) < 60


def test_a_call_that_takes_long_makes_nothing_due() -> None:
    """The lease is granted at the end of a call of twelve seconds: what is due ten seconds later is not due."""
    one = job()
    bench, fast = world(one, seconds_ahead=25)
    acquire = fast.stores.leases.acquire

    def slowly(*args: Any) -> Any:
        bench.clock.advance(12)
        cast("ManualClock", fast.server_clock._clock).advance(12)
        return acquire(*args)

    with patch.object(fast.stores.leases, "acquire", slowly):
        refused = fast.execute(one, at(3, 0, 32), by="timer")
    assert not refused.ran
    assert "it is not due before" in refused.reason


def test_a_clock_that_is_set_during_a_run_puts_off_no_retry() -> None:
    """It jumps a day ahead before the run fails: the retry is due in a minute by storage's clock, not tomorrow."""

    @scheduled("0 * * * * *", name="minutely", retries=1)
    def fails(run: Run) -> None:
        tomorrow = clock.now() + timedelta(days=1)
        clock.now = lambda: tomorrow  # type: ignore[method-assign]
        raise ValueError(f"{run.job} fails")

    bench, host = world(fails, seconds_ahead=0)
    clock = cast("ManualClock", host.server_clock._clock)
    result = host.execute(fails, at(3), by="timer")
    assert result.outcome is Outcome.RETRYING
    not_before = job_row(bench, fails).pending[at(3)].not_before
    assert (not_before - at(3)).total_seconds() < 120


def test_a_claim_that_reads_slowly_pulls_no_watermark_back() -> None:
    """Its read takes half a minute, in which others account for more: that is not a clock's mistake."""
    one = job(misfire="all")
    bench, slow = world(one, seconds_ahead=0)
    recover(bench.dispatcher)
    ask(bench.dispatcher, one, at(3))
    get = slow.registry.table.get

    def slowly(*args: Any) -> Any:
        slow.registry.table.get = get  # type: ignore[method-assign]
        for clock in (bench.clock, cast("ManualClock", slow.server_clock._clock)):
            clock.advance(35)
        row, etag = read_job(bench.dispatcher.registry, one.name)
        registry = bench.dispatcher.registry
        registry.table.commit("test", [write(replace(row, watermark=at(3, 0, 44)), etag)])
        return get(*args)

    slow.registry.table.get = slowly  # type: ignore[method-assign]
    slow.execute(one, at(3), by="request")
    assert job_row(bench, one).watermark == at(3, 0, 44)


@pytest.mark.parametrize("seconds", [0, 40, -40])
@pytest.mark.parametrize("served", ["at once", "at last"])
def test_a_slow_call_corrects_no_clock(served: str, seconds: float) -> None:
    """However long the call for the lease hangs, a right clock is left alone and what is known of a wrong one stays."""
    one = job(max_runtime=None)
    bench, host = world(one, seconds_ahead=seconds)
    clock = cast("ManualClock", host.server_clock._clock)
    recover(host)
    before = host.server_clock.now() - bench.clock.now()
    assert abs(before) <= timedelta(seconds=2)
    bench.clock.advance(60)
    clock.advance(60)
    acquire = bench.stores.leases.acquire

    def hangs(*given: Any) -> Any:
        answer = acquire(*given) if served == "at once" else None
        bench.clock.advance(35)
        clock.advance(35)
        return answer or acquire(*given)

    with patch.object(bench.stores.leases, "acquire", hangs):
        host.tick(one)
    assert abs(host.server_clock.now() - bench.clock.now()) <= timedelta(seconds=2)
