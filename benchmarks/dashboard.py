"""The overview's time and storage calls by the number of run records: `python benchmarks/dashboard.py [RECORDS ...]`.

Records are written as rows, a hundred in a transaction, in a namespace of their own on a running emulator
(RUNONCE_STORAGE); then the page is asked for ten times over HTTP, and the median is shown beside the time of one
storage call on the same machine at that moment.
"""

from __future__ import annotations

import http
import http.client
import os
import statistics
import sys
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from azure.core.pipeline.transport import RequestsTransport

from runonce import Run, scheduled
from runonce.hosts.dashboard.local import served
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.runs.rows import JobRow, Outcome, RunRow
from runonce.runs.table import write
from runonce.settings import Settings
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import Connections, Request

JOBS, ASKED = 10, 10
MINUTE = timedelta(minutes=1)


class Counted(RequestsTransport):  # type: ignore[misc]
    """Counts the requests to storage."""

    made = 0
    ours = Connections(own_machine=True)

    def send(self, request: object, **options: object) -> object:
        self.made += 1
        ours = isinstance(request, Request)
        return self.ours.send(request) if ours else super().send(request, **options)


def job(number: int) -> object:
    def body(run: Run) -> None:
        """Does nothing."""

    return scheduled("0 * * * * *", name=f"job_{number}")(body)


def fill(runtime: Runtime, records: int) -> None:
    """So many runs, a minute apart, of ten jobs in turn."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    table, namespace, each = runtime.runs.table, runtime.runs.namespace, records // JOBS
    for number in range(JOBS):
        name = f"job_{number}"
        last = now - MINUTE
        row = JobRow(name, token=each, last_fire_time=last, last_outcome="succeeded", last_finished_at=last)
        table.commit(namespace, [write(replace(row, watermark=last, since=now - each * MINUTE), None)])
        for first in range(1, each + 1, 100):
            runs = [
                RunRow(
                    name,
                    at := now - minutes * MINUTE,
                    Outcome.SUCCEEDED,
                    attempt=1,
                    started_at=at,
                    finished_at=at + timedelta(seconds=7),
                )
                for minutes in range(first, min(first + 100, each + 1))
            ]
            table.commit(namespace, [write(run, None) for run in runs])


def measure(records: int) -> None:
    counted = Counted(connection_timeout=3, read_timeout=30)
    settings = replace(Settings.from_env(), namespace=f"bench-{uuid.uuid4().hex[:8]}")
    found = Discovered({one.name: one for one in map(job, range(JOBS))})  # type: ignore[attr-defined]
    with Runtime(settings, found=found, stores=azure_stores(settings, transport=counted)) as runtime:
        fill(runtime, records)
        with served(runtime, 0, may_act=False) as url:
            took, calls = [], 0
            for _ in range(ASKED):
                counted.made, began = 0, time.perf_counter()
                connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
                connection.request("GET", "/")
                answer = connection.getresponse()
                answer.read()
                if answer.status != http.HTTPStatus.OK:
                    raise SystemExit(f"the page answered {answer.status}")
                connection.close()
                took.append(time.perf_counter() - began)
                calls = counted.made
        alone = []
        for _ in range(ASKED):
            began = time.perf_counter()
            runtime.runs.table.get(settings.namespace, "nothing")
            alone.append(time.perf_counter() - began)
    milliseconds, one = (round(1000 * statistics.median(times), 1) for times in (took, alone))
    spread = f"{1000 * min(took):.0f} to {1000 * max(took):.0f}"
    print(f"{records:>9,} records  {milliseconds:>7} ms ({spread})  {calls:>3} calls  one call {one} ms")


if __name__ == "__main__":
    os.environ.setdefault("RUNONCE_STORAGE", "UseDevelopmentStorage=true")
    for count in map(int, sys.argv[1:] or ["100", "10000", "100000"]):
        measure(count)
