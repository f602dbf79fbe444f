"""A project of one's own, from the built package to the first run: what a newcomer does, carried out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from tests.support.environments import run
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package from its wheel; what it needs is this environment's, and nothing of the checkout is on the path."""
    folder = tmp_path_factory.mktemp("unpacked")
    ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def environ(unpacked: Path, azurite: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(unpacked),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"init-{uuid.uuid4().hex[:8]}",
    }


def test_the_package_has_the_repository_s_own_files(unpacked: Path) -> None:
    """The files of a project in the package are those of the repository, byte for byte, and all of them."""
    inside = unpacked / "runonce" / "_template"
    copied = {path.relative_to(inside).as_posix() for path in inside.rglob("*") if path.is_file()}
    asked = [
        line.split()[1]
        for line in (ROOT / "template" / "files.txt").read_text().splitlines()
        if line[0] != "#"
    ]
    tracked = run("git", "ls-files", "-c", "-o", "--exclude-standard", "template", *asked, cwd=ROOT).split()
    assert copied == set(tracked)
    assert all((inside / path).read_bytes() == (ROOT / path).read_bytes() for path in copied)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_from_init_to_the_first_run(environ: dict[str, str], tmp_path: Path) -> None:
    """`init` makes a project whose tests pass, whose manifest is right, and whose job and handler both run."""
    project = tmp_path / "my-jobs"
    runonce = [sys.executable, "-m", "runonce"]
    run(*runonce, "init", project, env=environ, cwd=tmp_path)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", env=environ, cwd=project)
    run(*runonce, "manifest", "--check", env=environ, cwd=project)
    checked = run(
        sys.executable, "infra/hooks/check.py", env={**environ, "HOSTING_PATH": "both"}, cwd=project
    )
    assert "jobs.json is up to date" in checked
    host = subprocess.Popen([*runonce, "serve"], cwd=project, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert host.stderr is not None
        assert "1 job and 1 handler" in host.stderr.readline()
        run(*runonce, "enqueue", "greet", "--json", '{"name": "Ada"}', env=environ, cwd=project)
        ended = {"[heartbeat ": "succeeded", "[greet ": "done"}
        while ended:
            line = host.stderr.readline()
            assert line, f"it ended with {host.poll()} before {ended}"
            ended = {name: how for name, how in ended.items() if name not in line or how not in line}
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=60)
        assert host.returncode == 0
    finally:
        host.kill()
        host.wait()
    assert "succeeded" in run(*runonce, "history", "heartbeat", env=environ, cwd=project)
