"""`@every` in real processes: `runonce serve` until SIGTERM, and the production Functions worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from runonce.testing import Host
from tests.support.functions_app import ROOT, environment, make_app
from tests.support.functions_worker import FunctionsHost, timer
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals are what is tested here")

REFRESHING = """
import asyncio, logging, os, sys
from runonce import Run, Tick, every, scheduled

prices = []

@every("200ms")
def refresh() -> None:
    "Fetch the prices."
    prices.append(len(prices))
    sys.stderr.write(f"refreshed {prices[-1]}\\n")
    if len(prices) == 2:
        raise ValueError("no prices today")

@every("1h")
async def watch(tick: Tick) -> None:
    sys.stderr.write("watching\\n")
    try:
        await asyncio.sleep(600)
    finally:
        sys.stderr.write(f"told {tick.stopping}\\n")

@scheduled("0 0 3 1 1 *")
def yearly(run: Run) -> None:
    run.log.info("with %d prices", len(prices))
"""


def test_a_local_host_does_it_until_it_is_told_to_stop(tmp_path: Path, azurite: str) -> None:
    """It begins at once, goes on after an error, and ends with its host, whose async call is cancelled."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "refreshing.py").write_text(REFRESHING)
    environ = {
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": fresh_settings(azurite).namespace,
        "PYTHONPATH": str(ROOT),
    }
    host = Host(tmp_path, tmp_path / "log", environ)
    try:
        host.wait_for("refreshed 4")
        host.wait_for("watching")
        assert host.log.count("refresh failed; it is called again") == 1
        assert "no prices today" in host.log
        assert "refresh  every 0.2 s, on each host" in host.log
        assert host.stop() == 0
        assert "told True" in host.log
    finally:
        host.kill()


def test_the_functions_worker_does_it_while_it_lives(tmp_path: Path, azurite: str) -> None:
    """It is no function of the app, and each worker does it: what it has fetched is there for the app's jobs."""
    app = make_app(tmp_path / "app", {"refreshing.py": REFRESHING})
    with FunctionsHost(app, environment(fresh_settings(azurite))) as host:
        assert set(host.functions) == {"yearly", "runonce_purge", "runonce_recovery", "runonce_requests"}
        give_up_at = time.monotonic() + 30
        while "refreshed 4" not in host.output:
            assert time.monotonic() < give_up_at, host.output
            time.sleep(0.05)
        assert host.invoke("yearly", timer()).success
        os.kill(host.pid, signal.SIGTERM)
        host.wait(20)
        assert "told True" in host.output


def test_one_execution_does_not_do_it(tmp_path: Path, azurite: str) -> None:
    """`runonce run`, which a Container Apps job starts, runs its job and nothing else."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "refreshing.py").write_text(REFRESHING)
    environ = {
        **os.environ,
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": fresh_settings(azurite).namespace,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "runonce", "run", "yearly"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "with 0 prices" in done.stderr
    assert "refreshed" not in done.stderr
