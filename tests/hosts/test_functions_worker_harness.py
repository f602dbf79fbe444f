"""The Functions host of the tests has to bite: what the real one refuses or loses, it must refuse or lose."""

import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.functions_worker import (
    AppRefusedError,
    Function,
    FunctionsHost,
    InvalidMetadataError,
    NoResponseError,
    WorkerExitedError,
    environment,
    queue,
    servicebus,
    timer,
    validate,
    worker_python,
)

GOOD_APP = """
    import asyncio, contextvars, logging, os, signal, threading, time

    import azure.functions as func

    app = func.FunctionApp()
    log = logging.getLogger("sample")
    stopping, said_goodbye = threading.Event(), threading.Event()
    CWD_AT_IMPORT = os.getcwd()

    if os.environ.get("SAMPLE_HANDLES_SIGTERM"):

        # A handler in Python runs when the main thread next does, which may just be falling asleep in its event
        # loop: six of 150 signals were seen only when something else woke it. The byte in a pipe cannot be late.
        hear, tell = os.pipe()
        os.set_blocking(tell, False)

        def stop():
            os.read(hear, 1)
            stopping.set()
            said_goodbye.wait(5)
            time.sleep(0.3)  # the response has yet to leave the process
            os._exit(143)

        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.set_wakeup_fd(tell)
        threading.Thread(target=stop, daemon=True).start()

    @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
    def on_timer(tick: func.TimerRequest) -> None:
        log.info("past due: %s", tick.past_due)

    @app.queue_trigger(arg_name="message", queue_name="orders", connection="AzureWebJobsStorage")
    async def on_queue(message: func.QueueMessage, context: func.Context) -> None:
        await asyncio.sleep(0)
        log.info("%s %s %s", message.get_json()["order"], message.dequeue_count, context.function_name)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="invoices", connection="Bus")
    def on_bus(message: func.ServiceBusMessage) -> None:
        log.info("%s %s", message.message_id, message.delivery_count)
        log.info("%s %s", message.get_body().decode(), message.application_properties)

    @app.queue_trigger(arg_name="message", queue_name="steps", connection="AzureWebJobsStorage")
    def step(message: func.QueueMessage) -> None:
        match message.get_body().decode():
            case "fail":
                raise ValueError("no order 4711")
            case "exit":
                raise asyncio.CancelledError
            case "log in threads":
                plain = threading.Thread(target=log.info, args=("from a plain thread",))
                known = threading.Thread(
                    target=contextvars.copy_context().run, args=(log.info, "from a thread with its context")
                )
                for thread in (plain, known):
                    thread.start()
                    thread.join()
            case "report":
                log.info("imported in %s; %s", CWD_AT_IMPORT, os.environ.get("SAMPLE_SETTING"))
            case "until stopped":
                log.info("started")
                log.info("stopped in time: %s", stopping.wait(20))
                said_goodbye.set()
"""


def write_app(directory: Path, source: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "function_app.py").write_text(textwrap.dedent(source))
    return directory


@pytest.fixture(scope="module")
def good_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("good"), GOOD_APP)


@pytest.fixture(scope="module")
def host(good_app: Path) -> Iterator[FunctionsHost]:
    with FunctionsHost(good_app) as host:
        yield host


def test_a_good_app_is_indexed(host: FunctionsHost) -> None:
    """Every function of a good app is known by its name, with the bindings the host would listen on."""
    assert sorted(host.functions) == ["on_bus", "on_queue", "on_timer", "step"]
    trigger = host.functions["on_timer"].trigger
    assert (trigger["type"], trigger["schedule"]) == ("timerTrigger", "0 0 3 * * *")
    assert host.functions["on_queue"].trigger["queueName"] == "orders"


def test_a_timer_invocation_makes_the_round_trip(host: FunctionsHost) -> None:
    """A timer function gets the host's payload, and its log line comes back with the invocation's id."""
    invocation = host.invoke("on_timer", timer(past_due=True))
    assert invocation.success
    assert [(log.message, log.level, log.category) for log in invocation.logs] == [
        ("past due: True", "Information", "sample")
    ]
    assert invocation.logs[0].invocation_id == invocation.id


