"""An invoice run on three replicas: starting it, watching it, and adding up what it charged."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from experiments.effects import CLOCK, Effect
from experiments.lab import JOBS, Finding, Lab, plural
from experiments.processes import ExperimentError, Replica
from runonce.execution.registry import lock_name
from runonce.hosts.discover import Discovered, discover
from runonce.hosts.runtime import Runtime
from runonce.runs.operate import ask
from runonce.runs.rows import RunRow, key_range
from runonce.runs.table import read_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REPLICAS = 3
BATCH = 10
"""Invoices the job writes together."""
LATENCY = "INVOICE_SECONDS_PER_INVOICE"
RUN_SECONDS = 6.0
"""About how long an undisturbed run takes, so that it can be disturbed in its middle."""
SLOWEST, QUICKEST = 0.2, 0.002
STARTING = 5.0
"""Seconds from a replica's being asked to its first invoice: a look at the queue each second, claim, reading."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the file says, added up without the job's code: cents by invoice, in order."""

    cents: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> Bill:
        """Read the file."""
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        return cls({row["InvoiceId"].strip(): int(Decimal(row["Total"].strip()) * 100) for row in rows})

    @property
    def total(self) -> str:
        """The sum."""
        return money(sum(self.cents.values()))


def money(cents: int) -> str:
    """Such as 2,328.60."""
    return f"{Decimal(cents) / 100:,.2f}"


@dataclass(frozen=True, slots=True)
class Charged:
    """What was charged, according to the provider and to the ledger."""

    calls: Sequence[Effect]
    ledger: Sequence[int]
    """Cents of each entry."""
    outcome: str
    attempt: int

    def finding(self, bill: Bill, done: str, *, repeated: int) -> Finding:
        """Each invoice once: one entry each in the ledger, and at most so many calls repeated under one key."""
        calls = Counter(call.key for call in self.calls)
        again = calls.total() - len(calls)
        by_provider = sum({call.key: call.amount for call in self.calls}.values())
        exact = (
            sorted(self.ledger) == sorted(bill.cents.values())
            and len(calls) == len(bill.cents)
            and by_provider == sum(bill.cents.values())
        )
        calls_expected = f"at most {repeated} calls repeated, same key" if repeated else "no call repeated"
        calls_seen = f"{plural(again, 'call')} repeated under the same key" if again else "no call repeated"
        ended = "" if self.outcome == "succeeded" else f"; the run {self.outcome}"
        return Finding(
            done,
            f"{len(bill.cents):,} invoices charged once, {bill.total} in all; {calls_expected}",
            f"{len(self.ledger):,} charged, {money(sum(self.ledger))} in all; {calls_seen}{ended}",
            ok=exact and again <= repeated and self.outcome == "succeeded",
        )


class InvoiceRun:
    """One fire time of the shipped invoice run."""

    def __init__(self, lab: Lab) -> None:
        self.bill = Bill.read(lab.invoices)
        self._lab = lab
        self._job = discover(JOBS).job("invoice_run")
        fire_time = self._job.schedule.previous(CLOCK.now())
        if fire_time is None:
            raise ExperimentError("the invoice run has no fire time")
        self._fire_time = fire_time
        found = Discovered({self._job.name: self._job})
        parts = Runtime(lab.settings, found=found, stores=lab.stores, clock=CLOCK, host="the experiment")
        self._dispatcher = parts.dispatcher
        self.replicas: list[Replica] = []
        self.patience = 60.0 + 0.2 * len(self.bill.cents)

    def start(self) -> None:
        """Three replicas of the local host, and a request for the run."""
        lab = self._lab
        content = lab.invoices.read_bytes()
        name = f"{lab.settings.namespace}/invoices.csv"
        lab.stores.blobs.write(name, content, {}, etag=None, content_type="text/csv")
        seconds = min(SLOWEST, max(QUICKEST, RUN_SECONDS / len(self.bill.cents)))
        self.replicas = lab.start("invoices", REPLICAS, environ={LATENCY: f"{seconds:.4f}"})
        ask(self._dispatcher, self._job, self._fire_time)

    def middle(self) -> Replica:
        """The replica that charges, once it is in the middle of the run and of a batch."""
        half = len(self.bill.cents) // 2
        enough = max(1, half - half % BATCH + BATCH // 2 if half > BATCH else half)
        calls = self._lab.wait(
            f"{enough} charged invoices",
            self.patience,
            lambda: found if len(found := self._lab.effects.read()) >= enough else None,
        )
        return next(replica for replica in self.replicas if replica.pid == calls[-1].pid)

    def successor(self, victim: Replica, timeout: float) -> Effect:
        """The first call of another replica than the victim."""
        return self._lab.wait(
            "another replica to go on",
            timeout,
            lambda: next((call for call in self._lab.effects.read() if call.pid != victim.pid), None),
        )

    def row(self) -> RunRow:
        """The run as it is recorded."""
        found = read_run(self._dispatcher.registry, self._job.name, self._fire_time)
        if found is None:
            raise ExperimentError("the run left no record")
        return found[0]

    def held(self) -> bool:
        """Whether somebody holds the job's lease."""
        return self._lab.stores.leases.held(lock_name(self._lab.settings.namespace, self._job.name))

    def position(self, call: Effect) -> int:
        """Which invoice of the file a call is for, from 0."""
        return list(self.bill.cents).index(call.key.removeprefix(f"{self._job.name}:"))

    def charged(self) -> Charged:
        """What came of it, once the run has ended."""
        row = self._lab.wait(
            "the run to end", self.patience, lambda: row if (row := self.row()).outcome.is_final else None
        )
        entries = self._lab.stores.runs.scan(
            self._lab.settings.namespace, *key_range("entry", self._job.name)
        )
        cents = [int(entry.values["cents"]) for entry in entries]
        return Charged(self._lab.effects.read(), cents, str(row.outcome), row.attempt)
