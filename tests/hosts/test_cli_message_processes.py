"""Handlers as people and orchestrators start them: real processes, Azurite and the local Service Bus, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from runonce.messages.effects import read_effects
from runonce.messages.sending import outgoing
from runonce.stores.azure.stores import azure_stores
from servicebus.launcher import Queue, Subscription, Topic
from tests.support.service_bus import broker_fixture, sdk_forgets_sockets
from tests.support.transports import BusPipe, Pipe, StoragePipe, make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.settings import Settings
    from servicebus.launcher import Broker

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="POSIX signals are what is tested here"),
    sdk_forgets_sockets,
]

QUEUES = [f"q{n}" for n in range(12)]
broker = broker_fixture(
    *(Queue(name, lock=5, max_delivery=5, dedup=600) for name in QUEUES),
    Topic("orders", (Subscription("billing", forward="orders.billing"),), lock=5, dedup=600),
    Queue("orders.billing", lock=5, dedup=600),
)
HANDLERS = """
    import time
    from pathlib import Path

    from runonce import Message, PermanentError, handler

    HERE = Path(__file__).parent

    @handler(queue="{queue}", key="id", retries=0)
    def take(message: Message) -> None:
        if message.json.get("bad") and not (HERE / "corrected").exists():
            raise PermanentError("no such customer")
        if message.json.get("long") and message.attempt == 1:
            (HERE / "began").touch()
            while True:
                message.check()
                time.sleep(0.02)
        message.commit({{"taken": {{"attempt": message.attempt}}}})

    @handler(topic="orders", subscription="billing", key="id")
    def bill(message: Message) -> None:
        message.commit({{"billed": {{"attempt": message.attempt}}}})
