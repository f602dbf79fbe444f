"""The app through the production Functions worker: indexing, every function, and what goes wrong in jobs."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.storage.queue import QueueClient

from runonce.clock import SystemClock
from runonce.execution.lease import Lease
from runonce.execution.registry import Registry
from runonce.messages.dead_letters import view
from runonce.runs.claim import Claim, claim
from runonce.runs.definition import scheduled
from runonce.runs.rows import decode_job, job_key, key_range
from runonce.runs.table import read_run
from runonce.settings import LeaseTerms
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import services
from runonce.stores.columns import to_text
from runonce.transports.storage import StorageTransport
from tests.support.functions_app import ROOT, environment, make_app
from tests.support.functions_worker import AppRefusedError, FunctionsHost, queue, timer
from tests.support.messages import handling
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

JOBS = {
    "good.py": """
import asyncio, logging, sys
from runonce import Run, scheduled

@scheduled("* * * * * *")
def every_second(run: Run) -> None:
    run.log.info("at work, 100%%")
    run.ledger.record(str(run.fire_time))

@scheduled("* * * * * *")
async def every_second_async(run: Run) -> None:
    run.log.info("at work too")

@scheduled("* * * * * *")
def asked_for(run: Run) -> None:
    run.log.info("asked for")

shared = asyncio.Semaphore(0)  # works on one event loop only, once somebody has waited for it

@scheduled("* * * * * *")
async def waiting(run: Run) -> None:
    run.log.info("waiting")
    await shared.acquire()
    run.log.info("went on")

@scheduled("* * * * * *")
async def waking(run: Run) -> None:
    shared.release()

@scheduled("* * * * * *")
async def cancelling(run: Run) -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)

@scheduled("0 0 0 29 2 *", time_zone="America/New_York")
def leap_day(run: Run) -> None:
    raise AssertionError("it is not due")
""",
    "bad.py": """
import sys
from runonce import Run, scheduled

@scheduled("* * * * * *")
def failing(run: Run) -> None:
    raise ValueError("no such customer")

@scheduled("0 0 0 1 1 *", on_abandoned="hold")
def held(run: Run) -> None:
    raise AssertionError("it is held")

@scheduled("* * * * * *")
def exiting(run: Run) -> None:
    sys.exit(3)
""",
    "broken.py": "import no_such_module\n",
    "messages.py": """
from runonce import Message, PermanentError, handler

@handler(queue="functions-{unique}", key="id", retries=1, retry_delay=1)
def take(message: Message) -> None:
    message.log.info("taken")
    if message.json.get("fail"):
        raise PermanentError("no such address")

@handler(queue="functions-plain-{unique}")
def note(message: Message) -> None:
    message.log.info("noting %s, delivery %d", message.message_id, message.delivery_count)

import time
at_work = []

@handler(queue="functions-narrow-{unique}", concurrency=1)
def narrow(message: Message) -> None:
    at_work.append(message.message_id)
    message.log.warning("%d at once", len(at_work))
    time.sleep(0.2)
    at_work.remove(message.message_id)

@handler(queue="functions-batch-{unique}", key="id", batch=50)
def take_many(messages: list[Message]) -> None:
    messages[0].log.info("%d at a time", len(messages))

@handler(queue="functions-async-{unique}", key="id")
async def take_async(message: Message) -> None:
    message.log.info("taken too")
""",
}


def registry(settings: Settings, stores: Stores) -> Registry:
    """The same storage, seen from the test."""
    return Registry(stores.runs, settings.namespace, SystemClock(), "test")


def registry_of_claims(settings: Settings, stores: Stores) -> Registry:
    """The messages' claims."""
    return Registry(stores.claims, settings.namespace, SystemClock(), "test")


@pytest.fixture(scope="module")
def module_settings(azurite: str) -> Settings:
    """One namespace for the module's one worker."""
    return fresh_settings(azurite)


@pytest.fixture(scope="module")
def host(module_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionsHost]:
    """The app in one worker for the whole module."""
    unique = module_settings.namespace
    files = {name: text.replace("{unique}", unique) for name, text in JOBS.items()}
    app = make_app(tmp_path_factory.mktemp("functions") / "app", files)
    with FunctionsHost(app, env=environment(module_settings)) as running:
        yield running


@pytest.fixture(scope="module")
def stores(module_settings: Settings) -> Stores:
    return azure_stores(module_settings)


def last_run(settings: Settings, stores: Stores, name: str) -> Any:
    row = stores.runs.get(settings.namespace, job_key(name))
    assert row is not None
    job = decode_job(row)
    assert job.last_fire_time is not None
    found = read_run(registry(settings, stores), name, job.last_fire_time)
    assert found is not None
    return found[0]


