"""The time, as something handed in: wall time proposes fire times, elapsed time decides trust.

No wall clock ever decides who owns what. Trust in a lease is counted on `elapsed`, which goes on while a
virtual machine is suspended where the system has such a clock (Linux CLOCK_BOOTTIME; on macOS
CLOCK_MONOTONIC counts sleep; Windows counts it too). A process stopped by a signal is counted everywhere.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from threading import Event


class Clock(Protocol):
    """What the toolkit asks of time."""

    def now(self) -> datetime:
        """The wall clock, an aware datetime in UTC."""
        ...

    def elapsed(self) -> float:
        """Seconds from some fixed instant; never goes back."""
        ...

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait for the event, at most so many seconds, which may be infinite; True when it is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251 - the one place that may ask

    def elapsed(self) -> float:
        return _elapsed()

    def wait(self, event: Event, seconds: float) -> bool:
        return event.wait(min(max(0.0, seconds), TIMEOUT_MAX))  # Python refuses to wait for ever by a number


if hasattr(time, "CLOCK_BOOTTIME"):

    def _elapsed() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def _elapsed() -> float:
        return time.monotonic()  # noqa: TID251 - the one place that may ask