def test_an_async_queue_invocation_makes_the_round_trip(host: FunctionsHost) -> None:
    """A queue function gets body and metadata; an async one's log lines carry the invocation id too."""
    invocation = host.invoke("on_queue", queue({"order": 4711}, dequeue_count=3))
    assert invocation.success
    assert [log.message for log in invocation.logs] == ["4711 3 on_queue"]


def test_a_service_bus_invocation_makes_the_round_trip(host: FunctionsHost) -> None:
    """A Service Bus function gets body, identity, delivery count and properties."""
    message = servicebus(b"\x00\xff", message_id="m-9", delivery_count=2, properties={"tenant": "a"})
    assert host.invoke("on_bus", message).success  # as text, its bytes replaced: only BINARY keeps them
    message = servicebus({"id": 7}, message_id="m-9", delivery_count=2, properties={"tenant": "a"})
    assert [log.message for log in host.invoke("on_bus", message).logs] == [
        "m-9 2",
        "{\"id\": 7} {'tenant': 'a'}",
    ]


def test_a_failing_function_fails_its_invocation(host: FunctionsHost) -> None:
    """An exception fails its own invocation with its message, and no other."""
    failed = host.invoke("step", queue("fail"))
    assert not failed.success
    assert "no order 4711" in failed.exception
    assert host.invoke("on_timer", timer()).success


def test_a_cancelled_error_is_no_response(host: FunctionsHost) -> None:
    """What leaves a job past `Exception` gets no response at all, and waiting for it says so."""
    with pytest.raises(NoResponseError, match="step"):
        host.invoke("step", queue("exit"), timeout=1)
    assert host.invoke("on_timer", timer()).success


def test_a_line_without_invocation_id_is_dropped(host: FunctionsHost) -> None:
    """A thread of a job's own logs for its invocation only if it runs in the job's context."""
    invocation = host.invoke("step", queue("log in threads"))
    assert [log.message for log in invocation.logs] == ["from a thread with its context"]
    assert "from a plain thread" in [log.message for log in host.dropped_logs]


def test_an_unknown_function_is_named(host: FunctionsHost) -> None:
    """Invoking what was not indexed is the test's mistake, and the message lists what there is."""
    with pytest.raises(LookupError, match=r"no function 'nightly'.*on_timer"):
        host.invoke("nightly", timer())


def test_a_placeholder_worker_is_specialised(good_app: Path) -> None:
    """A worker started without an app indexes it from elsewhere, with settings that came later."""
    with FunctionsHost(good_app, env={"SAMPLE_SETTING": "late"}, placeholder=True) as host:
        (line,) = host.invoke("step", queue("report")).logs
    assert line.message.endswith("; late")
    assert str(good_app) not in line.message


