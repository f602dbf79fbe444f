"""Charges every invoice of invoices.csv once, whatever dies on the way.

Three things keep it to once:

* the ledger: an invoice's entry and the run's position are written in one transaction, and a later attempt or
  a later month leaves out what the ledger has;
* the lease, the claim and the fencing token, which see to it that only one run writes to the ledger;
* the key handed to the payment provider. The provider may be called twice for an invoice, when a host dies
  after a call and before the batch is written. Both calls carry the same key, so the second has no effect.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from typing import TYPE_CHECKING

from runonce import PermanentError, Run, scheduled

from ._invoices import amount, read_invoices

if TYPE_CHECKING:
    from ._invoices import Invoice

INPUT = "invoices.csv"
BATCH = 10
"""Invoices written together; after a crash, as many calls to the provider at most are repeated."""
LATENCY = "INVOICE_SECONDS_PER_INVOICE"
LONGEST_LATENCY = 60.0


@scheduled(
    "0 0 2 1 * *",
    name="invoice_run",
    time_zone="Europe/Istanbul",
    retries=3,
    retry_delay=300,
    max_runtime=1500,  # under the half hour that Functions gives; the next attempt resumes
)
def invoice_run(run: Run) -> None:
    """Charge each invoice once, on the first of the month at 02:00."""
    text = run.blobs.read_text(INPUT)
    invoices = read_invoices(text, f"Job {run.job}, blob {INPUT!r}")
    seconds = seconds_per_invoice(run.job)
    charged = run.ledger.keys()
    # The position is kept under the content's hash: in a file that was changed between two attempts it would
    # mean nothing, so that file is gone through from its start, and the ledger tells what is left.
    content = hashlib.sha256(text.encode()).hexdigest()[:12]
    for batch in run.batches(invoices, size=BATCH, name=f"{INPUT} {content}"):
        try:
            for invoice in batch:
                run.check()
                if invoice.number not in charged:
                    charge(invoice, f"{run.job}:{invoice.number}", seconds)
                    _record(run, invoice)
        except BaseException:
            # Stopped in mid-batch: what was charged is written with a checkpoint, so that no call is repeated.
            run.checkpoint.flush()
            raise
    _write_summary(run)


def charge(invoice: Invoice, key: str, seconds: float) -> None:  # noqa: ARG001 - what a real one needs
    """Where your payment provider's client goes; here it only takes the time that one would.

    Args:
        invoice: What to charge.
        key: Hand it to the provider as its idempotency key. It names the invoice and not the run, so that it
            is the same in every attempt and in every month.
        seconds: How long the stand-in takes.
    """
    if seconds:
        time.sleep(seconds)


def seconds_per_invoice(job: str) -> float:
    """The setting INVOICE_SECONDS_PER_INVOICE, 0 by default: how long the stand-in for the provider takes."""
    text = os.environ.get(LATENCY, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_LATENCY:
        raise PermanentError(
            f"Job {job}: {LATENCY}={text!r} must be a number of seconds from 0 to {LONGEST_LATENCY:g}, such as 0.05."
        )
    return seconds


def _record(run: Run, invoice: Invoice) -> None:
    run.ledger.record(
        invoice.number,
        customer=invoice.customer,
        country=invoice.country,
        cents=invoice.cents,
        fire_time=run.fire_time.isoformat(),
        attempt=run.attempt,
    )


def _write_summary(run: Run) -> None:
    """What this fire time charged, from the ledger: the same whichever attempt writes it."""
    cents = [
        int(entry["cents"])
        for entry in run.ledger.entries()
        if entry["fire_time"] == run.fire_time.isoformat()
    ]
    summary = {"fire_time": run.fire_time.isoformat(), "charged": len(cents), "total": amount(sum(cents))}
    name = f"invoice_runs/{run.fire_time:%Y-%m-%dT%H%M%SZ}.json"
    run.blobs.write(name, json.dumps(summary, indent=2) + "\n", content_type="application/json")
    run.log.info("charged %d invoices, %s in all; see %s", len(cents), summary["total"], name)
