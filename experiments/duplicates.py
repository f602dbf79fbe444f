"""Every message is delivered several times, to several workers at once: what at-least-once delivery means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.lab import Finding, often, plural
from experiments.messages import Charges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.lab import Lab

MESSAGES, TIMES, WORKERS = 40, 5, 3
LONGEST = 90.0


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    charges = Charges(lab)
    charges.add_customer(1)
    lab.say("sending each message five times")
    invoices = [f"{n:03d}" for n in range(MESSAGES)]
    charges.send([{"invoice": invoice, "customer": 1} for invoice in invoices], TIMES)
    lab.say("three workers handle them")
    charges.start(WORKERS)
    lab.wait("the queue to be empty", LONGEST, lambda: charges.left() == 0)
    return [judge(charges.times(), invoices)]


def judge(times: Mapping[str, int], invoices: list[str]) -> Finding:
    """What came of it."""
    return Finding(
        f"{plural(MESSAGES, 'message')}, each delivered {TIMES} times, to {WORKERS} workers",
        f"{MESSAGES} effects, once each",
        f"{plural(sum(times.values()), 'effect')}, {often(times.get(invoice, 0) for invoice in invoices)}",
        ok=dict(times) == dict.fromkeys(invoices, 1),
    )
