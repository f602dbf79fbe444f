"""Carries out a Dockerfile's steps without Docker: a fresh environment, a folder for its root, another user.

What it cannot carry out is an error, except making the user, whose number is enough. The base image itself (its
system libraries) is not part of it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions, as name and arguments."""
    text = re.sub(r"\\\n\s*", "", dockerfile.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def ignored(dockerignore: Path, path: str) -> bool:
    """Whether a path of the context is left out; the last pattern that matches it or a folder above it decides."""
    left_out = False
    parts = path.split("/")
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for line in dockerignore.read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep, pattern = pattern.startswith("!"), pattern.removeprefix("!").rstrip("/")
        names = above if not pattern.startswith("**/") else parts
        if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
            left_out = not keep
    return left_out


def copied(context: Path, origin: Path) -> Iterator[Path]:
    """The files that COPY takes of a file or a folder of the context."""
    if origin != context and ignored(context / ".dockerignore", origin.relative_to(context).as_posix()):
        return
    if origin.is_dir():
        for inside in origin.iterdir():
            yield from copied(context, inside)
    else:
        yield origin


@dataclass
class Image:
    """What came of the steps."""

    root: Path
    context: Path
    base: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: Path = Path()
    environ: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    not_carried_out: list[str] = field(default_factory=list)

    @property
    def python(self) -> Path:
        return self.root / "venv" / "bin" / "python"

    def build(self, interpreter: str) -> None:
        """Carry out every step."""
        subprocess.run([interpreter, "-m", "venv", self.root / "venv"], check=True)
        for name, arguments in instructions(self.context / "Dockerfile"):
            getattr(self, f"_{name.lower()}")(arguments)

    def _arg(self, arguments: str) -> None:
        name, _, default = arguments.partition("=")
        self.arguments[name] = default

    def _from(self, arguments: str) -> None:
        self.base = re.sub(r"\$\{(\w+)\}", lambda match: self.arguments[match[1]], arguments)

    def _env(self, arguments: str) -> None:
        self.environ.update(word.split("=", 1) for word in shlex.split(arguments))

    def _workdir(self, arguments: str) -> None:
        self.workdir = self.root / arguments.lstrip("/")
        self.workdir.mkdir(parents=True)

    def _copy(self, arguments: str) -> None:
        *sources, target = arguments.split()
        for source in sources:
            origin = self.context / source
            for file in sorted(copied(self.context, origin)):
                below = file.relative_to(origin) if origin.is_dir() else Path(file.name)
                copy = self.workdir / target / below
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

    def _run(self, arguments: str) -> None:
        words = shlex.split(arguments)
        if words[0] == "useradd":
            self.not_carried_out.append(arguments)
            return
        assert words[0] == "python", f"this step is not known here: {arguments}"
        environ = {**os.environ, **self.environ}
        done = subprocess.run(
            [self.python, *words[1:]],
            cwd=self.workdir,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _user(self, arguments: str) -> None:
        self.user = arguments

    def _entrypoint(self, arguments: str) -> None:
        self.entrypoint = json.loads(arguments)

    # -- running it -----------------------------------------------------------------------------------------

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The entry point with arguments, as the image's user where we may become that."""
        return [*self.as_user(), *self.entry(), *arguments]

    def entry(self) -> list[str]:
        """The entry point, with the Python of the fresh environment."""
        assert self.entrypoint.count("python") == 1
        return [str(self.python) if word == "python" else word for word in self.entrypoint]

    def as_user(self) -> list[str]:
        """What to put before a command so that it runs as the image's user: nothing where we are not root."""
        if os.name == "nt" or os.geteuid() != 0:
            return []
        if shutil.which("setpriv") is None:
            pytest.skip("root without setpriv (util-linux): nothing here can become another user")
        switch = ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups"]
        if subprocess.run([*switch, self.python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return switch
        # The interpreter lies in root's own home: let the user read it, and still write nothing.
        return [*switch, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]

    def modules(self) -> Iterator[Path]:
        """Every Python file of the application."""
        yield from (file for file in self.workdir.rglob("*.py") if "__pycache__" not in file.parts)
