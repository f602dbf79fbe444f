"""The picture of an experiment: a row for each replica, what it did and when, and what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.effects import Effect

EFFECT, BLOCKED = "█", "░"
PLAIN = str.maketrans({EFFECT: "#", BLOCKED: ".", "»": ">", "─": "-", "·": " "})
"""For terminals without Unicode."""
GONE = "XT"
"""Signs after which a replica does nothing more; what it held, others wait for."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a replica, at an instant of the elapsed time."""

    at: float
    pid: int
    sign: str
    """One character: X killed, T told to stop, z paused, w woken, h holds the lease, » took over."""
    what: str


@dataclass(frozen=True)
class Timeline:
    """What an experiment's replicas did."""

    replicas: Sequence[int]
    """Their process ids, in the order in which they were started."""
    effects: Sequence[Effect]
    marks: Sequence[Mark]

    @property
    def began(self) -> float:
        """The first thing to be seen."""
        return min(self._instants(), default=0.0)

    @property
    def seconds(self) -> float:
        """How long it went on."""
        return max(self._instants(), default=0.0) - self.began

    def _instants(self) -> list[float]:
        return [*(effect.at for effect in self.effects), *(mark.at for mark in self.marks)]

    def told(self) -> list[Mark]:
        """The marks and, after a replica was disturbed, the first effect of another one: the takeover."""
        found = list(self.marks)
        for mark in self.marks:
            if mark.sign in f"{GONE}z":
                later = (one for one in self.effects if one.at > mark.at and one.pid != mark.pid)
                if (first := next(later, None)) is not None:
                    found.append(Mark(first.at, first.pid, "»", "takes over"))
        return sorted(found, key=lambda mark: mark.at)

    def rows(self, width: int) -> list[str]:
        """A row of so many characters for each replica."""
        told = self.told()
        rows = {pid: ["·"] * width for pid in self.replicas}
        for effect in self.effects:
            if effect.pid in rows:
                rows[effect.pid][self._cell(effect.at, width)] = EFFECT
        for mark in told:
            row, cell = rows[mark.pid], self._cell(mark.at, width)
            if mark.sign in f"{GONE}z":
                taken = next((one.at for one in told if one.sign == "»" and one.at > mark.at), mark.at)
                row[cell : self._cell(taken, width)] = BLOCKED * (self._cell(taken, width) - cell)
            row[cell] = mark.sign
        return ["".join(row) for row in rows.values()]

    def _cell(self, at: float, width: int) -> int:
        return min(width - 1, int((at - self.began) / (self.seconds or 1.0) * width))

    def events(self) -> list[str]:
        """What the signs stand for, with their seconds."""
        number = {pid: count for count, pid in enumerate(self.replicas, 1)}
        return [
            f"{mark.sign} {mark.at - self.began:.1f} s  replica {number[mark.pid]} {mark.what}"
            for mark in self.told()
        ]

    def draw(self, width: int, *, unicode: bool = True) -> list[str]:
        """The picture in lines of at most so many characters."""
        label = f"replica {len(self.replicas)}  "
        wide = width - len(label)
        lines = [f"replica {n}  ".rjust(len(label)) + row for n, row in enumerate(self.rows(wide), 1)]
        end = f" {self.seconds:.1f} s"
        lines.append(" " * len(label) + "0 s " + "─" * (wide - len(end) - 4) + end)
        lines += [" " * len(label) + event for event in self.events()]
        return lines if unicode else [line.translate(PLAIN) for line in lines]
