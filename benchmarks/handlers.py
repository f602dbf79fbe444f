"""What the toolkit costs a message: receive, claim, handle, record, delete, against the bare SDK doing the same calls.

    python benchmarks/handlers.py [--messages 200] [--rounds 7] [--workers 1 2 4]

Both sides make the same four requests for each message to the same Azurite: insert a row, replace it, delete the
message, and a share of a receive of 32. Rounds of the two alternate, so that both meet the same machine; the
figures are medians of the rounds. A ratio of 1.00 would be a toolkit that costs nothing.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import logging
import statistics
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from azure.core import MatchConditions  # noqa: E402
from azure.data.tables import TableServiceClient, UpdateMode  # noqa: E402
from azure.storage.queue import QueueClient  # noqa: E402

from runonce import Message, handler  # noqa: E402
from runonce.clock import SystemClock  # noqa: E402
from runonce.hosts.discover import Discovered  # noqa: E402
from runonce.hosts.runtime import Runtime  # noqa: E402
from runonce.messages.plan import Arrival, first  # noqa: E402
from runonce.messages.sending import outgoing  # noqa: E402
from runonce.settings import Settings, StorageConnection  # noqa: E402
from runonce.stores.azure.clients import QUICK  # noqa: E402
from runonce.stores.azure.stores import azure_stores  # noqa: E402
from runonce.stores.columns import encode  # noqa: E402
from runonce.stores.memory import memory_stores  # noqa: E402
from runonce.testing import MemorySender  # noqa: E402
from runonce.transports import storage  # noqa: E402
from runonce.transports.protocols import Delivery  # noqa: E402
from runonce.transports.storage import StorageTransport, wrap  # noqa: E402

if TYPE_CHECKING:
    from runonce.messages.definition import Handler

RATIO, CPU = 0.87, 0.15
"""Targets: throughput of the bare calls kept at least, and CPU on top of theirs at most."""
AT_ONCE = 32
# Azurite closes a connection that was idle for a while; either side then simply asks again.
OPTIONS: dict[str, Any] = {**QUICK, "read_timeout": 60, "retry_total": 2, "retry_connect": 2}
"""As the toolkit's own, but patient with a busy machine, on both sides."""
VISIBILITY = 300


@dataclass(frozen=True)
class Figures:
    """One side's time for some messages."""

    messages: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of this process's CPU for each message."""
        return 1000 * self.cpu / self.messages


def invoices(queue: str) -> Handler:
    """A handler that does nothing, so that only the toolkit's own cost is seen."""

    def send_invoice(message: Message) -> None:
        """Nothing."""

    return handler(queue=queue, key="invoice_id")(send_invoice)


def body(number: int) -> dict[str, Any]:
    """Some 250 bytes, an ordinary message."""
    return {
        "invoice_id": f"INV-{number:07d}",
        "customer": "c" * 80,
        "lines": [{"cents": 1999, "text": "x" * 60}] * 2,
    }


class Toolkit:
    """A host of the toolkit, one message after the other."""

    def __init__(self, connection_string: str, namespace: str) -> None:
        settings = Settings(namespace, StorageConnection(connection_string))
        transport = StorageTransport(settings.storage, VISIBILITY)
        self._settings = settings
        self._transport = transport
        stores = azure_stores(settings, read_timeout=60)
        self._deliverer = Runtime(
            settings, found=Discovered(), stores=stores, transport=transport, host="benchmark"
        ).deliverer

    def work(self, queue: str, messages: int) -> None:
        """Handle that many messages."""
        one = invoices(queue)
        inbox = self._transport.inbox(one)
        left = messages
        while left > 0:
            for received in inbox.receive(min(AT_ONCE, left), 1):
                inbox.settle(received, self._deliverer.deliver(one, received.delivery))
                left -= 1
        inbox.close()


class Bare:
    """The same calls by hand."""

    def __init__(self, connection_string: str, namespace: str) -> None:
        self._connection_string = connection_string
        self._namespace = namespace
        tables = TableServiceClient.from_connection_string(connection_string, **OPTIONS)
        self._table = tables.create_table_if_not_exists("barecalls")
        arrival = Arrival(str(uuid.uuid4()), "benchmark", SystemClock().now(), "m" * 30, "f" * 32, 60, 0)
        self._columns = encode(first(invoices("any"), "INV-0000000", arrival))

    def work(self, queue: str, messages: int) -> None:
        """Make the calls for that many messages."""
        client = QueueClient.from_connection_string(self._connection_string, queue_name=queue, **OPTIONS)
        left = messages
        while left > 0:
            count = min(AT_ONCE, left)
            for message in client.receive_messages(
                messages_per_page=count, max_messages=count, visibility_timeout=VISIBILITY
            ):
                self._one(client, message)
                left -= 1
        client.close()

    def _one(self, client: QueueClient, message: Any) -> None:
        content = json.loads(json.loads(base64.b64decode(message.content))["body"])
        keys = {"PartitionKey": self._namespace, "RowKey": f"{content['invoice_id']}-{message.id}"}
        entity = {**keys, **self._columns}
        made: Any = self._table.create_entity(entity, response_preference="return-no-content")
        self._table.update_entity(
            {**entity, "state": "done"},
            UpdateMode.REPLACE,
            etag=made["etag"],
            match_condition=MatchConditions.IfNotModified,
        )
        client.delete_message(message)


SIDES: dict[str, Any] = {"toolkit": Toolkit, "bare": Bare}