def test_every_job_handler_and_internal_function_is_indexed(
    host: FunctionsHost, module_settings: Settings
) -> None:
    """The worker finds a timer for each scheduled job, a trigger for each handler, recovery and requests."""
    bindings = {name: f.trigger for name, f in host.functions.items()}
    assert set(bindings) == {
        "every_second",
        "every_second_async",
        "asked_for",
        "waiting",
        "waking",
        "cancelling",
        "leap_day",
        "failing",
        "exiting",
        "held",
        "narrow",
        "take",
        "take_async",
        "take_many",
        "note",
        "runonce_purge",
        "runonce_recovery",
        "runonce_requests",
    }
    assert bindings["every_second"]["schedule"] == "* * * * * *"
    assert bindings["leap_day"]["schedule"] == "0 0 5 29 2 *"  # New York's midnight in February, in UTC
    assert bindings["runonce_recovery"]["schedule"] == "27 * * * * *"
    assert bindings["runonce_requests"]["queueName"] == module_settings.request_queue
    assert bindings["runonce_requests"]["connection"] == "AzureWebJobsStorage"
    assert bindings["take"]["type"] == "queueTrigger"


def test_a_tick_that_is_due_runs_the_job_and_its_log_lines_carry_the_invocation(
    host: FunctionsHost, module_settings: Settings, stores: Stores
) -> None:
    """A due timer tick runs the job once, records it, and the host can attribute what it logged."""
    done = host.invoke("every_second", timer())
    assert done.success
    assert done.said("at work, 100%")
    run = last_run(module_settings, stores, "every_second")
    assert (run.outcome, run.attempt, run.by) == ("succeeded", 1, "timer")


def test_an_async_job_is_run(host: FunctionsHost, module_settings: Settings, stores: Stores) -> None:
    """An async job is run, recorded and its lines are attributed."""
    done = host.invoke("every_second_async", timer())
    assert done.success
    assert done.said("at work too")
    assert last_run(module_settings, stores, "every_second_async").outcome == "succeeded"


def test_what_is_bound_to_a_loop_works_in_a_timers_run_and_a_requests(host: FunctionsHost) -> None:
    """An async job that its timer started is woken by one that the internal queue's function started."""
    waiting = host.start_invocation("waiting", timer())
    waiting.wait_for_log("waiting")
    fire_time = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    body = json.dumps({"job": "waking", "fire_time": to_text(fire_time), "why": "asked"})
    assert host.invoke("runonce_requests", queue(body)).success
    done = waiting.wait(30)
    assert done.success
    assert done.said("went on")


def test_a_job_that_cancels_every_task_it_finds_leaves_its_worker_whole(host: FunctionsHost) -> None:
    """It is answered, and so is whatever the worker is asked for after it."""
    assert host.invoke("cancelling", timer()).success
    assert host.invoke("every_second_async", timer()).success
    assert host.invoke("every_second", timer()).success


def test_a_tick_that_is_not_due_does_nothing(
    host: FunctionsHost, module_settings: Settings, stores: Stores
) -> None:
    """A superset timer's tick at another time returns success, says so, and leaves no trace of the job."""
    done = host.invoke("leap_day", timer())
    assert done.success
    assert done.said("job leap_day: nothing is due, next at 2028-02-29T05:00:00")
    jobs = [row.key for row in stores.runs.scan(module_settings.namespace, *key_range("job"))]
    assert job_key("leap_day") not in jobs


def test_a_failed_job_is_a_failed_invocation(
    host: FunctionsHost, module_settings: Settings, stores: Stores
) -> None:
    """The host sees the failure with the job's own words, and the record has them too."""
    done = host.invoke("failing", timer())
    assert not done.success
    assert "no such customer" in done.exception
    run = last_run(module_settings, stores, "failing")
    assert run.outcome == "failed"
    assert "no such customer" in run.reason


def test_a_job_that_calls_sys_exit_is_answered(host: FunctionsHost) -> None:
    """SystemExit in a job is a failed invocation; left alone it would never be answered."""
    done = host.invoke("exiting", timer(), timeout=20)
    assert not done.success
    assert "SystemExit" in done.exception


def test_a_request_runs_its_fire_time(host: FunctionsHost, module_settings: Settings, stores: Stores) -> None:
    """A message of the internal queue runs the fire time it names, which no timer of now would."""
    fire_time = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    body = json.dumps({"job": "asked_for", "fire_time": to_text(fire_time), "why": "asked"})
    done = host.invoke("runonce_requests", queue(body))
    assert done.success
    found = read_run(registry(module_settings, stores), "asked_for", fire_time)
    assert found is not None
    assert (found[0].outcome, found[0].by) == ("succeeded", "request")


def test_a_malformed_request_is_logged_and_dropped(host: FunctionsHost) -> None:
    """A message that is no request ends in success, with one line that says what it should be."""
    done = host.invoke("runonce_requests", queue("run it all again"))
    assert done.success
    assert done.said("is not a request")


def test_recovery_runs_and_names_the_broken_file(host: FunctionsHost) -> None:
    """The recovery timer works, and says every time which job file is left out."""
    done = host.invoke("runonce_recovery", timer())
    assert done.success
    assert done.said("broken.py")
    assert done.said("no_such_module")


