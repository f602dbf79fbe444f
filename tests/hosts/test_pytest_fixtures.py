"""The fixtures that users get from pytest, in a project of their own: a real emulator, broker, proxy and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from servicebus import launcher as bus
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
import time

from runonce import Message, Run, handler, scheduled

@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None:
    run.ledger.record(f"{run.fire_time:%S}-{run.attempt}")

@handler(queue="orders", key="order", retries=3)
def place(message: Message) -> None:
    message.log.info("placing")
    time.sleep(message.json.get("takes", 0) if message.attempt == 1 else 0)
    message.commit({"order": {"attempt": message.attempt}})

@handler(topic="events", subscription="billing", key="id")
def bill(message: Message) -> None:
    pass
"""


class Project:
    """A folder with a job file and a test file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir()
        (folder / "jobs" / "work.py").write_text(JOBS, encoding="utf-8")

    def outcome(self, test: str) -> str:
        """What pytest prints for a test file with this content."""
        (self.folder / "test_it.py").write_text(test, encoding="utf-8")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "runonce_pytest"],
            cwd=self.folder,
            env={**clean, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.slow
def test_nothing_of_runonce_is_imported_for_tests_that_want_none_of_it(project: Project) -> None:
    """A test suite beside which runonce is merely installed does not load it."""
    told = project.outcome(
        "import sys\ndef test_it():\n    assert not {name for name in sys.modules if name.split('.')[0] == 'runonce'}\n"
    )
    assert "1 passed" in told, told


@pytest.mark.slow
def test_the_workbench_knows_a_job_from_its_first_run(project: Project) -> None:
    """A bench without jobs runs one, and recovers it after a death."""
    told = project.outcome("""
from jobs.work import nightly

def test_it(workbench):
    workbench.kill(nightly, at="2026-11-29T03:00:00Z")
    assert "succeeded" in [result.outcome for result in workbench.recover()]
""")
    assert "1 passed" in told, told


@pytest.mark.slow
def test_real_storage_can_be_made_to_misbehave(project: Project) -> None:
    """An effect whose request is answered 503, whose reply is lost or is late, is there once."""
    told = project.outcome("""
from runonce import effects, enqueue
from runonce.testing import BUSY, DROP_REPLY, Fault
from jobs.work import place

def test_it(host, chaos):
    serving = host(RUNONCE_STORAGE=chaos.connection_string)
    for order, fault in enumerate([BUSY, DROP_REPLY, Fault(delay=1)]):
        chaos.table.inject(fault, "^POST")
        enqueue(place, {"order": str(order)})
        serving.wait_for(f"orders:{order} #1] done")
    assert sorted(row["key"] for row in effects(place)) == ["0", "1", "2"]
    assert serving.stop() == 0
""")
    assert "1 passed" in told, told


@pytest.mark.slow
def test_hosts_can_be_killed_paused_and_stopped(project: Project) -> None:
    """A killed host's message is handled by another one; a paused one's too, and the paused one writes nothing."""
    told = project.outcome("""
import pytest
from runonce import effects, enqueue
from jobs.work import place

@pytest.mark.parametrize("end", ["kill", "pause"])
def test_it(end, host):
    short = {"RUNONCE_CLAIM_LEASE": "5"}
    first = host(**short)
    enqueue(place, {"order": "7", "takes": 30})
    first.wait_for("placing")
    getattr(first, end)()
    second = host(**short)
    second.wait_for("placing", timeout=60)
    second.wait_for("] done")
    if end == "pause":
        first.resume()
    assert [row["attempt"] for row in effects(place)] == [2]
    assert second.stop() == 0
    with pytest.raises(AssertionError, match="before it ended with"):
        second.wait_for("never")
""")
    assert "2 passed" in told, told


@pytest.mark.slow
def test_a_local_service_bus_is_there_or_says_what_it_needs(project: Project) -> None:
    """A topic of the project can be sent to; without the broker the test is skipped with the remedy."""
    told = project.outcome("""
from runonce import effects, enqueue
from jobs.work import bill

def test_it(host, servicebus, monkeypatch):
    monkeypatch.setenv("RUNONCE_SERVICEBUS", servicebus)
    monkeypatch.setenv("RUNONCE_QUEUE_NAMES", "plain")
    serving = host()
    enqueue(bill, {"id": "7"})
    serving.wait_for("] done")
""")
    assert ("1 passed" if bus.available() else bus.HINT) in told, told


@pytest.mark.slow
def test_a_host_that_does_not_start_is_an_error_with_what_it_said(project: Project) -> None:
    """A wrong setting fails the test with the end of the host's log."""
    told = project.outcome("def test_it(host):\n    host(RUNONCE_NAMESPACE='Not a name!')\n")
    assert "1 failed" in told, told
    assert "Not a name!" in told, told
