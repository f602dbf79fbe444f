"""A replica, as the experiments start it: `python -m experiments.replica KIND EFFECTS`.

It says "ready", obeys lines on its standard input, and ends at once when that is closed: when the process that
started it is gone, so is the replica. `host`, `invoices` and `report` are the local host as it is; the rest are
what a program would be without a part of the toolkit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from experiments import accounts
from experiments.effects import CLOCK, Effects
from experiments.lab import JOBS
from experiments.messages import VISIBILITY, charging
from runonce.errors import RunInterrupted
from runonce.execution.blobs import Blobs
from runonce.execution.lease import Lease
from runonce.execution.registry import lock_name
from runonce.execution.threads import start_thread
from runonce.hosts.discover import Discovered, discover
from runonce.hosts.local import LocalHost
from runonce.hosts.runtime import Runtime
from runonce.hosts.same_machine import watched
from runonce.hosts.signals import end_process
from runonce.messages.consumer import Consumer
from runonce.runs.claim import Claim, claim
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.rows import Outcome
from runonce.settings import Settings
from runonce.stores.azure.wire import services
from runonce.transports.storage import StorageTransport

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.run import Run

SHORT = 0.02
"""Seconds a short job takes."""
PAUSED = "RUNONCE_EXPERIMENT_PAUSED"
"""Names the process that the experiment pauses."""
NEIGHBOURS = "RUNONCE_EXPERIMENT_NEIGHBOURS"
"""Where it is set, a replica may see that another one's process is dead; else it is as if on a machine of its own."""
STEADY = 3
"""Runs that a replica has in hand at the same time, where it is ended."""
REPORT, NEW_YEAR = "report.txt", "0 0 0 1 1 *"


class Parent:
    """The experiment that started this process."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()
        start_thread(self._read, "parent")

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.strip())
        # It is gone. A process that it paused would stay for ever; awake, it sees the same and ends.
        if sys.platform != "win32" and (paused := os.environ.get(PAUSED)):
            with contextlib.suppress(OSError):
                os.kill(int(paused), signal.SIGCONT)
        os._exit(0)

    def hear(self) -> str:
        """The next line it sends."""
        return self._lines.get()

    def tell(self, *words: object) -> None:
        """Send it a line."""
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


def main(kind: str, path: str) -> int:
    """Be a replica of that kind."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    return KINDS[kind](Parent(), Effects(Path(path)))


def sleep(seconds: float) -> None:
    """Let time pass."""
    CLOCK.wait(threading.Event(), seconds)


# -- without a lock -----------------------------------------------------------------------------------------------


def no_lock(parent: Parent, effects: Effects) -> int:
    """Fire at each second from the one the parent names, as many as it says; ask nobody."""
    parent.tell("ready")
    first, count = parent.hear().split()
    for number in range(int(count)):
        fire_time = datetime.fromisoformat(first) + timedelta(seconds=number)
        sleep((fire_time - CLOCK.now()).total_seconds())
        effects.append(fire_time.isoformat())
        sleep(SHORT)
    parent.tell("done")
    parent.hear()
    return 0


# -- the local host -----------------------------------------------------------------------------------------------


def short_job(effects: Effects, before: str = "") -> ScheduledJob:
    """A short job that fires every two seconds; `before` goes before its effects' keys."""

    @scheduled("*/2 * * * * *", name="tick", misfire="all")
    def tick(run: Run) -> None:
        effects.append(before + run.fire_time.isoformat())
        sleep(SHORT)

    return tick


def host(parent: Parent, effects: Effects) -> int:
    """The local host with a short job."""
    return serve(parent, short_job(effects))


def invoices(parent: Parent, effects: Effects) -> int:
    """The local host with the shipped invoice run; its payment provider notes each call it gets."""
    job = discover(JOBS).job("invoice_run")
    module: Any = sys.modules[job.body.__module__]
    provider = module.charge

    def charge(invoice: Any, key: str, seconds: float) -> None:
        effects.append(key, invoice.cents)
        provider(invoice, key, seconds)

    module.charge = charge
    return serve(parent, job)


def report_job(effects: Effects) -> ScheduledJob:
    """A job that writes a report."""

    @scheduled(NEW_YEAR, name="report")
    def report(run: Run) -> None:
        effects.append("report")
        run.blobs.write(REPORT, f"written under token {run.fencing_token}")
        run.ledger.record("report", token=run.fencing_token)
        run.checkpoint.save("written")

    return report


def report(parent: Parent, effects: Effects) -> int:
    """The local host with the job that writes a report."""
    return serve(parent, report_job(effects))


def steady_jobs(effects: Effects) -> list[ScheduledJob]:
    """Jobs that work longer than anybody looks, half a second an item."""

    def body(run: Run) -> None:
        for _ in run.batches(range(400), size=1):
            effects.append(run.job)
            sleep(0.5)

    return [scheduled(NEW_YEAR, name=f"steady-{n}")(body) for n in range(STEADY)]


def steady(parent: Parent, effects: Effects) -> int:
    """The local host with the steady jobs."""
    return serve(parent, *steady_jobs(effects))


def locked(parent: Parent, effects: Effects) -> int:
    """The local host with a short job, a steady one, and the one that writes a report."""
    return serve(parent, short_job(effects, "tick "), steady_jobs(effects)[0], report_job(effects))


def serve(parent: Parent, *jobs: ScheduledJob) -> int:
    """Serve jobs until told to stop."""
    dispatcher = runtime(Settings.from_env(), *jobs).dispatcher
    with neighbours(dispatcher):
        return LocalHost(dispatcher).serve(lambda: parent.tell("ready"))


