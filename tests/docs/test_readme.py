"""The README's first ten minutes, carried out: the package installed as it says, then command by command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tomllib
import uuid
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from runonce.testing import Complete, Workbench
from tests.support.pages import blocks, commands, read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOBS = [block for block in blocks("README.md") if block.file]
COMMANDS = [
    words
    for program, words in commands("README.md")
    if program == "runonce"
    and words.partition(" ")[0] not in ("init", "dev")  # tests/package carries these out
]
PROJECT = tomllib.loads(read("pyproject.toml"))["project"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the package is installed in; its dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The README's two files, where it says they are."""
    for block in JOBS:
        path = tmp_path / str(block.file)
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def environ(installed: Path, azurite: str) -> Iterator[dict[str, str]]:
    """The installed package's environment; nothing of the checkout is on its path."""
    return {
        "PATH": f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(installed),
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"readme-{uuid.uuid4().hex[:8]}",
    }


# -- the package ------------------------------------------------------------------------------------------------


def test_the_package_needs_what_the_app_installs() -> None:
    """Its dependencies and extras are those of requirements.txt, and their ranges take the versions pinned there."""
    extras = PROJECT["optional-dependencies"]
    installed = ("cli", "dashboard", "functions", "servicebus")
    wanted = [*PROJECT["dependencies"], *(text for extra in installed for text in extras[extra])]
    ranges = {(one := Requirement(text)).name: one.specifier for text in wanted}
    lines = [line.partition("#")[0].strip() for line in read("requirements.txt").splitlines()]
    pins = [Requirement(line) for line in lines if line and not line.startswith("-")]
    assert {pin.name for pin in pins} == set(ranges)
    for pin in pins:
        assert ranges[pin.name].contains(str(pin.specifier).removeprefix("==")), f"{pin} is out of range"


# -- its README -------------------------------------------------------------------------------------------------


def test_the_job_and_the_handler_on_a_workbench(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, each takes effect once, although its fire time and its message come twice."""
    monkeypatch.syspath_prepend(project / "jobs")
    from book_orders import book_orders  # type: ignore[import-not-found]  # noqa: PLC0415 - written above
    from send_receipt import send_receipt  # type: ignore[import-not-found]  # noqa: PLC0415

    bench = Workbench(book_orders)
    assert bench.run(book_orders, at="2026-12-01T00:00:00Z").outcome == "succeeded"
    assert bench.run(book_orders, at="2026-12-01T00:00:00Z").outcome == "skipped"
    assert bench.run(book_orders, at="2026-12-02T00:00:00Z").outcome == "succeeded"
    assert bench.deliver(send_receipt, {"order": "1", "customer": "ada"}) == Complete()
    assert bench.deliver(send_receipt, {"order": "1", "customer": "ada"}) == Complete(duplicate=True)
    (row,) = bench.effects(send_receipt)
    assert str(row["mail"]).endswith(" to ada")


@pytest.mark.slow
def test_the_commands_in_their_order(project: Path, environ: dict[str, str]) -> None:
    """Each of the README's commands, typed into a shell of the installed package, ends with 0 and does its work."""
    said = {}
    for words in COMMANDS[: COMMANDS.index("serve")]:
        command = shlex.split(f"runonce {words}")
        done = subprocess.run(
            command, cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        said[command[1]] = done.stdout
    assert list(said) == ["list", "run", "enqueue", "work", "history"]
    assert "succeeded (attempt 1" in said["run"]
    assert "1 message settled" in said["work"]
    assert "succeeded" in said["history"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_serve_runs_until_it_is_interrupted(project: Path, environ: dict[str, str]) -> None:
    """`runonce serve` says what it has, handles a message that waits, and ends with 0 at Ctrl-C."""
    send = [*shlex.split("runonce enqueue send_receipt --body"), '{"order": "1002", "customer": "grace"}']
    subprocess.run(send, cwd=project, env=environ, check=True)
    host = subprocess.Popen(["runonce", "serve"], cwd=project, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert host.stderr is not None
        banner = list(iter(host.stderr.readline, "Ctrl-C stops it.\n"))
        assert "1 job and 1 handler" in banner[0]
        while "send_receipt" not in host.stderr.readline():
            assert host.poll() is None
        host.send_signal(signal.SIGINT)
        host.communicate(timeout=60)
        assert host.returncode == 0
    finally:
        host.kill()


def test_its_tables_fit_a_terminal() -> None:
    """No line of a table, and no other line, is longer than 80 columns."""
    assert [line for line in read("README.md").splitlines() if len(line) > 80] == []
