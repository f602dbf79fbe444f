"""The two rows of a scheduled job, as values: what is in them and how they are written down. No I/O.

All scheduled jobs of a namespace share one partition, so that a claim and the fencing token move in one
transaction. A run's key counts down from the far future, so that a range read gives the newest run first;
tables read in key order only, and "what ran last night" must not read a year of history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - the codec reads the annotations
from dataclasses import dataclass, field, replace
from datetime import datetime  # noqa: TC003 - as above
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from runonce.stores.columns import (
    KEPT_ATTEMPTS,
    Columns,
    compact,
    decode,
    from_text,
    instant,
    json_text,
    to_text,
    typed,
    unreadable,
)
from runonce.transports.ids import digest

if TYPE_CHECKING:
    from runonce.stores.protocols import Row

FAR_FUTURE = 9_999_999_999
"""Seconds since 1970 of some day in 2286; keys count down from it."""
KEPT_MARKS = 3
"""Other schedules of a job that are remembered: versions that live side by side, or did a moment ago."""
LONGEST_DECISION = 500
KEPT_FAILURES = 20
"""Runs on a job's row that ended badly, and that nobody has decided about."""
KEPT_TOOK = 20
"""Durations on a job's row."""
LONGEST_LAST = 300


class Outcome(StrEnum):
    """How a run ended, or that it has not."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRYING = "retrying"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing but an operator's decision starts this fire time again."""
        return self not in (Outcome.RUNNING, Outcome.RETRYING, Outcome.STOPPED, Outcome.ABANDONED)


Unfinished = Literal[
    "running", "abandoned", "retrying", "stopped", "missed", "asked", "resumed", "replayed", "unsent"
]
AGAIN: tuple[Unfinished, ...] = ("resumed", "replayed")
"""An operator's decision to start what has ended."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A fire time that is not finished, and when the recovery tick may hand it out."""

    why: Unfinished
    not_before: datetime
    asked_at: datetime | None = None
    """When a request for it was last put in the queue, so that requests do not pile up."""
    params: str = ""
    """The parameters it was asked for with, as on its run's row."""
    by: str = ""
    """Who asked for it: a person, or the host whose recovery tick found it."""

    def is_due(self, now: datetime) -> bool:
        """Whether it may start. Only a retry waits: hosts' clocks differ, and no other reason hangs on them."""
        return self.why != "retrying" or self.not_before <= now


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a schedule's fire times are accounted for, and since when there is anything to account for."""

    watermark: datetime
    since: datetime


def _marks_text(marks: Mapping[str, Mark]) -> str:
    return compact({text: [to_text(mark.watermark), to_text(mark.since)] for text, mark in marks.items()})


def _marks(text: str) -> Mapping[str, Mark]:
    return {
        schedule: Mark(instant(watermark), instant(since))
        for schedule, (watermark, since) in json.loads(text).items()
    }


def _pending_text(pending: Mapping[datetime, Pending]) -> str:
    return compact(
        {
            to_text(t): {
                "why": p.why,
                "not_before": to_text(p.not_before),
                "asked_at": to_text(p.asked_at),
                **({"params": p.params} if p.params else {}),
                **({"by": p.by} if p.by else {}),
            }
            for t, p in sorted(pending.items())
        }
    )


