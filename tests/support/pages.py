"""The repository's pages as tests read them: their code blocks, and the commands they show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "servicebus/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|\| )(?:(?:\S*python3? -m )?runonce|(?:\S*python3? )dev\.py) (.+)")


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    page: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The path that the block's first line gives as the file it is."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text)
        return found and found[1]

    @property
    def fragment(self) -> bool:
        """Whether its first line says that it is a part of something, and of what."""
        return re.match(r"# Fragment: \S.{10,}\n", self.text) is not None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = read(page)
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Every ("runonce" or "dev.py", arguments) that a page shows, in a block or within a sentence."""
    text = read(page)
    shown = [line for block in blocks(page) if not block.language for line in block.text.splitlines()]
    prose = _FENCE.sub("", text)
    shown += [line for part in _INDENTED.findall(prose) for line in part.splitlines()]
    shown += _SPAN.findall(prose)
    for line in shown:
        if (found := _COMMAND.search(line.strip().partition(" #")[0])) is not None:
            yield ("dev.py" if "dev.py" in found[0] else "runonce"), found[1].strip()
