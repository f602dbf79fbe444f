"""A Functions worker that dies or is stopped in the middle of a job: another goes on from the checkpoint."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from runonce.messages.rows import decode_message, place
from runonce.runs.rows import decode_run, key_range
from runonce.stores.columns import to_text
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, LiveHost, WorkerExitedError, queue, timer
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.runs.rows import RunRow
    from runonce.settings import Settings
    from runonce.stores.protocols import Row, Stores

JOB = """
import time
from runonce import Run, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip")
def long_job(run: Run) -> None:
    for batch in run.batches(range(6), size=2):
        run.log.info("batch %s", batch)
        for item in batch:
            run.ledger.record(str(item))
        if batch[0] == 2 and run.attempt == 1:
            run.log.info("waiting")
            while not run.stopping:
                time.sleep(0.01)
            run.check()
"""
STUBBORN = """
import time
from runonce import Message, Run, handler, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip")
def deaf(run: Run) -> None:
    run.log.info("waiting")
    time.sleep(600)

@scheduled("0 0 0 1 1 *", misfire="skip", on_abandoned="hold")
def held(run: Run) -> None:
    run.log.info("waiting")
    time.sleep(600)

@handler(queue="stop-{unique}", name="polite")
def polite(message: Message) -> None:
    message.log.info("waiting")
    while not message.stopping:
        time.sleep(0.01)
    message.check()

@handler(queue="stop-deaf-{unique}", name="deaf_handler")
def deaf_handler(message: Message) -> None:
    message.log.info("waiting")
    time.sleep(600)
