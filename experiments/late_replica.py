"""A short job and a late replica: the lease is free again when the late one comes, so only the claim helps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from experiments.lab import Finding, Lab, often

if TYPE_CHECKING:
    from collections import Counter

FIRE_TIMES = 5
LATE = 0.1
"""Seconds by which one replica is late; more on a machine on which the other one takes longer."""


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    lab.say("starting two replicas")
    punctual, late = lab.start("one-by-one", 2)
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    for how in ("lease", "claim"):
        lab.say(f"{FIRE_TIMES} fire times, one replica 100 ms late, {how}")
        for number in range(FIRE_TIMES):
            fire_time = (midnight + timedelta(hours=number)).isoformat()
            began = CLOCK.elapsed()
            punctual.tell(f"{how} {fire_time}")
            punctual.hear("done")
            lab.rest(began + LATE - CLOCK.elapsed())
            late.tell(f"{how} {fire_time}")
            late.hear("done")
    return judge(lab.times())


def judge(times: Counter[str], alone: int = 2, claimed: int = 1) -> list[Finding]:
    """What was seen, against what is expected."""
    job = "20 ms job, a second replica 100 ms late"
    return [
        _finding(f"{job}: a lease alone", times, "lease", alone),
        _finding(f"{job}: lease and claim", times, "claim", claimed),
    ]


def _finding(done: str, times: Counter[str], how: str, expected: int) -> Finding:
    counts = [count for key, count in times.items() if key.startswith(f"{how} ")]
    return Finding(
        f"{done}, {FIRE_TIMES} fire times",
        f"each takes effect {'once' if expected == 1 else 'twice'}",
        f"{len(counts)} fire times took effect {often(counts)}: {sum(counts)} effects",
        ok=len(counts) == FIRE_TIMES and set(counts) == {expected},
    )
