"""What an experiment is handed: a namespace, replicas, a file of effects, and somewhere to say how far it is."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from experiments.effects import CLOCK, Effects
from experiments.processes import ExperimentError
from experiments.timeline import Mark, Timeline
from runonce.stores.azure.stores import azure_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from experiments.processes import Processes, Replica
    from runonce.settings import Settings

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "examples"
"""The shipped jobs; the invoice runs use one of them as it is."""
POLL = 0.01


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the table."""

    done: str
    expected: str
    seen: str
    ok: bool | None
    """None: it could not be tried on this machine."""


class Lab:
    """One experiment's own."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        invoices: Path,
        folder: Path,
        processes: Processes,
        say: Callable[[str], None],
    ) -> None:
        self.settings = replace(settings, namespace=f"x-{uuid.uuid4().hex[:8]}-{name}")
        self.stores = azure_stores(self.settings)
        self.invoices = invoices
        self.effects = Effects(folder / f"{name}.effects")
        self.say = say
        self.processes = processes
        self._folder = folder
        self._name = name
        self._started: list[Replica] = []
        self._marks: list[Mark] = []
        self._parts: list[Lab] = []

    def mark(self, replica: Replica, sign: str, what: str) -> None:
        """Note what has just happened to a replica, for the picture."""
        self._marks.append(Mark(CLOCK.elapsed(), replica.pid, sign, what))

    def timeline(self) -> Timeline:
        """What the replicas have done so far, and what was done to them."""
        return Timeline([replica.pid for replica in self._started], self.effects.read(), list(self._marks))

    def start(self, kind: str, count: int = 1, *, environ: Mapping[str, str] | None = None) -> list[Replica]:
        """Start replicas of a kind (see `replica`), and wait until each says that it is ready."""
        started = [self.spawn(kind, environ=environ) for _ in range(count)]
        for replica in started:
            replica.hear("ready")
        return started

    def spawn(self, kind: str, *, environ: Mapping[str, str] | None = None) -> Replica:
        """Start one, and do not wait."""
        settings = self.settings
        variables = {
            **os.environ,
            "RUNONCE_NAMESPACE": settings.namespace,
            "RUNONCE_JOBS": str(JOBS),
            "RUNONCE_RECOVERY_INTERVAL": f"{settings.recovery_interval:g}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONUTF8": "1",
            **(environ or {}),
        }
        log = self._folder / f"{self._name}-{len(self._started)}.log"
        replica = self.processes.start([kind, str(self.effects.path)], variables, log)
        self._started.append(replica)
        return replica

    def part(self, name: str, *, leases: str = "") -> Lab:
        """A lab for a part of this experiment: a namespace and effects of its own, and leases where it says."""
        settings = replace(self.settings, leases=leases)
        made = Lab(f"{self._name}-{name}", settings, self.invoices, self._folder, self.processes, self.say)
        self._parts.append(made)
        return made

    def end(self) -> None:
        """End this experiment's replicas."""
        for part in self._parts:
            part.end()
        for replica in self._started:
            replica.end()

    def wait(self, what: str, timeout: float, look: Callable[[], T | None]) -> T:
        """Wait until `look` returns something (not None, not False), and return that."""
        until = CLOCK.elapsed() + timeout
        while True:
            found = look()
            if found is not None and found is not False:
                return found
            if CLOCK.elapsed() > until:
                raise ExperimentError(f"{what}: not within {timeout:g} s")
            if CLOCK.wait(self.processes.ended, POLL):
                raise ExperimentError("stopped before it was over")

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        CLOCK.wait(self.processes.ended, seconds)

    def times(self) -> Counter[str]:
        """How often each key took effect."""
        return Counter(effect.key for effect in self.effects.read())


def plural(count: int, what: str) -> str:
    """Such as "1 call" and "2 calls"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def often(counts: Iterable[int]) -> str:
    """How often each of several took effect, such as "once each" or "2 to 3 times each"."""
    found = sorted(set(counts))
    words = {0: "never", 1: "once each", 2: "twice each"}
    if not found:
        return "never"
    if len(found) == 1:
        return words.get(found[0], f"{found[0]} times each")
    return f"{found[0]} to {found[-1]} times each"
