"""The command line as people and orchestrators start it: real processes, real storage, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import invoke

from runonce.cli.context import Context
from runonce.hosts.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typer.testing import Result

    from runonce.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals are what is tested here")

AT = "2026-01-05T03:00:00Z"
JOBS = """
    import time
    from pathlib import Path

    from runonce import PermanentError, Run, scheduled

    HERE = Path(__file__).parent

    @scheduled("0 0 3 * * *")
    def good(run: Run) -> None:
        "Do it."

    @scheduled("0 0 3 * * *")
    def bad(run: Run) -> None:
        raise PermanentError("the account is closed")

    @scheduled("0 0 3 * * *")
    def long(run: Run) -> None:
        for batch in run.batches(range(2 if run.attempt > 1 else 10_000), size=1):
            (HERE / "began").touch()
            time.sleep(0.05)

    @scheduled("0 0 3 * * *")
    def deaf(run: Run) -> None:
        (HERE / "began").touch()
        time.sleep(60)
"""
EVERY_SECOND = """
    from pathlib import Path

    from runonce import Run, scheduled

    @scheduled("* * * * * *", misfire="skip")
    def every_second(run: Run) -> None:
        with (Path(__file__).parent / "ran").open("a") as file:
            file.write(f"{run.fire_time:%H:%M:%S}\\n")
