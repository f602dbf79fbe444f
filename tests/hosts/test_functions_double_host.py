"""The Functions host's own life: workers that end, functions that take too long, how it stops, when it gives up."""

import base64
import http.client
import json
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from tests.conftest import _launcher
from tests.support.functions_worker import LiveHost, NoResponseError, Times
from tests.support.functions_worker.samples import until, write_app

APP = """
    interrupted = threading.Event()
    if os.environ.get("HEARS_SIGINT"):
        signal.signal(signal.SIGINT, lambda number, frame: print("heard SIGINT", file=sys.stderr, flush=True))
    print("imported", file=sys.stderr, flush=True)
    log.warning("logged at import")

    @app.queue_trigger(arg_name="message", queue_name="%(queue)s", connection="AzureWebJobsStorage")
    def work(message: func.QueueMessage) -> None:
        order = json.loads(message.get_body())
        log.info("at work on %%s in %%s", order["n"], os.getpid())
        threading.Thread(target=log.info, args=("off the invocation",)).start()
        time.sleep(order.get("seconds", 0))

    @app.timer_trigger(arg_name="tick", schedule="* * * * * *")
    def often(tick: func.TimerRequest) -> None:
        log.info("tick")
        if Path(os.environ.get("HANG", "/nowhere")).exists():
            time.sleep(60)
"""


class Bench:
    """An app with a queue of its own."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.storage, self.queue = storage, f"double-{uuid.uuid4().hex[:12]}"
        self.app = write_app(folder, APP % {"queue": self.queue})
        self.client = QueueClient.from_connection_string(storage, self.queue)
        self.client.create_queue()

    def host(
        self, env: dict[str, str] | None = None, *, timeout: str = "00:30:00", **times: float
    ) -> LiveHost:
        queues = {
            "maxPollingInterval": "00:00:01",
            "visibilityTimeout": "00:01:00",
            "batchSize": 8,
            "newBatchThreshold": 4,
        }
        host_json = {"version": "2.0", "functionTimeout": timeout, "extensions": {"queues": queues}}
        (self.app / "host.json").write_text(json.dumps(host_json))
        settings = {
            "AzureWebJobsStorage": self.storage,
            "AzureFunctionsWebHost__hostid": self.queue,
            **(env or {}),
        }
        return LiveHost(self.app, settings, times=Times(**times))

    def send(self, n: str, seconds: float = 0) -> None:
        self.client.send_message(base64.b64encode(json.dumps({"n": n, "seconds": seconds}).encode()).decode())

    def shown(self) -> list[str]:
        """What can be received now."""
        return [json.loads(base64.b64decode(m.content))["n"] for m in self.client.peek_messages(32)]


@pytest.fixture
def bench(tmp_path: Path, azurite: str) -> Bench:
    return Bench(tmp_path / "app", azurite)


def answers(host: LiveHost) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", host.port.number), timeout=2):
            return True
    except OSError:
        return False


def post(host: LiveHost, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", host.port.number, timeout=10)
    connection.request("POST", path)
    return connection.getresponse().status


def test_what_has_no_invocation_is_not_shown(bench: Bench) -> None:
    """Lines logged at import and off the invocation are thrown away; stderr is shown, and so are the function's."""
    with bench.host() as host:
        bench.send("one")
        host.console.wait_for("at work on one")
        host.console.wait_until(lambda: host.console.of("work")[0].success, "success")
        assert "imported" in host.console.lines
        assert not any("logged at import" in line or "off the" in line for line in host.console.lines)


def test_an_app_that_does_not_import_runs_with_no_function(tmp_path: Path, azurite: str) -> None:
    """The host runs with 0 functions, and its console does not say why."""
    app = write_app(tmp_path / "app", "raise ValueError('no such setting')")
    with LiveHost(app, {"AzureWebJobsStorage": azurite}) as host:
        assert host.functions == {}
        assert answers(host)
        assert "no such setting" in host.refused
        assert not any("no such setting" in line for line in host.console.lines)


def test_sigterm_to_the_worker_alone_brings_a_new_one(bench: Bench) -> None:
    """Its invocations fail, a new worker is there in 0.3 s, and the host goes on."""
    with bench.host() as host:
        bench.send("long", 60)
        host.console.wait_for("at work on long")
        old, told = host.worker, time.time()
        old.terminate()
        host.console.wait_until(lambda: host.console.of("work")[0].success is False, "failure", 5)
        until(lambda: host.workers and host.workers[0].pid != old.pid)
        assert time.time() - told < 5
        bench.send("next")
        host.console.wait_for("at work on next")
        assert answers(host)


def test_three_ends_of_workers_end_the_host(bench: Bench) -> None:
    """The third exit of a worker within minutes ends the host itself, with 0."""
    with bench.host(new_worker=0.05) as host:
        for _ in range(3):
            pid = host.worker.pid
            host.worker.kill()
            until(lambda pid=pid: not host.workers or host.workers[0].pid != pid)
        assert host.wait(15) == 0
        assert not answers(host)


def test_a_function_timeout_kills_the_worker_and_leaves_its_neighbours_hanging(bench: Bench) -> None:
    """The timed-out function fails, its worker is killed 2 s later; who ran beside it hangs until its own timeout."""
    with bench.host(timeout="00:00:03", timeout_kill=0.5) as host:
        bench.send("first", 60)
        host.console.wait_for("at work on first")
        time.sleep(1.5)
        bench.send("second", 60)
        host.console.wait_for("at work on second")
        old = host.worker.pid
        host.console.wait_until(lambda: host.console.of("work")[0].success is False, "timeout", 10)
        host.console.wait_until(lambda: host.console.of("work")[1].success is False, "its own timeout", 10)
        first, second = host.console.of("work")
        assert "FunctionTimeoutException" in first.error
        assert "FunctionTimeoutException" in second.error
        for execution in (first, second):
            assert execution.ended - execution.started == pytest.approx(3, abs=0.5)
        assert host.worker.pid != old
        bench.send("third")
        host.console.wait_for("at work on third")


