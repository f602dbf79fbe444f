from __future__ import annotations

import contextvars
import logging
import sys
import threading

import pytest

from runonce.execution.log import RunLogger, host_name, run_logger
from runonce.execution.threads import start_thread
from tests.support.classic_worker import worker_module

AWKWARD = "message 50%s%%d%"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> RunLogger:
    """The logger of a run whose name is full of percent signs."""
    caplog.set_level(logging.DEBUG)
    return run_logger("nightly", AWKWARD, 2)


def test_every_line_names_the_run(log: RunLogger, caplog: pytest.LogCaptureFixture) -> None:
    """Each message begins with the job, its fire time or message, and the attempt."""
    log.info("started")
    assert caplog.messages == [f"[nightly {AWKWARD} #2] started"]
    assert caplog.records[0].name == "runonce.jobs.nightly"


@pytest.mark.parametrize(
    ("message", "arguments", "expected"),
    [
        ("100%", (), "100%"),
        ("100%% done", (), "100%% done"),
        ("%d%% done", (50,), "50% done"),
        ("%s", ("100%s",), "100%s"),
        ("%(done)d of %(all)d", ({"done": 1, "all": 2},), "1 of 2"),
        ("{}", (), "{}"),
    ],
)
def test_percent_signs_are_formatted_once(
    log: RunLogger,
    caplog: pytest.LogCaptureFixture,
    message: str,
    arguments: tuple[object, ...],
    expected: str,
) -> None:
    """A message is formatted exactly as the job's own logger would, and the run's name not at all."""
    log.warning(message, *arguments)
    assert caplog.messages == [f"[nightly {AWKWARD} #2] {expected}"]


def test_an_exception_is_logged_with_its_traceback(log: RunLogger, caplog: pytest.LogCaptureFixture) -> None:
    """`log.exception` keeps the traceback, and something that is no text may be logged."""
    try:
        raise ValueError("broken")  # noqa: TRY301
    except ValueError as error:
        log.exception(error)  # noqa: TRY401
    assert "Traceback" in caplog.text
    assert caplog.messages == [f"[nightly {AWKWARD} #2] broken"]


def test_structured_handlers_get_the_fields(log: RunLogger, caplog: pytest.LogCaptureFixture) -> None:
    """Job, run and attempt are attributes of the record, beside what the job adds itself."""
    log.info("x", extra={"invoice": 7})
    record = caplog.records[0].__dict__
    assert (record["job"], record["attempt"], record["invoice"]) == ("nightly", 2, 7)
    assert record["run"] == f"nightly {AWKWARD} #2"


def test_the_line_is_the_jobs(log: RunLogger, caplog: pytest.LogCaptureFixture) -> None:
    """A record points to the line that logged it, not into the toolkit."""
    log.info("here")
    log.error("and here")
    assert {record.filename for record in caplog.records} == {"test_log.py"}


def test_a_level_that_is_off_costs_nothing(log: RunLogger, caplog: pytest.LogCaptureFixture) -> None:
    """A message below the level is not even turned into text."""
    caplog.set_level(logging.WARNING)

    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    log.debug(Loud())
    assert caplog.messages == []


def test_a_thread_keeps_the_context() -> None:
    """Context variables, in which newer Functions workers keep the invocation, are those of the starting thread."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("invocation", default="none")
    seen = []
    token = variable.set("mine")
    thread = start_thread(lambda: seen.append((variable.get(), threading.current_thread().name)), "a-name")
    variable.reset(token)
    thread.join()
    assert seen == [("mine", "a-name")]
    assert thread.daemon


def test_a_thread_keeps_the_classic_workers_invocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread-local in which older workers keep the invocation is carried over too."""
    dispatcher = worker_module()
    local = dispatcher._invocation_id_local
    monkeypatch.setitem(sys.modules, "azure_functions_worker.dispatcher", dispatcher)
    seen = []
    local.invocation_id = "i-1"
    start_thread(lambda: seen.append(local.invocation_id), "t").join()
    del local.invocation_id
    start_thread(lambda: seen.append(getattr(local, "invocation_id", None)), "t").join()
    assert seen == ["i-1", None]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WEBSITE_SITE_NAME": "shop", "WEBSITE_INSTANCE_ID": "0123456789abcdef"}, "shop/0123456789ab"),
        ({"CONTAINER_APP_JOB_NAME": "nightly", "CONTAINER_APP_REPLICA_NAME": "r1"}, "nightly/r1"),
    ],
)
def test_a_host_has_a_name_people_recognise(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    """On Azure it is the app or the job with its instance; elsewhere the machine with the process."""
    for name in ("WEBSITE_SITE_NAME", "CONTAINER_APP_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert ":" in host_name()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert host_name() == expected
