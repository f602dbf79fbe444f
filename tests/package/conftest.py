"""What the tests of the package share: it is built once, as a release is."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.environments import Environment, run
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What a release is built and checked with, as the release workflow installs it."""
    made = Environment(tmp_path_factory.mktemp("tools"), sys.executable)
    made.pip("-r", ROOT / "requirements-release.txt")
    return made


@pytest.fixture(scope="session")
def dist(tools: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `python -m build` leaves: an sdist of what Git tracks, and the wheel built from that sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split(
        "\0"
    ):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    run(tools.bin / "python", "-m", "build", "--outdir", source / "dist", source)
    return source / "dist"


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The built wheel."""
    (built,) = dist.glob("*.whl")
    return built
