"""What a handler's messages cost on our own hosts: the real consumer, at a distance, with the bare calls beside it.

    python benchmarks/messages.py [--rounds 3] [--latency 0.01 0.05] [--at-once 8 32 64]

Storage is `standin.py`, which keeps each answer back and is no limit itself; the broker is the local one behind a
relay that does the same. "bare" makes the same requests with http.client, and receives and completes with as many
receivers of the Service Bus SDK, with nothing in between: what nobody can be below. Rounds of the two take turns;
figures are medians with the least and the most. Time counts from the first message on, for a receiver takes half a
second to open, once in a process's life.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import logging
import re
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import standin  # noqa: E402

from runonce import Message, handler  # noqa: E402
from runonce.clock import SystemClock  # noqa: E402
from runonce.hosts.discover import Discovered  # noqa: E402
from runonce.hosts.runtime import Runtime  # noqa: E402
from runonce.messages.consumer import ONE_INBOX, Consumer  # noqa: E402
from runonce.messages.plan import Arrival, first  # noqa: E402
from runonce.messages.sending import outgoing, send_all  # noqa: E402
from runonce.settings import ServiceBusConnection, Settings, StorageConnection  # noqa: E402
from runonce.stores.columns import encode  # noqa: E402
from servicebus import launcher  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.definition import Handler

QUEUE = "benchmark"
CPU = 3.0
"""Milliseconds a message may take (docs/performance.md)."""
AT_ONCE, NEAR, FAR = 32, 0.01, 0.05
RATE = {"Storage queues": 300.0, "Service Bus": 140.0}
"""Messages a second, 32 at once, 10 ms away."""
GROWTH = 4.0
"""How much more 64 at once get done than 8, at 50 ms."""
Sides = dict[str, "Callable[[], tuple[float, float]]"]
"""What gives messages a second, and milliseconds of this process's CPU for each."""


def invoices(at_once: int, began: Callable[[], object] = lambda: None) -> Handler:
    """A handler that does nothing, so that only the toolkit's own cost is seen."""

    def send_invoice(_: Message) -> None:
        began()

    return handler(queue=QUEUE, key="invoice_id", concurrency=at_once)(send_invoice)


def body(number: int) -> dict[str, Any]:
    """Some 250 bytes, an ordinary message."""
    return {
        "invoice_id": uuid.uuid4().hex,
        "number": number,
        "customer": "c" * 80,
        "lines": [{"cents": 1999, "text": "x" * 60}] * 2,
    }