def _pending(text: str) -> Mapping[datetime, Pending]:
    return {
        instant(t): Pending(
            typed(p["why"], str),
            instant(p["not_before"]),
            from_text(p["asked_at"]),
            typed(p.get("params", ""), str),
            typed(p.get("by", ""), str),
        )
        for t, p in json.loads(text).items()
    }


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed for good or is unknown, until it succeeds or somebody decides about it."""

    fire_time: datetime
    params: str
    outcome: Outcome
    at: datetime


def _failures_text(failures: tuple[Failure, ...]) -> str:
    return compact([[to_text(f.fire_time), f.params, f.outcome, to_text(f.at)] for f in failures])


def _failures(text: str) -> tuple[Failure, ...]:
    return tuple(
        Failure(instant(t), typed(params, str), Outcome(outcome), instant(at))
        for t, params, outcome, at in json.loads(text)
    )


@dataclass(frozen=True, slots=True)
class JobRow(Columns):
    """What is true of a job as a whole: `job:{name}`."""

    name: str
    token: int = 0
    """The fencing token of the latest claim."""
    schedule: str = ""
    """Expression and zone that `watermark` and `since` are of; the code that wrote the row last has this one."""
    watermark: datetime | None = None
    """Every scheduled fire time up to here is accounted for: claimed, skipped, or in `pending`."""
    since: datetime | None = None
    """When the first host with this schedule saw the job: what was due before is not missed."""
    marks: Mapping[str, Mark] = field(default_factory=dict, metadata={"write": _marks_text, "read": _marks})
    """The same of other schedules that deployed code has or had lately, by schedule."""
    paused_at: datetime | None = None
    paused_why: str = ""
    running: datetime | None = None
    holder: str = ""
    host: str = ""
    pending: Mapping[datetime, Pending] = field(
        default_factory=dict, metadata={"write": _pending_text, "read": _pending}
    )
    more: int = 0
    """How many further unfinished fire times have rows of their own."""
    last_fire_time: datetime | None = None
    last_params: str = ""
    last_outcome: str = ""
    last_finished_at: datetime | None = None
    troubles: Mapping[str, str] = field(default_factory=dict)
    """What is wrong since when ("failed", "held", "missed"): one incident, until a run succeeds."""
    last_reason: str = ""
    last_success: datetime | None = None
    """When a run of it succeeded last."""
    failed_in_a_row: int = 0
    """Fire times that ended badly since then."""
    failures: tuple[Failure, ...] = field(default=(), metadata={"write": _failures_text, "read": _failures})
    """Of those that ended badly the newest, oldest first, but for what was decided about or has succeeded since."""
    took: tuple[float, ...] = ()
    """Seconds that the latest successful runs took, the oldest first."""
    attempt: int = 0
    """Of what runs."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """Of what runs, at its latest checkpoint."""
    joins: tuple[tuple[str, str], ...] = ()
    """Fire times and parameters of runs that have succeeded, whose messages some handler waits for."""
    history_from: datetime | None = None
    """Runs of earlier fire times may have been removed, so that a missing row does not say that nothing ran."""

    def params_of(self, fire_time: datetime) -> str:
        """The parameters of an unfinished fire time."""
        pending = self.pending.get(fire_time)
        return "" if pending is None else pending.params

    def ended(self, run: RunRow) -> JobRow:
        """The row when that run, or an attempt at it, has ended by itself."""
        row = replace(
            self.decided(run),
            last_fire_time=run.fire_time,
            last_params=run.params,
            last_outcome=run.outcome,
            last_finished_at=run.finished_at,
            last_reason=" ".join(run.reason.split())[:LONGEST_LAST],
            attempt=0,
            progress={},
        )
        if run.outcome is Outcome.SUCCEEDED:
            row = replace(row, last_success=run.finished_at, failed_in_a_row=0)
            if run.started_at is not None and run.finished_at is not None:
                seconds = round((run.finished_at - run.started_at).total_seconds(), 3)
                row = replace(row, took=(*row.took, seconds)[-KEPT_TOOK:])
        elif run.outcome in (Outcome.FAILED, Outcome.UNKNOWN) and run.finished_at is not None:
            failure = Failure(run.fire_time, run.params, run.outcome, run.finished_at)
            row = replace(
                row,
                failed_in_a_row=row.failed_in_a_row + 1,
                failures=(*row.failures, failure)[-KEPT_FAILURES:],
            )
        return row

    def decided(self, run: RunRow) -> JobRow:
        """The row when that run's failure is no open question any more."""
        which = (run.fire_time, run.params)
        return replace(self, failures=tuple(f for f in self.failures if (f.fire_time, f.params) != which))


