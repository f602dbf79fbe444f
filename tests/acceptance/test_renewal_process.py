"""A job that holds the interpreter for longer than its lease: renewed by a process of its own, but not for ever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.replica import START, Replicas

from runonce.runs.operate import ask
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run
from tests.acceptance.test_signals import config_of, run_is

if TYPE_CHECKING:
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="Windows has no SIGSTOP, and no libc to hold the interpreter in"
)


def children(pid: int) -> list[int]:
    """The child processes of one."""
    lists = Path("/proc", str(pid), "task").glob("*/children")  # each thread's own
    return [int(child) for threads in lists for child in threads.read_text(encoding="ascii").split()]


@pytest.mark.slow
@pytest.mark.parametrize(("renewal", "attempts"), [("thread", 2), ("process", 1)])
def test_a_call_longer_than_the_lease(
    renewal: str, attempts: int, tmp_path: Path, settings: Settings
) -> None:
    """Nothing of a thread runs meanwhile, so the lease is lost and another host takes over; a process keeps it."""
    config = config_of(settings, tmp_path, body="hold", pause=22.0, renewal=renewal)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("start")
        replicas.start("second")
        run_is(Outcome.SUCCEEDED, replicas, 45)
        starts = [line["pid"] for line in replicas.diary() if line["what"] == "start"]
        assert starts[0] == first.pid
        assert len(starts) == attempts
    found = read_run(dispatcher.registry, "nightly", START)
    assert found is not None
    assert found[0].attempt == attempts


def test_a_job_without_progress_loses_its_lease(tmp_path: Path, settings: Settings) -> None:
    """The process renews no more once `stall_after` is over, and another host takes over."""
    config = config_of(settings, tmp_path, body="hold", pause=60.0, renewal="process", stall_after=1.0)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        replicas.start("first")
        replicas.wait_for("start")
        second = replicas.start("second")
        run_is(Outcome.SUCCEEDED, replicas, 40)
        assert replicas.wait_for("end")["pid"] == second.pid


def test_a_dead_job_frees_its_lease_at_once(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """Killed, it leaves a process that sees that within a second, releases the lease and ends."""
    config = config_of(settings, tmp_path, body="hold", pause=60.0, renewal="process")
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("start")
        (keeper,) = children(first.pid)
        time.sleep(1.0)  # it has begun to look
        first.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        while azure.leases.held(f"{settings.namespace}/nightly"):
            assert time.monotonic() - killed_at < 5
            time.sleep(0.02)
        first.wait()
        while Path("/proc", str(keeper)).exists():
            assert time.monotonic() - killed_at < 5
            time.sleep(0.02)


@pytest.mark.slow
def test_a_job_whose_keeper_dies_is_told(tmp_path: Path, settings: Settings) -> None:
    """Without the process its lease ends; the job learns that at its next look and goes on elsewhere."""
    config = config_of(settings, tmp_path, items=400, renewal="process")
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("item")
        (keeper,) = children(first.pid)
        os.kill(keeper, signal.SIGKILL)
        until = time.monotonic() + 40
        while "lost, the process that renews it" not in (tmp_path / "first.log").read_text():
            assert time.monotonic() < until, replicas.logs()
            time.sleep(0.1)
