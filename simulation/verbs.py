"""What the operator of a scheduled job does, right or wrong, at any moment, by kind of fault."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.runs import decide
from runonce.runs.backfill import backfill, is_done, to_backfill
from runonce.runs.operate import ask, pause, resume
from simulation.baton import simulator
from simulation.job_checks import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.case import Fault
    from simulation.jobs import JobWorld


def _fire_time(world: JobWorld, fault: Fault) -> datetime:
    """A scheduled one of late, or some instant of late."""
    dispatcher, job = world.operator.dispatcher, world.operator.job
    now = dispatcher.clock.now()
    if fault.dice < 0.6:
        return job.schedule.previous(now - timedelta(seconds=fault.seconds)) or now
    return now.replace(microsecond=0) - timedelta(seconds=fault.seconds)


def _ask(world: JobWorld, fault: Fault) -> None:
    ask(world.operator.dispatcher, world.operator.job, _fire_time(world, fault))


def _by_hand(world: JobWorld, fault: Fault) -> None:
    world.operator.dispatcher.execute(world.operator.job, _fire_time(world, fault), by="hand")


def _backfill(world: JobWorld, fault: Fault) -> None:
    operator = world.operator
    until = operator.clock.now()
    known = to_backfill(operator.dispatcher, operator.job, until - timedelta(seconds=fault.seconds), until)
    left = [fire_time for fire_time, outcome in known if not is_done(outcome)]
    for result in backfill(operator.dispatcher, operator.job, left[:3]):
        world.note("operator", f"backfills {result.fire_time:%H:%M:%S}: {result.outcome}")


def _decide(world: JobWorld, fault: Fault) -> None:
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


def _pause_job(world: JobWorld, fault: Fault) -> None:
    pause(world.operator.dispatcher, NAME)
    simulator().sleep(fault.seconds)
    while True:
        try:
            resume(world.operator.dispatcher, NAME)
        except StoreError:
            simulator().sleep(1.0)
        else:
            return


def _break(world: JobWorld, fault: Fault) -> None:  # noqa: ARG001 - one shape for all
    world.operator.dispatcher.stores.leases.break_lease(world.operator.dispatcher.registry.lock_name(NAME))


JOB_VERBS: dict[str, Callable[[JobWorld, Fault], None]] = {
    "ask": _ask,
    "run by hand": _by_hand,
    "backfill": _backfill,
    "replay": _decide,
    "resume run": _decide,
    "cancel": _decide,
    "mark": _decide,
    "pause job": _pause_job,
    "break lease": _break,
}
