"""Programs with Microsoft's JavaScript clients, whose packages tests/servicebus/javascript pins."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from azurite import launcher as npm

if TYPE_CHECKING:
    from collections.abc import Mapping

TESTS = Path(__file__).resolve().parents[1]
HERE = TESTS / "servicebus" / "javascript"
LOCK = TESTS.parent / ".venvs" / "javascript.lock"


def node() -> str:
    """Node, with the packages as the lock file has them; without them a test is skipped, and fails in CI."""
    try:
        found = npm.find_or_install_node()
        LOCK.parent.mkdir(exist_ok=True)
        with npm._only_one(LOCK):
            _install(found)
    except (npm.CommandError, OSError) as error:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"the JavaScript clients cannot be had: {error}")
    return found.node


def _install(found: npm.Node) -> None:
    stamp = HERE / "node_modules" / ".stamp"
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        npm.run_quietly([*found.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=HERE)
        stamp.write_text(wanted)


def run(program: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """What a program prints; it finds the packages beside itself, and has to end with 0."""
    runtime, packages = node(), program.parent / "node_modules"
    if not packages.exists():
        packages.symlink_to(HERE / "node_modules")
    done = subprocess.run(
        [runtime, str(program), *arguments],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
