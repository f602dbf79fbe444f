"""What importing the app costs a cold start, beside what it stands on.

    python benchmarks/imports.py [--rounds 9]

Each round starts fresh interpreters, in turns: one that imports `function_app`, with every job and handler in jobs/;
the same from a copy whose own modules are not compiled, as in a package that has no `__pycache__`; one that imports
azure.functions and azure.core alone; and one that imports nothing, whose figures are taken off the others'.
Milliseconds of CPU, which mind a busy machine less than the clock, and MiB; medians with the least and the most.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU, MEMORY = 450.0, 25.0
"""Milliseconds and MiB that an import may take (docs/performance.md)."""
SIZE = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
APP, BARE = (
    "import function_app",
    "import azure.functions, azure.core.pipeline.policies, azure.core.rest",
)
LOCAL = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
BUS = (
    "Endpoint=sb://127.0.0.1:5673;SharedAccessKeyName=Root;SharedAccessKey=local;UseDevelopmentEmulator=true"
)


def cost(code: str, folder: Path, environ: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of CPU, and MiB, of a fresh interpreter."""
    before = os.times()
    run = subprocess.run(
        [sys.executable, "-c", code + SIZE],
        cwd=folder,
        env=environ,
        check=True,
        capture_output=True,
        text=True,
    )
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return 1000 * cpu, int(run.stdout.splitlines()[-1]) / 1024


def compare(title: str, rounds: int, copy: Path, more: dict[str, str]) -> bool:
    """Print the figures for one set of settings; whether the targets are met."""
    environ = {**os.environ, **LOCAL, **more, "PYTHONDONTWRITEBYTECODE": ""}
    uncompiled = {**environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    environ["PYTHONPATH"] = str(ROOT)
    sides = {
        "nothing": ("", ROOT, environ),
        "bare": (BARE, ROOT, environ),
        "function_app": (APP, ROOT, environ),
        "not compiled": (APP, copy, uncompiled),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for side in sides.values():
        cost(*side)  # writes the compiled files, and warms the disk's cache
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(cost(*side))
    print(f"{title}: {rounds} rounds, medians (least-most), above an interpreter that imports nothing")
    empty = found.pop("nothing")
    nothing = [statistics.median(one[n] for one in empty) for n in range(2)]
    for name, figures in found.items():
        cpu, memory = ([one[n] - nothing[n] for one in figures] for n in range(2))
        spread = f"({min(cpu):.0f}-{max(cpu):.0f})"
        print(
            f"  {name:13} {statistics.median(cpu):5.0f} {spread} ms CPU, {statistics.median(memory):4.0f} MiB"
        )
    cpu, memory = (statistics.median(one[n] - nothing[n] for one in found["function_app"]) for n in range(2))
    met = cpu <= CPU and memory <= MEMORY
    print(f"    target {CPU:.0f} ms and {MEMORY:.0f} MiB: {'met' if met else 'MISSED'}")
    return met


def main() -> int:
    """Run it; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("runonce", "jobs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("function_app.py", "host.json"):
            shutil.copy(ROOT / name, copy)
        bus = {"RUNONCE_SERVICEBUS": BUS}
        met = [
            compare("Storage queues", rounds, copy, {}),
            compare("Service Bus", rounds, copy, bus),
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
