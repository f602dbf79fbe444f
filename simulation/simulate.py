"""Simulate a case: the toolkit's modules are given the baton's threads meanwhile."""

from __future__ import annotations

import gc
import logging
import random
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from runonce.execution import checkpoint, inflight, lease, owned, patience, stop, threads, turns, workers
from runonce.hosts.functions import handlers, in_hand
from runonce.messages import consumer, ended, heartbeat, lane, lock, rights
from runonce.runs import dispatch, run, switch
from runonce.runs import versions as versions_of
from runonce.schedules import schedule
from runonce.transports import copies, protocols
from simulation import baton
from simulation.baton import simulator
from simulation.case import Case, JobCase, MessageCase, draw
from simulation.jobs import JobWorld
from simulation.messages import MessageWorld
from simulation.world import SimHost, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from runonce.execution.lease import Lease

THREADED = (
    checkpoint,
    dispatch,
    heartbeat,
    in_hand,
    inflight,
    lane,
    lease,
    lock,
    owned,
    patience,
    rights,
    run,
    stop,
    switch,
    threads,
    turns,
    workers,
)
"""Modules of the toolkit that take a lock, wait for an event, or start a thread."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one case."""

    case: JobCase | MessageCase
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
        host = _host()
        if acquired is not None and host is not None:
            host.world.checks.acquired(host, acquired)
        return acquired

    @property
    def _trusted_until(self) -> float:
        return self._trusted

    @_trusted_until.setter
    def _trusted_until(self, elapsed: float) -> None:
        self._trusted = elapsed
        if (host := _host()) is not None:
            host.world.checks.leases_changed = True


class _InOrder(dict[Any, None]):
    """A set that is gone through in the order in which it was filled."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class _Id(str):
    """As uuid.UUID, as far as anybody looks at one."""

    __slots__ = ()

    @property
    def hex(self) -> str:
        return str(self)


_ids = random.Random()
"""Of the case that is simulated."""


def _id() -> _Id:
    """As uuid.uuid4; from the case's seed, and without the system's entropy, which takes longer."""
    return _Id(f"{_ids.getrandbits(128):032x}")


class _HostsTime:
    """The wall clock of the host that looks at it, for what would look at this machine's."""

    @staticmethod
    def now(_: object) -> datetime:
        host = _host()
        assert host is not None  # noqa: S101 - only hosts send
        return host.clock.now()


def _host() -> SimHost | None:
    task = simulator().task
    return task.process if task is not None and isinstance(task.process, SimHost) else None


def _made_with(cls: type, **made: Callable[[], object]) -> Any:
    """The class, each of whose objects begins with these: its dataclass has bound the real ones when it was made."""
    init: Any = vars(cls)["__init__"]

    def begin(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        for name, make in made.items():
            setattr(self, name, make())

    return patch.object(cls, "__init__", begin)


@contextmanager
def simulated() -> Iterator[None]:
    """Give the toolkit's modules simulated threads."""
    patches: list[Any] = [patch.object(module, "threading", baton) for module in THREADED]
    patches += [
        patch.object(dispatch, "Lease", _WatchedLease),
        patch.object(lock, "Lease", _WatchedLease),
        patch.object(copies, "datetime", _HostsTime),
        patch.object(lane, "queue", baton),
        patch.object(workers, "queue", baton),
        patch.object(consumer, "wait", baton.wait),
        # Looked at less often than by real threads: half of the steps would be looks at nothing. A stop ends this one.
        patch.object(lane, "IDLE_WAIT", 30.0),
        patch.object(lane, "LONGEST_PAUSE", 3.0),
        patch.object(heartbeat, "LOOK", 3.0),
        patch.object(heartbeat, "wait", baton.wait),
        patch.object(handlers, "wait", baton.wait),
        patch.object(in_hand, "EVERY", 3.0),
        _made_with(in_hand.InHand, _have=_InOrder),
        patch.object(threads, "Future", baton.Future),
        patch.object(uuid, "uuid4", _id),
        _made_with(ended.Working, ending=baton.Lock, settled=baton.Future),
        _made_with(protocols.Receipt, lock=baton.Lock),
        _made_with(rights.Rights, lock=baton.Lock),
        _made_with(lane._Job, lock=baton.Lock),
        _made_with(lane.Lane, _working=_InOrder),
        # One for each schedule, not for each look at it: half of the time would go into reading expressions.
        patch.object(schedule, "_Walk", cache(schedule._Walk)),
    ]
    with ExitStack() as patched:
        level = logging.root.manager.disable
        patched.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        for one in patches:
            patched.enter_context(one)
        # A case's garbage is collected once it is over: a quarter of the time went into looking for it meanwhile.
        gc.collect()  # else what is garbage by now would be kept for good
        gc.freeze()
        gc.disable()
        patched.callback(gc.enable)
        yield


def simulate(case: JobCase | MessageCase | int) -> Seen:
    """What comes of a case, or of the case of a seed; to be called within `simulated`."""
    case = draw(case) if isinstance(case, int) else case
    if isinstance(case, MessageCase):
        return _seen(case, MessageWorld(case))
    with patch.object(versions_of, "GONE", timedelta(seconds=case.gone)):
        return _seen(case, JobWorld(case))


def _seen(case: JobCase | MessageCase, world: World[Any, Any]) -> Seen:
    _ids.seed(case.seed)
    world.run()
    seen = Seen(
        case,
        tuple(world.checks.violations),
        tuple(world.injected),
        world.checks.checked,
        tuple(world.trace),
        world.sim.steps,
    )
    del world
    gc.collect()
    return seen


def shrunk(seen: Seen, *, tries: int = 100) -> Seen:
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
