"""The one patience: how long to go on trying while a service does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from runonce.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock

PATIENCE = 60.0
"""Seconds in all."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

T = TypeVar("T")


class Patience:
    """Counts from when it is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._give_up_at = clock.elapsed() + PATIENCE
        self._pause = FIRST_PAUSE

    def spend(self, error: StoreError) -> None:
        """Wait a little longer than the last time; once the minute is over, raise the error."""
        if self._clock.elapsed() > self._give_up_at:
            raise error
        asked = error.retry_after if isinstance(error, StoreUnavailableError) else 0.0
        self._clock.wait(threading.Event(), max(self._pause, min(asked, PATIENCE)))
        self._pause = min(LONGEST_PAUSE, self._pause * 2)


def patiently(clock: Clock, call: Callable[[], T], *, check: Callable[[], None]) -> T:
    """The answer of a call that changes nothing, so that it can be made again until there is one.

    Raises:
        StoreUnavailableError: There was none for a minute.
        LeaseLost: `check`, which is asked before each further try, says that the answer would be of no use.
    """
    patience = Patience(clock)
    while True:
        try:
            return call()
        except StoreUnavailableError as error:
            patience.spend(error)
            check()
