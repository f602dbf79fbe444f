"""Every target, with the samples that fuzzing begins from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz import frames, messages, pages, rows, texts

if TYPE_CHECKING:
    from collections.abc import Callable

FOUND = Path(__file__).parent / "found"
"""Inputs that broke a target once, in a folder for each; they are tried again ever after."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder, or several that get the same text."""

    check: Callable[[bytes], None]
    """Returns where the code keeps its word, and raises whatever it raised where it does not."""
    samples: tuple[bytes, ...]
    """Good inputs, and what each part of one may be replaced by."""

    def found(self) -> list[bytes]:
        """What broke it once."""
        folder = FOUND / self.check.__name__
        return [file.read_bytes() for file in sorted(folder.glob("*"))]


TARGETS = {
    check.__name__: Target(check, samples)
    for part in (texts, rows, messages, frames, pages)
    for check, samples in part.TARGETS.items()
}


def main() -> None:
    """Try inputs that files hold, once each: `python -m fuzz.targets TARGET FILE …`."""
    name, *files = sys.argv[1:]
    for file in files:
        TARGETS[name].check(Path(file).read_bytes())


if __name__ == "__main__":
    main()
