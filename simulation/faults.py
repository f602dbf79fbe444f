"""What befalls a world: what happens to its hosts, and what its operator does, by kind of fault."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import HostStopping, StoreError
from runonce.runs import decide
from runonce.runs.operate import ask, pause, resume
from simulation.baton import simulator
from simulation.checks import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.case import Fault
    from simulation.world import SimHost, World

TOLD = 10.0
"""Seconds from being told to being killed, on a host that waits no longer."""


def _kill(world: World, host: SimHost, fault: Fault) -> None:
    world.kill(host)
    world.restart_later(fault)


def _stop(world: World, host: SimHost, fault: Fault) -> None:
    if host.serves:
        host.stop()
        world.restart_later(fault)


def _told(world: World, host: SimHost, fault: Fault) -> None:
    """On a host that waits ten seconds, whatever the settings say."""
    host.spawn(lambda: host.dispatcher.stop.set(HostStopping()), "told")
    world.sim.at(world.sim.now + TOLD, lambda: world.kill(host))
    world.restart_later(fault)


def _pause(world: World, host: SimHost, fault: Fault) -> None:
    host.paused = True
    world.sim.at(world.sim.now + fault.seconds, lambda: world.sim.resume(host))


def _cut(world: World, host: SimHost, fault: Fault) -> None:
    host.wire.cut = True
    world.sim.at(world.sim.now + fault.seconds, lambda: setattr(host.wire, "cut", False))


def _slow(world: World, host: SimHost, fault: Fault) -> None:
    host.wire.slowness = 30.0
    world.sim.at(world.sim.now + fault.seconds, lambda: setattr(host.wire, "slowness", 1.0))


def _clock(world: World, host: SimHost, fault: Fault) -> None:
    far = 90_000.0 if fault.dice * 10 % 1 < 0.1 else fault.seconds
    host.set_clock(host.clock.skew + (far if fault.dice < 0.5 else -far))
    world.note(host.name, f"clock {host.clock.skew:+.0f} s")


HOSTS: dict[str, Callable[[World, SimHost, Fault], None]] = {
    "kill": _kill,
    "stop": _stop,
    "told, then killed": _told,
    "pause": _pause,
    "cut": _cut,
    "slow": _slow,
    "clock": _clock,
}


def _fire_time(world: World, fault: Fault) -> datetime:
    """A scheduled one of late, or some instant of late."""
    dispatcher, job = world.operator.dispatcher, world.operator.job
    now = dispatcher.clock.now()
    if fault.dice < 0.6:
        return job.schedule.previous(now - timedelta(seconds=fault.seconds)) or now
    return now.replace(microsecond=0) - timedelta(seconds=fault.seconds)


def _ask(world: World, fault: Fault) -> None:
    ask(world.operator.dispatcher, world.operator.job, _fire_time(world, fault))


def _by_hand(world: World, fault: Fault) -> None:
    world.operator.dispatcher.execute(world.operator.job, _fire_time(world, fault), by="hand")


def _decide(world: World, fault: Fault) -> None:
    """What an operator says of a run, right or wrong."""
    which = decide.Which(NAME, _fire_time(world, fault), by="operator", why="the simulation")
    dispatcher = world.operator.dispatcher
    match fault.kind:
        case "replay":
            decide.replay(dispatcher, which)
        case "resume run":
            decide.resume_run(dispatcher, which)
        case "cancel":
            decide.cancel(dispatcher, which)
        case _:
            decide.mark(dispatcher, which, "failed")
    decide.send(dispatcher, which)


def _pause_job(world: World, fault: Fault) -> None:
    pause(world.operator.dispatcher, NAME)
    simulator().sleep(fault.seconds)
    while True:
        try:
            resume(world.operator.dispatcher, NAME)
        except StoreError:
            simulator().sleep(1.0)
        else:
            return


def _break(world: World, fault: Fault) -> None:  # noqa: ARG001 - one shape for all
    world.operator.dispatcher.stores.leases.break_lease(world.operator.dispatcher.registry.lock_name(NAME))


OPERATOR: dict[str, Callable[[World, Fault], None]] = {
    "ask": _ask,
    "run by hand": _by_hand,
    "replay": _decide,
    "resume run": _decide,
    "cancel": _decide,
    "mark": _decide,
    "pause job": _pause_job,
    "break lease": _break,
}
