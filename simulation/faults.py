"""What befalls the hosts of a world, by kind of fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.errors import HostStopping

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.case import Fault
    from simulation.world import SimHost
    from simulation.world import World as AnyWorld

    World = AnyWorld[Any, Any]

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
    host.spawn(lambda: host.flow.stop.set(HostStopping()), "told")
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


def _kill_worker(world: World, host: Any, fault: Fault) -> None:
    """Without its host, as when a function has taken too long: what ran in it fails, and there is another one soon."""
    host.is_replaced = host.serves
    world.kill(host)
    host.fail()
    if host.is_replaced:
        soon = 0.3 + 1.2 * (fault.dice * 10 % 1)
        world.sim.at(world.sim.now + soon, lambda: host.replace(f"{fault.id}'"))


def _kill_host(world: World, host: Any, fault: Fault) -> None:
    """Without its worker, which ends what it has, and nobody settles it."""

    def look() -> None:
        if host.flow.running and not host.dead:
            world.sim.at(world.sim.now + 1.0, look)
        else:
            host.leaves()

    host.takes_more, host.is_orphan = False, True
    host.forget()
    world.sim.at(world.sim.now + 1.0, look)
    world.restart_later(fault)


def _tell_host(world: World, host: Any, fault: Fault) -> None:
    """Without its worker, which hears nothing of it: timers tick, and what was fetched starts, until it is killed."""
    host.takes_more = False
    world.sim.at(world.sim.now + TOLD, lambda: world.kill(host))
    world.restart_later(fault)


HOSTS: dict[str, Callable[[World, SimHost, Fault], None]] = {
    "kill": _kill,
    "stop": _stop,
    "told, then killed": _told,
    "pause": _pause,
    "cut": _cut,
    "slow": _slow,
    "clock": _clock,
    "worker killed": _kill_worker,
    "host killed": _kill_host,
    "host told": _tell_host,
}
