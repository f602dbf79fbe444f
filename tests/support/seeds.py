"""Seeds of the simulation, in pieces that several processes can share."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from simulation.case import HOST_KINDS, JOB_KINDS, MESSAGE_KINDS
from simulation.simulate import simulate, simulated
from simulation.wire import CALL_FAULTS

CALLS_AND_HOSTS = {*CALL_FAULTS, *(kind for kind, _ in HOST_KINDS)}
JOB_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in JOB_KINDS}
MESSAGE_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in MESSAGE_KINDS}


def hold(seeds: range) -> set[str]:
    """Simulate each of the seeds, in which nothing may be violated; the kinds of faults there were.

    In a process of its own: a thread that another test has left behind here would find simulated locks.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        injected, violations = apart.submit(_simulated, seeds).result()
    assert violations == []
    return set(injected)


def _simulated(seeds: range) -> tuple[Counter[str], list[str]]:
    injected, violations = Counter[str](), list[str]()
    with simulated():
        for seed in seeds:
            seen = simulate(seed)
            injected.update(seen.injected)
            violations += [f"seed {seed}: {one}" for one in seen.violations[:1]]
    return injected, violations