"""


class Processes:
    """Starts commands against one namespace and one transport, and ends what is left of them."""

    def __init__(self, settings: Settings, folder: Path, pipe: Pipe, **environ: str) -> None:
        self.settings, self.folder, self.pipe = settings, folder, pipe
        self.queue = pipe.queue()
        (folder / "handlers.py").write_text(
            textwrap.dedent(HANDLERS).format(queue=self.queue), encoding="utf-8"
        )
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")},
            "RUNONCE_STORAGE": settings.storage.connection_string or "",
            "RUNONCE_NAMESPACE": settings.namespace,
            "RUNONCE_QUEUE_NAMES": "plain",
            "RUNONCE_JOBS": str(folder),
            "RUNONCE_CLAIM_LEASE": "3",
            **environ,
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runonce", *args],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*args)
        stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)

    def json(self, *args: str) -> Any:
        """What a command prints with --json."""
        return json.loads(self.run(*args, "--json").stdout)

    def send(self, *bodies: dict[str, Any]) -> None:
        """The same in this process."""
        to = make_handler(self.queue)
        self.pipe.sender.send(self.queue, [outgoing(to, body) for body in bodies])

    def enqueue(self, *bodies: dict[str, Any], to: str = "take") -> None:
        """Send messages, through a file of lines."""
        lines = self.folder / f"{uuid.uuid4().hex}.jsonl"
        lines.write_text("\n".join(map(json.dumps, bodies)))
        sent = self.run("enqueue", to, "--file", str(lines), "--lines")
        assert sent.returncode == 0, sent.stderr

    def effects(self, name: str = "take") -> list[str]:
        """The keys of what took effect, from the table itself."""
        claims = azure_stores(self.settings).claims
        return sorted(str(row["key"]) for row in read_effects(claims, self.settings.namespace, name))


def wait_until(true: Callable[[], object], seconds: float = 40) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, "it did not come true in time"
        threading.Event().wait(0.05)


def ended(processes: Processes) -> None:
    for process in processes.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    processes.pipe.close()


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return iter(QUEUES)


@pytest.fixture
def on_storage(settings: Settings, tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(settings, tmp_path, StoragePipe(str(settings.storage.connection_string)))
    yield processes
    ended(processes)


@pytest.fixture
def on_bus(settings: Settings, tmp_path: Path, broker: Broker, names: Iterator[str]) -> Iterator[Processes]:
    pipe = BusPipe(broker, names)
    processes = Processes(settings, tmp_path, pipe, RUNONCE_SERVICEBUS=broker.connection_string)
    yield processes
    ended(processes)


@pytest.fixture(params=["storage", "servicebus"])
def cli(request: pytest.FixtureRequest) -> Processes:
    """Each transport in turn."""
    made: Processes = request.getfixturevalue("on_storage" if request.param == "storage" else "on_bus")
    return made


@pytest.mark.slow
def test_work_handles_what_there_is_and_ends(cli: Processes) -> None:
    """Sent twice over, five messages have five effects; the queue is empty and the command ends with 0."""
    cli.enqueue(*({"id": n} for n in range(5)), *({"id": n} for n in range(5)))
    worked = cli.json("work", "take", "--max-wait", "4")
    # Service Bus drops a duplicate; a Storage queue delivers it, and one handled at the same instant comes again.
    least = 5 if cli.pipe.kind == "servicebus" else 10
    assert (worked["handler"], worked["handled"] >= least, worked["exit_code"]) == ("take", True, 0)
    assert cli.effects() == ["0", "1", "2", "3", "4"]
    assert (cli.pipe.count(cli.queue), cli.pipe.dead_count(cli.queue)) == (0, 0)


def test_work_takes_no_more_than_it_was_told_to(cli: Processes) -> None:
    """With --max-messages 2 it takes two of five."""
    cli.send(*({"id": n} for n in range(5)))
    assert cli.json("work", "take", "--max-messages", "2", "--max-wait", "5")["handled"] == 2
    assert cli.pipe.count(cli.queue) == 3


def test_work_without_waiting_handles_what_is_there(cli: Processes) -> None:
    """With --max-wait 0 it handles the messages that are there and ends with 0."""
    cli.send(*({"id": n} for n in range(3)))
    worked = cli.json("work", "take", "--max-wait", "0")
    assert (worked["handled"], worked["exit_code"]) == (3, 0)
    assert cli.pipe.count(cli.queue) == 0


@pytest.mark.parametrize("wrong", ["no such queue", "another queue's connection string"])
def test_what_waiting_does_not_mend_ends_work_with_5(on_bus: Processes, wrong: str) -> None:
    """Work ends at once, and its error says what to do; a broker out of reach would be 6."""
    if wrong == "no such queue":
        source = (on_bus.folder / "handlers.py").read_text(encoding="utf-8")
        (on_bus.folder / "handlers.py").write_text(source.replace(on_bus.queue, "nowhere"), encoding="utf-8")
        said = "make it"
    else:
        on_bus.environ["RUNONCE_SERVICEBUS"] = on_bus.environ["RUNONCE_SERVICEBUS"] + ";EntityPath=other"
        said = "without EntityPath"
    ended = on_bus.run("work", "take")
    assert ended.returncode == 5, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_poison_message_is_put_aside_listed_corrected_and_replayed(cli: Processes) -> None:
    """From the dead letter with its reason to the effect of its replay, by commands alone."""
    cli.send({"id": 1, "bad": True})
    cli.run("work", "take", "--max-wait", "1")
    [dead] = cli.json("dead-letters", "list", "take")["dead_letters"]
    assert (dead["key"], dead["reason"], dead["state"]) == ("1", "Failed", "failed")
    assert "no such customer" in dead["description"]
    (cli.folder / "corrected").touch()
    assert cli.run("dead-letters", "replay", "take", "--id", dead["id"]).returncode == 0
    assert cli.json("work", "take", "--max-wait", "1")["handled"] == 1
    assert cli.effects() == ["1"]
    assert cli.json("dead-letters", "list", "take")["dead_letters"] == []
    assert cli.pipe.count(cli.queue) == 0


@pytest.mark.slow
def test_work_told_to_stop_loses_nothing(cli: Processes) -> None:
    """SIGTERM in the middle of a message: it is released, the process ends with 143, and another one finishes it."""
    cli.send({"id": 1, "long": True})
    process = cli.start("work", "take")
    wait_until((cli.folder / "began").exists)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143, stderr
    assert cli.effects() == []
    assert cli.json("work", "take", "--max-messages", "1", "--max-wait", "15")["handled"] == 1
    assert cli.effects() == ["1"]


@pytest.mark.slow
def test_serve_consumes_beside_its_timers_until_it_is_told_to_stop(cli: Processes) -> None:
    """Its banner names the handlers; messages sent while it runs take effect; SIGTERM ends it with 0."""
    process = cli.start("serve")
    cli.send({"id": 1}, {"id": 1}, {"id": 2})
    wait_until(lambda: cli.effects() == ["1", "2"] and cli.pipe.count(cli.queue) == 0)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert f"messages of {cli.queue}" in stderr


@pytest.mark.slow
def test_a_handler_the_transport_cannot_carry_stops_no_other(on_storage: Processes) -> None:
    """A topic's handler on Storage queues is refused with the remedy, by `serve` too, which serves the others."""
    refused = on_storage.run("work", "bill", "--max-wait", "1")
    assert (refused.returncode, "set RUNONCE_SERVICEBUS" in refused.stderr) == (5, True)
    process = on_storage.start("serve")
    on_storage.send({"id": 1})
    wait_until(lambda: on_storage.effects() == ["1"])
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert "warning: Handler 'bill' reads topic 'orders'" in stderr


@pytest.mark.slow
def test_a_topics_handler_works_on_service_bus(on_bus: Processes) -> None:
    """Messages sent to a topic reach the handler of its subscription."""
    on_bus.enqueue({"id": 1}, {"id": 1}, to="bill")
    assert on_bus.json("work", "bill", "--max-wait", "4")["handled"] >= 1
    assert on_bus.effects("bill") == ["1"]


@pytest.mark.slow
def test_a_broker_out_of_reach_is_6(on_storage: Processes) -> None:
    """Nobody at the other end: sending, working and looking at dead letters end with 6 and say where."""
    nobody = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    on_storage.environ["RUNONCE_SERVICEBUS"] = nobody
    for args in (["enqueue", "take", "--body", '{"id": 1}'], ["dead-letters", "list", "take"]):
        result = on_storage.run(*args)
        assert result.returncode == 6, result.stderr
        assert on_storage.queue in result.stderr
        assert "Traceback" not in result.stderr
