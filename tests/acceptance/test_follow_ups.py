"""What a job sends with `run.enqueue`, on the real brokers: a host killed between commit and send loses none of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at
from support.service_bus import broker_fixture, sdk_forgets_sockets
from support.transports import receive

from runonce import handler, scheduled
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.runs.rows import Outcome
from runonce.settings import LeaseTerms, ServiceBusConnection, Settings, StorageConnection
from runonce.transports.settlement import Complete
from servicebus.launcher import Queue

if TYPE_CHECKING:
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.runs.run import Run

pytestmark = [
    sdk_forgets_sockets,
    pytest.mark.skipif(os.name == "nt", reason="Windows has no kill -9"),
]

ROOT = Path(__file__).resolve().parents[2]
QUEUES = [f"mails-{n}" for n in range(3)]
broker = broker_fixture(*(Queue(name, lock=30, dedup=600) for name in QUEUES))
BATCHES = 4
T = at(3)


def made(config: dict[str, str]) -> tuple[Runtime, Handler]:
    """A host of the job, and the handler that it sends to."""

    @handler(queue=config["queue"], key="n")
    def mail(message: Message) -> None: ...

    @scheduled("0 0 3 * * *")
    def nightly(run: Run) -> None:
        for (number,) in run.batches(range(BATCHES), size=1):
            run.enqueue(mail, {"n": number})
        run.enqueue(mail, {"n": "the end"})

    bus = ServiceBusConnection(config["servicebus"]) if config["servicebus"] else None
    settings = Settings(
        config["namespace"],
        StorageConnection(config["storage"]),
        LeaseTerms(15, 5, 2),
        servicebus=bus,
        transport="servicebus" if bus else "storage",
    )
    return Runtime(settings, found=Discovered({"nightly": nightly}, {"mail": mail})), mail


class DiesSending:
    """Sends until the call of that number, where its process is killed."""

    def __init__(self, sender: Any, call: int) -> None:
        self._sender = sender
        self._left = call

    def send(self, entity: str, messages: Any) -> None:
        """Send, or be killed."""
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._sender.send(entity, messages)


def main(config: dict[str, str]) -> None:
    """The process that is killed."""
    runtime, _ = made(config)
    runtime.__dict__["sender"] = DiesSending(runtime.sender, int(config["dies_at"]))
    runtime.dispatcher.execute(runtime.found.jobs["nightly"], T, by="hand")


@pytest.fixture(params=["storage", "servicebus"])
def config(request: pytest.FixtureRequest, azurite: str) -> dict[str, str]:
    """What both processes are told, for each transport."""
    bus = request.getfixturevalue("broker").connection_string if request.param == "servicebus" else ""
    queue = QUEUES.pop() if bus else f"mails-{uuid.uuid4().hex[:8]}"
    return {"queue": queue, "servicebus": bus, "storage": azurite, "namespace": f"t-{uuid.uuid4().hex[:8]}"}


@pytest.mark.parametrize("dies_at", [2, BATCHES + 1])
def test_a_host_killed_between_commit_and_send_loses_and_invents_nothing(
    config: dict[str, str], dies_at: int
) -> None:
    """At a batch and at the run's end: what was committed is sent by whoever goes on, each message under one id."""
    config["dies_at"] = str(dies_at)
    path = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, __file__, json.dumps(config)]
    killed = subprocess.run(command, check=False, timeout=60, capture_output=True, env=path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    runtime, mail = made(config)
    with runtime:
        lock = runtime.runs.lock_name("nightly")
        runtime.stores.leases.break_lease(lock)  # the lease's end need not be waited for here
        result = runtime.dispatcher.execute(runtime.found.jobs["nightly"], T, by="request")
        # Where it died at the run's end that had been recorded, and the messages are all that is left to do.
        assert result.outcome is (Outcome.SUCCEEDED if dies_at <= BATCHES else Outcome.SKIPPED)
        inbox = runtime.transport.inbox(mail)
        found: dict[str, Any] = {}
        for received in receive(inbox, BATCHES + 1):
            assert (
                found.setdefault(received.delivery.message_id, received.delivery.body)
                == received.delivery.body
            )
            inbox.settle(received, Complete())
        assert inbox.receive(10, 1.0) == []
        inbox.close()
    assert sorted(str(json.loads(body)["n"]) for body in found.values()) == ["0", "1", "2", "3", "the end"]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
