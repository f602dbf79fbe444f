"""What scheduled jobs cost on our own hosts: a run, a replica that is too late, ticks, replicas, idleness, a takeover.

    python benchmarks/runs.py [--rounds 3] [--idle 60]

Storage is `standin.py` without a latency, so that what is left is the toolkit's; "bare" makes the five requests of a
run with http.client and nothing in between. "three" are three replicas of `serve` with a job each second: what all of
them take for a fire time, with the schedule, the request queue and the two that come too late. Milliseconds of CPU,
medians with the least and the most.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import standin  # noqa: E402
from messages import verdict  # noqa: E402

from runonce import Run, scheduled  # noqa: E402
from runonce.clock import SystemClock  # noqa: E402
from runonce.hosts.discover import Discovered  # noqa: E402
from runonce.hosts.runtime import Runtime  # noqa: E402
from runonce.runs.recovery import recover  # noqa: E402
from runonce.runs.rows import Outcome  # noqa: E402
from runonce.settings import Settings, StorageConnection  # noqa: E402
from runonce.stores.memory import memory_stores  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.definition import ScheduledJob

LIMITS = {"run": 5.0, "loser": 1.0, "tick": 0.05, "recovery": 100.0, "three": 12.0}
"""Milliseconds that each may take (docs/performance.md)."""
SETTLED, WATCHED = 10.0, 10.0
"""Seconds that replicas get to start, and seconds of a round in which they are watched."""
EACH_SECOND = """
import os
from runonce import Run, scheduled

@scheduled("* * * * * *")
def each_second(run: Run) -> None:
    with open(os.environ["NOTES"], "a") as notes:
        notes.write("run\\n")
"""
JOBS = """
from runonce import Run, scheduled

def job(run: Run) -> None:
    pass

for number in range({count}):
    scheduled(f"0 {{number % 60}} {{({hour} + 6 + number % 12) % 24}} * * *", name=f"job{{number}}")(job)
"""
SLOW = """
import os, time
from pathlib import Path
from runonce import Run, scheduled

@scheduled("* * * * * *", misfire="latest", overlap="skip")
def slow(run: Run) -> None:
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{run.fire_time} {run.attempt} {os.getpid()} {time.time()}\\n")
    while True:
        run.check()
        time.sleep(0.1)
"""


def job(name: str, number: int = 0) -> ScheduledJob:
    """A job that does nothing, so that only the toolkit's own cost is seen."""

    def body(run: Run) -> None:
        """Nothing."""

    return scheduled(f"0 {number % 60} {number % 24} * * *", name=name)(body)


def each(count: int, work: Callable[[int], object]) -> float:
    """Milliseconds of CPU for each of so many."""
    began = time.process_time()
    for number in range(count):
        work(number)
    return 1000 * (time.process_time() - began) / count


def runs(connection: str, count: int = 60) -> tuple[float, float]:
    """A run of its own fire time, and a replica that finds the lease held."""
    namespace = f"n-{uuid.uuid4().hex[:12]}"
    one, settings = job("nightly"), Settings(namespace, StorageConnection(connection))
    with Runtime(settings, found=Discovered(jobs={"nightly": one}), host="benchmark") as runtime:
        times = iter_times()

        def run(_: int) -> None:
            result = runtime.dispatcher.execute(one, next(times), by="timer")
            if result.outcome is not Outcome.SUCCEEDED:
                raise SystemExit(f"a run was {result}")

        run(0)
        cost = each(count, run)
        leases, lock, holder = runtime.stores.leases, f"{settings.namespace}/nightly", str(uuid.uuid4())
        if leases.acquire(lock, holder, 60) is None:
            raise SystemExit("the lease is not free")
        late = next(times)
        loser = each(count, lambda _: runtime.dispatcher.execute(one, late, by="timer"))
        leases.release(lock, holder)
        return cost, loser


def iter_times() -> Iterator[datetime]:
    """Fire times that nobody has run."""
    at = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=400)
    while True:
        at += timedelta(days=1)
        yield at


def bare(connection: str, count: int = 60) -> float:
    """The requests of a run: lease, read, two transactions of two rows, release."""
    ports = dict(re.findall(r"(Blob|Table)Endpoint=http://[\d.]+:(\d+)", connection))
    ends = {name: http.client.HTTPConnection("127.0.0.1", int(port)) for name, port in ports.items()}
    partition, holder = uuid.uuid4().hex, str(uuid.uuid4())

    def ask(service: str, method: str, path: str, body: str = "", **headers: str) -> bytes:
        ends[service].request(method, f"/{standin.ACCOUNT}/{path}", body or None, headers)
        return ends[service].getresponse().read()

    def transaction(rows: list[str], condition: str) -> None:
        parts = "".join(
            f"--c\r\nContent-Type: application/http\r\n\r\n{'PUT' if condition else 'POST'} http://x/{standin.ACCOUNT}/bare"
            + (f"(PartitionKey='{partition}',RowKey='{key}')" if condition else "")
            + f" HTTP/1.1\r\nIf-Match: *\r\n\r\n{values(key)}\r\n"
            for key in rows
        )
        ask("Table", "POST", "$batch", f"--b\r\n\r\n{parts}--c--\r\n")

    def values(key: str) -> str:
        return json.dumps(
            {"PartitionKey": partition, "RowKey": key, **{f"column{n}": "x" * 20 for n in range(25)}}
        )

    def run(number: int) -> None:
        lease = {"x-ms-proposed-lease-id": holder, "x-ms-lease-id": holder, "x-ms-lease-duration": "45"}
        ask("Blob", "PUT", "c/b?comp=lease", **{**lease, "x-ms-lease-action": "acquire"})
        ask("Table", "GET", f"bare(PartitionKey='{partition}',RowKey='job')")
        rows = [f"a{number}", f"b{number}"]
        transaction(rows, "")
        transaction(rows, "*")
        ask("Blob", "PUT", "c/b?comp=lease", **{**lease, "x-ms-lease-action": "release"})

    ask("Blob", "PUT", "c/b")
    return each(count, run)


