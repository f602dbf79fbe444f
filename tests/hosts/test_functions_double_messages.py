"""The toolkit's handlers under the Functions host, fed with bodies made of the host's and the broker's own words."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.storage.queue import QueueClient

from runonce.messages.effects import read_effects
from runonce.stores.azure.stores import azure_stores
from servicebus.launcher import Queue
from tests.support.functions_app import ROOT, environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.functions_worker.samples import until
from tests.support.namespaces import fresh_settings
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets

COUNT, SEED = 290, 20261130
FIELDS = (
    *(
        "id",
        "messageId",
        "correlationId",
        "deliveryCount",
        "sequenceNumber",
        "applicationProperties",
        "state",
    ),
    *(
        "userProperties",
        "enqueuedTimeUtc",
        "expiresAtUtc",
        "timeToLive",
        "lockedUntil",
        "lockToken",
        "subject",
    ),
    *("scheduledEnqueueTimeUtc", "enqueuedSequenceNumber", "contentType", "partitionKey", "label"),
    *("dequeueCount", "insertionTime", "expirationTime", "nextVisibleTime", "popReceipt", "queueTrigger"),
)
VALUES: tuple[Any, ...] = (
    *("x", "", 5, -1, 1.5, True, None, [], [1], "2026-11-30T08:00:00Z", "yesterday", "INV-7"),
    *({"runonce-only-for": "y"}, {"a": [1]}, 2**70),
)
HANDLER = """
from runonce import Message, handler

@handler(queue="{queue}")
def note(message: Message) -> None:
    body = message.body.decode("latin-1")
    message.commit({{"seen": {{"body": body, "id": message.message_id, "count": message.delivery_count}}}})
"""

broker = broker_fixture(Queue("words", lock=30))
bus = client_fixture()


def bodies() -> list[bytes]:
    """Objects of such fields, in both spellings of their first letter; many of them the same as others."""
    chance = random.Random(SEED)
    made = []
    for _ in range(COUNT):
        names = chance.sample(FIELDS, chance.randint(1, 4))
        spelt = [name if chance.random() < 0.5 else name[0].upper() + name[1:] for name in names]
        made.append(json.dumps({name: chance.choice(VALUES) for name in spelt}).encode())
    return made + [b'{"id": "order-7"}'] * 10


def seen(settings: Settings) -> list[dict[str, Any]]:
    return list(read_effects(azure_stores(settings).claims, settings.namespace, "note"))


def check(settings: Settings, sent: dict[str, bytes]) -> None:
    """Each message has had one effect, under its own id and with its own body."""
    rows = seen(settings)
    assert {str(row["id"]): str(row["body"]).encode("latin-1") for row in rows} == sent
    assert len(rows) == len(sent)
    assert {row["count"] for row in rows} == {1}


def send_to_storage(storage: str, queue: str) -> dict[str, bytes]:
    """Each id with its body."""
    client = QueueClient.from_connection_string(storage, queue)
    client.create_queue()
    with ThreadPoolExecutor(4) as pool:
        sent = pool.map(
            lambda body: (client.send_message(base64.b64encode(body).decode()).id, body), bodies()
        )
        return dict(sent)


def run_here(settings: Settings, app: Path, count: int, **more: str) -> None:
    """`runonce work` on the same handler: this project's own host."""
    env = {**os.environ, **environment(settings), **more, "PYTHONPATH": str(ROOT)}
    env["RUNONCE_STORAGE"] = str(settings.storage.connection_string)
    command = [sys.executable, "-m", "runonce", "work", "note", "--max-messages", str(count)]
    subprocess.run(command, cwd=app, env=env, check=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["functions", "here"])
def test_on_a_storage_queue(where: str, tmp_path: Path, azurite: str) -> None:
    """Whatever a body's fields are called, each message has one effect under its own id, on both hosts."""
    settings = fresh_settings(azurite)
    queue = f"words-{settings.namespace}"
    app = make_app(tmp_path / "app", {"note.py": HANDLER.format(queue=queue)})
    sent = send_to_storage(azurite, queue)
    if where == "functions":
        with LiveHost(app, environment(settings)):
            until(lambda: len(seen(settings)) >= len(sent), 240)
    else:
        run_here(settings, app, len(sent))
    check(settings, sent)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["functions", "here"])
def test_on_service_bus(where: str, tmp_path: Path, azurite: str, broker: Broker, bus: Bus) -> None:
    """The same on Service Bus."""
    settings = fresh_settings(azurite)
    app = make_app(tmp_path / "app", {"note.py": HANDLER.format(queue="words")})
    sent = {f"m-{n}": body for n, body in enumerate(bodies())}
    messages = [ServiceBusMessage(body, message_id=message_id) for message_id, body in sent.items()]
    bus.sender("words").send_messages(messages)
    own = {"RUNONCE_SERVICEBUS": broker.connection_string}
    if where == "functions":
        with LiveHost(app, environment(settings) | own):
            until(lambda: len(seen(settings)) >= len(sent), 240)
    else:
        run_here(settings, app, len(sent), **own)
    check(settings, sent)