def test_the_developers_settings_stay_outside(good_app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the settings a test passes reach the app; and a worker that lost its host ends by itself."""
    monkeypatch.setenv("SAMPLE_SETTING", "the developer's")
    with FunctionsHost(good_app) as host:
        assert host.invoke("step", queue("report")).logs[0].message == f"imported in {good_app}; None"
        host._server.stop(grace=None)
        assert host.wait() == 1


def test_an_app_that_cannot_be_indexed_is_refused(tmp_path: Path) -> None:
    """One function the worker cannot index fails the start of the app, with the worker's message."""
    source = """
        import azure.functions as func
        app = func.FunctionApp()
        @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
        def nightly(tick: func.TimerRequest, extra: int) -> None: ...
    """
    with (
        pytest.raises(AppRefusedError, match=r"nightly.*extra"),
        FunctionsHost(write_app(tmp_path / "app", source)),
    ):
        pass


def test_names_the_host_refuses_end_the_start(tmp_path: Path) -> None:
    """What the worker indexes but the host would leave out is refused by name."""
    source = """
        import azure.functions as func
        app = func.FunctionApp()
        @app.function_name("2nd")
        @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
        def second(tick: func.TimerRequest) -> None: ...
        @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
        def nightly(tick: func.TimerRequest) -> None: ...
        @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
        def Nightly(tick: func.TimerRequest) -> None: ...
    """
    with (
        pytest.raises(
            InvalidMetadataError, match=r"'2nd' is not a valid function name; .*'nightly' is used 2"
        ),
        FunctionsHost(write_app(tmp_path / "app", source)),
    ):
        pass


TIMER = {"name": "tick", "type": "timerTrigger", "direction": "IN"}


@pytest.mark.parametrize(
    ("name", "bindings", "reason"),
    [
        ("Nightly_report-2", [TIMER], None),
        ("n", [TIMER, {"name": "$return", "type": "queue", "direction": "OUT"}], None),
        ("host", [TIMER], "not a valid function name"),
        ("_n", [TIMER], "not a valid function name"),
        ("n" * 129, [TIMER], "not a valid function name"),
        ("n", [{**TIMER, "name": "a__b"}], "'a__b' is not a valid binding name"),
        ("n", [{**TIMER, "name": "2nd"}], "'2nd' is not a valid binding name"),
        ("n", [{**TIMER, "name": None}], "'' is not a valid binding name"),
        ("n", [TIMER, {**TIMER, "name": "Tick"}], "2 bindings are named 'tick'"),
        ("n", [TIMER, {"name": "out", "direction": "OUT"}], "binding 'out' has no type"),
        ("n", [{**TIMER, "direction": "OUT"}], "no trigger"),
        ("n", [], "no trigger"),
    ],
)
def test_the_hosts_metadata_rules(name: str, bindings: list[dict], reason: str | None) -> None:
    """A function is accepted or refused by the host's rules for names, bindings and triggers."""
    function = Function(name=name, bindings=bindings)
    if reason is None:
        assert validate([function]) == {name: function}
    else:
        with pytest.raises(InvalidMetadataError, match=reason):
            validate([function])


def test_a_killed_worker_takes_its_invocations_along(good_app: Path) -> None:
    """After kill -9 in the middle of an invocation, whoever waits is told at once, and so is whoever asks."""
    with FunctionsHost(good_app) as host:
        call = host.start_invocation("step", queue("until stopped"))
        call.wait_for_log("started")
        assert not call.done
        host.kill()
        with pytest.raises(WorkerExitedError) as lost:
            call.wait(timeout=10)
        assert lost.value.code == host.wait() == -signal.SIGKILL
        with pytest.raises(WorkerExitedError):
            host.invoke("on_timer", timer())
        assert not any("stopped in time" in log.message for log in call.logs)


def test_sigterm_alone_ends_a_worker_at_once(good_app: Path) -> None:
    """Without a handler SIGTERM ends the worker, and the invocation has no say."""
    with FunctionsHost(good_app) as host:
        call = host.start_invocation("step", queue("until stopped"))
        call.wait_for_log("started")
        host.terminate()
        with pytest.raises(WorkerExitedError):
            call.wait_for_log("stopped in time")
        assert host.wait() == -signal.SIGTERM


def test_sigterm_with_a_handler_lets_a_job_end_well(good_app: Path) -> None:
    """A handler installed while the app is imported tells the job, whose success still reaches the host."""
    with FunctionsHost(good_app, env={"SAMPLE_HANDLES_SIGTERM": "1"}) as host:
        call = host.start_invocation("step", queue("until stopped"))
        call.wait_for_log("started")
        host.terminate()
        invocation = call.wait(timeout=10)
        assert invocation.success
        assert invocation.said("stopped in time: True")
        assert host.wait() == 143


def test_a_missing_python_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Python 3.13 a run is skipped with the remedy; in CI it fails, lest green mean nothing."""
    monkeypatch.setattr(environment, "find_python", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="RUNONCE_PYTHON313"):
        worker_python()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="RUNONCE_PYTHON313"):
        worker_python()


def test_a_named_python_must_be_3_13(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """RUNONCE_PYTHON313 naming something else is an error, not a reason to look elsewhere."""
    monkeypatch.setenv("RUNONCE_PYTHON313", str(tmp_path / "python"))
    with pytest.raises(pytest.fail.Exception, match=r"is not a Python 3\.13"):
        environment.find_python()
    older = tmp_path / "older"
    older.write_text(f"#!{sys.executable}\nprint('3.12')\n")
    older.chmod(0o755)
    monkeypatch.setenv("RUNONCE_PYTHON313", str(older))
    with pytest.raises(pytest.fail.Exception, match=r"is not a Python 3\.13"):
        environment.find_python()
