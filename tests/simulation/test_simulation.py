"""The simulation itself: it repeats exactly, and finds each guard that is missing, and nothing where none is."""

from __future__ import annotations

import pytest

from simulation.__main__ import main
from simulation.case import HOST_KINDS, JOB_KINDS, MESSAGE_KINDS, JobCase, MessageCase, draw
from simulation.mutants import MUTANTS, found, mutant
from simulation.simulate import shrunk, simulate, simulated
from simulation.wire import CALL_FAULTS

ALL_KINDS = [*CALL_FAULTS, *(kind for kind, _ in (*HOST_KINDS, *JOB_KINDS, *MESSAGE_KINDS))]
SCHEDULES = 200
"""A nightly run takes 100,000."""
BUDGET = 1000
"""Schedules of its wing in which each mutant must be found."""


@pytest.mark.timeout(900)
def test_no_schedule_of_faults_breaks_what_must_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Over hundreds of seeded schedules of both wings, with every kind of fault, no invariant is violated."""
    code = main(["--schedules", str(SCHEDULES)])
    told = capsys.readouterr().out
    assert code == 0, told
    faults = told.partition("faults injected:")[2].partition("\n")[0]
    assert [kind for kind in ALL_KINDS if f"{kind} " not in faults] == []


@pytest.mark.parametrize("seed", [6, 7])
def test_a_seed_repeats_exactly(seed: int) -> None:
    """The same seed twice is the same trace, step for step, in either wing."""
    with simulated():
        first, second = simulate(seed), simulate(seed)
    assert first.trace == second.trace
    assert first.steps == second.steps
    assert first.checked == second.checked


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_is_missing_is_noticed(name: str) -> None:
    """With one guard of the toolkit taken out, some schedule violates an invariant."""
    with simulated():
        assert found(name, BUDGET) is not None


def test_a_failing_seed_is_made_smaller() -> None:
    """What is told of a failing seed has fewer faults, and still breaks the same."""
    name = "stopped is told as succeeded"
    with simulated():
        whole = found(name, BUDGET)
        assert whole is not None
        with mutant(name):
            least = shrunk(whole, tries=30)
            again = simulate(least.case)
    assert least.violations[0].partition(":")[0] == whole.violations[0].partition(":")[0]
    assert len(least.injected) < len(whole.injected)
    assert again.violations == least.violations


def test_a_violation_is_told_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the seed, the least of it, and ends with 1; without violations with 0."""
    name = "stopped is told as succeeded"
    with simulated():
        seen = found(name, BUDGET)
    assert seen is not None
    with mutant(name):
        assert main(["--seed", str(seen.case.seed)]) == 1
    assert f"python dev.py simulate --seed {seen.case.seed}" in capsys.readouterr().out
    assert main(["--seed", str(seen.case.seed)]) == 0
    assert "0 violations" in capsys.readouterr().out


def test_a_calm_case_has_stops_only() -> None:
    """One case in ten only stops and starts hosts, so that nothing in it may count as a death."""
    calm = [case for seed in range(200) if (case := draw(seed)).calm]
    assert {type(case) for case in calm} == {JobCase, MessageCase}
    assert {fault.kind for case in calm for fault in case.faults} <= {"stop", "ask", "replay dead letters"}
