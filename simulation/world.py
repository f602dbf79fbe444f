"""One simulated world: a server, hosts with clocks of their own, an operator, and what befalls them."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runonce.errors import InputError, StoreError
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.operate import resume
from runonce.runs.recovery import recover
from runonce.settings import Settings, StorageConnection
from simulation.baton import Process, Simulator, simulator
from simulation.checks import NAME, Checks
from simulation.faults import HOSTS, OPERATOR
from simulation.server import Server
from simulation.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run
    from simulation.case import Case, Fault

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULES = {
    10: ("*/10 * * * * *", 10, 0),
    20: ("*/20 * * * * *", 20, 0),
    30: ("*/30 * * * * *", 30, 0),
    40: ("20 * * * * *", 60, 20),
    60: ("0 * * * * *", 60, 0),
    90: ("15 */2 * * * *", 120, 15),
    120: ("0 */2 * * * *", 120, 0),
}
"""An expression, and the same as arithmetic: seconds between fire times, and of the first one after START."""
RECOVERY = 60.0
HIDDEN = 30
"""Seconds that a fetched request is hidden from other hosts."""
LATEST = 51.0
"""Seconds after which no call that was made is carried out any more."""
WHOLE = 1200.0
"""Seconds in which everything must be accounted for once nothing breaks any more, beside what the runs take."""


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


class SimHost(Process):
    """A process of the toolkit: timers, recovery, and the internal queue."""

    def __init__(self, world: World, name: str, skew: float, version: int) -> None:
        super().__init__(name)
        self.world = world
        self.version = version
        self.clock = SimClock(world.sim, skew)
        self.wire = Wire(world.case, self, world.server_process, world.fault)
        self.rng = random.Random(f"{world.case.seed} {name} body")
        self.job = world.versions[version]
        self.dispatcher = Dispatcher(
            {NAME: self.job}, self.wire.stores(world.server.stores), world.settings, self.clock, host=name
        )
        self._armed = 0

    def start(self) -> None:
        """Begin to serve."""
        self.world.note(self.name, f"starts, {self.clock.skew:+.0f} s, version {self.version}")
        self.spawn(self._recovery, "recovery")
        self.arm()

    def spawn(self, call: Callable[[], object], name: str) -> None:
        """A thread of this host's."""
        self.world.sim.spawn(call, self, name)

    @property
    def serves(self) -> bool:
        """Whether it takes anything new."""
        return not self.dead and self.dispatcher.stop.cause is None

    def arm(self) -> None:
        """Set the timer for the next fire time by this host's clock."""
        self._armed += 1
        armed, now = self._armed, self.clock.now()
        _, every, first = SCHEDULES[self.world.periods[self.version]]
        passed = (now - START).total_seconds() - first
        # Timers come a little late, seldom a little early, and sometimes much later.
        dice = self.rng.random()
        lag = 0.2 * dice if dice < 0.8 else -0.8 * self.rng.random() if dice < 0.9 else 20 * self.rng.random()
        wait = every - passed % every

        def fire() -> None:
            if armed != self._armed or self.dead:
                return
            self.spawn(self._tick, "tick")
            self.world.sim.at(self.world.sim.now + 1.0, lambda: None if armed != self._armed else self.arm())

        self.world.sim.at(self.world.sim.now + max(0.0, wait + lag), fire)

    def _tick(self) -> None:
        self.dispatcher.tick(self.job)

    def _recovery(self) -> None:
        recover(self.dispatcher, starting=True)
        while not self.clock.wait(self.dispatcher.stop.event, RECOVERY):
            recover(self.dispatcher)

    def fetch(self) -> None:
        """Take a request from the internal queue and run it."""
        queue = self.dispatcher.stores.requests
        try:
            item = queue.receive(visibility=HIDDEN)
            if item is None or not self.serves:
                return
            queue.delete(item)
            self.dispatcher.handle_request(item.body)
        except StoreError:  # one that is put back may get no answer; the recovery tick repeats it
            return

    def stop(self) -> None:
        """Stop as told: wait for the runs, give up what does not end, go."""
        self.world.note(self.name, "is told to stop")

        def leave() -> None:
            if not self.dispatcher.drain(self.world.settings.shutdown_timeout):
                self.world.note(self.name, f"gives up {self.dispatcher.abandon()}")
            if not self.dead:
                self.world.note(self.name, "is gone")
            self.world.kill(self)

        self.spawn(leave, "stop")

    def set_clock(self, skew: float) -> None:
        """Set the wall clock."""
        self.clock.skew = skew
        self.arm()


