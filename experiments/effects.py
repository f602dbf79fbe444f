"""What took effect, counted outside of the toolkit: a line for each effect, appended to a file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runonce.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = SystemClock()
"""Its elapsed time is the same in all processes of a machine."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect: when (elapsed time), in which process, on what, and how much."""

    at: float
    pid: int
    key: str
    amount: int


class Effects:
    """The file. Processes append to it, however they end; the experiment reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: list[Effect] = []
        self._position = 0

    def append(self, key: str, amount: int = 0) -> None:
        """Note an effect of this process."""
        line = json.dumps([CLOCK.elapsed(), os.getpid(), key, amount]) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())  # one short write to the end: whole, whoever else writes
        finally:
            os.close(descriptor)

    def read(self) -> list[Effect]:
        """All effects so far, in the order in which they were noted."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._position += len(line)
                    self._read.append(Effect(*json.loads(line)))
        return list(self._read)
