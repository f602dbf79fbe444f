"""What a person sees on a terminal while something runs, and that a pipe gets plain lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")

JOB = """
import time
from runonce import Run, scheduled

@scheduled("0 0 3 * * *")
def slow(run: Run) -> None:
    for batch in run.batches(range(60), size=10, name="invoices"):
        run.log.info("a batch of %d", len(batch))
        time.sleep(0.5)
"""


@pytest.fixture
def environ(tmp_path: Path, azurite: str) -> dict[str, str]:
    """Of a project with one slow job."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "slow.py").write_text(JOB, encoding="utf-8")
    return {
        **os.environ,
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"live-{uuid.uuid4().hex[:8]}",
        "RUNONCE_JOBS": str(tmp_path / "jobs"),
        "TERM": "xterm",
        "COLUMNS": "100",
    }


def on_a_terminal(*arguments: str, environ: dict[str, str]) -> str:
    """What `runonce ARGUMENTS` writes to a terminal, escape sequences left out."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "runonce", *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait(10) == 0, written.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())


def test_a_terminal_shows_what_runs_and_how_far_it_is(environ: dict[str, str]) -> None:
    """Job, fire time, attempt and items done, drawn anew, with the log lines above it."""
    seen = on_a_terminal("run", "slow", environ=environ)
    assert re.search(r"slow +2026\S+ +1 +\d+ s +[1-5]0 invoices", seen)
    assert seen.count("a batch of 10") == 6
    assert "slow" in seen.splitlines()[-1]


def test_a_backfill_counts_what_is_done(environ: dict[str, str]) -> None:
    """How many of the fire times have been run."""
    seen = on_a_terminal("backfill", "slow", "--from", "2026-11-27", "--to", "2026-11-28", environ=environ)
    assert "0 of 2 fire times" in seen
    assert "1 of 2 fire times" in seen


def test_a_pipe_gets_plain_lines(environ: dict[str, str]) -> None:
    """No escape sequence, and nothing drawn."""
    done = subprocess.run(
        [sys.executable, "-m", "runonce", "run", "slow"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\x1b" not in done.stdout + done.stderr
    assert "Attempt" not in done.stdout + done.stderr
    assert done.stderr.count("a batch of 10") == 6
