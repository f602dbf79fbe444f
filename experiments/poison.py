"""A message that cannot be handled: put aside with its reason, and replayed once it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.lab import Finding, often, plural
from experiments.messages import Charges
from runonce.messages.dead_letters import replay, view

if TYPE_CHECKING:
    from experiments.lab import Lab

OTHERS = 5
KNOWN, MISSING = 1, 17
LONGEST = 60.0


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    charges = Charges(lab)
    charges.add_customer(KNOWN)
    lab.say("sending a message that cannot be handled, among others")
    others = [f"{n:03d}" for n in range(OTHERS)]
    bodies = [{"invoice": invoice, "customer": KNOWN} for invoice in others]
    charges.send([*bodies, {"invoice": "poison", "customer": MISSING}])
    charges.start(2)
    lab.wait("the queue to be empty", LONGEST, lambda: charges.left() == 0)
    letters = charges.dead_letters()
    try:
        put_aside = [view(charges.registry, charges.handler, dead) for dead in letters.peek(10)]
        before = charges.times()
        found = [
            Finding(
                f"a message for a customer there is not, among {OTHERS} others",
                f'dead-lettered with "there is no customer {MISSING}", the others handled once each',
                f"{plural(len(put_aside), 'dead letter')}"
                + "".join(f", {one.description.rpartition(': ')[2]!r}" for one in put_aside)
                + f"; the others {often(before.get(invoice, 0) for invoice in others)}",
                ok=[one.key for one in put_aside] == ["poison"]
                and f"there is no customer {MISSING}" in put_aside[0].description
                and dict(before) == dict.fromkeys(others, 1),
            )
        ]
        lab.say("adding the customer, and replaying the dead letter")
        charges.add_customer(MISSING)
        for dead in letters.take(10):
            replay(charges.registry, charges.sender, charges.handler, letters, dead)
    finally:
        letters.close()
    lab.wait("the queue to be empty", LONGEST, lambda: charges.left() == 0)
    after, left = charges.times(), charges.put_aside()
    return [
        *found,
        Finding(
            "then the customer is added and the dead letter replayed",
            "handled once, no dead letter left",
            f"handled {often([after.get('poison', 0)])}, {plural(left, 'dead letter')} left",
            ok=after == before + type(before)({"poison": 1}) and left == 0,
        ),
    ]
