"""What came of a fire time on this host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from runonce.errors import (
    RunonceError,
)
from runonce.runs.rows import Outcome

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a fire time here."""

    job: str
    fire_time: datetime
    outcome: Outcome
    reason: str = ""
    attempt: int = 0
    error: BaseException | None = None
    """What the body raised, where it did; or why it could not be claimed or recorded."""
    refusal: Refusal | None = None
    """Why nothing ran, where that was so."""
    counted: bool = True
    """Whether a failure uses up one of the job's retries."""
    again_at: datetime | None = None
    """When it comes again, where that is known."""

    @property
    def recorded(self) -> bool:
        """Whether the outcome is on the run's row, or there is nothing to record."""
        return not (self.ran and self.outcome is Outcome.UNKNOWN and isinstance(self.error, RunonceError))

    @property
    def ran(self) -> bool:
        """Whether the job's code was started here."""
        return self.attempt > 0


class Refusal(StrEnum):
    """Why nothing ran here."""

    STOPPING = "this host is stopping"
    HELD_ELSEWHERE = "held elsewhere"
    TURNED_AWAY = "turned away"
    """By the rows: done, paused, or not due."""
    OUT_OF_REACH = "storage was out of reach, the next recovery tick tries again"
    NOT_CLAIMED = "it was not begun"
    LEASE_LOST = "its lease was lost before it began, so it stays due"
