"""The package as a release builds it: fixtures that do so once, whichever test process needs it first."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.environments import Environment, run
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all the test processes of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """Whether it is to be made here: the first process that comes makes it, and the others wait."""
    from azurite import launcher  # noqa: PLC0415 - mutants are tested in a folder without it

    with launcher._only_one(folder.with_suffix(".lock")):
        done = folder.with_suffix(".made")
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def tools(shared: Path) -> Environment:
    """What a release is built and checked with, as the release workflow installs it."""
    folder = shared / "release-tools"
    with made_once(folder) as here:
        made = Environment(folder, sys.executable)
        if here:
            made.pip("-r", ROOT / "requirements-release.txt")
    return made


@pytest.fixture(scope="session")
def dist(tools: Environment, shared: Path) -> Path:
    """The folder `python -m build` leaves: an sdist of what Git tracks, and the wheel built from that sdist."""
    source = shared / "release"
    with made_once(source) as here:
        if here:
            _build(tools, source)
    return source / "dist"


def _build(tools: Environment, source: Path) -> None:
    tracked = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in tracked:
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    run(tools.bin / "python", "-m", "build", "--outdir", source / "dist", source)


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The built wheel."""
    (built,) = dist.glob("*.whl")
    return built
