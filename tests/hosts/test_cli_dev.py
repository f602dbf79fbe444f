"""`runonce dev` as people use it: a project, one command, Ctrl-C. Real processes, a real Azurite of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from runonce.cli.dev import CHILD
from servicebus import launcher as bus
from tests.support.environments import run
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")

RUNONCE = [sys.executable, "-m", "runonce"]
TOPIC = """
from runonce import Message, handler

@handler(topic="orders", subscription="billing", key="id")
def bill(message: Message) -> None:
    message.commit({"billed": {"id": message.key}})
"""
DEAF = """
import time
from pathlib import Path

from runonce import Message, handler

@handler(queue="deaf")
def deaf(message: Message) -> None:
    Path("began").touch()
    time.sleep(60)
"""


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")}
    return {**clean, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


class Dev:
    """`runonce dev` in a folder; its lines, as they come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*RUNONCE, "dev"], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
        )
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._more:
                    self.lines.append(line.rstrip())
                    self._more.notify()

    def said(self, pattern: str, times: int = 1) -> str:
        """The first line that matches, once so many have."""
        found: list[str] = []

        def enough() -> bool:
            found[:] = [line for line in self.lines if re.search(pattern, line)]
            return len(found) >= times

        with self._more:
            assert self._more.wait_for(enough, 50), "\n".join(self.lines)
        return found[0]

    def other_terminal(self, *args: str) -> str:
        """A command with nothing but what `dev` said to export."""
        exported = dict(re.findall(r"^  export (\w+)='(.*)'$", "\n".join(self.lines), re.MULTILINE))
        return run(*RUNONCE, *args, env={**environment(), **exported}, cwd=self.folder)

    def ctrl_c(self, times: int = 1) -> float:
        """Ctrl-C so many times; the seconds until it has ended."""
        began = time.monotonic()
        for n in range(times):
            if n:
                self.said("stopping: ")
            self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        return time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


def until(true: Callable[[], object], seconds: float = 20) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, "it did not come true in time"
        time.sleep(0.05)


def processes_in(folder: Path) -> list[str]:
    """The commands of all processes that work in a folder."""
    found = []
    for pid in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            if str(Path(f"/proc/{pid}/cwd").readlink()).startswith(str(folder)):
                found.append(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if command]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my jobs"
    run(*RUNONCE, "init", "--only", "local", folder, env=environment(), cwd=tmp_path)
    return folder


@pytest.mark.slow
def test_one_command_runs_a_project_and_loads_what_changes(project: Path) -> None:
    """It says where it works and what to export, handles messages sent elsewhere, and takes up what changes."""
    with Dev(project) as dev:
        dev.said("Ctrl-C stops it")
        first = dev.lines[0]
        assert re.fullmatch(
            r"note: namespace 'my-jobs-[0-9a-f]{4}', account devstoreaccount1 of the emulator on this machine",
            first,
        )
        dev.other_terminal("enqueue", "greet", "--body", '{"name": "Ada"}')
        dev.said(r"\[greet .*done")
        greet = project / "jobs" / "greet.py"
        greet.write_text(greet.read_text().replace("def greet", "def salute"))
        dev.said(r"jobs/greet\.py changed: the host starts anew")
        dev.said("salute  +messages of my-jobs-")
        dev.other_terminal("enqueue", "salute", "--body", '{"name": "Grace"}')
        dev.said(r"\[salute .*done")
        (project / "jobs" / "new.py").write_text("import nothing_of_the_kind\n")
        dev.said("nothing_of_the_kind")
        dev.said("Ctrl-C stops it", times=3)
        assert dev.ctrl_c() < 8
        assert dev.process.returncode == 0
    assert processes_in(project) == []


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_a_second_one_waits_for_nothing(project: Path) -> None:
    """A handler that heeds nothing is left after two seconds; asked twice, it is left at once, and all else ends."""
    (project / "jobs" / "deaf.py").write_text(DEAF)
    for times, seconds in ((1, 8), (2, 2)):
        with Dev(project) as dev:
            dev.said("Ctrl-C stops it")
            dev.other_terminal("enqueue", "deaf", "--body", "1", "--key", str(times))
            until((project / "began").exists)
            assert dev.ctrl_c(times) < seconds
            assert dev.process.returncode == (0 if times == 1 else 130)
        (project / "began").unlink()
        until(lambda: processes_in(project) == [], 8)


def test_nothing_outlives_it_when_it_is_killed(project: Path) -> None:
    """After kill -9 the host and the emulator end by themselves."""
    with Dev(project) as dev:
        dev.said("Ctrl-C stops it")
        assert len(processes_in(project)) == 3
        dev.process.kill()
        until(lambda: processes_in(project) == [], 15)


@pytest.mark.slow
@pytest.mark.skipif(not bus.available(), reason="the local Service Bus is not built here")
def test_a_handler_of_a_topic_gets_a_service_bus(project: Path) -> None:
    """A topic is there, what to export names the broker, and a message that is published has its effect."""
    (project / "jobs" / "bill.py").write_text(TOPIC)
    with Dev(project) as dev:
        dev.said(r"bill +messages of orders/billing \(Service Bus\)")
        dev.said("Ctrl-C stops it")
        dev.other_terminal("enqueue", "bill", "--body", '{"id": "A1"}')
        dev.said(r"\[bill .*done")
        assert dev.ctrl_c() < 10


@pytest.mark.slow
def test_a_second_one_in_the_same_folder_is_one_more_host(project: Path) -> None:
    """It takes the emulator that runs, and leaves it alone when it ends."""
    with Dev(project) as first:
        first.said("Ctrl-C stops it")
        with Dev(project) as second:
            second.said("runs already")
            second.said("Ctrl-C stops it")
            assert second.ctrl_c() < 8
        first.other_terminal("enqueue", "greet", "--body", '{"name": "Ada"}')
        first.said(r"\[greet .*done")
        assert first.ctrl_c() < 8


def test_without_a_jobs_folder_nothing_is_started(tmp_path: Path) -> None:
    """It is said once, with the remedy, and no emulator is installed or started for it."""
    done = subprocess.run(
        [*RUNONCE, "dev"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("does not exist") == done.stderr.count("`runonce init`") == 1
    assert not list(tmp_path.iterdir())


def test_a_host_that_cannot_start_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """The host of `dev` whose settings are wrong says so and ends, though its input is still held open."""
    host = subprocess.Popen(
        [sys.executable, "-c", CHILD, "--jobs", "nowhere", "serve"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert host.stderr is not None
    with host, host.stderr as said:
        text = said.read()
        assert host.wait(50) == 5, text
    assert "Fatal" not in text