@dataclass(frozen=True, slots=True)
class RunRow(Columns):
    """A fire time's claim and record in one: `run:{name}:{fire time, counting down}`; with parameters, `…:{digest}`."""

    job: str
    fire_time: datetime
    outcome: Outcome = Outcome.RUNNING
    reason: str = ""
    attempt: int = 0
    failures: int = 0
    abandoned: int = 0
    """How often its host died on it."""
    survived: int = 0
    """How many of these deaths lie behind its last progress."""
    generation: int = 0
    """How often an operator replayed it."""
    token: int = 0
    holder: str = ""
    write_id: str = ""
    """Of the latest write, so that a writer whose reply was lost recognises its own."""
    host: str = ""
    by: str = ""
    """What started it: timer, request or hand."""
    why: str = ""
    """Why it was started, where that is not its time: abandoned, retrying, missed, asked, ..."""
    asked_by: str = ""
    """Who asked for it: a person, or the host whose recovery tick found it."""
    asked_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    retry_at: datetime | None = None
    error: str = ""
    checkpoint: str = ""
    """JSON text of what the job saved last."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """Items done, by the name of the `run.batches` loop."""
    steps: Mapping[str, Any] = field(default_factory=dict, metadata={"write": json_text})
    """Results of the steps that are done, by their names."""
    attempts: tuple[Mapping[str, str], ...] = ()
    """Earlier attempts, oldest first."""
    decisions: tuple[str, ...] = ()
    """What operators decided about it: when, who, what and why; oldest first."""
    outbox: tuple[Mapping[str, Any], ...] = ()
    """Follow-up messages of the latest write; sent after it."""
    follow_ups: int = 0
    """How many follow-up messages there were up to the latest write."""
    fanned_out: Mapping[str, int] = field(default_factory=dict)
    """How many messages it has sent, up to the latest write, to each handler that another one waits for."""
    params: str = ""
    """JSON of the parameters that differ from the function's own defaults; what they are is part of which run it is."""
    skips: tuple[tuple[str, str, str], ...] = ()
    """Fire times that this row stands for, which nobody ran: first, last, and missed, paused, changed or overlap."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this fire time; another one after an operator's replay."""
        replayed = f":{self.generation}" if self.generation else ""
        return f"{self.job}:{self.fire_time:%Y%m%dT%H%M%SZ}{_suffix('-', self.params)}{replayed}"

    def decided(self, decision: str) -> RunRow:
        """The row with one more decision."""
        return replace(self, decisions=(*self.decisions, decision[:LONGEST_DECISION])[-KEPT_ATTEMPTS:])


def job_key(name: str) -> str:
    return f"job:{name}"


def run_key(name: str, fire_time: datetime, params: str = "") -> str:
    return f"run:{name}:{FAR_FUTURE - int(fire_time.timestamp()):010d}{_suffix(':', params)}"


def _suffix(separator: str, params: str) -> str:
    return f"{separator}{digest(params)[:16]}" if params else ""


def entry_key(job: str, key: str) -> str:
    """Of a ledger entry; what tables refuse in a key (slashes, #, ?, control characters) is written as =XX."""
    return f"entry:{job}:{quote(key, safe=' ').replace('%', '=')}"


def key_range(kind: str, name: str = "") -> tuple[str, str]:
    """First and one past the last key of all job rows, or of one job's runs or entries."""
    prefix = f"{kind}:{name}:" if name else f"{kind}:"
    return prefix, prefix[:-1] + ";"  # ";" is the character after ":"


def decode_job(row: Row) -> JobRow:
    """The job row that was read.

    Raises:
        UnreadableRowError: It is of a newer format, or was edited by hand.
    """
    read = decode(JobRow, row)
    _check_key(row, job_key(read.name))
    return read


def decode_run(row: Row) -> RunRow:
    """The run row that was read; raises as `decode_job` does."""
    read = decode(RunRow, row)
    _check_key(row, run_key(read.job, read.fire_time, read.params))
    return read


def _check_key(row: Row, key: str) -> None:
    """What is written of a row goes to the key that its columns give, so that has to be its own."""
    if row.key != key:
        raise unreadable(row, ValueError(f"its columns are those of {key}"))
