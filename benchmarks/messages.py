"""What a handler's messages cost on our own hosts: the real consumer, at a distance, with the bare calls beside it.

    python benchmarks/messages.py [--rounds 3] [--latency 0.01 0.05] [--at-once 8 32 64]

Storage is `standin.py`, which keeps each answer back and is no limit itself; the broker is the local one behind a
relay that does the same. "bare" makes the same requests with http.client and nothing in between: what nobody can be
below. Rounds of the two take turns; figures are medians with the least and the most.
"""

from __future__ import annotations

import argparse
import base64
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import standin  # noqa: E402

from runonce import Message, handler  # noqa: E402
from runonce.clock import SystemClock  # noqa: E402
from runonce.hosts.discover import Discovered  # noqa: E402
from runonce.hosts.runtime import Runtime  # noqa: E402
from runonce.messages.consumer import Consumer  # noqa: E402
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
GROWTH = 2.0
"""How much more 64 at once get done than 8, at 50 ms."""


def invoices(at_once: int) -> Handler:
    """A handler that does nothing, so that only the toolkit's own cost is seen."""

    def send_invoice(message: Message) -> None:
        """Nothing."""

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
    """Messages a second, and milliseconds of this process's CPU for each, of the real consumer."""
    one = invoices(at_once)
    with Runtime(settings, found=Discovered(), host="benchmark") as runtime:
        batches = [[outgoing(one, body(n)) for n in range(start, count, 16)] for start in range(16)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda batch: send_all(runtime.sender, one, batch), batches))
        warm = min(16, count // 4)  # connections and imports
        Consumer(runtime.deliverer, runtime.transport, one).run(max_messages=warm)
        return timed(
            lambda: Consumer(runtime.deliverer, runtime.transport, one).run(max_messages=count - warm),
            count - warm,
        )


def timed(work: Callable[[], object], count: int) -> tuple[float, float]:
    """So many a second, and milliseconds of CPU for each."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return count / (time.perf_counter() - began), 1000 * (time.process_time() - cpu) / count


def bare(connection: str, at_once: int, count: int) -> tuple[float, float]:
    """The same of the requests alone: insert, replace and delete, and a receive for each 32."""
    port = {
        name: int(found)
        for name, found in re.findall(r"(Queue|Table)Endpoint=http://[\d.]+:(\d+)", connection)
    }
    arrival = Arrival("h" * 36, "benchmark", SystemClock().now(), "m" * 30, "f" * 32, 60, 0)
    row = json.dumps(encode(first(invoices(8), "INV-0000000", arrival)))
    queue, local = f"q-{uuid.uuid4().hex[:12]}", threading.local()

    def ask(service: str, method: str, path: str, text: str = "", **headers: str) -> tuple[Any, bytes]:
        connections = vars(local).setdefault("connections", {})
        if service not in connections:
            connections[service] = http.client.HTTPConnection("127.0.0.1", port[service])
        connections[service].request(method, f"/{standin.ACCOUNT}/{path}", text or None, headers)
        reply = connections[service].getresponse()
        return reply, reply.read()

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
        keys = f"PartitionKey='{queue}',RowKey='{name}'"
        values = row.replace("{", f'{{"PartitionKey":"{queue}","RowKey":"{name}",', 1)
        made, _ = ask("Table", "POST", "claims", values, Prefer="return-no-content")
        ask("Table", "PUT", f"claims({keys})", values, **{"If-Match": made.headers["ETag"]})
        ask("Queue", "DELETE", f"{queue}/messages/{name}?popreceipt={receipt}")

    with ThreadPoolExecutor(at_once) as pool:
        list(
            pool.map(
                lambda _: ask("Queue", "POST", f"{queue}/messages?visibilitytimeout=0", message), range(count)
            )
        )
        return timed(lambda: list(pool.map(handle, range(count))), count)


def shown(found: list[tuple[float, float]]) -> str:
    """The median and the spread of both figures."""
    rates, cpus = zip(*found, strict=True)
    return (
        f"{statistics.median(rates):7.1f} ({min(rates):.0f}-{max(rates):.0f}) messages/s "
        f"{statistics.median(cpus):6.2f} ({min(cpus):.2f}-{max(cpus):.2f}) ms CPU"
    )


def compare(
    name: str, rounds: int, sides: dict[str, Callable[[], tuple[float, float]]]
) -> list[tuple[float, float]]:
    """Print the sides' figures; those of the first."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measure in sides.items():
            found[side].append(measure())
    for side, figures in found.items():
        print(f"  {name:22} {side:8} {shown(figures)}", flush=True)
    return next(iter(found.values()))


def storage(latencies: list[float], at_once: list[int], rounds: int) -> bool:
    """Print Storage queues' figures; whether the targets are met."""
    met = True
    for latency in latencies:
        rates: dict[int, float] = {}
        with standin.storage(latency) as connection:
            settings = Settings("benchmark", StorageConnection(connection))
            for most in at_once:
                count = max(128, 6 * most)
                found = compare(
                    f"{1000 * latency:.0f} ms, {most} at once",
                    rounds,
                    {
                        "runonce": partial(toolkit, settings, most, count),
                        "bare": partial(bare, connection, most, count),
                    },
                )
                rates[most] = statistics.median(rate for rate, _ in found)
                met = verdict("CPU a message", [cpu for _, cpu in found], CPU, "ms") and met
        if {8, 64} <= rates.keys() and latency >= 0.05:  # noqa: PLR2004
            met = verdict("64 at once against 8, at least", [-rates[64] / rates[8]], -GROWTH, "x") and met
    return met


def verdict(what: str, figures: list[float], limit: float, unit: str) -> bool:
    """Print whether a median is within its limit, and whether the spread leaves that open; the former."""
    middle = statistics.median(figures)
    word = "met" if middle <= limit else "MISSED"
    if min(figures) <= limit < max(figures):
        word += ", within the noise"
    print(f"    {what}: {abs(middle):.2f} {unit}, target {abs(limit):.2f} {unit}: {word}", flush=True)
    return middle <= limit


def servicebus(latencies: list[float], at_once: list[int], rounds: int) -> None:
    """Print Service Bus' figures."""
    with launcher.start([launcher.Queue(QUEUE)]) as broker:
        for latency in latencies:
            with standin.storage(latency) as connection, standin.relay(broker.port, latency) as port:
                bus = ServiceBusConnection(connection_string=launcher.connection_string(int(port)))
                settings = Settings(
                    "benchmark", StorageConnection(connection), servicebus=bus, transport="servicebus"
                )
                for most in at_once:
                    count = max(256, 20 * most)  # opening a receiver takes half a second
                    name = f"{1000 * latency:.0f} ms, {most} at once"
                    compare(
                        name,
                        rounds,
                        {"runonce": partial(toolkit, settings, most, count)},
                    )


def main() -> int:
    """Run it; 1 when a target is missed."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--latency", type=float, nargs="*", default=[0.01, 0.05], help="seconds there and back"
    )
    parser.add_argument("--at-once", type=int, nargs="*", default=[8, 32, 64])
    options = parser.parse_args()
    print(f"Storage queues: {options.rounds} rounds, medians (least-most)")
    met = storage(options.latency, options.at_once, options.rounds)
    print(f"Service Bus: {options.rounds} rounds, medians (least-most)")
    servicebus(options.latency, options.at_once, options.rounds)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
