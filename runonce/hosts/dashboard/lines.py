"""The latest log lines of this process, so that a run's page can show its own. Other hosts' lines are in their logs."""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime

KEPT = 5000


class Lines(logging.Handler):
    """Keeps lines that name a run or a message."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: deque[tuple[str, str]] = deque(maxlen=KEPT)
        self._format = logging.Formatter("%(levelname)-7s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line; raises nothing, as logging wants it."""
        run = getattr(record, "run", "")
        if run:
            at = datetime.fromtimestamp(record.created, UTC)
            self._kept.append((str(run), f"{at:%H:%M:%S} {self._format.format(record)}"))

    def of(self, what: str) -> list[str]:
        """The lines of a run ("nightly_report 2026-11-30T03:00:00Z"), or of a message, oldest first."""
        return [line for run, line in list(self._kept) if run == what or run.startswith(f"{what} #")]


lines = Lines()
"""Those of this process; a host that shows pages adds it to the logger "runonce"."""
