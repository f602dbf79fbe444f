"""The producers' page: its examples, run as they stand there, give their handler one effect each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.storage.queue import QueueSasPermissions, QueueServiceClient, generate_queue_sas

from servicebus.launcher import Queue
from tests.support import javascript
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.namespaces import fresh_settings
from tests.support.pages import ROOT, Block, blocks
from tests.support.service_bus import broker_fixture, client_fixture, sdk_forgets_sockets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from servicebus.launcher import Broker
    from tests.support.service_bus import Bus

pytestmark = sdk_forgets_sockets

PAGE = "docs/producers.md"
SHOWN = blocks(PAGE)
[HANDLER] = [block for block in SHOWN if block.file is not None]
[BUS_TYPESCRIPT, STORAGE_TYPESCRIPT] = [block for block in SHOWN if block.language == "typescript"]
[STORAGE_CURL] = [block for block in SHOWN if block.language == "sh" and "QUEUE_URL" in block.text]
QUEUE = "send-invoice"
SENT = {"invoice_id": "1001", "customer": "19"}

broker = broker_fixture(Queue(QUEUE, lock=30, dedup=600))
bus = client_fixture()


@dataclass
class Project:
    """The page's handler, with what it runs on."""

    folder: Path
    environ: dict[str, str]

    def runonce(self, *arguments: str) -> Any:
        """A command's JSON."""
        command = [sys.executable, "-m", "runonce", *arguments, "--json"]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def handled(self, count: int) -> None:
        """So many messages are settled, none is dead-lettered, and there is one effect."""
        assert self.runonce("work", "send_invoice", "--max-messages", str(count))["handled"] == count
        assert self.runonce("dead-letters", "list", "send_invoice")["dead_letters"] == []


def project(folder: Path, storage: str, **more: str) -> Project:
    settings = fresh_settings(storage)
    path = folder / str(HANDLER.file)
    path.parent.mkdir(parents=True)
    path.write_text(HANDLER.text, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")}
    own = {
        "RUNONCE_STORAGE": storage,
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_QUEUE_NAMES": "plain",
        "PYTHONPATH": str(ROOT),
    }
    return Project(folder, clean | own | more)


def run_typescript(block: Block, folder: Path, environ: Mapping[str, str]) -> None:
    """What has no annotation of a type is JavaScript as it stands."""
    (folder / "example.mjs").write_text(block.text, encoding="utf-8")
    javascript.run(folder / "example.mjs", environ=environ)


def run_shell(block: Block, environ: Mapping[str, str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    subprocess.run(command, check=True, env={**os.environ, **environ}, timeout=60)


@pytest.fixture
def storage_queue(azurite: str) -> Any:
    """The handler's queue on storage, empty."""
    queue = QueueServiceClient.from_connection_string(azurite).get_queue_client(QUEUE)
    try:
        queue.create_queue()
    except Exception:  # noqa: BLE001 - another test of this process has made it
        queue.clear_messages()
    return queue


def curl_environment(queue: Any) -> dict[str, str]:
    sas = generate_queue_sas(
        queue.account_name,
        QUEUE,
        queue.credential.account_key,
        permission=QueueSasPermissions(add=True),
        expiry=datetime.now(UTC) + timedelta(minutes=5),
    )
    return {"QUEUE_URL": queue.url, "SAS": sas}


@pytest.mark.slow
def test_typescript_on_service_bus(tmp_path: Path, azurite: str, broker: Broker, bus: Bus) -> None:
    """Run twice, the example sends one message under its id, and the handler handles it."""
    own = project(tmp_path, azurite, RUNONCE_SERVICEBUS=broker.connection_string)
    for _ in range(2):
        run_typescript(BUS_TYPESCRIPT, tmp_path, {"SERVICEBUS": broker.connection_string})
    [message] = bus.receiver(QUEUE).peek_messages(10)
    assert json.loads(str(message)) == SENT
    assert (message.message_id, message.content_type) == ("send-invoice:1001", "application/json")
    own.handled(1)


@pytest.mark.slow
def test_json_that_was_encoded_twice_has_no_key(tmp_path: Path, azurite: str, broker: Broker) -> None:
    """As the page warns, `body: JSON.stringify(…)` ends in the dead letters as MissingKey."""
    own = project(tmp_path, azurite, RUNONCE_SERVICEBUS=broker.connection_string)
    text = BUS_TYPESCRIPT.text.replace("body: invoice", "body: JSON.stringify(invoice)")
    text = text.replace("`send-invoice:$", "`twice:$")
    run_typescript(Block(PAGE, 0, "typescript", text), tmp_path, {"SERVICEBUS": broker.connection_string})
    own.runonce("work", "send_invoice", "--max-messages", "1")
    [letter] = own.runonce("dead-letters", "list", "send_invoice")["dead_letters"]
    assert letter["reason"] == "MissingKey"


@pytest.mark.slow
@pytest.mark.parametrize("language", ["typescript", "curl"])
def test_storage_queues(language: str, tmp_path: Path, azurite: str, storage_queue: Any) -> None:
    """Run twice, the example sends two messages that never expire, and they have one effect."""
    own = project(tmp_path, azurite, RUNONCE_TRANSPORT="storage")
    for _ in range(2):
        if language == "curl":
            run_shell(STORAGE_CURL, curl_environment(storage_queue))
        else:
            run_typescript(STORAGE_TYPESCRIPT, tmp_path, {"STORAGE": azurite})
    first, second = storage_queue.peek_messages(10)
    assert first.content == second.content
    assert first.expires_on.year == 9999
    own.handled(2)


def test_the_functions_host_takes_them(tmp_path: Path, azurite: str, storage_queue: Any) -> None:
    """With the shipped host.json the Functions host hands what the example sent to the handler, and deletes it."""
    settings = fresh_settings(azurite)
    app = make_app(tmp_path / "app", {"send_invoice.py": HANDLER.text})
    run_shell(STORAGE_CURL, curl_environment(storage_queue))
    with LiveHost(app, environment(settings) | {"RUNONCE_TRANSPORT": "storage"}) as host:
        host.console.wait_until(
            lambda: [done.success for done in host.console.of("send_invoice")] == [True], "it"
        )
    assert storage_queue.get_queue_properties().approximate_message_count == 0
