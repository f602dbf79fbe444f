"""The timeline and the durations, as shapes that the templates draw as SVG. No text is markup, no style is inline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.hosts.dashboard.words import duration
from runonce.runs.rows import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.runs.rows import RunRow
    from runonce.runs.status import JobStatus

LEFT, WIDTH, LANE, TOP, BARS = 170, 780, 26, 22, 600
THIN = 3.0
"""Width of the shortest run, so that it can be seen."""
KINDS = {
    Outcome.SUCCEEDED: "done",
    Outcome.FAILED: "failed",
    Outcome.UNKNOWN: "unknown",
    Outcome.SKIPPED: "missed",
    Outcome.RUNNING: "running",
    Outcome.RETRYING: "waiting",
    Outcome.STOPPED: "waiting",
    Outcome.ABANDONED: "failed",
    Outcome.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A run, or a span, on a lane."""

    x: float
    width: float
    kind: str
    title: str
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One job."""

    name: str
    y: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes under an axis of time."""

    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    height: int
    width: int = LEFT + WIDTH + 10
    left: int = LEFT
    lane: int = LANE
    top: int = TOP

    @property
    def said(self) -> str:
        """The picture in a sentence, for those who do not see it."""
        parts = []
        for lane in self.lanes:
            kinds = [mark.kind for mark in lane.marks]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
            parts.append(f"{lane.name}: {counts or 'nothing'}")
        return "; ".join(parts)


def timeline(
    jobs: Sequence[tuple[JobStatus, Sequence[RunRow]]], since: datetime, now: datetime, most: int
) -> Timeline:
    """The runs of each job from `since` until now; where there are `most` of them, earlier ones were not read."""
    span = (now - since).total_seconds()

    def x(instant: datetime) -> float:
        return round(LEFT + WIDTH * min(1.0, max(0.0, (instant - since).total_seconds() / span)), 1)

    lanes = []
    for number, (status, runs) in enumerate(jobs):
        marks = [_mark(run, since, now, x) for run in reversed(runs)]
        if status.paused_at is not None:
            begins = x(status.paused_at)
            marks.insert(
                0, Mark(begins, max(THIN, x(now) - begins), "paused", f"paused: {status.paused_why}")
            )
        if len(runs) >= most and (ends := x(runs[-1].fire_time)) > LEFT + THIN:
            marks.insert(0, Mark(LEFT, ends - LEFT, "unread", "earlier runs are not in this picture"))
        lanes.append(
            Lane(status.name, TOP + number * LANE, tuple(mark for mark in marks if mark is not None))
        )
    hours = max(1, round(span / 3600 / 8))
    first = (since + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    ticks = []
    while first < now:
        ticks.append((x(first), f"{first.astimezone(UTC):%H:%M}"))
        first += timedelta(hours=hours)
    return Timeline(tuple(lanes), tuple(ticks), TOP + len(lanes) * LANE + 8)


def _mark(run: RunRow, since: datetime, now: datetime, x) -> Mark | None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    begins = run.started_at or run.fire_time
    ends = run.finished_at or (now if run.outcome is Outcome.RUNNING else begins)
    if ends < since:
        return None
    taken_over = any(one.get("outcome") == Outcome.ABANDONED for one in run.attempts) or run.abandoned > 0
    took = f", {duration((ends - begins).total_seconds())}" if run.finished_at and run.started_at else ""
    said = f"{run.fire_time:%H:%M:%S} UTC: {run.outcome}{took}{', taken over' if taken_over else ''}"
    return Mark(x(begins), max(THIN, round(x(ends) - x(begins), 1)), KINDS[run.outcome], said, taken_over)


@dataclass(frozen=True, slots=True)
class Bars:
    """How long the latest runs took, the oldest first."""

    bars: tuple[tuple[float, float, float, str, str], ...]
    """x, y, height, kind, title."""
    longest: str
    width: int = BARS
    height: int = 90


def durations(runs: Sequence[RunRow]) -> Bars | None:
    """Bars for the runs that have ended; None where there are fewer than two."""
    ended = [run for run in reversed(runs) if run.started_at is not None and run.finished_at is not None]
    if len(ended) < 2:  # noqa: PLR2004
        return None
    took = [(run.finished_at - run.started_at).total_seconds() for run in ended]  # type: ignore[operator]
    longest, step = max(*took, 0.001), min(24.0, BARS / len(ended))
    bars = []
    for number, (run, seconds) in enumerate(zip(ended, took, strict=True)):
        height = max(2.0, round(76 * seconds / longest, 1))
        title = f"{run.fire_time:%Y-%m-%d %H:%M:%S} UTC: {run.outcome}, {duration(seconds)}"
        bars.append((round(number * step, 1), round(88 - height, 1), height, KINDS[run.outcome], title))
    return Bars(tuple(bars), duration(longest))
