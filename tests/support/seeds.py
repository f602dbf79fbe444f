"""Seeds of the simulation, in pieces that several processes can share."""

from __future__ import annotations

from collections import Counter

from simulation.case import FUNCTIONS_KINDS, HOST_KINDS, JOB_KINDS, MESSAGE_KINDS
from simulation.simulate import simulate
from simulation.wire import CALL_FAULTS
from tests.support.apart import apart

CALLS_AND_HOSTS = {*CALL_FAULTS, *(kind for kind, _ in (*HOST_KINDS, *FUNCTIONS_KINDS))}
JOB_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in JOB_KINDS}
MESSAGE_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in MESSAGE_KINDS}


def hold(seeds: range) -> set[str]:
    """Simulate each of the seeds, in which nothing may be violated; the kinds of faults there were."""
    injected, violations = apart(_simulated, seeds)
    assert violations == []
    return set(injected)


def _simulated(seeds: range) -> tuple[Counter[str], list[str]]:
    injected, violations = Counter[str](), list[str]()
    for seed in seeds:
        seen = simulate(seed)
        injected.update(seen.injected)
        violations += [f"seed {seed}: {one}" for one in seen.violations[:1]]
    return injected, violations
