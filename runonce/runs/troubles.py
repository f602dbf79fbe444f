"""What is wrong with a job, as its row keeps it from the first sign until it succeeds. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from runonce.runs.rows import Outcome
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.runs.rows import JobRow, RunRow

Trouble = Literal["failed", "held", "missed"]

OF_OUTCOME: dict[Outcome, Trouble] = {Outcome.FAILED: "failed", Outcome.UNKNOWN: "held"}


def troubled(row: JobRow, outcome: Outcome, now: datetime) -> JobRow:
    """The row once a run has ended so: a success ends all trouble, and a trouble that there is goes on."""
    if outcome is Outcome.SUCCEEDED:
        return replace(row, troubles={}) if row.troubles else row
    kind = OF_OUTCOME.get(outcome)
    return row if kind is None else _with(row, kind, now)


def missing(
    before: JobRow, after: JobRow, skipped: RunRow | None, until: datetime, now: datetime
) -> tuple[JobRow, datetime | None]:
    """The row, and the newest fire time up to `until` that turns out to be missed; None where none does.

    What came while the job still ran was not missed: it waited.
    """
    found = [t for t, p in after.pending.items() if p.why == "missed" and t not in before.pending]
    found += [] if skipped is None else [skipped.fire_time]
    ran_until = before.last_finished_at
    missed = [t for t in found if t <= until and (ran_until is None or t > ran_until)]
    return (_with(after, "missed", now), max(missed)) if missed else (after, None)


def _with(row: JobRow, kind: Trouble, now: datetime) -> JobRow:
    return row if kind in row.troubles else replace(row, troubles={**row.troubles, kind: to_text(now)})
