"""On Functions nothing waits behind long work: not what is asked for, and no other async job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from runonce.runs.requests import send_request
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

LONG = 10
JOBS = f"""
import asyncio
import time

from runonce import Run, scheduled


def sleep(run: Run) -> None:
    while not run.stopping:
        time.sleep(0.05)


def define(n: int) -> object:
    if n % 2:

        @scheduled("0 0 0 1 1 *", name=f"long-{{n}}", misfire="skip")
        def long(run: Run) -> None:
            run.log.info("begun long")
            sleep(run)

    else:

        @scheduled("0 0 0 1 1 *", name=f"long-{{n}}", misfire="skip")
        async def long(run: Run) -> None:
            run.log.info("begun long")
            await asyncio.to_thread(sleep, run)

    return long


jobs = [define(n) for n in range({LONG})]


@scheduled("0 0 0 1 1 *", misfire="skip")
def quick(run: Run) -> None:
    run.log.info("quick is done")


@scheduled("0 0 0 1 1 *", misfire="skip")
async def quick_async(run: Run) -> None:
    await asyncio.to_thread(run.log.info, "quick_async is done")
"""
FIRE_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.slow
def test_long_runs_keep_nothing_else_waiting(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """Ten long runs, asked for one by one, half of them async and in threads: others asked for run meanwhile."""
    app = make_app(tmp_path / "app", {"jobs.py": JOBS})
    with LiveHost(app, environment(settings)) as host:
        for n in range(LONG):
            send_request(azure.requests, f"long-{n}", FIRE_TIME, "asked", delay=timedelta())
            host.console.wait_for("begun long", count=n + 1)
        for job in ("quick", "quick_async"):
            send_request(azure.requests, job, FIRE_TIME, "asked", delay=timedelta())
        for job in ("quick", "quick_async"):
            host.console.wait_for(f"{job} is done", timeout=15)
        until(lambda: sum(one.name == "runonce_requests" for one in host.console.running) == LONG)
        host.terminate()
        assert host.wait(12) == 0
