"""Virtual environments of a test's own, made with the Pythons of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def run(*command: str | Path, **how: object) -> str:
    """A command that has to succeed; its stdout."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine, such as "3.12"."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(managed[-1]) if managed else shutil.which(f"python{version}")


class Environment:
    """A virtual environment of its own, in which nothing of the checkout can be found.

    It has no pip, whose installation takes as long as most of what is tried in it: this Python's own serves.
    """

    def __init__(self, folder: Path, python: str | Path) -> None:
        self.folder = folder
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        if not (folder / "pyvenv.cfg").exists():
            run(python, "-m", "venv", "--without-pip", folder)

    def pip(self, *arguments: str | Path) -> None:
        """Install."""
        pip = (
            sys.executable,
            "-m",
            "pip",
            "-q",
            "--disable-pip-version-check",
            "--python",
            self.bin / "python",
        )
        run(*pip, "install", "--no-compile", *arguments)

    def answer(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """What a command of the environment answers, typed into its empty folder."""
        first, *rest = command
        return subprocess.run(
            [self.bin / first, *rest],
            cwd=self.folder,
            env={"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **environ},
            capture_output=True,
            text=True,
            check=False,
        )