def toolkit(settings: Settings, at_once: int, count: int) -> tuple[float, float]:
    """The real consumer."""
    watch = Watch()
    one = invoices(at_once, watch.began)
    with Runtime(settings, found=Discovered(), host="benchmark") as runtime:
        batches = [[outgoing(one, body(n)) for n in range(start, count, 16)] for start in range(16)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda batch: send_all(runtime.sender, one, batch), batches))
        warm = min(16, count // 4)  # connections and imports
        Consumer(runtime.deliverer, runtime.transport, one).run(max_messages=warm)
        consumer = Consumer(runtime.deliverer, runtime.transport, one)
        return watch.of(lambda: consumer.run(max_messages=count - warm), count - warm)


class Watch:
    """Takes the time from the first message on, and the CPU of all."""

    def __init__(self) -> None:
        self._first: float | None = None

    def began(self) -> None:
        """A message is there."""
        self._first = self._first or time.perf_counter()

    def of(self, work: Callable[[], object], count: int) -> tuple[float, float]:
        """So many a second, and milliseconds of CPU for each."""
        self._first, cpu = None, time.process_time()
        work()
        took = time.perf_counter() - (self._first or 0.0)
        return count / took, 1000 * (time.process_time() - cpu) / count


class Requests:
    """Requests with http.client and nothing in between, on a connection for each thread."""

    def __init__(self, connection: str) -> None:
        found = re.findall(r"(Queue|Table)Endpoint=http://[\d.]+:(\d+)", connection)
        self._ports = {name: int(port) for name, port in found}
        self._local = threading.local()
        arrival = Arrival("h" * 36, "benchmark", SystemClock().now(), "m" * 30, "f" * 32, 60, 0)
        self._row = json.dumps(encode(first(invoices(8), "INV-0000000", arrival)))

    def ask(self, service: str, method: str, path: str, text: str = "", **headers: str) -> tuple[Any, bytes]:
        """One request; its answer and the answer's body."""
        connections = vars(self._local).setdefault("connections", {})
        if service not in connections:
            connections[service] = http.client.HTTPConnection("127.0.0.1", self._ports[service])
        connections[service].request(method, f"/{standin.ACCOUNT}/{path}", text or None, headers)
        reply = connections[service].getresponse()
        return reply, reply.read()

    def claim(self, name: str) -> None:
        """The two of a claim: insert and replace."""
        values = self._row.replace("{", f'{{"PartitionKey":"bare","RowKey":"{name}",', 1)
        made, _ = self.ask("Table", "POST", "claims", values, Prefer="return-no-content")
        row = f"claims(PartitionKey='bare',RowKey='{name}')"
        self.ask("Table", "PUT", row, values, **{"If-Match": made.headers["ETag"]})


def bare(connection: str, at_once: int, count: int) -> tuple[float, float]:
    """The requests alone: insert, replace and delete, and a receive for each 32."""
    requests, watch, queue = Requests(connection), Watch(), f"q-{uuid.uuid4().hex[:12]}"
    ask = requests.ask
    text = base64.b64encode(json.dumps(body(0)).encode()).decode()
    message = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>"
    lock, waiting = threading.Lock(), list[tuple[str, str]]()

    def take() -> tuple[str, str]:
        with lock:  # one receives for all
            if not waiting:
                _, found = ask("Queue", "GET", f"{queue}/messages?numofmessages=32&visibilitytimeout=60")
                ids = re.findall(rb"<MessageId>(.*?)</.*?<PopReceipt>(.*?)</", found)
                waiting.extend((name.decode(), receipt.decode()) for name, receipt in ids)
            return waiting.pop()

    def handle(_: int) -> None:
        name, receipt = take()
        watch.began()
        requests.claim(name)
        ask("Queue", "DELETE", f"{queue}/messages/{name}?popreceipt={receipt}")

    with ThreadPoolExecutor(at_once) as pool:
        list(
            pool.map(
                lambda _: ask("Queue", "POST", f"{queue}/messages?visibilitytimeout=0", message), range(count)
            )
        )
        return watch.of(lambda: list(pool.map(handle, range(count))), count)


def bare_bus(connection: str, bus: str, at_once: int, count: int) -> tuple[float, float]:
    """The SDK's receivers alone, one for each eight at once, with the two requests of a claim for each message."""
    requests, watch, left, lock = Requests(connection), Watch(), count, threading.Lock()

    def consume(_: int) -> None:
        nonlocal left
        with (
            ServiceBusClient.from_connection_string(bus) as client,
            client.get_queue_receiver(QUEUE) as queue,
        ):
            while True:
                with lock:
                    wanted = min(ONE_INBOX, left)
                    left -= wanted
                if not wanted:
                    return
                found = queue.receive_messages(max_message_count=wanted, max_wait_time=5)
                with lock:
                    left += wanted - len(found)
                watch.began()
                for message, _ in zip(
                    found, pool.map(lambda _: requests.claim(uuid.uuid4().hex), found), strict=True
                ):
                    queue.complete_message(message)

    with ServiceBusClient.from_connection_string(bus) as client, client.get_queue_sender(QUEUE) as sender:
        for begin in range(0, count, 32):
            texts = [json.dumps(body(n)) for n in range(begin, min(count, begin + 32))]
            sender.send_messages([ServiceBusMessage(text, message_id=uuid.uuid4().hex) for text in texts])
    receivers = max(1, -(-at_once // ONE_INBOX))
    with ThreadPoolExecutor(at_once) as pool, ThreadPoolExecutor(receivers) as consumers:
        return watch.of(lambda: list(consumers.map(consume, range(receivers))), count)


def shown(found: list[tuple[float, float]]) -> str:
    """The median and the spread of both figures."""
    rates, cpus = zip(*found, strict=True)
    return (
        f"{statistics.median(rates):7.1f} ({min(rates):.0f}-{max(rates):.0f}) messages/s "
        f"{statistics.median(cpus):6.2f} ({min(cpus):.2f}-{max(cpus):.2f}) ms CPU"
    )


def compare(name: str, rounds: int, sides: Sides) -> list[tuple[float, float]]:
    """Print the sides' figures; those of the first."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measure in sides.items():
            found[side].append(measure())
    for side, figures in found.items():
        print(f"  {name:22} {side:8} {shown(figures)}", flush=True)
    return next(iter(found.values()))


def measured(
    kind: str, latencies: list[float], at_once: list[int], rounds: int, sides: Callable[[float, int], Sides]
) -> bool:
    """Print one transport's figures; whether the targets are met."""
    met = True
    for latency in latencies:
        rates: dict[int, list[float]] = {}
        for most in at_once:
            name = f"{1000 * latency:.0f} ms, {most} at once"
            found = compare(name, rounds, sides(latency, most))
            rates[most] = [rate for rate, _ in found]
            met = verdict("CPU a message", [cpu for _, cpu in found], CPU, "ms") and met
            if (latency, most) == (NEAR, AT_ONCE):
                met = verdict("at least", [-rate for rate in rates[most]], -RATE[kind], "messages/s") and met
        if {8, 64} <= rates.keys() and latency >= FAR:
            growth = [-statistics.median(rates[64]) / statistics.median(rates[8])]
            met = verdict("64 at once against 8, at least", growth, -GROWTH, "x") and met
    return met


def verdict(what: str, figures: list[float], limit: float, unit: str) -> bool:
    """Print whether a median is within its limit, and whether the spread leaves that open; the former."""
    middle = statistics.median(figures)
    word = "met" if middle <= limit else "MISSED"
    if min(figures) <= limit < max(figures):
        word += ", within the noise"
    print(f"    {what}: {abs(middle):.2f} {unit}, target {abs(limit):.2f} {unit}: {word}", flush=True)
    return middle <= limit


def storage(latencies: list[float], at_once: list[int], rounds: int) -> bool:
    """Storage queues."""
    with contextlib.ExitStack() as opened:
        connections = {latency: opened.enter_context(standin.storage(latency)) for latency in latencies}

        def sides(latency: float, most: int) -> Sides:
            connection, count = connections[latency], max(128, 6 * most)
            settings = Settings("benchmark", StorageConnection(connection))
            return {
                "runonce": partial(toolkit, settings, most, count),
                "bare": partial(bare, connection, most, count),
            }

        return measured("Storage queues", latencies, at_once, rounds, sides)


def servicebus(latencies: list[float], at_once: list[int], rounds: int) -> bool:
    """Service Bus."""
    with launcher.start([launcher.Queue(QUEUE)]) as broker, contextlib.ExitStack() as opened:
        far = {
            latency: (
                opened.enter_context(standin.storage(latency)),
                launcher.connection_string(int(opened.enter_context(standin.relay(broker.port, latency)))),
            )
            for latency in latencies
        }

        def sides(latency: float, most: int) -> Sides:
            (connection, text), count = far[latency], max(128, 12 * most)
            bus = ServiceBusConnection(connection_string=text)
            storage = StorageConnection(connection)
            settings = Settings("benchmark", storage, servicebus=bus, transport="servicebus")
            return {
                "runonce": partial(toolkit, settings, most, count),
                "bare": partial(bare_bus, connection, text, most, count),
            }

        return measured("Service Bus", latencies, at_once, rounds, sides)


def main() -> int:
    """Run it; 1 when a target is missed."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--latency", type=float, nargs="*", default=[NEAR, FAR], help="seconds there and back"
    )
    parser.add_argument("--at-once", type=int, nargs="*", default=[8, AT_ONCE, 64])
    options = parser.parse_args()
    print(f"Storage queues: {options.rounds} rounds, medians (least-most)")
    met = storage(options.latency, options.at_once, options.rounds)
    print(f"Service Bus: {options.rounds} rounds, medians (least-most)")
    met = servicebus(options.latency, options.at_once, options.rounds) and met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
