"""A message that waits on Functions, for a lock, a turn or the broker, keeps no thread of the worker's pool waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runonce.clock import SystemClock
from runonce.execution.lease import Lease
from runonce.messages.lock import lock_path
from runonce.stores.azure.stores import azure_stores
from servicebus.launcher import Queue
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, servicebus, timer
from tests.support.namespaces import fresh_settings
from tests.support.service_bus import broker_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.settings import Settings
    from servicebus.launcher import Broker

pytestmark = [sdk_forgets_sockets]
broker = broker_fixture(
    Queue("locked", lock=30, dedup=600),
    Queue("narrow", lock=30, dedup=600),
    Queue("away", lock=30, dedup=600),
)
THREADS = 2
JOBS = """
import threading
from runonce import Message, Run, handler, scheduled

@handler(queue="locked", key="id", lock="tenant:{tenant}", lock_wait=20)
def locked(message: Message) -> None:
    message.log.info("has the lock")

@handler(queue="narrow", key="id", concurrency=1, max_runtime=1, retries=0)
def narrow(message: Message) -> None:
    message.log.info("at work")
    if message.key == "hangs":
        threading.Event().wait(60)

@handler(queue="away", key="id")
def sent_back(message: Message) -> None:
    raise ConnectionError("the provider hung up")

@scheduled("* * * * * *")
def often(run: Run) -> None:
    run.log.info("ticked")
"""


@pytest.fixture(scope="module")
def module_settings(azurite: str) -> Settings:
    return fresh_settings(azurite)


@pytest.fixture(scope="module")
def host(
    module_settings: Settings, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FunctionsHost]:
    app = make_app(tmp_path_factory.mktemp("functions") / "app", {"jobs.py": JOBS})
    settings = environment(module_settings) | {
        "RUNONCE_SERVICEBUS": broker.connection_string,
        "RUNONCE_SHUTDOWN_TIMEOUT": "1",
        "PYTHON_THREADPOOL_THREAD_COUNT": str(THREADS),
    }
    with FunctionsHost(app, env=settings) as running:
        yield running


def test_waiting_for_a_lock_keeps_no_thread_of_the_workers_pool(
    host: FunctionsHost, module_settings: Settings
) -> None:
    """More messages wait for one tenant's lock than the pool has threads; others go on, and then they do, in place."""
    path = lock_path(module_settings.namespace, "tenant%3Aacme")
    held = Lease.acquire(azure_stores(module_settings).leases, path, module_settings.lease, SystemClock())
    assert held is not None
    waiting = [
        host.start_invocation("locked", servicebus({"id": str(n), "tenant": "acme"}, message_id=f"m-{n}"))
        for n in range(THREADS + 4)
    ]
    other = host.invoke("locked", servicebus({"id": "b", "tenant": "other"}, message_id="m-b"), timeout=10)
    assert other.said("has the lock"), other
    assert host.invoke("often", timer(), timeout=10).said("ticked")
    assert not any(one.done for one in waiting)
    held.release()
    for one in waiting:
        done = one.wait(30)
        assert done.success, done.exception
        assert done.said("has the lock")  # also: a line is told under the invocation it is of


def test_a_function_that_hangs_ends_when_its_message_is_given_up(host: FunctionsHost) -> None:
    """The host's slot goes to others too, so that it need not end the worker for it; a turn is waited for likewise."""
    hanging = host.start_invocation("narrow", servicebus({"id": "hangs"}, message_id="h"))
    hanging.wait_for_log("at work")
    others = [
        host.start_invocation("narrow", servicebus({"id": str(n)}, message_id=f"n-{n}"))
        for n in range(THREADS + 2)
    ]
    assert host.invoke("often", timer(), timeout=10).said("ticked")
    assert hanging.wait(20).success
    for one in others:
        assert one.wait(20).said("at work")


def test_a_broker_that_hangs_keeps_no_other_function_waiting(host: FunctionsHost, broker: Broker) -> None:
    """A message is sent back by a thread of its own, never on the worker's event loop nor in its pool."""
    broker.pause()
    try:
        sending = [
            host.start_invocation("sent_back", servicebus({"id": str(n)}, message_id=f"s-{n}"))
            for n in range(THREADS + 2)
        ]
        sending[0].wait_for_log("the provider hung up")
        assert host.invoke("often", timer(), timeout=10).said("ticked")
    finally:
        broker.resume()
    for one in sending:
        one.wait(60)
