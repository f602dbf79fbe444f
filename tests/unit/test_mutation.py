"""The nightly mutation tests: that their settings name what is there, and that they count honestly."""

from __future__ import annotations

import ast
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.mutation.__main__ import ROOT, Change, core, equivalents, judged, named, told

PLAN = Change("runonce.plan", "decide", "return a < b", "return a <= b")
CLAIM = Change("runonce.claim", "Claim.write", "x = 1", "x = 2")
MODULES = ["runonce.claim", "runonce.plan"]


def test_what_is_mutated_and_what_tests_it_exists() -> None:
    """Every module of the core, every test and every file they need is where pyproject.toml says."""
    settings = core()
    for name in ("source_paths", "only_mutate", "also_copy", "pytest_add_cli_args_test_selection"):
        assert [path for path in settings[name] if not (ROOT / path).exists()] == [], name


def source_of(change: Change) -> str:
    """The lines of its function, without their indentation."""
    found: ast.AST = ast.parse((ROOT / f"{change.module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    for name in change.function.split("."):
        found = next(each for each in ast.walk(found) if getattr(each, "name", None) == name)
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = (ROOT / f"{change.module.replace('.', '/')}.py").read_text(encoding="utf-8").splitlines()
    return " ".join(line.strip() for line in lines[found.lineno - 1 : found.end_lineno])


@pytest.mark.parametrize("change", equivalents(), ids=lambda change: f"{change.module}.{change.function}")
def test_an_equivalent_mutant_is_one_of_the_code_as_it_is(change: Change) -> None:
    """Whoever changes a line that is named as an equivalent mutant's hears of it at once, and says why it is one."""
    assert change.module in map(named, core()["only_mutate"])
    assert change.was in source_of(change)
    assert equivalents()[change].endswith(".")


def test_the_score_is_of_those_that_could_be_found() -> None:
    """What is equivalent counts on neither side."""
    seen = judged(Counter({"runonce.plan": 3}), [("m1", PLAN), ("m2", CLAIM)], [CLAIM], MODULES)
    assert (seen.score(), seen.score("runonce.plan"), seen.score("runonce.claim")) == (75.0, 75.0, 100.0)
    assert (seen.survivors, seen.stale) == ([("m1", PLAN)], [])


def test_a_name_that_no_survivor_has_is_stale() -> None:
    """What the tests find after all, or is not there any more, is told; of modules that were not tried nothing is."""
    assert judged(Counter(), [], [CLAIM], MODULES).stale == [CLAIM]
    assert judged(Counter(), [], [CLAIM], ["runonce.plan"]).stale == []


def test_a_survivor_is_told_with_its_change() -> None:
    """The answer shows what was changed, under which name, and the score of each module and of all."""
    seen = judged(Counter({"runonce.plan": 3}), [("m1", PLAN)], [], MODULES)
    lines = "\n".join(told(seen, MODULES)).splitlines()
    assert lines[:4] == ["runonce.plan.decide", "    - return a < b", "    + return a <= b", "    m1"]
    assert [line.split()[0] for line in lines[-3:]] == ["runonce.claim", "runonce.plan", "together"]
    assert lines[-1].endswith("75.0 %")


def test_a_mutant_is_tried_by_the_tests_that_find_most_and_the_fastest_first() -> None:
    """Until one fails, so that each costs as little as it can; where none fails the mutant has survived."""
    pytest.importorskip("mutmut")
    from mutmut.state import state  # noqa: PLC0415

    from tests.mutation.runner import Collected  # noqa: PLC0415

    ran: list[str] = []
    session = SimpleNamespace(testsfailed=0, items=[])

    def run(item: Any, nextitem: Any) -> None:
        ran.append(f"{item.nodeid} before {nextitem and nextitem.nodeid}")
        session.testsfailed += item.nodeid == "fails"

    hook = SimpleNamespace(pytest_runtest_protocol=run)
    names = ["slow", "fast", "fails"]
    session.items = [SimpleNamespace(nodeid=name, ihook=hook) for name in names]
    state().duration_by_test = {"slow": 3.0, "fast": 1.0, "fails": 2.0}
    collected = Collected(cast("pytest.Session", session))
    assert collected.run_tests(mutant_name="m1", tests=["slow", "fast"]) == 0
    assert collected.run_tests(mutant_name="m2", tests=names) == 1
    assert ran == ["fast before slow", "slow before None", "fast before fails", "fails before slow"]
    assert collected.run_tests(mutant_name="m3", tests=names) == 1
    assert ran[4:] == ["fails before fast"]
