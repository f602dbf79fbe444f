"""What importing the app costs a cold start, against importing the three Azure packages any such app needs.

    python benchmarks/imports.py [--rounds 15]

Each round starts fresh interpreters, in turns: one that imports `function_app`, with every job and handler in
jobs/, one that imports azure.functions, azure.storage.blob and azure.data.tables alone, and one that imports
nothing, whose time is taken off the others'. Figures are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = 1.25
CODE = {
    "nothing": "",
    "azure": "import azure.functions, azure.storage.blob, azure.data.tables",
    "function_app": "import function_app",
}
KINDS = ("clock", "CPU")
LOCAL = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
BUS = (
    "Endpoint=sb://127.0.0.1:5673;SharedAccessKeyName=Root;SharedAccessKey=local;UseDevelopmentEmulator=true"
)


def cost(name: str, environ: dict[str, str]) -> tuple[float, float]:
    """Seconds that a fresh interpreter takes, by the clock and of CPU; the latter minds a busy machine less."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", CODE[name]], cwd=ROOT, env=environ, check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def compare(title: str, rounds: int, more: dict[str, str]) -> bool:
    """Print the figures for one set of settings; whether the target is met."""
    environ = {**os.environ, **LOCAL, **more, "PYTHONDONTWRITEBYTECODE": ""}
    for name in CODE:
        cost(name, environ)  # writes the compiled files, and warms the disk's cache
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CODE}
    for _ in range(rounds):
        for name in CODE:
            found[name].append(cost(name, environ))
    print(f"{title}: {rounds} rounds, medians")
    ratios = [
        report(kind, [[one[n] for one in found[name]] for name in CODE]) for n, kind in enumerate(KINDS)
    ]
    verdict = "met" if ratios[0] <= TARGET else "MISSED"
    print(f"  target {TARGET:.2f} or less by the clock: {verdict}")
    return ratios[0] <= TARGET


def report(kind: str, found: list[list[float]]) -> float:
    """Print one kind of figure; the ratio, of each round's three interpreters and then of all rounds."""
    nothing, azure, app = found
    ratio = statistics.median((o - n) / (a - n) for n, a, o in zip(nothing, azure, app, strict=True))
    middle = statistics.median(nothing)
    costs = [1000 * (statistics.median(times) - middle) for times in (azure, app)]
    print(f"  {kind:6} azure packages {costs[0]:5.0f} ms, function_app {costs[1]:5.0f} ms, ratio {ratio:.2f}")
    return ratio


def main() -> int:
    """Run it; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    met = [compare("Storage queues", rounds, {}), compare("Service Bus", rounds, {"RUNONCE_SERVICEBUS": BUS})]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
