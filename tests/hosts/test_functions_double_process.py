"""The worker's process as the Functions host treats it: its environment, its output, how it is ended."""

import json
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.functions_worker import FunctionsHost, Times, WorkerExitedError, queue, timer
from tests.support.functions_worker.samples import ECHO, write_app

WAITS = """
    print("to stderr at import", file=sys.stderr, flush=True)
    log.error("logged at import")

    @app.queue_trigger(arg_name="message", queue_name="waits", connection="AzureWebJobsStorage")
    def waits(message: func.QueueMessage) -> None:
        log.info("started")
        time.sleep(float(message.get_body()))
        Path(os.environ["MARK"]).write_text("ended")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app", WAITS)


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


SAYS_WHERE = """
    WHERE = os.getcwd()

    @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
    def where(tick: func.TimerRequest) -> None:
        log.info("%s", WHERE)
"""


def test_what_the_host_sets_in_the_environment(tmp_path: Path) -> None:
    """A thousand threads unless the app says otherwise, and the address of the host's own port."""
    app = write_app(tmp_path / "app", ECHO)
    with FunctionsHost(app) as host:
        (line,) = host.invoke("environment", timer()).logs
        seen = json.loads(line.message)
        assert seen["PYTHON_THREADPOOL_THREAD_COUNT"] == "1000"
        assert seen["WEBSITE_HOSTNAME"] == f"localhost:{host.port.number}"
        assert seen["ASPNETCORE_URLS"] == f"http://127.0.0.1:{host.port.number}"
        assert answers("127.0.0.1", host.port.number)
    with FunctionsHost(app, env={"PYTHON_THREADPOOL_THREAD_COUNT": "3"}) as host:
        (line,) = host.invoke("environment", timer()).logs
        assert json.loads(line.message)["PYTHON_THREADPOOL_THREAD_COUNT"] == "3"


@pytest.mark.parametrize("named", [True, False])
def test_a_container_name_makes_it_a_plan_with_placeholders(tmp_path: Path, *, named: bool) -> None:
    """The app is imported while the working directory is still another one, and its settings come afterwards."""
    app = write_app(tmp_path / "app", SAYS_WHERE)
    with FunctionsHost(app, env={"CONTAINER_NAME": "c-1"} if named else {}) as host:
        (line,) = host.invoke("where", timer()).logs
        assert (line.message == str(app)) is not named


def test_lines_of_the_import_are_dropped_and_stderr_arrives(app: Path) -> None:
    """What is logged while the app is imported has no invocation and is dropped; its stderr is on the console."""
    with FunctionsHost(app, env={"MARK": "unused"}) as host:
        assert "logged at import" in [log.message for log in host.dropped_logs]
        assert "to stderr at import" in host.console


def test_a_stopping_host_refuses_and_kills_its_worker_unheard(app: Path, tmp_path: Path) -> None:
    """On SIGTERM to the host its port refuses at once; the worker hears nothing, works on, and is killed."""
    with FunctionsHost(app, env={"MARK": str(tmp_path / "mark")}, times=Times(shutdown=5)) as host:
        short = host.start_invocation("waits", queue("0.3"))
        long = host.start_invocation("waits", queue("60"))
        long.wait_for_log("started")
        told = time.monotonic()
        host.stop()
        assert not answers("127.0.0.1", host.port.number)
        assert time.monotonic() - told < 4.5
        assert short.wait().success
        assert host.wait() == -signal.SIGKILL
        assert 4.9 < time.monotonic() - told < 20
        with pytest.raises(WorkerExitedError):
            long.wait()


def test_the_host_has_ten_seconds_by_default() -> None:
    """The defaults are the host's own times."""
    times = Times()
    assert (times.shutdown, times.new_worker, times.timeout_kill, times.storage_patience) == (10, 0.3, 2, 25)
    assert (times.hidden, times.poison_life, times.lock, times.lock_recovery) == (600, 604_800, 15, 60)


def test_an_orphan_finishes_what_it_has(app: Path, tmp_path: Path) -> None:
    """A worker whose host is gone lives on until its invocation has ended."""
    mark = tmp_path / "mark"
    with FunctionsHost(app, env={"MARK": str(mark)}) as host:
        host.start_invocation("waits", queue("1")).wait_for_log("started")
        host._server.stop(grace=None)
        assert host.wait() == 1
        assert mark.read_text() == "ended"


def test_an_interrupt_reaches_the_worker(app: Path) -> None:
    """Ctrl-C of the group is SIGINT to the worker, which ends with it."""
    with FunctionsHost(app, env={"MARK": "unused"}) as host:
        host.interrupt()
        assert host.wait() == -signal.SIGINT
