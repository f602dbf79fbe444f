"""A message that is dead-lettered fails its function once, so that whoever watches the app hears of it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueClient

from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings

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


def reasons(poison: QueueClient) -> list[str]:
    try:
        found = poison.peek_messages(32)
    except ResourceNotFoundError:
        return []
    return [str(json.loads(base64.b64decode(one.content)).get("reason", "")) for one in found]


@pytest.mark.parametrize("deliveries", [5, 1])
@pytest.mark.parametrize("reason", CASES)
def test_a_dead_letter_fails_its_function_once(
    reason: str, deliveries: int, tmp_path: Path, settings: Settings
) -> None:
    """It is in the poison queue once, and its function has failed once; not where the host would put it aside too."""
    storage, queue = str(settings.storage.connection_string), f"once-{settings.namespace}"
    app = make_app(tmp_path / "app", {"take.py": HANDLER.format(queue=queue)})
    more = {
        f"{QUEUES}visibilityTimeout": "00:00:01",
        f"{QUEUES}maxDequeueCount": str(deliveries),
        "RUNONCE_CLAIM_LEASE": "3",
    }
    client, poison = (QueueClient.from_connection_string(storage, queue + end) for end in ("", "-poison"))
    client.create_queue()
    client.send_message(base64.b64encode(json.dumps(CASES[reason]).encode()).decode())
    with LiveHost(app, environment(settings) | more) as host:
        if reason == "Unknown":
            host.console.wait_for("waiting")
            if deliveries == 1:  # then the host itself puts aside what was killed
                return
            host.worker.kill()
        until(lambda: reasons(poison), 40)
        until(lambda: client.get_queue_properties().approximate_message_count == 0)
        until(lambda: not host.console.running)
        failed = [
            one.error for one in host.console.of("take") if one.success is False and reason in one.error
        ]
        assert len(failed) == (1 if deliveries > 1 else 0)
    assert reasons(poison) == [reason]
