"""Three replicas of the local host: each fire time takes effect once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from experiments.lab import Finding, Lab, often

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.effects import Effect

REPLICAS = 3
FIRE_TIMES = 8
APART = 2
"""Seconds between them, as the replica's short job is scheduled."""
LONGEST = 60.0
AFTER = 1.5
"""Seconds in which a second effect would still come: the local host looks at its queue every second."""


def run(lab: Lab) -> list[Finding]:
    """Carry it out."""
    lab.say("starting three replicas of the local host")
    lab.start("host", REPLICAS)
    # A job's account of its fire times begins with its first claim, so the first one seen opens the count.
    first = lab.wait("a first effect", LONGEST, lambda: next(iter(lab.effects.read()), None))
    start = datetime.fromisoformat(first.key).astimezone(UTC)
    wanted = [(start + timedelta(seconds=APART * n)).isoformat() for n in range(1, FIRE_TIMES + 1)]
    lab.say(f"{FIRE_TIMES} fire times, {APART} s apart")
    lab.wait(f"{FIRE_TIMES} effects", LONGEST, lambda: set(wanted) <= set(lab.times()))
    lab.rest(AFTER)
    lab.end()
    return [judge(lab.effects.read(), wanted)]


def judge(effects: Sequence[Effect], wanted: Sequence[str]) -> Finding:
    """What was seen, against what is expected."""
    counted = [effect for effect in effects if effect.key in set(wanted)]
    times = Counter(effect.key for effect in counted)
    shares = sorted(Counter(effect.pid for effect in counted).values(), reverse=True)
    return Finding(
        f"{REPLICAS} replicas with lease and claim, {len(wanted)} fire times",
        "each takes effect once",
        f"{len(times)} fire times took effect {often(times.values())}: {times.total()} effects "
        f"(by replica: {' + '.join(map(str, shares))})",
        ok=len(times) == len(wanted) and set(times.values()) == {1},
    )