"""


class Processes:
    """Starts commands against one namespace, and ends what is left of them."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "RUNONCE_STORAGE": settings.storage.connection_string or "",
            "RUNONCE_NAMESPACE": settings.namespace,
            "RUNONCE_LEASE_DURATION": "15",
            "RUNONCE_LEASE_RENEWAL": "5",
            "RUNONCE_LEASE_MARGIN": "2",
            "RUNONCE_JOBS": str(folder),
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        """Start a command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runonce", *args],
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*args, **environ)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)

    def here(self, *args: str) -> Result:
        """The same in this process, which is quicker than another."""
        return invoke(Context(Runtime(environ=self.environ)), *args)

    def json(self, *args: str) -> Any:
        """What a command prints with --json, in this process."""
        return json.loads(self.here(*args, "--json").stdout)

    def begun(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        """Start a run of a job that says when its body has begun, and wait for that."""
        (self.folder / "began").unlink(missing_ok=True)
        process = self.start(*args, **environ)
        wait_until((self.folder / "began").exists)
        return process


def wait_until(true: Callable[[], object], seconds: float = 30) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, "it did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def cli(settings: Settings, tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "jobs.py").write_text(textwrap.dedent(JOBS), encoding="utf-8")
    processes = Processes(settings, tmp_path)
    yield processes
    for process in processes.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_fire_time_runs_once_and_again_only_by_replay(cli: Processes) -> None:
    """The first run ends with 0, a second with 3, a replay with 0, and history has one row of two attempts."""
    assert cli.run("run", "good", "--at", AT).returncode == 0
    second = cli.run("run", "good", "--at", AT)
    assert second.returncode == 3
    assert "nothing ran: already succeeded" in second.stdout
    assert cli.run("replay", "good", "--at", AT).returncode == 0
    runs = cli.json("history", "good")["runs"]
    assert [(run["fire_time"], run["outcome"], run["attempt"], run["replays"]) for run in runs] == [
        (AT, "succeeded", 2, 1)
    ]


def test_a_failing_job_ends_with_1_and_is_in_the_status(cli: Processes) -> None:
    """A run that fails for good ends with 1; status and history say why, for people and as JSON."""
    failed = cli.run("run", "bad", "--at", AT)
    assert failed.returncode == 1
    assert failed.stdout == f"bad {AT}: failed: PermanentError: the account is closed\n"
    status = cli.run("status")
    assert (status.returncode, status.stderr) == (1, "")
    assert "failed" in status.stdout
    assert max(map(len, status.stdout.splitlines())) <= 80
    assert "\x1b" not in status.stdout
    last = {job["name"]: job["last"] for job in json.loads(cli.run("status", "--json").stdout)["jobs"]}
    assert last["good"] is None
    assert (last["bad"]["outcome"], last["bad"]["reason"]) == (
        "failed",
        "PermanentError: the account is closed",
    )
    assert re.fullmatch(r"2\d{3}-\d\d-\d\dT[\d:.]+Z", last["bad"]["finished_at"])


def test_ctrl_c_stops_a_run_which_then_goes_on_from_there(cli: Processes) -> None:
    """Ctrl-C in mid-run: 130, the lease is free, the row says stopped, and the next run finishes the rest."""
    process = cli.begun("run", "long", "--at", AT)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    stdout, stderr = process.communicate(timeout=30)
    assert time.monotonic() - began < 15
    assert process.returncode == 130
    assert f"long {AT}: stopped" in stdout
    assert "Traceback" not in stderr
    stopped = cli.json("history", "long")["runs"][0]
    assert stopped["outcome"] == "stopped"
    assert stopped["progress"]["items"] >= 1
    # At once, without waiting for the lease to end by itself.
    assert "attempt 2" in cli.run("run", "long", "--at", AT).stdout


def test_sigterm_ends_a_run_that_does_not_listen(cli: Processes) -> None:
    """SIGTERM to a job that ignores it: after the shutdown time it is released, recorded as stopped, and 143."""
    process = cli.begun("run", "deaf", "--at", AT, RUNONCE_SHUTDOWN_TIMEOUT="1")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 143
    assert "deaf did not stop in time" in stderr
    shown = {job["name"]: job for job in cli.json("status")["jobs"]}["deaf"]
    assert (shown["running"], shown["last"]["outcome"], shown["pending"][0]["why"]) == (
        None,
        "stopped",
        "stopped",
    )


def test_a_second_ctrl_c_cuts_the_wait_short(cli: Processes) -> None:
    """Ctrl-C twice does not wait for the shutdown time, and leaves no lease behind."""
    process = cli.begun("run", "deaf", "--at", AT)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    shown = {job["name"]: job for job in cli.json("status")["jobs"]}["deaf"]
    assert (shown["running"], shown["last"]["outcome"]) == (None, "stopped")


def test_a_killed_run_is_abandoned_and_recover_takes_it_over(cli: Processes) -> None:
    """After kill -9 and a broken lease, `recover --work` finishes the run from its last batch and ends with 0."""
    process = cli.begun("run", "long", "--at", AT)
    assert cli.here("run", "long", "--at", AT).exit_code == 3
    shown = {job["name"]: job for job in cli.json("status")["jobs"]}["long"]
    assert (shown["running"]["fire_time"], shown["running"]["lease_held"]) == (AT, True)
    process.kill()
    process.communicate()
    broken = cli.here("break-lease", "long", "--yes")
    assert f"broken; it was held by {socket.gethostname()}:{process.pid}" in broken.stdout
    assert cli.json("history", "long")["runs"][0]["outcome"] == "abandoned"
    worked = cli.run("recover", "--work")
    assert worked.returncode == 0
    assert worked.stdout.splitlines()[0] == f"long {AT}: asked for (abandoned)"
    assert f"long {AT}: succeeded (attempt 2" in worked.stdout


def test_serve_runs_its_jobs_and_ends_on_sigterm(cli: Processes) -> None:
    """serve prints what it serves, runs a job every second, and ends with 0 soon after SIGTERM."""
    (cli.folder / "second.py").write_text(textwrap.dedent(EVERY_SECOND), encoding="utf-8")
    process = cli.start("serve")
    wait_until(lambda: (cli.folder / "ran").exists() and len((cli.folder / "ran").read_text().split()) >= 3)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    stdout, stderr = process.communicate(timeout=30)
    assert time.monotonic() - began < 15
    assert (process.returncode, stdout) == (0, "")
    first, *_ = stderr.splitlines()
    assert first.startswith(
        f"runonce serves 5 jobs of {cli.environ['RUNONCE_NAMESPACE']!r}; storage: the emulator"
    )
    assert "AccountKey" not in stderr
    lines = [line for line in stderr.splitlines() if line[:2] == "20"]
    assert all(re.match(r"\S+T\S+Z (INFO|WARNING|ERROR) ", line) for line in lines)
    assert any("every_second" in line and "succeeded" in line for line in lines)


def test_a_second_ctrl_c_ends_a_host_at_once(cli: Processes) -> None:
    """`serve` does not wait for its shutdown time either, and the run it leaves behind is released and recorded."""
    cli.environ["RUNONCE_SHUTDOWN_TIMEOUT"] = "60"
    host = cli.start("serve")
    assert cli.run("run", "deaf", "--at", AT, "--ask").returncode == 0
    wait_until((cli.folder / "began").exists)
    host.send_signal(signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    host.send_signal(signal.SIGINT)
    host.communicate(timeout=30)
    assert time.monotonic() - began < 15
    assert host.returncode == 75
    shown = {job["name"]: job for job in cli.json("status")["jobs"]}["deaf"]
    assert (shown["running"], shown["last"]["outcome"]) == (None, "stopped")


@pytest.mark.slow
def test_two_serves_run_each_fire_time_once(cli: Processes) -> None:
    """Two hosts on one namespace: no fire time comes twice, and both end on their signal."""
    (cli.folder / "second.py").write_text(textwrap.dedent(EVERY_SECOND), encoding="utf-8")
    hosts = [cli.start("serve"), cli.start("serve")]
    wait_until(lambda: (cli.folder / "ran").exists() and len((cli.folder / "ran").read_text().split()) >= 5)
    for host, number in zip(hosts, (signal.SIGINT, signal.SIGTERM), strict=True):
        host.send_signal(number)
    codes = []
    for host in hosts:
        host.communicate(timeout=15)
        codes.append(host.returncode)
    assert codes == [0, 0]
    ran = (cli.folder / "ran").read_text().split()
    assert len(ran) == len(set(ran))
    succeeded = [run for run in cli.json("history", "every_second")["runs"] if run["outcome"] == "succeeded"]
    assert len(succeeded) == len(ran)


def test_an_unknown_job_is_5_and_one_line(cli: Processes) -> None:
    """A misspelt job is answered in one line, without asking storage."""
    result = cli.run("run", "godo")
    assert (result.returncode, result.stdout) == (5, "")
    assert (
        result.stderr
        == "error: There is no job 'godo'; the jobs are: bad, deaf, good, long. Did you mean 'good'?\n"
    )


def test_storage_out_of_reach_is_6_and_says_how_to_start_it(cli: Processes) -> None:
    """Nothing listens there: one line with the place and the remedy, soon."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        storage = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", cli.environ["RUNONCE_STORAGE"])
        began = time.monotonic()
        result = cli.run("run", "good", RUNONCE_STORAGE=storage)
    assert time.monotonic() - began < 30
    assert (result.returncode, result.stdout) == (6, "")
    assert result.stderr.startswith(f"error: Storage does not answer at the emulator, 127.0.0.1:{port}")
    assert "`python dev.py azurite`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_uploaded_file_is_there_for_a_job(cli: Processes) -> None:
    """What `upload` puts there a job reads, byte for byte."""
    (cli.folder / "reader.py").write_text(
        textwrap.dedent(
            """
            from runonce import Run, scheduled

            @scheduled("0 0 3 * * *")
            def reader(run: Run) -> None:
                run.log.info("read %d bytes", len(run.blobs.read("in/data.bin")))
            """
        ),
        encoding="utf-8",
    )
    (cli.folder / "data.bin").write_bytes(bytes(range(256)) * 100)
    assert cli.here("upload", str(cli.folder / "data.bin"), "in/data.bin").exit_code == 0
    assert "read 25600 bytes" in cli.run("run", "reader").stderr


LAST = """
    import atexit
    import os

    from runonce import Run, scheduled

    class Last:
        def __del__(self, write=os.write):
            write(2, b"taken apart")

    last = Last()
    atexit.register(lambda: print("at exit"))

    @scheduled("0 0 3 * * *")
    def nightly(run: Run) -> None: ...
"""


@pytest.mark.parametrize(("command", "code"), [("list", 0), ("lst", 2)])
def test_a_command_ends_without_the_interpreters_taking_itself_apart(
    tmp_path: Path, command: str, code: int
) -> None:
    """What is to be done at exit is done, and all is printed; threads that go on meet an interpreter that is whole."""
    (tmp_path / "jobs.py").write_text(textwrap.dedent(LAST))
    ended = subprocess.run(
        [sys.executable, "-m", "runonce", "--jobs", str(tmp_path), command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert "taken apart" not in ended.stderr
    if command == "list":
        assert "nightly" in ended.stdout
        assert ended.stdout.endswith("at exit\n")
