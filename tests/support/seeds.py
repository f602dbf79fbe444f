"""Seeds of the simulation, in pieces that several processes can share."""

from __future__ import annotations

from collections import Counter

from simulation.case import HOST_KINDS, JOB_KINDS, MESSAGE_KINDS
from simulation.simulate import simulate, simulated
from simulation.wire import CALL_FAULTS

CALLS_AND_HOSTS = {*CALL_FAULTS, *(kind for kind, _ in HOST_KINDS)}
JOB_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in JOB_KINDS}
MESSAGE_FAULTS = CALLS_AND_HOSTS | {kind for kind, _ in MESSAGE_KINDS}


def hold(seeds: range) -> set[str]:
    """Simulate each of the seeds, in which nothing may be violated; the kinds of faults there were."""
    injected = Counter[str]()
    with simulated():
        for seed in seeds:
            seen = simulate(seed)
            assert not seen.violations, f"seed {seed}: {seen.violations[0]}"
            injected.update(seen.injected)
    return set(injected)
