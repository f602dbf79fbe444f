"""A message that is dead-lettered fails its function once, so that whoever watches the app hears of it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from azure.storage.queue import QueueClient

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.messages.dead_letters import view
from runonce.stores.azure.wire import services
from runonce.transports.storage import StorageTransport
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.functions_worker.samples import until
from tests.support.messages import handling

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

HANDLER = """
import time

from runonce import Message, PermanentError, handler

@handler(queue="{queue}", key="id", retries=0, on_abandoned="hold")
def take(message: Message) -> None:
    if message.json.get("fail"):
        raise PermanentError("no such address")
    message.log.info("waiting")
    time.sleep(600)
"""
QUEUES = "AzureFunctionsJobHost__extensions__queues__"
CASES = {
    "Failed": {"id": 1, "fail": True},
    "MissingKey": {"number": 1},
    "Unknown": {"id": 1},
}


def reasons(settings: Settings, azure: Stores, queue: str) -> list[str]:
    """Of the dead letters."""
    take = handling(queue=queue, name="take")
    registry = Registry(azure.claims, settings.namespace, SystemClock(), "test")
    letters = StorageTransport(services(settings.storage, "queue")[0], 30).dead_letters(take)
    try:
        return [view(registry, take, dead).reason for dead in letters.peek(32)]
    finally:
        letters.close()


@pytest.mark.parametrize(
    ("reason", "deliveries"),
    [("Failed", 5), ("Failed", 1), ("MissingKey", 5), ("MissingKey", 1), ("Unknown", 5)],
)
def test_a_dead_letter_fails_its_function_once(
    reason: str, deliveries: int, tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """It is in the poison queue once, and its function has failed once; not where the host would put it aside too."""
    storage, queue = str(settings.storage.connection_string), f"once-{settings.namespace}"
    app = make_app(tmp_path / "app", {"take.py": HANDLER.format(queue=queue)})
    more = {
        f"{QUEUES}visibilityTimeout": "00:00:01",
        f"{QUEUES}maxDequeueCount": str(deliveries),
        "RUNONCE_CLAIM_LEASE": "3",
    }
    client = QueueClient.from_connection_string(storage, queue)
    client.create_queue()
    client.send_message(base64.b64encode(json.dumps(CASES[reason]).encode()).decode())
    with LiveHost(app, environment(settings) | more) as host:
        if reason == "Unknown":
            host.console.wait_for("waiting")
            host.worker.kill()
        until(lambda: reasons(settings, azure, queue), 40)
        until(lambda: client.get_queue_properties().approximate_message_count == 0)
        until(lambda: not host.console.running)
        failed = [
            one.error for one in host.console.of("take") if one.success is False and reason in one.error
        ]
        assert len(failed) == (1 if deliveries > 1 else 0)
    assert reasons(settings, azure, queue) == [reason]
