"""One simulated world: a server, hosts with clocks of their own, an operator, and what befalls them."""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runonce.errors import InputError, StoreError, TransportError
from runonce.settings import Settings, StorageConnection
from simulation.baton import Process, Simulator
from simulation.faults import HOSTS
from simulation.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.execution.body import Flow
    from simulation.baton import Task
    from simulation.case import Case, Fault
    from simulation.checks import Checks

START = datetime(2026, 1, 1, tzinfo=UTC)
LATEST = 51.0
"""Seconds after which no call that was made is carried out any more."""
WHOLE = 1200.0
"""Seconds in which everything must be accounted for once nothing breaks any more, beside what the work takes."""

C = TypeVar("C", bound="Case")
H = TypeVar("H", bound="SimHost")


class SimClock:
    """A wall clock that may be wrong, and elapsed time, which is not."""

    def __init__(self, sim: Simulator, skew: float = 0.0) -> None:
        self._sim = sim
        self.skew = skew

    def now(self) -> datetime:
        return START + timedelta(seconds=self._sim.now + self.skew)

    def elapsed(self) -> float:
        return self._sim.now

    def wait(self, event: Any, seconds: float) -> bool:
        if not event.is_set():
            # An event made before the simulation's own is never set by anybody who waits.
            self._sim.wait(getattr(event, "waiting", None), max(0.0, seconds))
        return bool(event.is_set())


class SimHost(Process, ABC):
    """A process of the toolkit."""

    def __init__(self, world: World[Any, Any], name: str, skew: float) -> None:
        super().__init__(name)
        self.world = world
        self.clock = SimClock(world.sim, skew)
        self.wire = Wire(world.case, self, world.server_process, world.fault)
        self.rng = random.Random(f"{world.case.seed} {name} body")

    @property
    @abstractmethod
    def flow(self) -> Flow[Any]:
        """What runs its work."""

    @abstractmethod
    def start(self) -> None:
        """Begin to serve."""

    @abstractmethod
    def stop(self) -> None:
        """Stop as told: wait for what runs, give up what does not end, go."""

    def spawn(self, call: Callable[[], object], name: str) -> Task:
        """A thread of this host's."""
        return self.world.sim.spawn(call, self, name)

    @property
    def serves(self) -> bool:
        """Whether it takes anything new."""
        return not self.dead and self.flow.stop.cause is None

    def set_clock(self, skew: float) -> None:
        """Set the wall clock."""
        self.clock.skew = skew

    def leaves(self) -> None:
        """Its process ends of itself."""
        if not self.dead:
            self.world.note(self.name, "is gone")
        self.world.kill(self)


class World(ABC, Generic[C, H]):
    """Everything of one case."""

    operator: H

    def __init__(self, case: C, checks: Checks) -> None:
        random.seed(case.seed)  # a retry's delay is spread at random
        self.case = case
        self.checks = checks
        checks.world = self
        self.sim = Simulator(random.Random(f"{case.seed} order"), checks.after_step)
        self.sim.crashed = self._crashed
        self.clock = SimClock(self.sim)
        self.ends = START + timedelta(seconds=case.lasts)
        self.settings = Settings(
            "test", StorageConnection("UseDevelopmentStorage=true"), shutdown_timeout=case.shutdown_timeout
        )
        self.server_process = Process("server")
        self.trace: list[tuple[float, str, str]] = []
        self.injected: list[str] = []
        self.hosts: list[H] = []
        self.gone: dict[str, float] = {}
        self._is_whole = False

    @abstractmethod
    def make_host(self, name: str, skew: float) -> H:
        """A host of the version that is out."""

    @property
    @abstractmethod
    def verbs(self) -> Mapping[str, Callable[[Any, Fault], None]]:
        """What an operator does, by kind of fault."""

    @abstractmethod
    def begin(self) -> None:
        """Set in motion what is no host's."""

    @abstractmethod
    def whole(self) -> None:
        """What else becomes whole again."""

    @property
    @abstractmethod
    def work(self) -> float:
        """Seconds that all the work may take."""

    # -- telling ------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the trace."""
        self.trace.append((self.sim.now, who, what))

    def fault(self, this: str, what: str) -> None:
        """A fault that was injected."""
        self.injected.append(what.rpartition(": ")[2])
        self.note(this, what)

    def _crashed(self, task: Any, error: BaseException) -> None:
        is_told = isinstance(error, StoreError | TransportError | InputError)
        if not is_told or (task.process is not self.operator and task.process in self.hosts):
            self.checks.violated(
                "nothing is raised into the host",
                f"{task.name} on {task.process.name}: {type(error).__name__}: {error}",
            )

    # -- hosts --------------------------------------------------------------------------------------------------

    def add(self, name: str, skew: float) -> None:
        """Start a host."""
        host = self.make_host(name, 0.0 if self._is_whole else skew)
        if self._is_whole:
            host.wire.fault_rate = 0.0
        self.hosts.append(host)
        host.start()

    def kill(self, host: SimHost) -> None:
        """It is no more."""
        if not host.dead:
            self.gone[host.name] = self.sim.now
            self.sim.kill(host)

    def alive(self) -> list[H]:
        """Hosts that are there."""
        return [host for host in self.hosts if not host.dead]

    # -- what befalls them --------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        if fault.id in self.case.without:
            return
        alive = self.alive()
        busy = [host for host in alive if host.flow.running]
        pool = busy if busy and fault.dice < 0.7 else alive
        host = pool[int(fault.dice * 997) % len(pool)] if pool else None
        self.fault(fault.id, f"{'' if host is None else host.name}: {fault.kind}")
        if fault.kind in self.verbs:
            self.operator.spawn(lambda: self.verbs[fault.kind](self, fault), fault.kind)
        elif host is not None:
            HOSTS[fault.kind](self, host, fault)

    def restart_later(self, fault: Fault) -> None:
        """Somebody starts a host where one went."""
        skew = (fault.dice - 0.5) * 2 * max((abs(h.skew) for h in self.case.hosts), default=0.0)
        self.sim.at(self.sim.now + min(fault.seconds, 30.0), lambda: self.add(f"{fault.id}'", skew))

    def _heal(self) -> None:
        """Nothing breaks any more; what was broken is whole."""
        self.note("all", "whole again")
        self._is_whole = True
        for host in [*self.alive(), self.operator]:
            host.wire.cut, host.wire.fault_rate, host.wire.slowness = False, 0.0, 1.0
            host.set_clock(0.0)
            if host.paused:
                self.sim.resume(host)
        self.whole()
        self.add("last", 0.0)

    def run(self) -> None:
        """Let everything happen; the violations are in `checks`."""
        case, sim = self.case, self.sim
        Simulator.current = sim
        try:
            for host in case.hosts:
                sim.at(host.starts, lambda host=host: self.add(host.name, host.skew))  # type: ignore[misc]
            for fault in case.faults:
                sim.at(fault.at, lambda fault=fault: self._befall(fault))  # type: ignore[misc]
            self.begin()
            sim.run(case.lasts)
            if not self.checks.violations:
                self._heal()
                self._settle()
        finally:
            with contextlib.suppress(Exception):
                sim.crashed = lambda *_: None
                sim.close()
            Simulator.current = None

    def _settle(self) -> None:
        sim = self.sim
        sim.run(sim.now + LATEST + 30)
        give_up = sim.now + WHOLE + 4 * self.work
        while not self.checks.violations and sim.now < give_up and self.checks.unaccounted():
            sim.run(sim.now + 30)
        if not self.checks.violations:
            self.checks.ended()
