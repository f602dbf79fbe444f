"""Runs a range of past fire times here, the oldest first; what is done already is left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.errors import InputError
from runonce.runs.result import Refusal
from runonce.runs.rows import Outcome, decode_run, key_range, run_key
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.result import Result

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_SECOND = timedelta(seconds=1)
MOST = 100_000
"""Fire times in a range: more than a day of one each second, and less than a year mistyped by a digit."""
LOOK_AGAIN = 2.0
"""Seconds between tries while another run of the job has its lease."""


def to_backfill(
    dispatcher: Dispatcher, job: ScheduledJob, since: datetime, until: datetime, params: str = ""
) -> list[tuple[datetime, Outcome | None]]:
    """The fire times from `since` to `until`, both included, oldest first, with what is on record of each.

    Reads a range of rows, 1,000 in a call.

    Raises:
        InputError: The range is empty, reaches into the future or before 1970, or has more than 100,000 fire times.
    """
    now = dispatcher.clock.now()
    if not EPOCH <= since <= until <= now:
        raise InputError(
            f"Job {job.name}: a backfill goes from an instant since 1970 to a later one that has passed, not from "
            f"{to_text(since)} to {to_text(until)} (now is {to_text(now.replace(microsecond=0))})."
        )
    fire_times = list(job.schedule.fire_times(since - ONE_SECOND, until, limit=MOST + 1))
    if len(fire_times) > MOST:
        raise InputError(
            f"Job {job.name}: from {to_text(since)} to {to_text(until)} there are more than {MOST:,} fire times; take "
            f"a shorter range."
        )
    registry = dispatcher.registry
    first, last = run_key(job.name, until), run_key(job.name, since) + ";"  # keys count down
    known = {}
    if first < key_range("run", job.name)[1]:
        rows = (decode_run(row) for row in registry.table.scan(registry.namespace, first, last))
        known = {row.fire_time: row.outcome for row in rows if row.params == params}
    return [(one, known.get(one)) for one in fire_times]


def backfill(
    dispatcher: Dispatcher, job: ScheduledJob, fire_times: list[datetime], params: str = ""
) -> Iterator[Result]:
    """Run the fire times here, one after the other, and say what came of each; ends early when the host stops.

    Another run of the job is waited for. A run that fails does not keep the later ones back.
    """
    for fire_time in fire_times:
        result = dispatcher.execute(job, fire_time, by="hand", params=params)
        while result.refusal is Refusal.HELD_ELSEWHERE and not dispatcher.clock.wait(
            dispatcher.stop.event, LOOK_AGAIN
        ):
            result = dispatcher.execute(job, fire_time, by="hand", params=params)
        yield result
        if dispatcher.stop.cause is not None:
            return


def is_done(outcome: Outcome | None) -> bool:
    """Whether a backfill leaves a fire time out."""
    return outcome is not None and outcome.is_final and outcome is not Outcome.SKIPPED
