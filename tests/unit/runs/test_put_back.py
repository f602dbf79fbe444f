"""Requests that come again: to another host, when a lease has ended, when a retry is due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support.flows import at, run_row, work_off

from runonce.errors import StoreUnavailableError
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import OUT_OF_REACH_AGAIN, Dispatcher
from runonce.runs.recovery import recover
from runonce.runs.requests import MOST_UNKNOWN, send_request
from runonce.runs.rows import Outcome
from runonce.testing import Workbench

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.run import Run


def test_a_request_for_an_unknown_job_comes_to_a_host_that_knows_it() -> None:
    """An old host that takes it puts it back for two seconds, again and again; a new one runs it."""
    ran: list[datetime] = []
    job = scheduled("0 0 3 * * *", name="brand_new")(lambda run: ran.append(run.fire_time))
    bench = Workbench(job)
    recover(bench.dispatcher)
    bench.clock.advance(3 * 3600)
    old = Dispatcher({}, bench.stores, bench.settings, bench.clock, host="old")
    send_request(bench.stores.requests, "brand_new", at(3), "missed")
    for _ in range(20):
        assert work_off(old) == []
        bench.clock.advance(2)
    assert [result.outcome for result in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]
    assert ran == [at(3)]


def test_a_request_for_a_job_that_nobody_knows_is_dropped_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It comes for as long as a request lives, is told at first and at last, and is gone."""
    bench = Workbench()
    send_request(bench.stores.requests, "gone", at(3), "missed")
    taken = 0
    while (item := bench.stores.requests.receive(visibility=30)) is not None:
        bench.stores.requests.delete(item)
        bench.dispatcher.handle_request(item.body)
        bench.clock.advance(2)
        taken += 1
    assert taken == MOST_UNKNOWN + 1
    assert [record.levelname for record in caplog.records if "deploy the file" in record.message] == [
        "WARNING",
        "ERROR",
    ]


@pytest.mark.parametrize("offset", [0, 10, 20, 31, 44, 59])
def test_a_host_that_dies_before_its_claim_delays_a_run_by_its_lease(offset: int) -> None:
    """The request that met the dead host's lease comes again when that has ended, wherever the recovery ticks lie."""
    job = scheduled("0 0 3 * * *", name="nightly")(lambda _: None)
    bench = Workbench(job)
    recover(bench.dispatcher)
    bench.clock.advance(3 * 3600)
    assert bench.stores.leases.acquire("test/nightly", "dead", 45)
    ran_after = None
    for second in range(300):
        if second % 60 == offset:
            recover(bench.dispatcher)
        if any(result.ran for result in work_off(bench.dispatcher)):
            ran_after = second
            break
        bench.clock.advance(1)
    assert ran_after is not None
    # The misfire grace of 30 s, and a tick to see it; a lease of 45 s that the request may meet has ended by then.
    assert ran_after <= 30 + 60


@pytest.mark.parametrize(
    ("delay", "least", "most"), [(2, 1.6, 3.0), (timedelta(hours=6), 4.8 * 3600, 7.2 * 3600 + 1)]
)
def test_a_retry_comes_when_its_delay_is_over(delay: float | timedelta, least: float, most: float) -> None:
    """To the second, without a recovery tick; a delay of more than an hour is kept, and not doubled."""
    when: list[float] = []

    def body(_: Run) -> None:
        when.append(bench.clock.elapsed())
        raise OSError

    job = scheduled("0 0 3 * * *", name="nightly", retries=2, retry_delay=delay)(body)
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    bench.run(job, at(3))
    step = 1 if most < 60 else 60
    while len(when) < 3 and bench.clock.elapsed() < 4 * 86400:
        bench.clock.advance(step)
        work_off(bench.dispatcher)
    first, second, third = when
    assert least <= second - first <= most + step
    doubled = 2 if most < 60 else 1
    assert least * doubled <= third - second <= most * doubled + step


def test_storage_that_did_not_answer_is_no_failure_of_the_job() -> None:
    """A run whose storage was away for longer than a minute goes on later, with no retry used up."""
    away = [True]

    def body(_: Run) -> None:
        if away.pop():
            away.append(False)
            raise StoreUnavailableError("it did not answer for a minute")

    job = scheduled("0 0 3 * * *", name="nightly")(body)
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    result = bench.run(job, at(3))
    assert (result.outcome, result.counted) == (Outcome.RETRYING, False)
    assert run_row(bench, job, at(3)).failures == 0
    assert work_off(bench.dispatcher) == []
    bench.clock.advance(OUT_OF_REACH_AGAIN)
    assert [result.outcome for result in work_off(bench.dispatcher)] == [Outcome.SUCCEEDED]