class World:
    """Everything of one case."""

    def __init__(self, case: Case) -> None:
        random.seed(case.seed)  # a retry's delay is spread at random
        self.case = case
        self.checks = Checks()
        self.checks.world = self
        self.sim = Simulator(random.Random(f"{case.seed} order"), self.checks.after_step)
        self.sim.crashed = self._crashed
        self.clock = SimClock(self.sim)
        self.ends = START + timedelta(seconds=case.lasts)
        self.settings = Settings(
            "test", StorageConnection("UseDevelopmentStorage=true"), shutdown_timeout=case.shutdown_timeout
        )
        self.server = Server(self.clock, self.checks)
        self.server_process = Process("server")
        self.periods = {1: case.period} | ({} if case.new_period is None else {2: case.new_period})
        self.versions = {version: self._job(period) for version, period in self.periods.items()}
        self.trace: list[tuple[float, str, str]] = []
        self.injected: list[str] = []
        self.hosts: list[SimHost] = []
        self.gone: dict[str, float] = {}
        self.operator = SimHost(self, "operator", 0.0, 1)
        self._last_version = 1

    # -- telling ------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the trace."""
        self.trace.append((self.sim.now, who, what))

    def fault(self, this: str, what: str) -> None:
        """A fault that was injected."""
        self.injected.append(what.rpartition(": ")[2])
        self.note(this, what)

    def _crashed(self, task: Any, error: BaseException) -> None:
        if task.process is not self.operator or not isinstance(error, StoreError | InputError):
            self.checks.violated(
                "nothing is raised into the host",
                f"{task.name} on {task.process.name}: {type(error).__name__}: {error}",
            )

    # -- the job ------------------------------------------------------------------------------------------------

    def _job(self, period: int) -> ScheduledJob:
        case = self.case
        define = scheduled(
            SCHEDULES[period][0],
            name=NAME,
            misfire=case.misfire,
            misfire_cap=100,
            retries=case.retries,
            retry_delay=5,
            max_runtime=30 + 6 * case.items * case.item_seconds,
            on_abandoned=case.on_abandoned,
        )
        return define(_body)

    def fire_times(self, version: int, after: datetime, until: datetime) -> list[datetime]:
        """Of a version of the job, after < t <= until."""
        _, every, first = SCHEDULES[self.periods[version]]
        start, end = (int((t - START).total_seconds() - first) // every for t in (after, until))
        return [START + timedelta(seconds=first + every * n) for n in range(start + 1, end + 1)]

    def is_named(self, instant: datetime) -> bool:
        """Whether a version's schedule names it."""
        return any(
            self.fire_times(v, instant - timedelta(seconds=1), instant)[-1:] == [instant]
            for v in self.versions
        )

    def version_until(self, version: int) -> datetime:
        """Until when the fire times of a version have to be accounted for: as long as a host has it."""
        if version == max(self.versions):
            return self.ends
        last = max(
            (self.gone.get(host.name, self.sim.now) for host in self.hosts if host.version == version),
            default=0.0,
        )
        return START + timedelta(seconds=last)

    # -- hosts --------------------------------------------------------------------------------------------------

    def add(self, name: str, skew: float) -> None:
        """Start a host."""
        self.hosts.append(SimHost(self, name, skew, self._last_version))
        self.hosts[-1].start()

    def kill(self, host: SimHost) -> None:
        """It is no more."""
        if not host.dead:
            self.gone[host.name] = self.sim.now
            self.sim.kill(host)

    def alive(self) -> list[SimHost]:
        """Hosts that are there."""
        return [host for host in self.hosts if not host.dead]

    def _pump(self) -> None:
        """Hosts look for requests about once a second; whoever is first takes one."""
        takers = [host for host in self.hosts if host.serves and not host.paused]
        for _ in range(min(self.server.queue.visible(), 3)):
            if takers:
                host = takers[int(self.sim_rng.random() * len(takers))]
                host.spawn(host.fetch, "request")
        self.sim.at(self.sim.now + 1.0, self._pump)

    # -- what befalls them --------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        if fault.id in self.case.without:
            return
        alive = self.alive()
        busy = [host for host in alive if host.dispatcher.running]
        pool = busy if busy and fault.dice < 0.7 else alive
        host = pool[int(fault.dice * 997) % len(pool)] if pool else None
        self.fault(fault.id, f"{'' if host is None else host.name}: {fault.kind}")
        if fault.kind in OPERATOR:
            self.operator.spawn(lambda: OPERATOR[fault.kind](self, fault), fault.kind)
        elif host is not None:
            HOSTS[fault.kind](self, host, fault)

    def restart_later(self, fault: Fault) -> None:
        """Somebody starts a host where one went."""
        skew = (fault.dice - 0.5) * 2 * max((abs(h.skew) for h in self.case.hosts), default=0.0)
        self.sim.at(self.sim.now + min(fault.seconds, 30.0), lambda: self.add(f"{fault.id}'", skew))

    def _deploy(self) -> None:
        """The new version goes out, host after host."""
        self._last_version = max(self.versions)
        self.note("deploy", f"version {self._last_version}")
        for number, host in enumerate(self.alive()):
            self.sim.at(self.sim.now + 10.0 * number, host.stop)
            self.sim.at(self.sim.now + 10.0 * number + 3.0, lambda host=host: self.add(f"{host.name}v2", 0.0))  # type: ignore[misc]

    def _heal(self) -> None:
        """Nothing breaks any more; what was broken is whole."""
        self.note("all", "whole again")
        self._last_version = max(self.versions)
        for host in [*self.alive(), self.operator]:
            host.wire.cut, host.wire.fault_rate, host.wire.slowness = False, 0.0, 1.0
            host.set_clock(0.0)
            if host.paused:
                self.sim.resume(host)
            if host.version != self._last_version and host.serves and host is not self.operator:
                host.stop()
        self.add("last", 0.0)

        def last_word() -> None:  # a call to pause the job may have been carried out late
            simulator().sleep(LATEST + 10)
            resume(self.operator.dispatcher, NAME)

        self.operator.spawn(last_word, "resume")

    def run(self) -> None:
        """Let everything happen; the violations are in `checks`."""
        case, sim = self.case, self.sim
        Simulator.current = sim
        self.sim_rng = random.Random(f"{case.seed} pump")
        self.operator.arm = lambda: None  # type: ignore[method-assign]
        try:
            for host in case.hosts:
                sim.at(host.starts, lambda host=host: self.add(host.name, host.skew))  # type: ignore[misc]
            for fault in case.faults:
                sim.at(fault.at, lambda fault=fault: self._befall(fault))  # type: ignore[misc]
            if len(self.versions) > 1:
                sim.at(case.lasts / 2, self._deploy)
            sim.at(0.5, self._pump)
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
        case, sim = self.case, self.sim
        sim.run(sim.now + LATEST + 30)
        work = (case.items * case.item_seconds + 15.0) * (case.lasts / case.period)
        give_up = sim.now + WHOLE + 4 * work
        while not self.checks.violations and sim.now < give_up and self.checks.unaccounted():
            sim.run(sim.now + 30)
        if not self.checks.violations:
            self.checks.ended()


def _body(run: Run) -> None:
    """A job of a few items, each an effect with an entry in the ledger."""
    sim = simulator()
    assert sim.task is not None  # noqa: S101 - bodies run in tasks
    host = sim.task.process
    assert isinstance(host, SimHost)  # noqa: S101 - of hosts
    world, case = host.world, host.world.case
    who = f"{run.fire_time:%H:%M:%S} #{run.attempt}, token {run.fencing_token}"
    world.note(host.name, f"begins {who}")
    world.checks.begins(run, host)
    try:
        for (item,) in run.batches(range(case.items), size=1):
            deaf = host.rng.random() < case.deaf
            sim.sleep(70.0 if deaf else host.rng.uniform(0.0, 2 * case.item_seconds))
            if host.wire.fault_rate and host.rng.random() < case.failing:
                raise ValueError("it fails")  # noqa: TRY301 - a job that fails
            run.ledger.record(f"{run.idempotency_key}/{item}", attempt=run.attempt)
        if case.items == 1:
            run.blobs.write("latest", str(run.fencing_token))
    except BaseException as error:
        world.note(host.name, f"leaves {who}: {type(error).__name__}: {error}")
        raise
    world.note(host.name, f"returns from {who}")
