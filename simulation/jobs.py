"""A scheduled job in a simulated world: its timers, recovery and internal queue on each host, and its operator."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from math import floor
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.operate import resume
from runonce.runs.recovery import recover
from simulation.baton import simulator
from simulation.job_checks import NAME, JobChecks
from simulation.server import Server
from simulation.verbs import JOB_VERBS
from simulation.world import LATEST, START, SimHost, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run
    from simulation.case import Fault, JobCase
    from simulation.functions import FunctionsJobHost

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


class JobHost(SimHost):
    """A process of the toolkit: timers, recovery, and the internal queue."""

    world: JobWorld

    def __init__(self, world: JobWorld, name: str, skew: float, version: int) -> None:
        super().__init__(world, name, skew)
        self.version = version
        self.job = world.versions[version]
        self.dispatcher = Dispatcher(
            {NAME: self.job}, self.wire.stores(world.server.stores), world.settings, self.clock, host=name
        )
        self._armed = 0

    @property
    def flow(self) -> Dispatcher:
        return self.dispatcher

    def start(self) -> None:
        self.world.note(self.name, f"starts, {self.clock.skew:+.0f} s, version {self.version}")
        self.spawn(self._recovery, "recovery")
        self.arm()

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
            if self.fires():
                self.spawn(self._tick, "tick")
            self.world.sim.at(self.world.sim.now + 1.0, lambda: None if armed != self._armed else self.arm())

        self.world.sim.at(self.world.sim.now + max(0.0, wait + lag), fire)

    def fires(self) -> bool:
        """Whether a timer ticks here now."""
        return True

    def takes(self) -> bool:
        """Whether it takes requests."""
        return self.serves

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
        self.world.note(self.name, "is told to stop")

        def leave() -> None:
            if not self.dispatcher.drain(self.world.settings.shutdown_timeout):
                self.world.note(self.name, f"gives up {self.dispatcher.abandon()}")
            self.leaves()

        self.spawn(leave, "stop")

    def set_clock(self, skew: float) -> None:
        super().set_clock(skew)
        self.arm()


class JobWorld(World["JobCase", JobHost]):
    """Everything of one case of a scheduled job."""

    checks: JobChecks

    def __init__(self, case: JobCase) -> None:
        checks = JobChecks()
        super().__init__(case, checks)
        self.server = Server(self.clock, checks)
        self.periods = {1: case.period} | ({} if case.new_period is None else {2: case.new_period})
        self.versions = {version: self._job(period) for version, period in self.periods.items()}
        self.operator = JobHost(self, "operator", 0.0, 1)
        self.operator.arm = lambda: None  # type: ignore[method-assign]
        self._last_version = 1
        self._timers: FunctionsJobHost | None = None
        self._timers_free_at = 0.0
        self._pumps_at = 0.0
        self._rng = random.Random(f"{case.seed} pump")

    def make_host(self, name: str, skew: float) -> JobHost:
        if not self.case.functions:
            return JobHost(self, name, skew, self._last_version)
        from simulation.functions import FunctionsJobHost  # noqa: PLC0415 - it builds on this module

        return FunctionsJobHost(self, name, skew, self._last_version)

    @property
    def verbs(self) -> Mapping[str, Callable[[JobWorld, Fault], None]]:
        return JOB_VERBS

    @property
    def work(self) -> float:
        case = self.case
        return (case.items * case.item_seconds + 15.0) * (case.lasts / case.period)

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

    # -- what happens -------------------------------------------------------------------------------------------

    def timers_on(self, host: FunctionsJobHost) -> bool:
        """Whether this instance of a Functions app has the timers; another one has them a minute after it has gone."""
        if self._timers is not None and self._timers.has_gone:
            self._timers, self._timers_free_at = None, self.sim.now + self._rng.uniform(51.0, 62.0)
        if self._timers is None and self.sim.now >= self._timers_free_at:
            self._timers = host
        return self._timers is host

    def timers_stay(self, old: FunctionsJobHost, new: FunctionsJobHost) -> None:
        """They are on the same instance as before, for which another worker runs now."""
        if self._timers is old:
            self._timers = new

    def begin(self) -> None:
        if len(self.versions) > 1:
            self.sim.at(self.case.lasts / 2, self._deploy)
        self.server.queue.came = self._pump_later

    def _pump_later(self) -> None:
        """Hosts look for requests about once a second, of which those looks count that may find one."""
        shows_in = self.server.queue.shows_in()
        if shows_in is None:
            return
        looks_at = floor(self.sim.now + shows_in + 0.5) + 0.5
        if not self.sim.now < self._pumps_at <= looks_at:
            self._pumps_at = looks_at
            self.sim.at(looks_at, lambda: self._pump(looks_at))

    def _pump(self, looks_at: float) -> None:
        """Whoever is first takes one."""
        if looks_at != self._pumps_at:
            return  # another look is nearer
        takers = [host for host in self.hosts if host.takes() and not host.paused]
        for _ in range(min(self.server.queue.visible(), 3)):
            if takers:
                host = takers[int(self._rng.random() * len(takers))]
                host.spawn(host.fetch, "request")
        self._pump_later()

    def _deploy(self) -> None:
        """The new version goes out, host after host."""
        self._last_version = max(self.versions)
        self.note("deploy", f"version {self._last_version}")
        for number, host in enumerate(self.alive()):
            self.sim.at(self.sim.now + 10.0 * number, host.stop)
            self.sim.at(self.sim.now + 10.0 * number + 3.0, lambda host=host: self.add(f"{host.name}v2", 0.0))  # type: ignore[misc]

    def whole(self) -> None:
        self._last_version = max(self.versions)
        for host in self.alive():
            if host.version != self._last_version and host.serves:
                host.stop()

        def last_word() -> None:  # a call to pause the job may have been carried out late
            simulator().sleep(LATEST + 10)
            resume(self.operator.dispatcher, NAME)

        self.operator.spawn(last_word, "resume")


def _body(run: Run) -> None:
    """A job of a few items, each an effect with an entry in the ledger."""
    sim = simulator()
    assert sim.task is not None  # noqa: S101 - bodies run in tasks
    host = sim.task.process
    assert isinstance(host, JobHost)  # noqa: S101 - of hosts
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