def test_a_timer_does_not_tick_while_it_hangs(bench: Bench, tmp_path: Path) -> None:
    """A timer whose invocation was lost with a timed-out worker is silent until that invocation's own timeout."""
    hang = tmp_path / "hang"
    with bench.host({"HANG": str(hang)}, timeout="00:00:04", timeout_kill=0.2) as host:
        bench.send("long", 60)
        host.console.wait_for("at work on long")
        time.sleep(1.5)
        hang.touch()
        host.console.wait_until(lambda: host.console.of("work")[0].success is False, "timeout", 10)
        hang.unlink()
        hanging = host.console.of("often")[-1]
        host.console.wait_until(lambda: hanging.success is False, "the timer's own timeout", 10)
        assert host.console.of("often")[-1] is hanging
        host.console.wait_until(lambda: host.console.of("often")[-1].success, "the next tick", 10)


def test_the_worker_process_count(bench: Bench) -> None:
    """FUNCTIONS_WORKER_PROCESS_COUNT=2: the second worker comes later and shares the work."""
    with bench.host({"FUNCTIONS_WORKER_PROCESS_COUNT": "2"}, second_worker=0.5) as host:
        assert len(host.workers) == 1
        until(lambda: len(host.workers) == 2)
        pids = {str(worker.pid) for worker in host.workers}
        for n in range(6):
            bench.send(str(n))
        host.console.wait_for("at work on", count=6)
        seen = {line.rpartition(" ")[2] for line in host.console.lines if "at work on" in line}
        assert seen == pids


def test_sigterm_to_the_host(bench: Bench) -> None:
    """The port refuses at once, the worker hears nothing, timers still fire; in ten seconds all is killed."""
    with bench.host({"HEARS_SIGINT": "1"}, shutdown=5.0) as host:
        bench.send("long", 60)
        host.console.wait_for("at work on long")
        told, worker = time.time(), host.worker
        host.terminate()
        assert not answers(host)
        assert time.time() - told < 4.5
        host.console.wait_until(
            lambda: any(tick.success and tick.started > told for tick in host.console.of("often")), "a tick"
        )
        assert host.wait(15) == 0
        assert 4.9 < time.time() - told < 14
        assert worker.wait() == -9
        assert "heard SIGINT" not in host.console.lines
        assert bench.shown() == []


def test_an_idle_host_ends_without_waiting(bench: Bench) -> None:
    """Ten seconds are the most: with nothing in hand it ends at once."""
    with bench.host({"AzureWebJobs.often.Disabled": "1"}) as host:
        told = time.monotonic()
        host.terminate()
        assert host.wait(9) == 0
        assert time.monotonic() - told < 8


@pytest.mark.parametrize("hears", ["1", ""])
def test_ctrl_c_reaches_the_worker_too(bench: Bench, hears: str) -> None:
    """Ctrl-C is SIGINT to the worker; deaf or not, what is in hand stays hidden for its ten minutes."""
    with bench.host({"HEARS_SIGINT": hears}, shutdown=2) as host:
        bench.send("long", 60)
        host.console.wait_for("at work on long")
        told = time.monotonic()
        host.interrupt()
        assert host.wait(10) == 0
        assert time.monotonic() - told == pytest.approx(2, abs=1)
        assert ("heard SIGINT" in host.console.lines) is bool(hears)
        assert bench.shown() == []


def test_a_drained_host_lives_on(bench: Bench) -> None:
    """POST /admin/host/drain: listeners stop, what is in hand ends, nothing stays hidden."""
    with bench.host() as host:
        bench.send("long", 1)
        host.console.wait_for("at work on long")
        assert post(host, "/admin/host/drain") == 202
        bench.send("late")
        host.console.wait_until(lambda: host.console.of("work")[0].success, "its end")
        until(lambda: bench.client.get_queue_properties().approximate_message_count == 1)
        with pytest.raises(NoResponseError):
            host.console.wait_for("at work on late", timeout=2)
        assert answers(host)


def test_a_restarted_host_kills_its_worker(bench: Bench) -> None:
    """POST /admin/host/restart: a new script host and worker; what the old one had stays hidden."""
    with bench.host() as host:
        bench.send("long", 60)
        host.console.wait_for("at work on long")
        old = host.worker
        assert post(host, "/admin/host/restart") == 202
        host.console.wait_for("Host started", timeout=55, count=2)
        assert old.wait() == -9
        assert host.worker.pid != old.pid
        bench.send("next")
        host.console.wait_for("at work on next")
        assert bench.shown() == []


def test_a_host_without_storage_ends(tmp_path: Path) -> None:
    """When storage does not answer for 25 s the host shuts down, and does not come back by itself."""
    emulator: Any = _launcher().start()
    try:
        bench = Bench(tmp_path / "app", emulator.connection_string)
        with bench.host(storage_patience=3, lock_renewal=1) as host:
            host.console.wait_for("tick")
            emulator.stop()
            lost = time.monotonic()
            assert host.wait(20) == 0
            assert time.monotonic() - lost > 2.5
            assert any("Host is shutting down" in line for line in host.console.lines)
    finally:
        emulator.stop()
