"""Messages that a run sends: kept on its row with a batch or with its end, and sent once it has them.

How a message is made and carried is the other wing's; a host hands it in as `FollowUps`.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from runonce.errors import InputError, RunonceError, StoreError
from runonce.runs.joins import NONE, FanOut, Joined
from runonce.runs.table import change_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.runs.rows import JobRow, RunRow

log = logging.getLogger("runonce.runs.follow_ups")


class FollowUps(Joined, Protocol):
    """Makes and sends messages for runs."""

    def make(
        self, run: RunRow, ordinal: int, handler: Handler, body: Any, key: str | None
    ) -> Mapping[str, Any]:
        """A message as it is kept on the run's row, with an id that is the same in every attempt; raises InputError."""
        ...

    def check(self, run: RunRow, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Raise InputError when they do not fit on the run's row."""
        ...

    def send(self, outbox: Sequence[Mapping[str, Any]]) -> None:
        """Send them; raises TransportError or SettingsError when some may not have been."""
        ...


class Outbox:
    """The messages of one attempt that are not known to be sent; safe to use from many threads."""

    def __init__(self, run: RunRow, follow_ups: FollowUps | None) -> None:
        self._run = run
        self._follow_ups = follow_ups
        self._lock = threading.Lock()
        self._items: list[Mapping[str, Any]] = list(run.outbox)
        self._kept = len(run.outbox)
        self._count = run.follow_ups
        self._totals = dict(run.fanned_out)

    def add(self, handler: Handler, body: Any, key: str | None) -> None:
        """Put a message into it; raises InputError when it cannot be one, or does not fit on the row any more."""
        if self._follow_ups is None:
            raise InputError(
                f"Job {self._run.job}: this host was made without a transport, so nothing can be sent."
            )
        with self._lock:
            item = self._follow_ups.make(self._run, self._count, handler, body, key)
            self._follow_ups.check(self._run, [*self._items, item])
            self._items.append(item)
            self._count += 1
            for name in item.get("member", ())[:1]:
                self._totals[name] = self._totals.get(name, 0) + 1

    def noted(self) -> tuple[tuple[Mapping[str, Any], ...], int, FanOut]:
        """The messages to be kept with the next write, and how many there were so far, of one moment."""
        with self._lock:
            return tuple(self._items), self._count, self._fan_out()

    def at_the_end(self, *, succeeded: bool) -> tuple[tuple[Mapping[str, Any], ...], FanOut]:
        """The messages to be kept with the run's end: all, or without success those that a write had kept already."""
        with self._lock:
            if not succeeded:
                return tuple(self._items[: self._kept]), NONE
            return tuple(self._items), self._fan_out()

    def _fan_out(self) -> FanOut:
        new: dict[str, list[str]] = {}
        for item in self._items[self._kept :]:
            if "member" in item:
                name, member = item["member"]
                new.setdefault(name, []).append(member)
        return FanOut(dict(self._totals), new)

    def send(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Send what was just kept; what cannot be sent now goes with the next write."""
        self._kept = len(items)
        if items and self._follow_ups is not None and _sent(self._follow_ups, self._run.job, items):
            with self._lock:
                del self._items[: len(items)]
                self._kept = 0


def send_left(follow_ups: FollowUps | None, registry: Registry, run: RunRow | None) -> None:
    """Send what a run, if it has ended, has left on its row, and say on the job's row that nothing is."""
    if run is None or follow_ups is None or not run.outcome.is_final or not run.outbox:
        return
    if not _sent(follow_ups, run.job, run.outbox):
        return

    def done(row: JobRow, _: bool) -> JobRow:
        waiting = row.pending.get(run.fire_time)
        if waiting is None or waiting.why != "unsent":
            return row
        return replace(row, pending={t: p for t, p in row.pending.items() if t != run.fire_time})

    try:
        change_job(registry, run.job, done)
    except StoreError as error:
        log.warning("job %s: its follow-ups are sent once more, as repeated ones: %s", run.job, error)


def _sent(follow_ups: FollowUps, job: str, items: Sequence[Mapping[str, Any]]) -> bool:
    """Send messages that a row has; False, with a warning, when they have to be sent again."""
    try:
        follow_ups.send(items)
    except RunonceError as error:
        log.warning("job %s: %d follow-up message(s) are to be sent again: %s", job, len(items), error)
        return False
    return True
