"""Jobs with child processes: pools and processes end as they do anywhere else, and share nothing with their parent."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runonce import handler
from runonce.hosts.runtime import Runtime
from runonce.runs.rows import decode_run, key_range
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import Insert
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, queue
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.rows import RunRow
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither fork nor SIGTERM")

JOB = '''
import multiprocessing
import os
import signal
import time
import traceback
from pathlib import Path

from runonce import Message, Run, enqueue, handler, scheduled

HERE = Path(__file__).parent
METHODS = ("fork", "spawn", "forkserver")


@handler(queue=os.environ["RUNONCE_NAMESPACE"], key="n")
def number(message: Message) -> None:
    pass


def square(number):
    return number * number


def nap(seconds):
    (HERE / f"napping-{os.getpid()}").touch()
    time.sleep(seconds)


def began(count):
    give_up_at = time.monotonic() + 20
    while len(list(HERE.glob("napping-*"))) < count and time.monotonic() < give_up_at:
        time.sleep(0.01)


def swapped(run, store, outbox):
    """What the parent has just used, used by parent and child at the same time."""
    for index in range(20):
        name = f"{store}-{index}"
        run.blobs.write(name, name)
        assert run.blobs.read_text(name) == name
    enqueue(number, {"n": outbox})


def in_child(run):
    try:
        swapped(run, "child", "child")
    except BaseException:
        (HERE / "why").write_text(traceback.format_exc())
        raise


@scheduled("0 0 0 1 1 *", misfire="skip")
def pools(run: Run) -> None:
    """Pools of every kind, with idle and with busy workers, and processes that are told to end."""
    for method in METHODS:
        context = multiprocessing.get_context(method)
        for _ in range(8 if method == "fork" else 1):
            with context.Pool(2) as pool:
                assert pool.map(square, range(4)) == [0, 1, 4, 9]
        [path.unlink() for path in HERE.glob("napping-*")]
        with context.Pool(2) as pool:
            pool.map_async(nap, [60, 60])
            began(2)
        process = context.Process(target=nap, args=(60,))
        process.start()
        process.terminate()
        process.join(10)
        assert process.exitcode == -signal.SIGTERM, (method, process.exitcode)
        assert not run.stopping
    run.log.info("all ended")


@scheduled("0 0 0 1 1 *", misfire="skip")
def shares(run: Run) -> None:
    """Storage and senders in use by a parent and its forked child at the same time."""
    enqueue(number, {"n": "before"})
    run.blobs.write("first", "first")
    process = multiprocessing.get_context("fork").Process(target=in_child, args=(run,))
    process.start()
    swapped(run, "parent", "parent")
    process.join(30)
    assert process.exitcode == 0, (HERE / "why").read_text()


@scheduled("0 0 0 1 1 *", misfire="skip")
def deaf(run: Run) -> None:
    """Heeds nothing, and has a child that does not either."""
    process = multiprocessing.get_context("fork").Process(target=nap, args=(60,))
    process.start()
    (HERE / "child").write_text(str(process.pid))
    time.sleep(60)
'''
FIRE_TIME = "2026-01-01T00:00:00Z"


class Command:
    """Commands over the job file, in processes of their own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        (self.folder / "crunch.py").write_text(JOB, encoding="utf-8")
        self._environ = {**os.environ, **environment(settings), "RUNONCE_JOBS": str(self.folder)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runonce", *args],
            env={**self._environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process


@pytest.fixture
def command(settings: Settings, tmp_path: Path) -> Iterator[Command]:
    command = Command(settings, tmp_path)
    yield command
    for process in command.started:
        process.kill()
        process.communicate()


def the_run(settings: Settings, azure: Stores, job: str) -> RunRow:
    (row,) = azure.runs.scan(settings.namespace, *key_range("run", job))
    return decode_run(row)


def ended(settings: Settings, azure: Stores, job: str) -> RunRow:
    """The run's row once it has ended."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        rows = list(azure.runs.scan(settings.namespace, *key_range("run", job)))
        if rows and (run := decode_run(rows[0])).outcome != "running":
            return run
        time.sleep(0.1)
    pytest.fail(f"{job} did not end")


def sent(settings: Settings) -> list[str]:
    """What was sent to the handler, by the number in it."""
    transport = Runtime(settings).transport
    inbox = transport.inbox(handler(queue=settings.namespace, name="number")(lambda _: None))
    return sorted(json.loads(received.delivery.body)["n"] for received in inbox.receive(10, 2))


def lives(pid: int) -> bool:
    """Whether a process that is not ours to wait for still runs, two seconds from now at the latest."""
    give_up_at = time.monotonic() + 2
    while _runs(pid) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    return _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("job", ["pools", "shares"])
def test_children_of_a_job_run_by_hand(command: Command, settings: Settings, azure: Stores, job: str) -> None:
    """`runonce run`: the job's pools and processes end, and a forked child has connections of its own."""
    out, _ = command.start("run", job, "--at", FIRE_TIME).communicate(timeout=100)
    assert "succeeded" in out, out
    assert the_run(settings, azure, job).outcome == "succeeded"
    assert sent(settings) == (["before", "child", "parent"] if job == "shares" else [])


@pytest.mark.slow
@pytest.mark.parametrize("job", ["pools", "shares"])
def test_children_of_a_job_on_the_local_host(
    command: Command, settings: Settings, azure: Stores, job: str
) -> None:
    """`runonce serve`: the same, and the host goes on until it is told to stop itself."""
    host = command.start("serve")
    command.start("run", job, "--at", FIRE_TIME, "--ask").communicate(timeout=30)
    assert ended(settings, azure, job).outcome == "succeeded"
    assert host.poll() is None
    host.send_signal(signal.SIGTERM)
    out, _ = host.communicate(timeout=20)
    assert host.returncode == 0, out


@pytest.mark.slow
@pytest.mark.parametrize("job", ["pools", "shares"])
def test_children_of_a_job_in_the_functions_worker(
    tmp_path: Path, settings: Settings, azure: Stores, job: str
) -> None:
    """The production worker on 3.13: the same, and the worker lives on."""
    app = make_app(tmp_path / "app", {"crunch.py": JOB})
    request = f'{{"job": "{job}", "fire_time": "{FIRE_TIME}", "why": "asked"}}'
    with FunctionsHost(app, env=environment(settings)) as host:
        done = host.start_invocation("runonce_requests", queue(request)).wait(timeout=100)
        assert done.success, (done.exception, host.output)
        assert host.start_invocation("runonce_requests", queue(request)).wait(timeout=20).success
        host.terminate()
        assert host.wait(timeout=10) == 143
    assert the_run(settings, azure, job).outcome == "succeeded"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_functions_worker_ends_within_eight_seconds_of_the_first_sign(
    tmp_path: Path, settings: Settings, azure: Stores, number: signal.Signals
) -> None:
    """SIGTERM or Ctrl-C, whatever the shutdown time is set to: the run is given back, and its child ends too."""
    app = make_app(tmp_path / "app", {"crunch.py": JOB})
    request = f'{{"job": "deaf", "fire_time": "{FIRE_TIME}", "why": "asked"}}'
    child = app / "jobs" / "child"
    with FunctionsHost(app, env={**environment(settings), "RUNONCE_SHUTDOWN_TIMEOUT": "45"}) as host:
        host.start_invocation("runonce_requests", queue(request))
        give_up_at = time.monotonic() + 20
        while not child.exists():
            assert time.monotonic() < give_up_at, host.output
            time.sleep(0.02)
        told = time.monotonic()
        os.kill(host.pid, number)
        assert host.wait(timeout=10) == 128 + number
        assert time.monotonic() - told < 8
        assert "Traceback" not in host.output
    assert not azure.leases.held(f"{settings.namespace}/deaf")
    assert the_run(settings, azure, "deaf").outcome == "stopped"
    assert not lives(int(child.read_text()))


def test_a_forked_child_reads_its_own_answers(azurite: str) -> None:
    """Parent and child ask storage at the same time, by clients that had a connection open: nobody gets the other's."""
    stores = azure_stores(fresh_settings(azurite))
    names = {who: [f"{who}-{index}" for index in range(50)] for who in ("parent", "child")}
    for name in itertools.chain(*names.values()):
        stores.blobs.write(name, name.encode(), {}, etag=None, content_type="text/plain")
        stores.runs.commit("forked", [Insert(name, {"is": name})])

    def read(who: str) -> None:
        for name in names[who]:
            blob, row = stores.blobs.read(name), stores.runs.get("forked", name)
            assert blob is not None
            assert row is not None
            assert (blob.data.decode(), row.values["is"]) == (name, name)

    child = multiprocessing.get_context("fork").Process(target=read, args=("child",))
    child.start()
    read("parent")
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.slow
def test_a_local_host_that_leaves_a_run_behind_leaves_no_child(command: Command) -> None:
    """A host that has to leave a run behind ends the children of that run with itself."""
    host = command.start("serve", RUNONCE_SHUTDOWN_TIMEOUT="1")
    command.start("run", "deaf", "--at", FIRE_TIME, "--ask").communicate(timeout=30)
    give_up_at = time.monotonic() + 20
    while not (command.folder / "child").exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    host.send_signal(signal.SIGTERM)
    host.communicate(timeout=20)
    assert host.returncode == 75
    assert not lives(int((command.folder / "child").read_text()))


def test_signals_are_heard_where_pipes_cannot_be_made_non_blocking() -> None:
    """Windows before Python 3.12 has no os.set_blocking, and a stop is heard there all the same."""
    script = """
        import os, signal, sys, threading
        del os.set_blocking
        from runonce.hosts.signals import listen
        heard = threading.Event()
        listen(lambda number: (print(number, flush=True), heard.set()))
        signal.raise_signal(signal.SIGTERM)
        sys.exit(0 if heard.wait(10) else 1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGTERM)}\n"), done.stderr
