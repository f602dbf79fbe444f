"""Change the core's code in one place at a time, and see that a unit test fails: see `python dev.py mutate --help`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "mutants"
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
LEAST = 95.0
"""Per cent of the mutants that the tests must find."""
FOUND = {1, 3, 24, -24, 152}
"""What pytest ends with where a test fails or is never done, or is ended with where it computes for ever (SIGXCPU).
Any other end, as of tests that could not be run, has found nothing."""


@dataclass(frozen=True, order=True)
class Change:
    """What a mutant changes, in words that stay when the lines around it move."""

    module: str
    function: str
    was: str
    becomes: str

    def __str__(self) -> str:
        """Three lines, for a person."""
        return f"{self.module}.{self.function}\n    - {self.was}\n    + {self.becomes}"


@dataclass(frozen=True)
class Judged:
    """What became of the mutants."""

    found: Counter[str]
    """By module; with `equivalent` and the survivors they are all."""
    equivalent: Counter[str]
    survivors: list[tuple[str, Change]]
    """The names that mutmut gave them, too: `mutmut show` takes them."""
    stale: list[Change]
    """Named as equivalent, of modules that were tried, and not among those that survive."""

    def score(self, module: str | None = None) -> float:
        """The per cent found, of those that are not equivalent: of one module, or of all."""
        found = self.found.total() if module is None else self.found[module]
        left = sum(module in {None, change.module} for _, change in self.survivors)
        return 100.0 * found / (found + left) if found + left else 100.0


def core() -> dict[str, Any]:
    """What pyproject.toml says to mutmut."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["tool"]["mutmut"])


def equivalents() -> dict[Change, str]:
    """The changes that no test can find, and why."""
    listed = tomllib.loads(EQUIVALENTS.read_text(encoding="utf-8"))["equivalent"]
    return {Change(*change): group["why"] for group in listed for change in group["changes"]}


def named(path: str) -> str:
    """A file's module."""
    return path.removesuffix(".py").replace("/", ".")


def judged(
    found: Counter[str],
    survivors: Iterable[tuple[str, Change]],
    known: Iterable[Change],
    tried: Iterable[str],
) -> Judged:
    """Tell the survivors that are named as equivalent from the others, and the names that no survivor has."""
    known, tried, survivors = set(known), set(tried), list(survivors)
    left = [(name, change) for name, change in survivors if change not in known]
    equivalent = Counter(change.module for _, change in survivors if change in known)
    stale = sorted(known - {change for _, change in survivors})
    return Judged(found, equivalent, left, [change for change in stale if change.module in tried])


def results(modules: Sequence[str]) -> tuple[Counter[str], list[tuple[str, Change]]]:
    """How many mutants of each module were found, and the others."""
    from mutmut.mutation.data import SourceFileMutationData  # noqa: PLC0415 - which the unit tests do without

    found, survivors = Counter[str](), []
    for path in core()["only_mutate"]:
        if named(path) not in modules:
            continue
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if code is None:
                sys.exit("stopped before all were tried")  # mutmut takes Ctrl-C for an end like any other
            if code in FOUND:
                found[named(path)] += 1
            else:
                survivors.append((name, change_of(name, path)))
    return found, survivors


def change_of(name: str, path: str) -> Change:
    """What a mutant changes: its lines without their indentation."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # noqa: PLC0415
    from mutmut.utils.format_utils import orig_function_and_class_names_from_key  # noqa: PLC0415

    function, class_name = orig_function_and_class_names_from_key(name)
    lines = get_diff_for_mutant(name, path=path).splitlines()[3:]
    was, becomes = (
        " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in ("-", "+")
    )
    return Change(named(path), f"{class_name}.{function}" if class_name else function, was, becomes)


def told(seen: Judged, modules: Sequence[str]) -> Iterator[str]:
    """The lines of the answer."""
    for name, change in sorted(seen.survivors, key=lambda one: one[1]):
        yield f"{change}\n    {name}\n"
    for change in seen.stale:
        yield f"{EQUIVALENTS.relative_to(ROOT)} names what is not there any more, or is found: {change}\n"
    yield f"{'':40} {'found':>7} {'equivalent':>11} {'survived':>9} {'score':>8}"
    for module in modules:
        left = sum(change.module == module for _, change in seen.survivors)
        counts = f"{seen.found[module]:7} {seen.equivalent[module]:11} {left:9}"
        yield f"{module:40} {counts} {seen.score(module):6.1f} %"
    counts = f"{seen.found.total():7} {seen.equivalent.total():11} {len(seen.survivors):9}"
    yield f"{'together':40} {counts} {seen.score():6.1f} %"


def mutate(paths: Sequence[str], processes: int) -> None:
    """Try the mutants of some files; what was found of others, or with other tests, is forgotten."""
    from mutmut import __main__ as mutmut  # noqa: PLC0415
    from mutmut.configuration import config  # noqa: PLC0415

    from tests.mutation.runner import Runner  # noqa: PLC0415

    os.chdir(ROOT)  # where mutmut looks for what it works on
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # looking for plugins takes longer than most tests
    shutil.rmtree(WORK, ignore_errors=True)
    config().only_mutate = list(paths)
    mutmut.get_mutant_runner = Runner
    mutmut._run((), processes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Mutate; 1 where the score is too low. What is named as equivalent and was found is told: a test may be late."""
    parser = argparse.ArgumentParser(prog="dev.py mutate", description=__doc__)
    everything = [named(path) for path in core()["only_mutate"]]
    parser.add_argument(
        "modules", nargs="*", metavar="MODULE", help=f"default: all of {', '.join(everything)}"
    )
    # Those that take long wait for what never comes.
    parser.add_argument("--processes", type=int, default=4 * (os.cpu_count() or 1), metavar="P")
    options = parser.parse_args(arguments)
    if unknown := set(options.modules) - set(everything):
        parser.error(
            f"no module of the core: {', '.join(sorted(unknown))}. There are {', '.join(everything)}"
        )
    modules = options.modules or everything
    mutate([path for path in core()["only_mutate"] if named(path) in modules], options.processes)
    seen = judged(*results(modules), equivalents(), modules)
    print("\n".join(told(seen, modules)))  # noqa: T201 - for a person
    return 1 if seen.score() < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
