"""A replica: a real process that builds jobs from a small file and works until it is told to stop, or killed.

    python replica.py CONFIG.json NAME

What it does is appended line by line to a file of its own making, the diary, by single O_APPEND writes that
survive a kill at any instant: an account of what happened that owes nothing to the toolkit.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from runonce.clock import SystemClock  # noqa: E402
from runonce.errors import Fenced, RunInterrupted, RunonceError  # noqa: E402
from runonce.hosts.discover import Discovered  # noqa: E402
from runonce.hosts.local import LocalHost  # noqa: E402
from runonce.hosts.runtime import Runtime  # noqa: E402
from runonce.hosts.same_machine import watched  # noqa: E402
from runonce.hosts.signals import end_process  # noqa: E402
from runonce.runs import recovery, requests  # noqa: E402
from runonce.runs.definition import ScheduledJob, scheduled  # noqa: E402
from runonce.settings import LeaseTerms, Settings, StorageConnection  # noqa: E402

if TYPE_CHECKING:
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.run import Run

START = datetime(2026, 1, 1, 3, tzinfo=UTC)
"""What the replicas' wall clock reads when they begin, unless a test says otherwise."""


@dataclass
class Config:
    """What the replicas of one test have in common."""

    connection_string: str
    namespace: str
    diary: str
    began: float
    """System-wide elapsed time at which their wall clock reads `start`."""
    jobs: list[str]
    schedule: str
    mode: str = "host"
    """host: serve. contend: so many threads run one fire time of each job at the same instant."""
    body: str = "work"
    items: int = 4
    pause: float = 0.1
    """Seconds an item takes."""
    threads: int = 0
    fire_times: list[str] = field(default_factory=list)
    start: str = START.isoformat()
    recovery_interval: float = 2.5
    stubborn: bool = False
    """After a refusal, believe in the lease all the same and try again."""
    leases: str = ""
    """The server that holds the leases, where it is not storage."""
    database: str = ""
    """Where the body "charges" writes."""
    same_machine: bool = False
    """Whether replicas may see that another one's process is dead; else they are as if on machines of their own."""
    renewal: str = "thread"
    stall_after: float = 60.0
    helper: str = ""
    """The file with its `fenced`."""

    def settings(self) -> Settings:
        return Settings(
            self.namespace,
            StorageConnection(self.connection_string),
            LeaseTerms(15, 5, 2),
            recovery_interval=self.recovery_interval,
            misfire_grace=3.0,
            shutdown_timeout=5.0,
            leases=self.leases,
        )

    def clock(self) -> SharedClock:
        return SharedClock(self.began, datetime.fromisoformat(self.start))

    def dispatcher(self, name: str) -> Dispatcher:
        found = Discovered({job: self._define(job) for job in self.jobs})
        return Runtime(self.settings(), found=found, clock=self.clock(), host=name).dispatcher

    def _define(self, job: str) -> ScheduledJob:
        body = {
            "work": self._work,
            "writes": self._write_to_the_end,
            "charges": self._charge,
            "hold": self._hold,
        }[self.body]

        def run_it(run: Run) -> None:
            body(run)

        options: dict[str, Any] = {"misfire": "all", "retries": 3, "retry_delay": 1.0}
        if self.renewal == "process":
            options |= {"renewal": "process", "stall_after": self.stall_after}
        return scheduled(self.schedule, name=job, **options)(run_it)

    # -- bodies ---------------------------------------------------------------------------------------------

    def note(self, run: Run, what: str, detail: str = "") -> None:
        """One line in the diary."""
        line = {
            "at": elapsed(),
            "pid": os.getpid(),
            "job": run.job,
            "fire_time": run.fire_time.isoformat(),
            "attempt": run.attempt,
            "what": what,
            "detail": detail,
        }
        file = os.open(self.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)

    def _work(self, run: Run) -> None:
        """Effects in the ledger, one a batch, and one at the end."""
        self.note(run, "start")
        for (item,) in run.batches(range(self.items), size=1):
            self.note(run, "item", str(item))
            time.sleep(self.pause)
            run.ledger.record(f"{run.fire_time:%H%M%S}-{item}", attempt=run.attempt)
        run.ledger.record(f"{run.fire_time:%H%M%S}-done", attempt=run.attempt)
        self.note(run, "end")

    def _write_to_the_end(self, run: Run) -> None:
        """A second attempt ends at once; the first goes on writing until it is refused everything."""
        self.note(run, "start", str(run.checkpoint.load()))
        run.blobs.write("report", f"attempt {run.attempt}")
        if run.attempt > 1:
            run.checkpoint.save("newer")
            return
        run.checkpoint.save("older")
        self.note(run, "holding")
        while not run.stopping:
            time.sleep(0.02)
        self._try_everything(run)
        if self.stubborn:
            run._lease._lost = None
            run._lease._trusted_until = float("inf")
            self._try_everything(run)

    def _try_everything(self, run: Run) -> None:
        for what, write in (
            ("checkpoint", lambda: run.checkpoint.save("too late")),
            ("blob", lambda: run.blobs.write("report", "too late")),
        ):
            run.ledger.staged = {"too late": {"key": "too late"}}
            try:
                write()
            except (RunonceError, RunInterrupted) as error:
                self.note(run, f"{what} refused", type(error).__name__)
            else:
                self.note(run, f"{what} written")

    def _hold(self, run: Run) -> None:
        """The first attempt keeps the interpreter to itself for `pause` seconds, in one call."""
        self.note(run, "start")
        if run.attempt == 1:
            ctypes.PyDLL(None).usleep(int(self.pause * 1e6))
        run.check()
        self.note(run, "end")

    def _charge(self, run: Run) -> None:
        """A second attempt writes a row and ends; the first, once it is told, tries a fenced row and a bare one."""
        import psycopg  # noqa: PLC0415 - of one test

        fenced = runpy.run_path(self.helper)["fenced"]
        charge = "INSERT INTO charges (invoice, amount, token) VALUES (%s, 1, %s)"
        with psycopg.connect(self.database, autocommit=True) as connection:
            with fenced(connection, run):
                connection.execute(charge, (f"attempt {run.attempt}", run.fencing_token))
            if run.attempt > 1:
                return
            self.note(run, "holding")
            while not run.stopping:
                time.sleep(0.02)
            try:
                with fenced(connection, run):
                    connection.execute(charge, ("late, fenced", run.fencing_token))
            except Fenced:
                self.note(run, "refused")
            connection.execute(charge, ("late, not fenced", run.fencing_token))
            self.note(run, "tried")


