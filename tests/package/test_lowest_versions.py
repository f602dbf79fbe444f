"""The lower bounds of pyproject.toml are true: the package works on the lowest versions it says it works on."""

from __future__ import annotations

import os
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests.support.environments import Environment, run
from tests.support.pages import ROOT, read

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = tomllib.loads(read("pyproject.toml"))["project"]


def lowest() -> list[str]:
    """Each package the project names, at the version its range begins with."""
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(text for name in extras if name != "all" for text in extras[name])]
    return [f"{one.name}=={next(iter(one.specifier)).version}" for one in map(Requirement, asked)]


def pinned(*names: str) -> list[str]:
    """What the tests themselves need, as the repository pins it."""
    lines = read("requirements-dev.txt").splitlines()
    return [line for line in lines if line.partition("==")[0] in names]


@pytest.mark.skipif(
    not os.environ.get("RUNONCE_LOWEST"),
    reason="takes minutes: .ci/run has a stage for it, and RUNONCE_LOWEST=1 asks for it by hand",
)
@pytest.mark.timeout(900)
def test_the_unit_tests_pass_on_the_lowest_versions(tmp_path: Path) -> None:
    """With every package at its lower bound, all unit tests pass; only the linter of imports needs newer ones."""
    fresh = Environment(tmp_path, sys.executable)
    fresh.pip(*lowest(), *pinned("pytest", "pytest-timeout", "hypothesis", "grpcio", "protobuf"))
    run(
        fresh.bin / "python",
        *("-m", "pytest", "-q", "tests/unit", "--ignore", "tests/unit/test_architecture.py"),
        cwd=ROOT,
    )
