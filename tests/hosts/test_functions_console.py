"""`func start` in a clean terminal, as far as files and the tests' double of the host can show it."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import azure.functions as func
import pytest
from azure.storage.queue import QueueClient

from runonce.hosts.functions.handlers import from_servicebus, from_storage
from runonce.runs.requests import send_request
from runonce.runs.rows import decode_run, key_range
from tests.support.functions_app import ROOT, environment, make_app
from tests.support.functions_worker import LiveHost
from tests.support.functions_worker.samples import until

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

WORK = """
import asyncio
import time

from runonce import Message, Run, handler, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip")
def plain(run: Run) -> None:
    run.log.info("waiting")
    while True:
        run.check()
        time.sleep(0.01)

@scheduled("0 0 0 1 1 *", misfire="skip")
async def awaiting(run: Run) -> None:
    run.log.info("waiting")
    await asyncio.sleep(600)

@handler(queue="{queue}", name="plain_message")
def plain_message(message: Message) -> None:
    message.log.info("waiting")
    while True:
        message.check()
        time.sleep(0.01)

@handler(queue="{queue}-async", name="async_message")
async def async_message(message: Message) -> None:
    message.log.info("waiting")
    await asyncio.sleep(600)
"""
FAILING = """
from runonce import Message, handler

@handler(queue="{queue}", retries=2, retry_delay=1)
def failing(message: Message) -> None:
    raise ValueError("no such customer")
"""
FIRE_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def send(settings: Settings, queue: str) -> QueueClient:
    client = QueueClient.from_connection_string(str(settings.storage.connection_string), queue)
    client.create_queue()
    client.send_message(base64.b64encode(b"{}").decode())
    return client


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
@pytest.mark.parametrize("idle", [False, True])
def test_ctrl_c_gives_everything_back_in_seconds(
    how: str, *, idle: bool, tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """Runs and messages, sync and async: recorded as stopped, nothing held, the messages back, and no traceback."""
    queue = f"console-{settings.namespace}"
    app = make_app(tmp_path / "app", {"work.py": WORK.format(queue=queue)})
    with LiveHost(app, environment(settings)) as host:
        if not idle:
            clients = [send(settings, name) for name in (queue, f"{queue}-async")]
            for job in ("plain", "awaiting"):
                send_request(azure.requests, job, FIRE_TIME, "asked", delay=timedelta())
            host.console.wait_for("waiting", count=4)
        told = time.monotonic()
        getattr(host, how)()
        assert host.wait(12) == 0
        assert time.monotonic() - told < 5
        assert not [line for line in host.console.lines if "Traceback" in line or "KeyboardInterrupt" in line]
    if idle:
        return
    for job in ("plain", "awaiting"):
        assert not azure.leases.held(f"{settings.namespace}/{job}")
        [row] = azure.runs.scan(settings.namespace, *key_range("run", job))
        assert (decode_run(row).outcome, decode_run(row).abandoned) == ("stopped", 0)
    for client in clients:
        until(lambda client=client: client.receive_message(visibility_timeout=60))  # type: ignore[misc]


def test_a_failing_message_is_told_once_with_what_comes_next(tmp_path: Path, settings: Settings) -> None:
    """Each attempt says when the next one is; the traceback is shown with the last, by which it is a dead letter."""
    queue = f"console-{settings.namespace}"
    app = make_app(tmp_path / "app", {"failing.py": FAILING.format(queue=queue)})
    send(settings, queue)
    with LiveHost(app, environment(settings)) as host:
        host.console.wait_for("dead-lettered (Failed)")
        until(lambda: not host.console.running)
        said = [line for line in host.console.lines if line.startswith(("Warning:", "Error:"))]
    assert sum("redelivered in" in line and "no such customer" in line for line in said) == 2
    assert sum("Traceback" in line for line in said) == 1
    assert len(said) == 3


def test_the_console_is_not_opened_to_the_hosts_own_log() -> None:
    """host.json has no `logLevel`: one for `default` shows everything that the host says to itself."""
    assert "loglevel" not in (ROOT / "host.json").read_text(encoding="utf-8").lower()
    sample = json.loads((ROOT / "local.settings.sample.json").read_text(encoding="utf-8"))
    assert not any("loglevel" in name.lower() for name in sample["Values"])


def test_a_message_of_the_portals_run_has_a_name() -> None:
    """Test/Run delivers no id: each such message has one that says so, and another than the next one's."""
    ids = [from_storage(func.QueueMessage(id="", body=b"{}")).message_id for _ in range(2)]
    ids += [from_servicebus(Portals()).message_id for _ in range(2)]  # type: ignore[arg-type]
    assert len(set(ids)) == 4
    assert all(one.startswith("by-hand-") for one in ids)


class Portals:
    """A message of Service Bus with a body and nothing else."""

    def get_body(self) -> bytes:
        return b"{}"

    def __getattr__(self, name: str) -> None:
        return None