def alone(messages: int) -> float:
    """Milliseconds of CPU that the toolkit itself takes for each message: the same with stores in memory."""
    settings, clock = Settings("alone", StorageConnection("UseDevelopmentStorage=true")), SystemClock()
    stores, sender = memory_stores(clock), MemorySender()
    parts = Runtime(settings, found=Discovered(), stores=stores, clock=clock, sender=sender, host="benchmark")
    deliverer = parts.deliverer
    one = invoices("any")
    sent = [outgoing(one, body(number)) for number in range(messages)]
    deliveries = [Delivery(message.body, message.message_id) for message in sent]
    started = time.process_time()
    for delivery in deliveries:
        deliverer.deliver(one, delivery)
    return 1000 * (time.process_time() - started) / messages


def fill(connection_string: str, queue: str, messages: int) -> None:
    """Put messages into a new queue."""
    client = QueueClient.from_connection_string(connection_string, queue_name=queue, **OPTIONS)
    client.create_queue()
    one = invoices(queue)
    for number in range(messages):
        client.send_message(wrap(outgoing(one, body(number))))
    client.close()


def measured(side: Any, connection_string: str, messages: int) -> Figures:
    """One round of one side."""
    queue = f"q{uuid.uuid4().hex[:12]}"
    fill(connection_string, queue, messages)
    started, cpu = time.perf_counter(), time.process_time()
    side.work(queue, messages)
    return Figures(messages, time.perf_counter() - started, time.process_time() - cpu)


def compare(connection_string: str, messages: int, rounds: int) -> bool:
    """Print both sides in one process; whether the targets are met."""
    sides = {name: make(connection_string, f"n{uuid.uuid4().hex[:8]}") for name, make in SIDES.items()}
    for side in sides.values():
        measured(side, connection_string, 20)  # warms up: tables, connections, imports
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for turn in range(rounds):
        names = list(sides) if turn % 2 else list(reversed(sides))
        for name in names:
            sides[name] = SIDES[name](connection_string, f"n{uuid.uuid4().hex[:8]}")
            found[name].append(measured(sides[name], connection_string, messages))
    rate = {name: statistics.median(f.rate for f in figures) for name, figures in found.items()}
    cpu = {name: statistics.median(f.cpu_ms for f in figures) for name, figures in found.items()}
    pairs = list(zip(found["toolkit"], found["bare"], strict=True))
    ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
    more = statistics.median(ours.cpu_ms / theirs.cpu_ms for ours, theirs in pairs) - 1
    print(f"{rounds} rounds of {messages} messages, one process, medians")
    for name in sides:
        print(f"  {name:8} {rate[name]:7.1f} messages/s   {cpu[name]:5.2f} ms CPU each")
    own = alone(2000)
    print(f"  alone    {' ' * 22}{own:5.2f} ms CPU each, with stores in memory")
    print(f"  ratio    {ratio:7.2f}              target {RATIO:.2f} or more: {verdict(ok=ratio >= RATIO)}")
    print(f"  CPU      {more:+7.0%}              target {CPU:+.0%} or less: {verdict(ok=more <= CPU)}")
    return ratio >= RATIO and more <= CPU


def verdict(*, ok: bool) -> str:
    """In a word."""
    return "met" if ok else "MISSED"


def scale(connection_string: str, messages: int, workers: list[int]) -> None:
    """Print both sides with several processes, each on a queue of its own."""
    print(f"{messages} messages for each worker process")
    print("  workers   toolkit      bare     messages/s, all together")
    for count in workers:
        rates = [together(name, connection_string, messages, count) for name in ("toolkit", "bare")]
        print(f"  {count:7} {rates[0]:9.1f} {rates[1]:9.1f}")


def together(name: str, connection_string: str, messages: int, workers: int) -> float:
    """Messages per second of so many processes that begin at the same time."""
    queues = [f"q{uuid.uuid4().hex[:12]}" for _ in range(workers)]
    for queue in queues:
        fill(connection_string, queue, messages + 5)
    command = [sys.executable, __file__, "--worker", name, connection_string]
    started = [
        subprocess.Popen(
            [*command, queue, str(messages)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for queue in queues
    ]
    try:
        for process in started:
            line(process)  # it has warmed up
        begun = time.perf_counter()
        for process in started:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        for process in started:
            line(process)
        return workers * messages / (time.perf_counter() - begun)
    finally:
        for process in started:
            process.communicate()


def line(process: subprocess.Popen[str]) -> None:
    """Wait for a worker's next word."""
    if process.stdout is None or not process.stdout.readline():
        raise SystemExit("a worker has ended early")


def worker(name: str, connection_string: str, queue: str, messages: int) -> None:
    """One process of several."""
    side = SIDES[name](connection_string, f"n{uuid.uuid4().hex[:8]}")
    side.work(queue, 5)
    print("ready", flush=True)
    sys.stdin.readline()
    side.work(queue, messages)
    print("done", flush=True)


def launcher() -> Any:
    """Azurite's launcher, which is in a folder and no package."""
    spec = importlib.util.spec_from_file_location("azurite_launcher", ROOT / "azurite" / "launcher.py")
    if spec is None or spec.loader is None:
        raise SystemExit("azurite/launcher.py is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Run it; 1 when a target is missed."""
    logging.disable(logging.CRITICAL)
    vars(storage)["QUICK"] = OPTIONS
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument(
        "--worker", nargs=4, metavar=("SIDE", "CONNECTION", "QUEUE", "N"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.worker:
        name, connection_string, queue, messages = options.worker
        worker(name, connection_string, queue, int(messages))
        return 0
    with launcher().start() as azurite:
        met = compare(azurite.connection_string, options.messages, options.rounds)
        scale(azurite.connection_string, options.messages, options.workers)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
