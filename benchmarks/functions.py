"""What a message costs the Functions worker: ours, beside a function that inserts one row, and one that does nothing.

    python benchmarks/functions.py [--rounds 3] [--count 300]

The worker is Azure's own for Python 3.13, in an environment that the tests share (.venvs/functions-3.13); a double of
the host hands it messages of a Storage queue, eight at a time. Storage is `standin.py` without a latency. Receiving and
settling are the host's. CPU is the worker's, by /proc; its start is indexing and loading the app. Medians with the
least and the most. Needs requirements-dev.txt, Python 3.13 and Linux.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import uuid
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import standin  # noqa: E402
from messages import body, verdict  # noqa: E402
from processes import cpu, memory  # noqa: E402

from runonce.settings import Settings, StorageConnection  # noqa: E402
from tests.support.functions_app import environment, make_app  # noqa: E402
from tests.support.functions_worker import FunctionsHost, queue  # noqa: E402

AT_ONCE, WARM = 8, 50
OURS = """
from runonce import Message, handler

@handler(queue="benchmark", key="invoice_id")
def take(message: Message) -> None:
    pass
"""
BARE = """
import azure.functions as func
{imports}
app = func.FunctionApp()

@app.queue_trigger(arg_name="message", queue_name="benchmark", connection="AzureWebJobsStorage")
def take(message: func.QueueMessage) -> None:
    {line}
"""
CLIENT = """
import os
from azure.data.tables import TableClient

rows = TableClient.from_connection_string(os.environ["AzureWebJobsStorage"], "seen")
"""
ROW = 'rows.create_entity({"PartitionKey": "benchmark", "RowKey": message.get_json()["invoice_id"]})'
INSERT, EMPTY = BARE.format(imports=CLIENT, line=ROW), BARE.format(imports="", line="message.get_json()")


class Cost(NamedTuple):
    """Of a worker."""

    message: float
    """Milliseconds of CPU for each."""
    start: float
    """Milliseconds of CPU."""
    size: float
    """MiB, after the messages."""


def app_of(name: str, folder: Path) -> Path:
    """A function app with a function `take`."""
    app = make_app(folder / name, {"take.py": OURS} if name == "runonce" else {})
    if name != "runonce":
        (app / "function_app.py").write_text({"one insert": INSERT, "empty": EMPTY}[name])
    return app


def measure(app: Path, environ: dict[str, str], count: int) -> Cost:
    """What a worker of its own takes."""
    with FunctionsHost(app, environ) as host:
        name = next(name for name in host.functions if "take" in name)
        start = cpu([host.pid])
        invoke(host, name, WARM)
        began = cpu([host.pid])
        invoke(host, name, count)
        return Cost(1000 * (cpu([host.pid]) - began) / count, 1000 * start, memory(host.pid))


def invoke(host: FunctionsHost, name: str, count: int) -> None:
    """Hand over so many messages, eight at a time."""
    waiting = deque(host.start_invocation(name, queue(body(n))) for n in range(AT_ONCE))
    for number in range(AT_ONCE, count + AT_ONCE):
        done = waiting.popleft().wait(30)
        if not done.success:
            raise SystemExit(f"{name}: {done.exception}")
        if number < count:
            waiting.append(host.start_invocation(name, queue(body(number))))


def main() -> int:
    """Run it; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300, help="messages of a round")
    options = parser.parse_args()
    found: dict[str, list[Cost]] = {"runonce": [], "one insert": [], "empty": []}
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        connection = StorageConnection(ends.enter_context(standin.storage(0)))
        apps = {name: app_of(name, folder) for name in found}
        for _ in range(options.rounds):
            for name, app in apps.items():
                settings = Settings(f"n-{uuid.uuid4().hex[:12]}", connection)
                found[name].append(measure(app, environment(settings), options.count))
    print(f"{options.rounds} rounds of {options.count} messages, medians (least-most)")
    for name, costs in found.items():
        message, start, size = ([cost[n] for cost in costs] for n in range(3))
        spread = f"{statistics.median(message):5.2f} ({min(message):.2f}-{max(message):.2f})"
        started, kept = statistics.median(start), statistics.median(size)
        print(f"  {name:10} {spread} ms CPU a message; start {started:.0f} ms CPU; {kept:.0f} MiB")
    limit = statistics.median(cost.message for cost in found["one insert"])
    met = verdict("against one insert", [cost.message for cost in found["runonce"]], limit, "ms")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