def neighbours(dispatcher: Dispatcher) -> AbstractContextManager[None]:
    """See which replicas of this machine are dead, where that is to be seen."""
    return watched(dispatcher) if os.environ.get(NEIGHBOURS) else contextlib.nullcontext()


def runtime(settings: Settings, *jobs: ScheduledJob) -> Runtime:
    """A host's parts, for these jobs."""
    return Runtime(settings, found=Discovered({job.name: job for job in jobs}), clock=CLOCK)


def soaked(parent: Parent, effects: Effects) -> int:
    """The local host with the jobs and the handler of a soak."""
    settings = Settings.from_env()
    transport = StorageTransport(services(settings.storage, "queue")[0], VISIBILITY)
    found = Discovered(accounts.jobs(effects, sleep))
    parts = Runtime(settings, found=found, clock=CLOCK, transport=transport)
    consumer = Consumer(parts.deliverer, transport, accounts.orders(settings.namespace, effects))
    with neighbours(parts.dispatcher):
        return LocalHost(parts.dispatcher, [consumer]).serve(lambda: parent.tell("ready"))


# -- a lease alone, and a lease with a claim -----------------------------------------------------------------------


def one_by_one(parent: Parent, effects: Effects) -> int:
    """Run a fire time whenever the parent names one: under a lease alone, or through the dispatcher."""
    settings = Settings.from_env()

    @scheduled("0 0 * * * *", name="short")
    def short(run: Run) -> None:
        effects.append(f"claim {run.fire_time.isoformat()}")
        sleep(SHORT)

    host = runtime(settings, short).dispatcher
    parent.tell("ready")
    while True:
        how, text = parent.hear().split()
        if how == "claim":
            parent.tell("done", host.execute(short, datetime.fromisoformat(text), by="timer").outcome)
            continue
        lease = Lease.acquire(
            host.stores.leases, lock_name(settings.namespace, "lease-alone"), settings.lease, CLOCK
        )
        if lease is not None:
            effects.append(f"lease {text}")
            sleep(SHORT)
            lease.release()
        parent.tell("done", "held elsewhere" if lease is None else "ran")


# -- a holder that is paused ---------------------------------------------------------------------------------------


class Trusting(Lease):
    """A lease that is believed for ever: what a program has that never looks at its clock."""

    @property
    def held(self) -> bool:
        """Always."""
        return True

    def check(self) -> None:
        """Nothing is checked."""

    @property
    def granted_by(self) -> datetime:
        """Now, by the machine's own clock, which is the emulator's."""
        return CLOCK.now()

    def server_now(self) -> datetime:
        """The same."""
        return self.granted_by


def holder(parent: Parent, effects: Effects) -> int:
    """Hold the report's lease and claim, be paused, and then write as if nothing had happened."""
    settings = Settings.from_env()
    job = report_job(effects)
    parts = runtime(settings, job)
    stores, registry = parts.stores, parts.runs
    fire_time = job.schedule.previous(CLOCK.now())
    lock = registry.lock_name(job.name)
    parent.tell("ready")
    lease = Lease.acquire(stores.leases, lock, settings.lease, CLOCK)
    if lease is None or fire_time is None:
        return 1
    lease.keep(lambda _: parent.tell("noticed", CLOCK.elapsed()))
    trusting = Trusting(stores.leases, lock, settings.lease, CLOCK)
    trusting.holder = lease.holder
    claimed = claim(registry, job, fire_time, trusting, by="timer")
    if not isinstance(claimed, Claim):
        return 1
    token = claimed.run.token
    blobs = Blobs(stores.blobs, settings.namespace, job.name, token, trusting.check, CLOCK)
    claimed.save('"begun"', {})
    blobs.write(REPORT, f"begun under token {token}")
    parent.tell("holding", token)
    parent.hear()
    refused = {
        "checkpoint": refusal(lambda: claimed.save('"late"', {})),
        "ledger entry": refusal(lambda: claimed.save("", {}, {"late": {"key": "late", "token": token}})),
        "blob": refusal(lambda: blobs.write(REPORT, "late")),
        "outcome": refusal(lambda: claimed.finish(Outcome.SUCCEEDED)),
    }
    parent.tell("wrote", json.dumps(refused))
    if parent.hear() == "without a fence":
        effects.append("late")
        parent.tell("wrote")
        parent.hear()
    return 0


def refusal(write: Callable[[], None]) -> str:
    """The name of the error a write ends in, or nothing."""
    try:
        write()
    except RunInterrupted as error:
        return type(error).__name__
    return ""


# -- a handler of messages -----------------------------------------------------------------------------------------


def messages(parent: Parent, effects: Effects) -> int:
    """A worker that charges invoices by messages."""
    settings = Settings.from_env()
    transport = StorageTransport(services(settings.storage, "queue")[0], VISIBILITY)
    parts = Runtime(settings, found=Discovered(), clock=CLOCK, transport=transport)
    consumer = Consumer(parts.deliverer, transport, charging(settings.namespace, effects))
    parent.tell("ready")
    consumer.run_for_ever()
    return 0


KINDS: dict[str, Callable[[Parent, Effects], int]] = {
    "no-lock": no_lock,
    "host": host,
    "invoices": invoices,
    "report": report,
    "steady": steady,
    "locked": locked,
    "one-by-one": one_by_one,
    "messages": messages,
    "holder": holder,
    "soaked": soaked,
}

if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))  # as a command does: threads that go on are not taken apart
