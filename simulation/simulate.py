"""Simulate a case: the toolkit's modules are given the baton's threads meanwhile."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from runonce.execution import checkpoint, inflight, lease, owned, patience, stop, threads, turns
from runonce.runs import dispatch, run, switch
from simulation import baton
from simulation.baton import simulator
from simulation.case import Case, draw
from simulation.world import SimHost, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from runonce.execution.lease import Lease

THREADED = (checkpoint, inflight, lease, owned, patience, stop, threads, turns, dispatch, run, switch)
"""Modules of the toolkit that take a lock, wait for an event, or start a thread."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one case."""

    case: Case
    violations: tuple[str, ...]
    injected: tuple[str, ...]
    checked: Counter[str]
    trace: tuple[tuple[float, str, str], ...]
    steps: int


class _WatchedLease(lease.Lease):
    """Is known to the checks from the moment it is acquired."""

    @classmethod
    def acquire(cls, *args: Any) -> Lease | None:
        acquired = super().acquire(*args)
        task = simulator().task
        if acquired is not None and task is not None and isinstance(task.process, SimHost):
            task.process.world.checks.leases.append((task.process, acquired))
        return acquired


@contextmanager
def simulated() -> Iterator[None]:
    """Give the toolkit's modules simulated threads."""
    level = logging.root.manager.disable
    patches: list[Any] = [patch.object(module, "threading", baton) for module in THREADED]
    patches.append(patch.object(dispatch, "Lease", _WatchedLease))
    logging.disable(logging.CRITICAL)
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
        logging.disable(level)


def simulate(case: Case | int) -> Seen:
    """What comes of a case, or of the case of a seed; to be called within `simulated`."""
    case = draw(case) if isinstance(case, int) else case
    world = World(case)
    world.run()
    return Seen(
        case,
        tuple(world.checks.violations),
        tuple(world.injected),
        world.checks.checked,
        tuple(world.trace),
        world.sim.steps,
    )


def shrunk(seen: Seen, *, tries: int = 200) -> Seen:
    """The same violation from as few faults as can be found by leaving out halves, quarters, single ones."""
    kind = seen.violations[0].partition(":")[0]
    ids = [who for _, who, what in seen.trace if _is_fault(seen.case, who)]
    ids = list(dict.fromkeys(ids))
    size = max(1, len(ids) // 2)
    while tries > 0 and ids:
        found = False
        for start in range(0, len(ids), size):
            tries -= 1
            less = simulate(seen.case.leave_out(ids[start : start + size]))
            if any(violation.startswith(kind) for violation in less.violations):
                seen, found = less, True
                ids = [
                    one for one in dict.fromkeys(who for _, who, _ in less.trace) if _is_fault(less.case, one)
                ]
                break
        if not found:
            if size == 1:
                break
            size = max(1, size // 2)
        size = min(size, max(1, len(ids)))
    return seen


def _is_fault(case: Case, who: str) -> bool:
    """A fault of the case has its id, a fault of a call its host's and the call's number."""
    return "." in who or any(fault.id == who for fault in case.faults)
