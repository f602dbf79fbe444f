"""Simulate many schedules of events, or one again: see `python dev.py simulate --help`."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.simulate import Seen, shrunk, simulate, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRESS = 20.0
"""Seconds between two lines that say how far it is."""
QUIET = 300.0
"""Seconds of the trace, once nothing breaks any more, that are worth reading."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate; 1 where something that must hold did not."""
    parser = argparse.ArgumentParser(prog="dev.py simulate", description=__doc__)
    parser.add_argument(
        "--schedules", type=int, default=None, metavar="N", help="how many (default: 2000; 1 with --seed)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, metavar="S", help="the first one's seed (default: 0)"
    )
    parser.add_argument(
        "--processes", type=int, default=None, metavar="P", help="how many (default: one for each core)"
    )
    options = parser.parse_args(arguments)
    count = options.schedules or (2000 if options.seed is None else 1)
    first = options.seed or 0
    began = told_at = time.monotonic()  # noqa: TID251 - how long it takes, for a person
    injected, checked, failed, steps = Counter[str](), Counter[str](), list[Seen](), 0
    number = 0
    with ExitStack() as running, suppress(KeyboardInterrupt):  # then it says what was seen so far
        if count == 1:
            running.enter_context(simulated())
            results: Iterator[Seen] = map(_one, [first])
        else:
            pool = multiprocessing.Pool(options.processes, initializer=_begin)
            running.enter_context(pool)
            results = pool.imap_unordered(_one, range(first, first + count), chunksize=10)
        for number, seen in enumerate(results, 1):
            injected.update(seen.injected)
            checked.update(seen.checked)
            steps += seen.steps
            if seen.violations:
                failed.append(seen)
                print(f"seed {seen.case.seed}: {seen.violations[0]}", flush=True)
            now = time.monotonic()  # noqa: TID251
            if now - told_at > PROGRESS:
                told_at = now
                left = (now - began) / number * (count - number) / 60
                print(
                    f"{number:,} of {count:,}, {len(failed)} with violations, {left:.0f} min left", flush=True
                )
    if failed:
        tell(min(failed, key=lambda seen: seen.steps))
    print(f"\n{number:,} schedules from seed {first}, {steps:,} steps, {time.monotonic() - began:.0f} s")  # noqa: TID251
    print(f"{sum(injected.values()):,} faults injected: {listed(injected)}")
    print(f"{sum(checked.values()):,} invariants checked: {listed(checked)}")
    print(f"{len(failed)} violations")
    return 1 if failed else 0


_simulated = ExitStack()
"""Of a process that simulates one schedule after the other."""


def _begin() -> None:
    """In each process; whoever interrupts the command means its first one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _simulated.enter_context(simulated())


def _one(seed: int) -> Seen:
    """One schedule, without its trace where nobody wants to read it."""
    seen = simulate(seed)
    return seen if seen.violations else replace(seen, trace=())


def tell(seen: Seen) -> None:
    """How a violation comes about, from as few faults as may be."""
    with simulated():
        least = shrunk(seen)
    print(
        f"\nThe least of seed {seen.case.seed} (`python dev.py simulate --seed {seen.case.seed}` replays it whole):"
    )
    print(f"  {least.case}")
    for at, who, what in least.trace:
        if at < least.case.lasts + QUIET or who == "violation":
            print(f"  {at:8.2f}  {who:12} {what}")


def listed(counter: Counter[str]) -> str:
    """By how often."""
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common())


if __name__ == "__main__":
    sys.exit(main())
