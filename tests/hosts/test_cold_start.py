"""What a cold start imports: nothing that neither the app nor its ticks and messages use.

A namespace's first start is no case of it: then Azure's clients make its tables and queues.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from tests.support.pages import ROOT

HEAVY = (
    "azure.storage",
    "azure.data",
    "azure.identity",
    "azure.servicebus",
    "requests",
    "cryptography",
    "isodate",
    "opentelemetry",
    "pickle",
    "psycopg",
    "pydantic",
    "redis",
    "rich",
    "typer",
)
"""Each takes 10 to 400 ms of CPU, and is imported where it is used."""
APP = "import function_app"
TICKS = """
from datetime import UTC, datetime
from runonce import Message, Run, handler, scheduled
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.consumer import Consumer
from runonce.messages.sending import outgoing, send_all
from runonce.runs.recovery import recover

done = []

@scheduled("0 0 3 1 1 *")
def yearly(run: Run) -> None:
    done.append(run.job)

@handler(queue="cold", key="id")
def take(message: Message) -> None:
    done.append(message.key)

with Runtime(found=Discovered(jobs={"yearly": yearly}, handlers={"take": take})) as runtime:
    runtime.dispatcher.tick(yearly)
    recover(runtime.dispatcher)
    runtime.dispatcher.execute(yearly, datetime(2026, 1, 1, 3, tzinfo=UTC), by="hand")
    send_all(runtime.sender, take, [outgoing(take, {"id": "A-1"})])
    Consumer(runtime.deliverer, runtime.transport, take).run(max_messages=1, max_wait=20)
assert done == ["yearly", "A-1"], done
"""


def imported(code: str, storage: str, namespace: str) -> list[str]:
    """The heavy modules that are there after a fresh interpreter has run it."""
    ask = f"{code}\nimport json, sys\nprint(json.dumps([n for n in sys.modules if n.startswith({HEAVY!r})]))"
    known = {name: text for name, text in os.environ.items() if not name.startswith("RUNONCE")}
    environ = {
        **known,
        "RUNONCE_STORAGE": storage,
        "RUNONCE_NAMESPACE": namespace,
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("code", [APP, TICKS], ids=["the app", "a tick, a run and a message"])
def test_what_is_not_used_is_not_imported(azurite: str, code: str) -> None:
    """The app, ticks, a run, a message sent and handled: without a client of the SDK, or anything for people."""
    namespace = f"cold-{uuid.uuid4().hex[:8]}"
    imported(TICKS.replace("2026", "2025").replace("A-1", "A-0"), azurite, namespace)
    assert imported(code, azurite, namespace) == []