def ticks(jobs: int, count: int = 200) -> tuple[float, float]:
    """A tick that is not due, and a recovery tick over so many jobs whose rows are there."""
    found = {f"job{n}": job(f"job{n}", n) for n in range(jobs)}
    settings = Settings("benchmark", StorageConnection("UseDevelopmentStorage=true"))
    runtime = Runtime(
        settings, found=Discovered(jobs=found), stores=memory_stores(SystemClock()), host="benchmark"
    )
    far = job("yearly", 3)
    recover(runtime.dispatcher)
    runtime.dispatcher.tick(far)
    return each(count, lambda _: runtime.dispatcher.tick(far)), each(3, lambda _: recover(runtime.dispatcher))


def serve(folder: Path, connection: str, **more: str) -> subprocess.Popen[bytes]:
    """A replica with the jobs of this folder."""
    known = {name: text for name, text in os.environ.items() if not name.startswith("RUNONCE")}
    ours = {"RUNONCE_STORAGE": connection, "RUNONCE_NAMESPACE": "benchmark", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "runonce", "--jobs", str(folder), "serve"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env={**known, **ours, **more}, cwd=folder.parent, **quiet)


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(count: int, seconds: float) -> None:
    """Print what `serve` takes while none of so many jobs is due."""
    with standin.storage(0) as connection, tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder) / "jobs"
        jobs.mkdir()
        (jobs / "many.py").write_text(JOBS.format(count=count, hour=datetime.now(UTC).hour))
        process = serve(jobs, connection)
        try:
            time.sleep(20)  # the start, and the first recovery tick
            started = cpu_of(process)
            time.sleep(seconds)
            took = cpu_of(process) - started
            memory = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
            size = int(memory[1]) // 1024 if memory else 0
            share = f"{100 * took / seconds:.2f} % of a core, {size} MiB"
            print(f"  serve, idle, {count:5} jobs: {share}; start {started:.1f} s of CPU", flush=True)
        finally:
            process.terminate()
            process.wait()


def three(rounds: int) -> list[float]:
    """Milliseconds of CPU that three replicas take together for each fire time of a job each second."""
    with standin.storage(0) as connection, tempfile.TemporaryDirectory() as folder:
        jobs, notes, found = Path(folder) / "jobs", Path(folder) / "notes", []
        jobs.mkdir()
        (jobs / "each_second.py").write_text(EACH_SECOND)
        replicas = [serve(jobs, connection, NOTES=str(notes)) for _ in range(3)]
        try:
            _lines(notes, 1)
            time.sleep(SETTLED)
            for _ in range(rounds):
                ran, cpu = len(_lines(notes, 1)), sum(map(cpu_of, replicas))
                time.sleep(WATCHED)
                found.append(1000 * (sum(map(cpu_of, replicas)) - cpu) / (len(_lines(notes, 1)) - ran))
        finally:
            for replica in replicas:
                replica.terminate()
                replica.wait()
    return found


def takeover() -> None:
    """Print after how long a killed replica's run goes on in another, its lease of 15 s included."""
    lease = {"RUNONCE_LEASE_DURATION": "15", "RUNONCE_LEASE_RENEWAL": "5", "RUNONCE_LEASE_MARGIN": "2"}
    with standin.storage(0.01) as connection, tempfile.TemporaryDirectory() as folder:
        jobs, notes = Path(folder) / "jobs", Path(folder) / "notes"
        jobs.mkdir()
        (jobs / "slow.py").write_text(SLOW)
        replicas = [serve(jobs, connection, NOTES=str(notes), **lease) for _ in range(2)]
        try:
            begun = _lines(notes, 1)[0].rsplit(" ", 2)
            os.kill(int(begun[1]), signal.SIGKILL)
            killed = time.time()
            again = float(_lines(notes, 2)[1].rsplit(" ", 1)[1])
            print(f"  a killed host's run goes on elsewhere after {again - killed:.1f} s (its lease: 15 s)")
        finally:
            for replica in replicas:
                replica.kill()
                replica.wait()


def _lines(file: Path, count: int) -> list[str]:
    for _ in range(1200):
        if file.exists() and len(lines := file.read_text().splitlines()) >= count:
            return lines
        time.sleep(0.05)
    raise SystemExit(f"{file.name} has no {count} lines after a minute")


def main() -> int:
    """Run it; 1 when a target is missed."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--idle", type=float, default=60.0, help="seconds to watch an idle serve; 0 leaves it out"
    )
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with standin.storage(0) as connection:
        for _ in range(options.rounds):
            cost, loser = runs(connection)
            tick, recovery = ticks(1000)
            one = {"run": cost, "bare": bare(connection), "loser": loser, "tick": tick, "recovery": recovery}
            for name, figure in one.items():
                found.setdefault(name, []).append(figure)
    found["three"] = three(options.rounds)
    print(f"{options.rounds} rounds, milliseconds of CPU, medians (least-most)")
    for name, figures in found.items():
        print(f"  {name:9} {statistics.median(figures):8.3f} ({min(figures):.3f}-{max(figures):.3f})")
    met = [verdict(name, found[name], limit, "ms") for name, limit in LIMITS.items()]
    if options.idle:
        for count in (1, 100, 1000):
            idle(count, options.idle)
        takeover()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
