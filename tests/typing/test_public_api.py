"""What is public: the pages name it, and strict mypy knows it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import runonce
import runonce.once
import runonce.testing
from tests.support.pages import ROOT, read

API = Path(__file__).with_name("api.py")
PUBLIC = {module.__name__: module.__all__ for module in (runonce, runonce.once, runonce.testing)}


def mypy(file: Path) -> subprocess.CompletedProcess[str]:
    # The cache is that of `dev.py check`: what has not changed since is not looked through again.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_strict_mypy_accepts_the_api_and_finds_its_misuse(tmp_path: Path) -> None:
    """Right uses of the public API have the types they say; wrong ones are errors, each of them, and only they."""
    done = mypy(API)
    assert done.returncode == 0, done.stdout
    text = API.read_text(encoding="utf-8")
    misused = tmp_path / "misused.py"
    misused.write_text(re.sub(r"  # type: ignore\[.*\]", "", text), encoding="utf-8")
    errors = mypy(misused).stdout
    wrong = [
        n for n, line in enumerate(text.splitlines(), start=1) if line.partition("#")[2].startswith(" type: ")
    ]
    assert sorted({int(n) for n in re.findall(r"misused\.py:(\d+): error", errors)}) == wrong


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_type_checked_and_explained(module: str) -> None:
    """Each name of a public module is used by the typing test, and stands in docs/public-api.md."""
    names = set(PUBLIC[module])
    imports = {
        alias.name
        for node in ast.walk(ast.parse(API.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }
    assert imports == names
    section = read("docs/public-api.md").partition(f"\n## {module}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) == names
