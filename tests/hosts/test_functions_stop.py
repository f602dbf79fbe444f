"""A Functions worker that dies or is stopped in the middle of a job: another goes on from the checkpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from runonce.runs.rows import decode_run, key_range
from runonce.stores.columns import to_text
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, WorkerExitedError, queue, timer

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.runs.rows import RunRow
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

JOB = """
import time
from runonce import Run, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip")
def long_job(run: Run) -> None:
    for batch in run.batches(range(6), size=2):
        run.log.info("batch %s", batch)
        for item in batch:
            run.ledger.record(str(item))
        if batch[0] == 2 and run.attempt == 1:
            run.log.info("waiting")
            while not run.stopping:
                time.sleep(0.01)
            run.check()
"""
FIRE_TIME = "2026-01-01T00:00:00Z"
REQUEST = f'{{"job": "long_job", "fire_time": "{FIRE_TIME}", "why": "asked"}}'


def the_run(settings: Settings, azure: Stores) -> RunRow:
    rows = list(azure.runs.scan(settings.namespace, *key_range("run", "long_job")))
    assert len(rows) == 1
    return decode_run(rows[0])


def ledger(settings: Settings, azure: Stores) -> list[str]:
    return [
        str(row.values["key"]) for row in azure.runs.scan(settings.namespace, *key_range("entry", "long_job"))
    ]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return make_app(tmp_path / "app", {"long.py": JOB})


def test_sigterm_releases_at_once_and_another_worker_goes_on(
    app: Path, settings: Settings, azure: Stores
) -> None:
    """On SIGTERM the job is told, its lease is free and the process gone within seconds; the next one finishes it."""
    with FunctionsHost(app, env=environment(settings)) as first:
        call = first.start_invocation("runonce_requests", queue(REQUEST))
        call.wait_for_log("waiting", timeout=20)
        told = time.monotonic()
        first.terminate()
        assert first.wait(timeout=20) == 143
        assert time.monotonic() - told < 5
    assert not azure.leases.held(f"{settings.namespace}/long_job")
    assert the_run(settings, azure).outcome == "stopped"
    with FunctionsHost(app, env=environment(settings)) as second:
        assert second.invoke("runonce_requests", queue(REQUEST)).success
    run = the_run(settings, azure)
    assert (run.outcome, run.attempt) == ("succeeded", 2)
    assert ledger(settings, azure) == [str(n) for n in range(6)]


def test_a_killed_workers_job_is_taken_over_from_its_checkpoint(
    app: Path, settings: Settings, azure: Stores
) -> None:
    """After kill -9 the lease runs out, the recovery timer asks for the run, and it resumes at the next batch."""
    with FunctionsHost(app, env=environment(settings)) as first:
        call = first.start_invocation("runonce_requests", queue(REQUEST))
        call.wait_for_log("waiting", timeout=20)
        first.kill()
        with pytest.raises(WorkerExitedError):
            call.wait(timeout=20)
    with FunctionsHost(app, env=environment(settings)) as second:
        assert second.invoke(
            "runonce_recovery", timer()
        ).success  # the lease still stands: nothing is asked for
        assert azure.requests.receive(visibility=1) is None
        while azure.leases.held(f"{settings.namespace}/long_job"):
            time.sleep(0.25)
        assert second.invoke("runonce_recovery", timer()).success
        asked = azure.requests.receive(visibility=30)
        assert asked is not None
        done = second.invoke("runonce_requests", queue(asked.body))
        assert done.success
        assert done.said("batch [2, 3]")
        assert not done.said("batch [0, 1]")
    run = the_run(settings, azure)
    assert (run.outcome, run.attempt, run.abandoned) == ("succeeded", 2, 1)
    assert to_text(run.fire_time) == FIRE_TIME
    assert ledger(settings, azure) == [str(n) for n in range(6)]
