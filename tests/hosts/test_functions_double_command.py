"""The host started by hand, as a process: what it prints, and what its signals and its death do."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.storage.queue import QueueClient

from tests.support.functions_worker import LiveHost, Times
from tests.support.functions_worker.samples import until, write_app

ROOT = Path(__file__).resolve().parents[2]
APP = """
    @app.queue_trigger(arg_name="message", queue_name="%s", connection="AzureWebJobsStorage")
    def work(message: func.QueueMessage) -> None:
        log.info("at work")
        time.sleep(float(message.get_body()))
        Path(os.environ["MARK"]).write_text("ended")

    @app.timer_trigger(arg_name="tick", schedule="* * * * * *")
    def often(tick: func.TimerRequest) -> None:
        log.info("tick")
"""


class Command:
    """`python -m tests.support.functions_worker` in a process group of its own."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.functions_worker",
                    str(folder),
                    "--port",
                    "0",
                    *options,
                ],
                cwd=ROOT,
                env={
                    name: value for name, value in os.environ.items() if not name.startswith("AzureWebJobs")
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.printed() or self.process.poll() is not None, 30)
        assert text in self.printed(), self.printed()

    def worker(self) -> int:
        self.wait_for("worker [")
        return int(re.search(r"worker \[(\d+)\]", self.printed())[1])


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, as far as the system tells."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tZ" not in status.read_text()


class Bench:
    """A project as a developer has it: settings in local.settings.json."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.folder, self.queue, self.storage = folder, f"double-{uuid.uuid4().hex[:12]}", storage
        self.mark = folder / "mark"
        host_json = {"version": "2.0", "extensions": {"queues": {"maxPollingInterval": "00:00:01"}}}
        write_app(folder, APP % self.queue, json.dumps(host_json))
        values = {
            "AzureWebJobsStorage": storage,
            "AzureFunctionsWebHost__hostid": self.queue,
            "MARK": str(self.mark),
        }
        (folder / "local.settings.json").write_text(json.dumps({"IsEncrypted": False, "Values": values}))
        self.client = QueueClient.from_connection_string(storage, self.queue)
        self.client.create_queue()

    def send(self, seconds: float) -> None:
        self.client.send_message(base64.b64encode(str(seconds).encode()).decode())


@pytest.fixture
def bench(tmp_path: Path, azurite: str) -> Bench:
    return Bench(tmp_path / "app", azurite)


@pytest.fixture
def start(bench: Bench, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*options: str) -> Command:
        command = Command(bench.folder, tmp_path / "host.log", *options)
        started.append(command)
        return command

    yield start
    for command in started:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.wait()


def test_it_prints_what_the_console_would(bench: Bench, start: Callable[..., Command]) -> None:
    """Settings come from local.settings.json; functions, their lines and their ends are printed."""
    command = start("--functions", "work")
    bench.send(0)
    command.wait_for("Executed 'Functions.work' (Succeeded")
    printed = command.printed()
    assert "Functions: work" in printed
    assert "Function 'often' is disabled." in printed
    assert "Information: at work" in printed


def test_ctrl_c_ends_host_and_worker(bench: Bench, start: Callable[..., Command]) -> None:
    """Ctrl-C of the group reaches both: the worker is gone at once, the host ends with 0."""
    command = start()
    worker = command.worker()
    command.wait_for("tick")
    assert bench.queue
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.process.wait(15) == 0
    assert not runs(worker)
    assert "Application is shutting down" in command.printed()


def test_sigterm_ends_the_host(start: Callable[..., Command]) -> None:
    """SIGTERM to the host alone ends both, with 0."""
    command = start()
    worker = command.worker()
    command.process.terminate()
    assert command.process.wait(15) == 0
    until(lambda: not runs(worker))


@pytest.mark.slow
def test_the_worker_of_a_killed_host_finishes_what_it_has(
    bench: Bench, start: Callable[..., Command]
) -> None:
    """After kill -9 of the host its worker lives on as an orphan, and its message stays hidden.

    Another instance of the same host id gets the timers when the lock of the dead one has run out.
    """
    command = start()
    worker = command.worker()
    bench.send(2)
    command.wait_for("at work")
    command.wait_for("tick")
    killed = time.time()
    command.process.kill()
    command.process.wait()
    assert runs(worker)
    settings = {"AzureWebJobsStorage": bench.storage, "AzureFunctionsWebHost__hostid": bench.queue}
    with LiveHost(bench.folder, settings, times=Times(lock_recovery=1)) as second:
        until(bench.mark.exists)
        until(lambda: not runs(worker))
        second.console.wait_for("tick")
        assert second.console.of("often")[0].started - killed > 10
        assert not second.console.of("work")
    assert bench.client.get_queue_properties().approximate_message_count == 1


def test_it_names_what_is_missing(tmp_path: Path) -> None:
    """Without storage it says where it looked."""
    command = Command(write_app(tmp_path / "bare", ""), tmp_path / "log")
    assert command.process.wait(30) == 1
    assert "AzureWebJobsStorage is neither in local.settings.json" in command.printed()
