"""Fuzz every target, or some, for so many seconds each; what breaks one is kept in fuzz/found, for the tests."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.targets import FOUND, TARGETS

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 4096
"""Bytes of an input."""
SLOWEST = 20
"""Seconds that one input may take."""
MISSING = """atheris is not installed, so nothing was fuzzed: pip install -r fuzz/requirements.txt
It has wheels for Linux on x86-64 and CPython 3.11 to 3.13; elsewhere it takes clang with libFuzzer to build it.
`python -m pytest tests/fuzz` tries the same targets without it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; 1 where a target broke, 2 where there is nothing to fuzz with."""
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=60, metavar="S", help="for each (default: %(default)s)"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        print(MISSING, file=sys.stderr)
        return 2
    broken = [name for name in options.targets or TARGETS if not holds(name, options.seconds)]
    print(f"{len(broken)} broken{': ' * bool(broken)}{', '.join(broken)}")
    return 1 if broken else 0


def holds(name: str, seconds: int) -> bool:
    """Fuzz one target in a process of its own; whether it held."""
    folder = FOUND / name
    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate([*TARGETS[name].samples, *TARGETS[name].found()]):
            (Path(corpus) / str(number)).write_bytes(sample)
        kept = set(folder.glob("*"))
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "fuzz.one", name, corpus, f"-artifact_prefix={folder}/"),
            *(f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={SLOWEST}"),
            *("-print_final_stats=1", "-rss_limit_mb=2048"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    counted = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    reached = re.findall(r"cov: (\d+)", done.stderr)
    print(
        f"{name}: {int(counted[1]) if counted else 0:,} inputs, {reached[-1] if reached else '?'} places reached: "
        f"{'broken' if done.returncode else 'holds'}",
        flush=True,
    )
    if done.returncode:
        print(done.stdout.rstrip() or done.stderr[-4000:])
        for file in set(folder.glob("*")) - kept:
            print(f"{file}: {file.read_bytes()!r}", flush=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