"""
FIRE_TIME = "2026-01-01T00:00:00Z"
REQUEST = f'{{"job": "long_job", "fire_time": "{FIRE_TIME}", "why": "asked"}}'


def the_run(settings: Settings, azure: Stores, job: str = "long_job") -> RunRow:
    rows = list(azure.runs.scan(settings.namespace, *key_range("run", job)))
    assert len(rows) == 1
    return decode_run(rows[0])


def ledger(settings: Settings, azure: Stores) -> list[str]:
    return [
        str(row.values["key"]) for row in azure.runs.scan(settings.namespace, *key_range("entry", "long_job"))
    ]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return make_app(tmp_path / "app", {"long.py": JOB})


def test_sigterm_releases_at_once_and_another_worker_goes_on(
    app: Path, settings: Settings, azure: Stores
) -> None:
    """On SIGTERM the job is told, its lease is free and the process gone within seconds; the next one finishes it."""
    with FunctionsHost(app, env=environment(settings)) as first:
        call = first.start_invocation("runonce_requests", queue(REQUEST))
        call.wait_for_log("waiting", timeout=20)
        told = time.monotonic()
        first.terminate()
        assert first.wait(timeout=20) == 143
        assert time.monotonic() - told < 5
    assert not azure.leases.held(f"{settings.namespace}/long_job")
    assert the_run(settings, azure).outcome == "stopped"
    with FunctionsHost(app, env=environment(settings)) as second:
        assert second.invoke("runonce_requests", queue(REQUEST)).success
    run = the_run(settings, azure)
    assert (run.outcome, run.attempt) == ("succeeded", 2)
    assert ledger(settings, azure) == [str(n) for n in range(6)]


def test_a_killed_workers_job_is_taken_over_from_its_checkpoint(
    app: Path, settings: Settings, azure: Stores
) -> None:
    """After kill -9 the lease runs out, the recovery timer asks for the run, and it resumes at the next batch."""
    with FunctionsHost(app, env=environment(settings)) as first:
        call = first.start_invocation("runonce_requests", queue(REQUEST))
        call.wait_for_log("waiting", timeout=20)
        first.kill()
        with pytest.raises(WorkerExitedError):
            call.wait(timeout=20)
    with FunctionsHost(app, env=environment(settings)) as second:
        assert second.invoke(
            "runonce_recovery", timer()
        ).success  # the lease still stands: nothing is asked for
        assert azure.requests.receive(visibility=1) is None
        while azure.leases.held(f"{settings.namespace}/long_job"):
            time.sleep(0.25)
        assert second.invoke("runonce_recovery", timer()).success
        asked = azure.requests.receive(visibility=30)
        assert asked is not None
        done = second.invoke("runonce_requests", queue(asked.body))
        assert done.success
        assert done.said("batch [2, 3]")
        assert not done.said("batch [0, 1]")
    run = the_run(settings, azure)
    assert (run.outcome, run.attempt, run.attempts[0]["outcome"]) == ("succeeded", 2, "abandoned")
    assert to_text(run.fire_time) == FIRE_TIME
    assert ledger(settings, azure) == [str(n) for n in range(6)]


def test_a_host_that_stops_without_a_word_is_heard_by_its_port(
    app: Path, settings: Settings, azure: Stores
) -> None:
    """The worker is told nothing; its port refuses, and the run is stopped and its lease free within seconds."""
    with FunctionsHost(app, env=environment(settings)) as first:
        call = first.start_invocation("runonce_requests", queue(REQUEST))
        call.wait_for_log("waiting", timeout=20)
        first.port.close()
        told = time.monotonic()
        assert call.wait(8).success
        assert time.monotonic() - told < 6
        assert not azure.leases.held(f"{settings.namespace}/long_job")
        late = first.invoke("runonce_requests", queue(REQUEST))  # what the host had fetched starts nothing
        assert late.success
        assert not late.said("batch")
        assert first.wait(timeout=10) == 143
        assert time.monotonic() - told < 9.5
    run = the_run(settings, azure)
    assert (run.outcome, run.abandoned) == ("stopped", 0)


@pytest.mark.parametrize("sign", ["port", "signal"])
def test_what_does_not_stop_is_released_before_the_host_kills_it(
    sign: str, tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """In 8 s, whatever the settings say: no lease is held, nothing counts as a death, messages are back."""
    app = make_app(tmp_path / "app", {"stubborn.py": STUBBORN.replace("{unique}", settings.namespace)})
    env = environment(settings) | {"RUNONCE_SHUTDOWN_TIMEOUT": "600"}
    with FunctionsHost(app, env=env) as host:
        calls = [
            host.start_invocation("runonce_requests", queue(REQUEST.replace("long_job", job)))
            for job in ("deaf", "held")
        ]
        calls += [
            host.start_invocation(name, queue("x", message_id=name)) for name in ("polite", "deaf_handler")
        ]
        for call in calls:
            call.wait_for_log("waiting", timeout=20)
        told = time.monotonic()
        if sign == "port":
            host.stop()
        else:
            host.terminate()
        assert host.wait(timeout=12) == 143
        assert time.monotonic() - told < 9.5
    for job, outcome in (("deaf", "stopped"), ("held", "unknown")):
        assert not azure.leases.held(f"{settings.namespace}/{job}")
        run = the_run(settings, azure, job)
        assert (run.outcome, run.abandoned) == (outcome, 0)
    storage = str(settings.storage.connection_string)
    for name, mine in (("polite", "stop"), ("deaf_handler", "stop-deaf")):
        back = QueueClient.from_connection_string(storage, f"{mine}-{settings.namespace}")
        until(lambda back=back: waiting(back))  # type: ignore[misc] - storage may still carry out what was sent
        assert waiting(back) == 1
        [claim] = [row for row in map(decode_message, claims(settings, azure)) if row.handler == name]
        assert (claim.state, claim.abandoned) == ("released", 0)


def waiting(client: QueueClient) -> int:
    try:
        return int(client.get_queue_properties().approximate_message_count)
    except ResourceNotFoundError:  # the first message sent makes it
        return 0


def claims(settings: Settings, azure: Stores) -> list[Row]:
    """All claims of the namespace."""
    rows = []
    for name in ("polite", "deaf_handler"):
        entity = ("stop-" if name == "polite" else "stop-deaf-") + settings.namespace
        read = azure.claims.get(*place(settings.namespace, entity, name, name))
        rows += [] if read is None else [read]
    return rows


def test_a_stopping_host_has_no_hot_loop(tmp_path: Path, settings: Settings) -> None:
    """Messages that come while the host stops are given back for a second each, and handled by the next host."""
    name = f"stop-{settings.namespace}"
    app = make_app(tmp_path / "app", {"stubborn.py": STUBBORN.replace("{unique}", settings.namespace)})
    pipe = QueueClient.from_connection_string(str(settings.storage.connection_string), name)
    pipe.create_queue()
    for n in range(4):
        pipe.send_message(base64.b64encode(b"%d" % n).decode())
    with LiveHost(app, env=environment(settings)) as host:
        host.console.wait_for("waiting", count=4)
        worker = host.worker
        worker.terminate()  # the worker alone: the host keeps feeding it until it is gone
        worker.wait(10)
        assert len([one for one in host.console.executions if one.name == "polite"]) <= 12


OVER = """
import time
from runonce import Run, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip", max_runtime=1)
def over(run: Run) -> None:
    run.log.info("waiting")
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_over_its_limit_is_not_begun_again_when_the_host_kills_its_worker(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """It never checks: it has failed, while it still runs, before functionTimeout ends the worker, and stays so."""
    app = make_app(tmp_path / "app", {"over.py": OVER})
    env = environment(settings) | {
        "RUNONCE_SHUTDOWN_TIMEOUT": "1",
        "AzureFunctionsJobHost__functionTimeout": "00:00:08",
    }
    with LiveHost(app, env) as host:
        azure.requests.send(REQUEST.replace("long_job", "over"), delay=0, time_to_live=60)
        host.console.wait_for("waiting")
        until(lambda: the_run(settings, azure, "over").outcome == "failed")
        assert [one.name for one in host.console.running if "requests" in one.name] == ["runonce_requests"]
        first = host.worker.pid
        host.console.wait_for("FunctionTimeoutException")
        host.console.wait_for("Language Worker Process exited")
        until(lambda: host.workers and host.worker.pid != first)
        assert host.worker.invoke("runonce_recovery", timer()).success
        assert azure.requests.receive(visibility=1) is None
    run = the_run(settings, azure, "over")
    assert (run.outcome, run.attempt, run.abandoned) == ("failed", 1, 0)
