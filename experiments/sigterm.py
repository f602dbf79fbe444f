"""SIGTERM in the middle of an invoice run: what a deployment or a scale-in does."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.invoicing import STARTING, InvoiceRun
from experiments.lab import Finding, plural

if TYPE_CHECKING:
    from experiments.lab import Lab

RELEASED_WITHIN = 1.0


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    done = "SIGTERM to the replica that charges"
    released_by = f"lease released within {RELEASED_WITHIN:g} s, exit code 0"
    if sys.platform == "win32":
        return [
            Finding(done, released_by, "skipped: Windows has no SIGTERM that a process can heed", ok=None)
        ]
    invoices = InvoiceRun(lab)
    lab.say("starting three replicas of the local host")
    invoices.start()
    lab.say("charging invoices")
    victim = invoices.middle()
    told = CLOCK.elapsed()
    victim.process.send_signal(signal.SIGTERM)
    lab.mark(victim, "T", "is asked to stop (SIGTERM); it releases its lease")
    lab.say(f"asked process {victim.pid} to stop")
    # A quick successor may hold it again before we look; then its first call says when it was free at the latest.
    lab.wait(
        "the lease to be released",
        lab.settings.lease.duration + STARTING,
        lambda: not invoices.held() or any(call.pid != victim.pid for call in lab.effects.read()),
    )
    released = CLOCK.elapsed() - told
    code = victim.process.wait(lab.settings.shutdown_timeout + STARTING)
    ended = CLOCK.elapsed() - told
    called = sum(call.pid == victim.pid for call in lab.effects.read())
    first = invoices.successor(victim, 2 * (lab.settings.lease.duration + lab.settings.recovery_interval))
    lab.say("another replica goes on")
    charged = invoices.charged()
    taken_over, position = first.at - told, invoices.position(first)
    return [
        Finding(
            f"{done}, after {called:,} of {plural(len(invoices.bill.cents), 'invoice')}",
            released_by,
            f"released after {released:.2f} s, ended after {ended:.1f} s with exit code {code}",
            ok=released <= RELEASED_WITHIN and code == 0,
        ),
        Finding(
            "then the others",
            f"another goes on at invoice {called + 1:,} within {RELEASED_WITHIN + STARTING:g} s",
            f"attempt {charged.attempt} at invoice {position + 1:,} after {taken_over:.1f} s",
            ok=charged.attempt == 2  # noqa: PLR2004
            and position == called
            and taken_over <= RELEASED_WITHIN + STARTING,
        ),
        charged.finding(invoices.bill, "then the run, to its end", repeated=0),
    ]
