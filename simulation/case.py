"""What happens in one schedule of events, drawn from its seed: hosts, faults, operators, and the job itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.execution.options import OnAbandoned
    from runonce.schedules.misfire import Misfire

KINDS = (
    ("kill", 5),
    ("pause", 5),
    ("stop", 5),
    ("told, then killed", 3),
    ("cut", 4),
    ("clock", 3),
    ("slow", 2),
    ("ask", 4),
    ("pause job", 1),
    ("break lease", 2),
    ("run by hand", 1),
    ("replay", 1),
    ("resume run", 1),
    ("cancel", 1),
    ("mark", 1),
)
"""What may happen, and how often beside the others."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens."""

    id: str
    at: float
    kind: str
    dice: float
    """Chooses the host, busy ones first."""
    seconds: float
    """How long it lasts, or how far a clock is set, or how soon a dead host starts again."""

    def __str__(self) -> str:
        return f"{self.id} at {self.at:.1f} s: {self.kind} ({self.seconds:.0f} s)"


@dataclass(frozen=True, slots=True)
class Host:
    """A host from the beginning."""

    name: str
    starts: float
    skew: float
    """Seconds its wall clock is ahead."""


@dataclass(frozen=True, slots=True)
class Case:
    """All that one simulation is made of."""

    seed: int
    hosts: tuple[Host, ...]
    faults: tuple[Fault, ...]
    fault_rate: float
    """Of single calls."""
    misfire: Misfire
    on_abandoned: OnAbandoned
    period: int
    """Seconds between fire times."""
    new_period: int | None
    """Of the version that is deployed half-way, if one is."""
    items: int
    item_seconds: float
    failing: float
    """How often an item fails."""
    retries: int
    deaf: float
    """How often an item takes a long time and heeds no stop."""
    shutdown_timeout: float
    lasts: float
    """Seconds until everything is whole again."""
    calm: bool
    """Hosts are only told to stop, so that nothing may count as a death."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Faults that are left out."""

    def leave_out(self, ids: Iterable[str]) -> Case:
        """The same without these."""
        return replace(self, without=self.without | frozenset(ids))


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    calm = rng.random() < 0.1
    period = rng.choice((10, 20, 30, 60, 60, 60, 120))
    lasts = min(rng.choice((180.0, 300.0, 420.0)), 10.0 * period + 60.0)
    apart = 0.0 if calm else rng.choice((0.0, 0.0, 2.0, 25.0, 200.0, 90_000.0))
    hosts = tuple(
        Host(f"h{n}", 0.0 if n < 2 else rng.uniform(0, 60), rng.uniform(-apart, apart))
        for n in range(rng.choice((2, 3, 3, 4)))
    )
    kinds = (("stop", 5), ("ask", 1)) if calm else KINDS
    faults: list[Fault] = []
    at = 20.0
    between = rng.choice((15.0, 30.0, 60.0))
    while (at := at + rng.expovariate(1 / between)) < lasts:
        (kind,) = rng.choices([k for k, _ in kinds], [w for _, w in kinds])
        seconds = rng.choice((1.0, 5.0, 15.0, 35.0, 44.0, 50.0, 70.0, 130.0))
        faults.append(Fault(f"f{len(faults)}", at, kind, rng.random(), seconds))
    return Case(
        seed=seed,
        hosts=hosts,
        faults=tuple(faults),
        fault_rate=0.0 if calm else rng.choice((0.0, 0.01, 0.03, 0.1)),
        misfire=rng.choice(("skip", "latest", "all")),
        on_abandoned="rerun" if rng.random() < 0.8 else "hold",
        period=period,
        new_period=rng.choice((period, 40, 90)) if rng.random() < 0.25 else None,
        items=rng.choice((1, 2, 4)),
        item_seconds=rng.choice((0.5, 4.0, 12.0, 30.0)),
        failing=0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.2)),
        retries=rng.choice((0, 2, 50)),
        deaf=0.0 if calm else rng.choice((0.0, 0.1)),
        shutdown_timeout=40.0 if calm else rng.choice((8.0, 20.0, 45.0)),
        lasts=lasts,
        calm=calm,
    )
