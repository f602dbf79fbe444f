"""Turns: so many messages of a handler are worked on at a time, and one that waits for a lock lets others go first."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.execution.stop import StopSignal


class Turns:
    """Lets so many work at a time, and as many again wait for a lock meanwhile."""

    def __init__(self, most: int, stop: StopSignal) -> None:
        self._most, self._stop = most, stop
        self._free, self._waiting, self._wanted = most, 0, 0
        self._changed = threading.Condition()
        stop.listen(lambda _: self._give(0))

    @property
    def free(self) -> int:
        """How many more may begin; whoever waits to go on comes first."""
        with self._changed:
            return max(0, self._free - self._wanted)

    def take(self) -> Turn:
        """One of those that are free."""
        with self._changed:
            self._free -= 1
        return Turn(self)

    @contextmanager
    def one(self) -> Iterator[Turn]:
        """Wait for a turn; once the host stops, everybody has one, to give its message back."""
        turn = Turn(self, held=False)
        self._wait_for_one()
        turn.held = True
        try:
            yield turn
        finally:
            turn.end()

    def _wait_for_one(self) -> None:
        with self._changed:
            self._wanted += 1
            self._changed.wait_for(lambda: self._free > 0 or self._stop.cause is not None)
            self._wanted -= 1
            self._free -= 1

    def _give(self, count: int) -> None:
        with self._changed:
            self._free += count
            self._changed.notify_all()

    def _begin_waiting(self) -> bool:
        with self._changed:
            if self._waiting >= self._most:
                return False
            self._waiting += 1
        self._give(1)
        return True

    def _end_waiting(self) -> None:
        with self._changed:
            self._waiting -= 1


class Turn:
    """One turn, of one message."""

    def __init__(self, turns: Turns, *, held: bool = True) -> None:
        self._turns = turns
        self.held = held

    @contextmanager
    def passed_on(self) -> Iterator[bool]:
        """Let others have it while this one waits; False where so many wait already that this one must not.

        It is not had again afterwards; see `take_back`.
        """
        if not self._turns._begin_waiting():  # noqa: SLF001 - its own class
            yield False
            return
        self.held = False
        try:
            yield True
        finally:
            self._turns._end_waiting()  # noqa: SLF001

    def take_back(self) -> None:
        """Wait for a turn, if it was passed on."""
        if not self.held:
            self._turns._wait_for_one()  # noqa: SLF001
            self.held = True

    def end(self) -> None:
        """Let somebody else have it."""
        if self.held:
            self.held = False
            self._turns._give(1)  # noqa: SLF001
