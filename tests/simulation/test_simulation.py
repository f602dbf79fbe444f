"""The simulation itself: it repeats exactly, and finds each guard that is missing, and nothing where none is."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from simulation.__main__ import main
from simulation.case import FUNCTIONS_KINDS, JobCase, MessageCase, draw
from simulation.mutants import MUTANTS, found, mutant
from simulation.simulate import Seen, shrunk, simulate
from tests.support.apart import apart

BUDGET = 1000
"""Schedules of its wing in which each mutant must be found."""


def test_many_schedules_are_counted_with_their_faults_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    """The command simulates in several processes, and says what of, how many faults, how many checks and violations."""
    assert main(["--schedules", "20", "--processes", "2"]) == 0
    schedules, faults, checks, violations = capsys.readouterr().out.split("\n")[-5:-1]
    assert schedules.startswith("20 schedules from seed 0, ")
    assert "faults injected: " in faults
    assert "invariants checked: " in checks
    assert violations == "0 violations"


@pytest.mark.parametrize("seed", [6, 7])
def test_a_seed_repeats_exactly(seed: int) -> None:
    """The same seed twice is the same trace, step for step, in either wing."""
    first, second = apart(simulate, seed), apart(simulate, seed)
    assert first.trace == second.trace
    assert first.steps == second.steps
    assert first.checked == second.checked


@pytest.mark.parametrize("seed", [1020, 17790, 44466, 49470, 57714])
def test_what_once_was_found_stays_mended(seed: int) -> None:
    """Seeds of long runs that broke what must hold, or what was wrongly taken for that."""
    assert apart(simulate, seed).violations == ()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_guard_that_is_missing_is_noticed(name: str) -> None:
    """With one guard of the toolkit taken out, some schedule violates an invariant."""
    assert apart(found, name, BUDGET) is not None


def test_a_failing_seed_is_made_smaller() -> None:
    """What is told of a failing seed has fewer faults, and still breaks the same."""
    whole, least, again = apart(_found_and_shrunk, "stopped is told as succeeded")
    assert least.violations[0].partition(":")[0] == whole.violations[0].partition(":")[0]
    assert len(least.injected) < len(whole.injected)
    assert again.violations == least.violations


def _found_and_shrunk(name: str) -> tuple[Seen, Seen, Seen]:
    whole = found(name, BUDGET)
    assert whole is not None
    with mutant(name):
        least = shrunk(whole, tries=30)
        return whole, least, simulate(least.case)


def test_a_violation_is_told_with_its_seed() -> None:
    """The command prints the seed, the least of it, and ends with 1; without violations with 0."""
    seed, (failed, told), (passed, nothing) = apart(_found_and_told, "stopped is told as succeeded")
    assert (failed, passed) == (1, 0)
    assert f"python dev.py simulate --seed {seed}" in told
    assert "0 violations" in nothing


def _found_and_told(name: str) -> tuple[int, tuple[int, str], tuple[int, str]]:
    seen = found(name, BUDGET)
    assert seen is not None
    seed = seen.case.seed
    with mutant(name):
        failing = _told(seed)
    return seed, failing, _told(seed)


def _told(seed: int) -> tuple[int, str]:
    """What the command ends with, and prints."""
    with redirect_stdout(StringIO()) as printed:
        return main(["--seed", str(seed)]), printed.getvalue()


def test_a_calm_case_has_stops_only() -> None:
    """One case in ten only stops and starts hosts, so that nothing in it may count as a death."""
    calm = [case for seed in range(200) if (case := draw(seed)).calm]
    assert {type(case) for case in calm} == {JobCase, MessageCase}
    assert {fault.kind for case in calm for fault in case.faults} <= {"stop", "ask", "replay dead letters"}


def test_hosts_and_workers_of_a_functions_app_go_without_each_other() -> None:
    """In some of its cases, of either wing: never elsewhere, and never in a calm one."""
    kinds = {kind for kind, _ in FUNCTIONS_KINDS}
    having = [case for case in map(draw, range(300)) if any(fault.kind in kinds for fault in case.faults)]
    assert {type(case) for case in having} == {JobCase, MessageCase}
    assert all(case.functions and not case.calm for case in having)
    assert {fault.kind for case in having for fault in case.faults} >= kinds
