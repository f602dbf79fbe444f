"""A host's clock, held against the clock of the storage that everybody shares.

Storage's answers carry its time, so this costs no call. A clock that is a little off only proposes fire times a
little early or late, and claims are checked by storage's time. One that is far off would propose nonsense.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from threading import Event

    from runonce.clock import Clock

log = logging.getLogger("runonce.execution.server_clock")

WARN, CORRECT = timedelta(seconds=5), timedelta(seconds=30)
"""From which difference on it is said, and from which on storage's time is taken instead."""


class ServerClock:
    """The host's clock, corrected where it is off by half a minute or more."""

    def __init__(self, clock: Clock, host: str) -> None:
        self._clock = clock
        self._host = host
        self._known = timedelta()
        """How far it is ahead, as far as answers tell."""
        self._ahead = timedelta()
        """How much of that it is corrected by."""
        self._said = timedelta()

    def note(self, server_now: datetime, doubt: timedelta = timedelta()) -> None:
        """What time it is by storage's clock: this, to about two seconds; or before, by `doubt` at most."""
        least = self._clock.now() - server_now
        ahead = self._known = min(max(self._known, least), least + doubt)
        self._ahead = ahead if abs(ahead) >= CORRECT else timedelta()
        if abs(ahead) < WARN:
            self._said = timedelta()
        elif abs(ahead - self._said) >= WARN:
            self._said = ahead
            log.warning(
                "the clock of %s is %.0f s %s of storage's: set it right (NTP). %s",
                self._host,
                abs(ahead).total_seconds(),
                "ahead" if ahead > timedelta() else "behind",
                "Fire times are taken from storage's clock meanwhile." if self._ahead else "",
            )

    def now(self) -> datetime:
        """The wall clock, an aware datetime in UTC."""
        return self._clock.now() - self._ahead

    def until(self, instant: datetime) -> float:
        """Seconds until an instant by this clock and by storage's, as far as that is known: by the later of them."""
        return (instant - min(self.now(), self._clock.now() - self._known)).total_seconds()

    def elapsed(self) -> float:
        """Seconds from some fixed instant; never goes back."""
        return self._clock.elapsed()

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait for the event, at most so many seconds; True when it is set."""
        return self._clock.wait(event, seconds)
