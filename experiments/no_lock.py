"""Three replicas and no lock: each of them runs each fire time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.lab import Finding, Lab, often

if TYPE_CHECKING:
    from collections import Counter

REPLICAS = 3
FIRE_TIMES = 5


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    lab.say("starting three replicas")
    return carried_out(lab, REPLICAS)


def carried_out(lab: Lab, count: int) -> list[Finding]:
    """The same with any number of replicas."""
    replicas = lab.start("no-lock", count)
    first = (CLOCK.now() + timedelta(seconds=2)).replace(microsecond=0)
    lab.say(f"{FIRE_TIMES} fire times, a second apart")
    for replica in replicas:
        replica.tell(f"{first.isoformat()} {FIRE_TIMES}")
    for replica in replicas:
        replica.hear("done")
    return [judge(lab.times(), count)]


def judge(times: Counter[str], replicas: int = REPLICAS) -> Finding:
    """What was seen, against what is expected."""
    return Finding(
        f"{replicas} replicas, no lock, {FIRE_TIMES} fire times",
        f"each takes effect {replicas} times",
        f"{len(times)} fire times took effect {often(times.values())}: {times.total()} effects",
        ok=len(times) == FIRE_TIMES and set(times.values()) == {replicas},
    )
