"""The same job on all three hosts at once: the Functions worker, a Container Apps execution, and the local host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run
from runonce.stores.azure.stores import azure_stores
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, timer

if TYPE_CHECKING:
    from runonce.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
EVERY, ROUNDS = 15, 2
"""Seconds between fire times, long enough for a process to start; and how many of them are fired at."""
JOBS = {
    "job.py": """
import os, time
from pathlib import Path
from runonce import Run, scheduled

@scheduled("*/15 * * * * *", misfire="skip")
def everywhere(run: Run) -> None:
    with (Path(os.environ["MARKS"]) / f"{run.fire_time:%H%M%S}").open("a") as file:
        file.write("x")
    time.sleep(5)
"""
}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the Functions worker is driven by POSIX signals")
def test_one_run_for_each_fire_time_whatever_fires(settings: Settings, tmp_path: Path) -> None:
    """Fired at the same instant by a Functions timer, three executions and the local host, a job runs once."""
    marks = tmp_path / "marks"
    marks.mkdir()
    app = make_app(tmp_path / "app", JOBS)
    # As deployed with both hosts live: executions begin late, so nobody calls a fire time missed so soon.
    registry = {**environment(settings), "RUNONCE_MISFIRE_GRACE": "300", "MARKS": str(marks)}
    on_a_machine = {
        **os.environ,
        **registry,
        "RUNONCE_STORAGE": str(settings.storage.connection_string),
        "RUNONCE_JOBS": str(app / "jobs"),
    }
    in_a_container = {**on_a_machine, "CONTAINER_APP_JOB_NAME": "caj-everywhere"}
    runonce = [sys.executable, "-m", "runonce"]
    said: list[str] = []
    fired: list[datetime] = []
    with FunctionsHost(app, env=registry) as functions, (tmp_path / "serve.log").open("w") as log:
        local = subprocess.Popen(
            [*runonce, "--verbose", "serve"], cwd=ROOT, env=on_a_machine, stdout=log, stderr=log, text=True
        )
        try:
            wait_until(lambda: "Ctrl-C stops it" in (tmp_path / "serve.log").read_text())
            for _ in range(ROUNDS):
                fire_time = sleep_until_next()
                fired.append(fire_time)
                invocation = functions.start_invocation("everywhere", timer())
                executions = [
                    subprocess.Popen(
                        [*runonce, "run", "everywhere", "--scheduled"],
                        cwd=ROOT,
                        env=in_a_container,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                    for _ in range(3)
                ]
                outputs = [execution.communicate(timeout=60)[0] for execution in executions]
                assert [execution.returncode for execution in executions] == [0, 0, 0]
                assert invocation.wait().success
                # Each was there in time: all speak of this fire time, and at most one of them ran it.
                at = f"everywhere {fire_time:%Y-%m-%dT%H:%M:%SZ}:"
                assert all(output.startswith(at) for output in outputs), outputs
                said += outputs
        finally:
            local.send_signal(signal.SIGTERM)
            local.wait(timeout=60)
    served = (tmp_path / "serve.log").read_text()
    own_view = Registry(azure_stores(settings).runs, settings.namespace, SystemClock(), "test")
    for fire_time in fired:
        assert (marks / f"{fire_time:%H%M%S}").read_text() == "x", f"it ran more than once:\n{served}\n{said}"
        found = read_run(own_view, "everywhere", fire_time)
        assert found is not None
        assert (found[0].outcome, found[0].attempt) == (Outcome.SUCCEEDED, 1)
        assert (
            f"everywhere at {fire_time}" in served
            or f"everywhere {fire_time:%Y-%m-%dT%H:%M:%SZ} #1" in served
        )
    assert all(mark.read_text() == "x" for mark in marks.iterdir())


def sleep_until_next() -> datetime:
    """Sleep until the next fire time that leaves everybody a few seconds to get ready; that fire time."""
    now = datetime.now(UTC)
    start = datetime(now.year, now.month, now.day, tzinfo=UTC)
    coming = start + timedelta(seconds=((now - start).seconds // EVERY + 1) * EVERY)
    if coming - now < timedelta(seconds=2):
        coming += timedelta(seconds=EVERY)
    time.sleep((coming - datetime.now(UTC)).total_seconds() + 0.02)
    return coming


def wait_until(true: object, seconds: float = 30) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < give_up_at, "it did not come true in time"
        time.sleep(0.05)
