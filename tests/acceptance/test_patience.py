"""Storage that is away for a moment, or longer: a job's reads and writes wait, and none of it is the job's failure."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.operate import pause, resume
from runonce.runs.rows import Outcome
from runonce.runs.table import read_job, read_run
from runonce.settings import StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.testing.proxy import StorageProxy
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.result import Result
    from runonce.runs.run import Run

T = datetime(2026, 1, 1, 3, tzinfo=UTC)
AWAY = 2.5


@pytest.fixture
def proxy(azurite: str) -> Iterator[StorageProxy]:
    with StorageProxy(azurite) as proxy:
        yield proxy


def run_through(azurite: str, proxy: StorageProxy, body: Callable[[Run], Any]) -> Result:
    """Run a body without retries, whose calls go through the proxy."""
    settings = replace(fresh_settings(azurite), storage=StorageConnection(proxy.connection_string))
    stores = azure_stores(settings)
    stores.blobs.write(f"{settings.namespace}/in", b"x", {}, etag=None, content_type="text/plain")

    def job(run: Run) -> None:
        run.ledger.record("before")
        run.checkpoint.save("before")
        body(run)

    jobs = {"job": scheduled("0 0 3 * * *", name="job")(job)}
    dispatcher = Dispatcher(jobs, stores, settings, SystemClock(), host="a")
    return dispatcher.execute(jobs["job"], T, by="timer")


@pytest.mark.parametrize(
    ("service", "call"),
    [
        ("table", lambda run: run.ledger.keys()),
        ("table", lambda run: run.checkpoint.save("after")),
        ("blob", lambda run: run.blobs.read("in")),
        ("blob", lambda run: run.blobs.exists("in")),
        ("blob", lambda run: run.blobs.names()),
        ("blob", lambda run: run.blobs.write("out", "x")),
        ("blob", lambda run: run.blobs.delete("in")),
    ],
    ids=["ledger.keys", "checkpoint.save", "read", "exists", "names", "write", "delete"],
)
def test_every_call_of_a_job_outlives_an_outage(
    azurite: str, proxy: StorageProxy, service: str, call: Callable[[Run], Any]
) -> None:
    """Storage that refuses every connection for some seconds delays a job by that, and no more."""
    one = getattr(proxy, service)

    def body(run: Run) -> None:
        one.refuse()
        threading.Timer(AWAY, one.restore).start()
        call(run)

    result = run_through(azurite, proxy, body)
    assert (result.outcome, result.reason) == (Outcome.SUCCEEDED, "")


def test_a_job_that_checkpoints_all_the_time_is_paused(azurite: str) -> None:
    """However often the job changes its row, an operator's pause wins."""
    settings = fresh_settings(azurite)
    stores = azure_stores(settings)
    stop = threading.Event()
    began = threading.Event()

    def busy(run: Run) -> None:
        began.set()
        while not stop.is_set():
            run.checkpoint.save("again")

    jobs = {"busy": scheduled("0 0 3 * * *", name="busy")(busy)}
    dispatcher = Dispatcher(jobs, stores, settings, SystemClock(), host="a")
    thread = threading.Thread(target=lambda: dispatcher.execute(jobs["busy"], T, by="timer"))
    thread.start()
    assert began.wait(20)
    try:
        for _ in range(40):
            assert pause(dispatcher, "busy", "a test").paused_at is not None
            resume(dispatcher, "busy")
        pause(dispatcher, "busy")
    finally:
        stop.set()
        thread.join()
    assert read_job(dispatcher.registry, "busy")[0].paused_at is not None
    found = read_run(dispatcher.registry, "busy", T)
    assert found is not None
    assert found[0].outcome is Outcome.SUCCEEDED