class SharedClock(SystemClock):
    """A wall clock that read START at an instant all replicas know."""

    def __init__(self, began: float, start: datetime = START) -> None:
        self._began = began
        self._start = start

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.elapsed() - self._began)


def elapsed() -> float:
    """Seconds, the same for all processes of this machine."""
    return SystemClock().elapsed()


def contend(config: Config, name: str) -> None:
    """All threads run one fire time of each job at the same instant; print how each fared."""
    dispatcher = config.dispatcher(name)
    results: list[str] = []
    begun = threading.Barrier(config.threads)

    def one() -> None:
        for round_, known in enumerate(config.jobs):
            job = dispatcher.jobs[known]
            begun.wait()
            time.sleep(max(0.0, config.began + round_ * 1.5 - elapsed()))
            result = dispatcher.execute(job, datetime.fromisoformat(config.fire_times[0]), by="timer")
            results.append(f"{job.name} {result.outcome} {result.reason}")

    threads = [threading.Thread(target=one) for _ in range(config.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(results))


# -- for the tests ------------------------------------------------------------------------------------------------


class Replicas:
    """The replicas of one test, as processes; a context manager that ends what is left of them."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self._folder = folder
        self._file = folder / "replicas.json"
        self._file.write_text(json.dumps(asdict(config)), encoding="utf-8")
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start one more."""
        with (self._folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), str(self._file), name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.config.mode == "contend" else log,
                stderr=log,
                text=True,
                env=os.environ
                | {"PYTHONFAULTHANDLER": "1"},  # where one is aborted, it says what its threads did
            )
        self.started.append(process)
        return process

    def diary(self) -> list[dict[str, Any]]:
        """What all of them have written so far."""
        try:
            text = Path(self.config.diary).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def logs(self) -> str:
        """The end of what they have logged, for a failing test."""
        return "\n".join(path.read_text()[-1500:] for path in sorted(self._folder.glob("*.log")))

    def wait_for(self, what: str, timeout: float = 30.0) -> dict[str, Any]:
        """The first diary line of that kind, once it is there."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            for line in self.diary():
                if line["what"] == what:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no replica wrote {what!r}:\n{self.logs()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def main() -> int:
    config = Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    again = timedelta(seconds=5)  # a killed replica may have taken a request along: do not wait two minutes
    requests.ASK_AGAIN = recovery.ASK_AGAIN = again  # type: ignore[misc]
    if config.mode == "contend":
        contend(config, sys.argv[2])
        return 0
    dispatcher = config.dispatcher(sys.argv[2])
    with watched(dispatcher) if config.same_machine else nullcontext():
        return LocalHost(dispatcher).serve()


if __name__ == "__main__":
    end_process(main())  # as a command does: threads that go on are not taken apart