def test_a_job_that_is_unknown_fails_its_function_once(
    host: FunctionsHost, module_settings: Settings, stores: Stores
) -> None:
    """A held run whose host died is a failed invocation with its reason, for a person must act on it; once."""
    fire_time = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    job = scheduled("* * * * * *", name="held", on_abandoned="hold")(lambda run: None)  # noqa: ARG005
    lease = Lease.acquire(
        stores.leases, f"{module_settings.namespace}/held", LeaseTerms(15, 5, 2), SystemClock()
    )
    assert lease is not None
    assert isinstance(claim(registry(module_settings, stores), job, fire_time, lease, by="hand"), Claim)
    lease.release()  # as if its host had died and the lease run out
    body = json.dumps({"job": "held", "fire_time": to_text(fire_time), "why": "abandoned"})
    first, again = host.invoke("runonce_requests", queue(body)), host.invoke("runonce_requests", queue(body))
    assert not first.success
    assert "unknown: its host test died" in first.exception
    assert again.success


def test_only_so_many_messages_are_handled_at_a_time_as_the_handler_says(host: FunctionsHost) -> None:
    """The host hands over more than `concurrency`; the others wait their turn and are all handled."""
    calls = [host.start_invocation("narrow", queue("x", message_id=str(uuid.uuid4()))) for _ in range(5)]
    done = [call.wait(60) for call in calls]
    assert all(one.success for one in done)
    assert {
        log.message.rpartition("] ")[2] for one in done for log in one.logs if "at once" in log.message
    } == {"1 at once"}


def test_a_message_is_handled_once(host: FunctionsHost) -> None:
    """A message delivered twice is handled once, and both deliveries complete."""
    first = host.invoke("take", queue('{"id": 1}'))
    again = host.invoke("take", queue('{"id": 1}', dequeue_count=2))
    assert first.success
    assert first.said("taken")
    assert again.success
    assert not again.said("taken")


@pytest.mark.parametrize(
    "body",
    [
        '{"id": "order-7", "n": 1}',
        '{"ID": "order-7", "dequeueCount": 5}',
        '{"dequeueCount": "abc"}',
        '{"insertionTime": "yesterday"}',
    ],
)
def test_a_message_is_what_its_sender_sent(host: FunctionsHost, body: str) -> None:
    """Fields of a body that are called as the host's own change neither the message's identity nor its counts."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    for message_id in (first, second):
        done = host.invoke("note", queue(body, message_id=message_id, dequeue_count=2))
        assert done.success, done.exception
        assert done.said(f"noting {message_id}, delivery 2")


def test_an_async_handler_takes_messages(host: FunctionsHost) -> None:
    """An async handler is run and completes."""
    done = host.invoke("take_async", queue('{"id": 1}'))
    assert done.success
    assert done.said("taken too")


def test_a_handler_of_batches_takes_one_message_at_a_time(host: FunctionsHost) -> None:
    """A trigger gives one message to a call, which is a list of one."""
    done = host.invoke("take_many", queue('{"id": 1}'))
    assert done.success, done.exception
    assert done.said("1 at a time")


def test_a_message_that_cannot_be_handled_is_put_aside_at_once(
    host: FunctionsHost, module_settings: Settings, stores: Stores
) -> None:
    """On its first delivery it is put into the poison queue, for ever, with its reason, which is logged."""
    large = json.dumps({"ID": "x" * 48_000})
    for body, said in (
        ('{"id": 2, "fail": true}', "no such address"),
        ('{"ID": 3}', "no field 'id'"),
        (large, "'id'"),
    ):
        done = host.invoke("take", queue(body))
        assert done.success, done.exception
        assert done.said(said)
    take = handling(queue=f"functions-{module_settings.namespace}", name="take")
    letters = StorageTransport(services(module_settings.storage, "queue")[0], 30).dead_letters(take)
    views = [view(registry_of_claims(module_settings, stores), take, dead) for dead in letters.peek(10)]
    letters.close()
    with QueueClient.from_connection_string(
        module_settings.storage.connection_string or "", f"{take.queue}-poison"
    ) as client:
        forms = [base64.b64decode(one.content) for one in client.peek_messages(10)]
    assert forms == [b'{"id": 2, "fail": true}', b'{"ID": 3}', large.encode()]  # as their sender sent them
    assert [one.reason for one in views] == ["Failed", "MissingKey", "MissingKey"]
    assert [one.dead.expires_at for one in views] == [None] * 3
    assert [one.dead.delivery.body.decode() for one in views][2] == large


@pytest.mark.parametrize("more", [{}, {"CONTAINER_NAME": "c-1"}])
def test_the_shipped_app_starts_as_a_placeholder_does(settings: Settings, more: dict[str, str]) -> None:
    """The repository's own app is indexed by a worker that was waiting in another folder."""
    env = environment(settings) | more
    with FunctionsHost(ROOT, env=env, placeholder=not more) as shipped:
        assert {"exchange_rates", "purge_sessions", "runonce_recovery", "runonce_requests"} <= set(
            shipped.functions
        )


def test_a_missing_setting_is_named_when_the_app_does_not_start(tmp_path: Path) -> None:
    """Without storage the app is refused with the variable and the remedy, not with a traceback's last line."""
    app = make_app(tmp_path / "app", {"good.py": JOBS["good.py"]})
    with (
        pytest.raises(AppRefusedError, match="RUNONCE_STORAGE is not set"),
        FunctionsHost(app, env={}),
    ):
        pass
