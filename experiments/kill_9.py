"""kill -9 in the middle of an invoice run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.invoicing import BATCH, STARTING, InvoiceRun
from experiments.lab import Finding, plural

if TYPE_CHECKING:
    from experiments.lab import Lab

ON_ITS_WAY = 1.0
"""Seconds in which a write that the victim had sent before it died is carried out."""


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    lease, tick = lab.settings.lease.duration, lab.settings.recovery_interval
    invoices = InvoiceRun(lab)
    lab.say("starting three replicas of the local host")
    invoices.start()
    lab.say("charging invoices")
    victim = invoices.middle()
    victim.process.kill()
    killed = CLOCK.elapsed()
    lab.mark(victim, "X", "is killed (kill -9); its lease has to run out")
    victim.process.wait()
    called = len(lab.effects.read())
    lab.say(f"killed process {victim.pid} after {plural(called, 'invoice')}; its lease runs out ({lease} s)")
    lab.rest(ON_ITS_WAY)
    written = sum(invoices.row().progress.values())
    first = invoices.successor(victim, 2 * (lease + tick) + STARTING)
    lab.say("another replica goes on")
    charged = invoices.charged()
    taken_over, position = first.at - killed, invoices.position(first)
    limit = lease + tick + STARTING
    return [
        Finding(
            f"kill -9 of the replica that charges, after {called:,} of {plural(len(invoices.bill.cents), 'invoice')}",
            f"another goes on at the first unwritten batch, at invoice {written + 1:,}, within {limit:g} s "
            f"({lease} s lease, {tick:g} s recovery tick, {STARTING:g} s start)",
            f"attempt {charged.attempt} at invoice {position + 1:,} after {taken_over:.1f} s",
            ok=charged.attempt == 2 and position == written and taken_over <= limit,  # noqa: PLR2004
        ),
        charged.finding(invoices.bill, "then the run, to its end", repeated=BATCH),
    ]
