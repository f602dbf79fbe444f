"""docs/vm.md: its unit and its crontab, carried out as far as that goes without systemd and cron."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import ROOT, blocks, read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="systemd and cron")
PAGE = "docs/vm.md"
(UNIT,) = [block.text for block in blocks(PAGE) if "[Service]" in block.text]
(CRONTAB,) = [block.text for block in blocks(PAGE) if "CRON_TZ" in block.text]
LINES = re.findall(r"^\S+ +\S+ +\S+ +\S+ +\S+ my-jobs (.*)$", CRONTAB, re.MULTILINE)


@pytest.fixture
def machine(tmp_path: Path, azurite: str) -> Path:
    """The folder and the settings the page speaks of, below a folder of the test's own."""
    project = tmp_path / "opt" / "my-jobs"
    (project / ".venv" / "bin").mkdir(parents=True)
    script = project / ".venv" / "bin" / "runonce"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m runonce "$@"\n')
    script.chmod(0o755)
    (project / "jobs").mkdir()
    (job,) = [block for block in blocks("docs/start.md") if block.file == "jobs/clear_carts.py"]
    (project / "jobs" / "clear_carts.py").write_text(job.text)
    (tmp_path / "etc").mkdir()
    settings = f'RUNONCE_STORAGE="{azurite}"\nRUNONCE_NAMESPACE=vm-{uuid.uuid4().hex[:8]}\n'
    (tmp_path / "etc" / "my-jobs.env").write_text(settings)
    return tmp_path


def below(machine: Path, text: str) -> str:
    """The text with its paths in that folder."""
    return re.sub(r"/(opt|etc)/my-jobs", rf"{machine}/\1/my-jobs", text)


def value(key: str) -> str:
    (found,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(found)


def test_the_lines_of_the_crontab_run(machine: Path) -> None:
    """Both end with 0 in the shell the crontab names, from the folder and with the settings they name."""
    assert len(LINES) == 2
    for line in LINES:
        done = subprocess.run(
            ["/bin/bash", "-c", below(machine, line)],
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_starts_a_host_and_its_stop_is_heard(machine: Path) -> None:
    """The command serves with the environment of the file, and ends with 0 after SIGTERM, within its time limit."""
    lines = (machine / "etc" / "my-jobs.env").read_text().splitlines()
    given = {name: text.strip('"') for name, _, text in (line.partition("=") for line in lines)}
    host = subprocess.Popen(
        shlex.split(below(machine, value("ExecStart"))),
        cwd=below(machine, value("WorkingDirectory")),
        env={"PATH": "/usr/bin:/bin", **given},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert host.stderr is not None
        assert "serves 1 job" in host.stderr.readline()
        while "Ctrl-C stops it" not in host.stderr.readline():
            assert host.poll() is None
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=int(value("TimeoutStopSec")))
        assert host.returncode == 0
    finally:
        host.kill()
        host.wait()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_can_read_the_unit(machine: Path) -> None:
    """`systemd-analyze verify` knows every line of it."""
    unit = machine / "my-jobs.service"
    unit.write_text(below(machine, UNIT).replace("User=my-jobs", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert "my-jobs.service" not in done.stderr, done.stderr


def test_the_page_says_how_long_a_stop_may_take() -> None:
    """The unit waits longer than the runs are given."""
    assert "runs get 45 s" in read(PAGE)
    assert int(value("TimeoutStopSec")) > 45
