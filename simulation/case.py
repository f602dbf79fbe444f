"""What happens in one schedule of events, drawn from its seed: hosts, faults, operators, and the job itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.execution.options import OnAbandoned
    from runonce.schedules.misfire import Misfire

Kinds = tuple[tuple[str, int], ...]

HOST_KINDS: Kinds = (
    ("kill", 5),
    ("pause", 5),
    ("stop", 5),
    ("told, then killed", 3),
    ("cut", 4),
    ("clock", 3),
    ("slow", 2),
)
"""What may happen to a host, and how often beside the others."""
JOB_KINDS: Kinds = (
    ("ask", 4),
    ("pause job", 1),
    ("break lease", 2),
    ("run by hand", 1),
    ("backfill", 1),
    ("replay", 1),
    ("resume run", 1),
    ("cancel", 1),
    ("mark", 1),
)
MESSAGE_KINDS: Kinds = (
    ("replay dead letters", 4),
    ("purge dead letters", 1),
    ("break lock", 1),
    ("locks lost", 2),
    ("completes nothing", 2),
)

FUNCTIONS_KINDS: Kinds = (
    ("worker killed", 3),
    ("host killed", 1),
    ("host told", 1),
)
"""What may happen to a Functions host or to its worker without the other."""

FUNCTIONS = 0.3
"""How many cases are of a Functions app."""
ALONE = 0.3
"""How many of those have their hosts and workers killed without each other."""
STORAGE = 0.4
"""How many of those with messages have these in Storage queues."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that one simulation is made of."""

    seed: int
    hosts: tuple[Host, ...]
    faults: tuple[Fault, ...]
    fault_rate: float
    """Of single calls."""
    on_abandoned: OnAbandoned
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
    functions: bool
    """Hosts are instances of a Functions app, with that host's own moves."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Faults that are left out."""

    def leave_out(self, ids: Iterable[str]) -> Self:
        """The same without these."""
        return replace(self, without=self.without | frozenset(ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCase(Case):
    """A scheduled job."""

    misfire: Misfire
    period: int
    """Seconds between fire times."""
    new_period: int | None
    """Of the version that is deployed half-way, if one is."""
    gone: float
    """Seconds after which a version that accounts for nothing counts as gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCase(Case):
    """A topic with two subscriptions, and the queue of what follows from one of them."""

    orders: int
    """Different keys."""
    apart: float
    """Seconds between two of them, on average."""
    bad: float
    """How many have a body that can have no effect at first, and are corrected later."""
    twice: float
    """How many are sent more than once."""
    reused: float
    """How many have a key that comes with another body too."""
    tenants: int
    """Who orders: the messages of one are handled one at a time by one of the subscribers."""
    window: float
    """Seconds in which the broker drops a message whose id it has seen."""
    concurrency: int
    """Messages of one handler at a time on one host; beyond eight a thread talks to the broker for each eight."""
    storage: bool
    """Whether a Functions app has its messages in Storage queues."""
    any_thread: bool
    """Whether the transport lets each working thread settle its own message."""


def draw(seed: int) -> JobCase | MessageCase:
    """The case of a seed: every second one is of messages."""
    rng = random.Random(seed)
    return _messages(seed, rng) if seed % 2 else _jobs(seed, rng)


def _jobs(seed: int, rng: random.Random) -> JobCase:
    period = rng.choice((10, 20, 30, 60, 60, 60, 120))
    lasts = min(rng.choice((180.0, 300.0, 420.0)), 10.0 * period + 60.0)
    return JobCase(
        **_common(seed, rng, lasts, JOB_KINDS, "ask"),
        misfire=rng.choice(("skip", "latest", "all")),
        period=period,
        new_period=rng.choice((period, 40, 90)) if rng.random() < 0.25 else None,
        gone=rng.choice((60.0, 900.0)),
        items=rng.choice((1, 2, 4)),
        item_seconds=rng.choice((0.5, 4.0, 12.0, 30.0)),
        retries=rng.choice((0, 2, 50)),
    )


def _messages(seed: int, rng: random.Random) -> MessageCase:
    lasts = rng.choice((90.0, 180.0, 300.0))
    return MessageCase(
        **_common(seed, rng, lasts, MESSAGE_KINDS, "replay dead letters"),
        orders=rng.choice((4, 8, 12)),
        apart=rng.choice((0.0, 2.0, lasts / 8)),
        bad=rng.choice((0.0, 0.3)),
        twice=rng.choice((0.0, 0.4)),
        reused=rng.choice((0.0, 0.2)),
        tenants=rng.choice((1, 2, 8)),
        window=rng.choice((60.0, 600.0)),
        any_thread=rng.random() < 0.5,
        storage=random.Random(f"{seed} storage").random() < STORAGE,
        concurrency=rng.choice((1, 8, 12)),
        items=rng.choice((1, 2, 4)),
        item_seconds=rng.choice((0.1, 1.0, 8.0)),
        retries=rng.choice((0, 2, 5)),
    )


def _common(seed: int, rng: random.Random, lasts: float, kinds: Kinds, harmless: str) -> dict[str, Any]:
    functions = random.Random(f"{seed} functions").random() < FUNCTIONS
    alone = random.Random(f"{seed} alone")
    calm = rng.random() < 0.1
    apart = 0.0 if calm else rng.choice((0.0, 0.0, 2.0, 25.0, 200.0, 90_000.0))
    hosts = tuple(
        Host(f"h{n}", 0.0 if n < 2 else rng.uniform(0, 60), rng.uniform(-apart, apart))
        for n in range(rng.choice((2, 3, 3, 4)))
    )
    faults = _faults(rng, lasts, (("stop", 5), (harmless, 1)) if calm else (*HOST_KINDS, *kinds))
    if functions and not calm and alone.random() < ALONE:
        faults += _faults(alone, lasts, FUNCTIONS_KINDS, "a")
    return {
        "seed": seed,
        "lasts": lasts,
        "calm": calm,
        "functions": functions,
        "hosts": hosts,
        "faults": faults,
        "fault_rate": 0.0 if calm else rng.choice((0.0, 0.01, 0.03, 0.1)),
        "on_abandoned": "rerun" if rng.random() < 0.8 else "hold",
        "failing": 0.0 if calm else rng.choice((0.0, 0.0, 0.05, 0.2)),
        "deaf": 0.0 if calm else rng.choice((0.0, 0.1)),
        "shutdown_timeout": 40.0 if calm else rng.choice((8.0, 20.0, 45.0)),
    }


def _faults(rng: random.Random, lasts: float, kinds: Kinds, name: str = "f") -> tuple[Fault, ...]:
    faults: list[Fault] = []
    at, between = 5.0, rng.choice((15.0, 30.0, 60.0))
    while (at := at + rng.expovariate(1 / between)) < lasts:
        (kind,) = rng.choices([k for k, _ in kinds], [w for _, w in kinds])
        seconds = rng.choice((1.0, 5.0, 15.0, 35.0, 44.0, 50.0, 70.0, 130.0))
        faults.append(Fault(f"{name}{len(faults)}", at, kind, rng.random(), seconds))
    return tuple(faults)
