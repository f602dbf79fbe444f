"""What a job's row says once a run has ended, and the addresses of rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runonce.runs.rows import (
    KEPT_FAILURES,
    KEPT_TOOK,
    LONGEST_DECISION,
    LONGEST_LAST,
    Failure,
    JobRow,
    Mark,
    Outcome,
    Pending,
    RunRow,
    decode_job,
    entry_key,
    key_range,
    run_key,
)
from runonce.stores.columns import KEPT_ATTEMPTS, encode
from runonce.stores.protocols import Row

NOW = datetime(2026, 1, 1, 3, tzinfo=UTC)
RUN = RunRow("nightly", NOW, started_at=NOW, finished_at=NOW + timedelta(seconds=1.23456), params='{"n":1}')
BEFORE = JobRow("nightly", token=7, failed_in_a_row=2, attempt=3, progress={"items": 5})
ENDED = {"last_fire_time": NOW, "last_params": '{"n":1}', "attempt": 0, "progress": {}}


def test_a_success_ends_a_row_of_failures() -> None:
    """It is the last end and the last success, its seconds are kept, and its own failure is no open question."""
    open_ones = (Failure(NOW, "", Outcome.FAILED, NOW), Failure(NOW, '{"n":1}', Outcome.FAILED, NOW))
    run = replace(RUN, outcome=Outcome.SUCCEEDED)
    assert replace(BEFORE, failures=open_ones).ended(run) == replace(
        BEFORE,
        **ENDED,
        last_outcome="succeeded",
        last_finished_at=run.finished_at,
        last_success=run.finished_at,
        failed_in_a_row=0,
        failures=open_ones[:1],
        took=(1.235,),
    )


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
def test_a_bad_end_is_one_more_open_question(outcome: Outcome) -> None:
    """It counts, and it is listed until somebody decides about it; a second bad end of the same run is one question."""
    assert RUN.finished_at is not None
    run = replace(RUN, outcome=outcome, reason="no \n luck" + "x" * LONGEST_LAST)
    failure = Failure(NOW, '{"n":1}', outcome, RUN.finished_at)
    ended = replace(
        BEFORE,
        **ENDED,
        last_outcome=str(outcome),
        last_finished_at=run.finished_at,
        last_reason=("no luck" + "x" * LONGEST_LAST)[:LONGEST_LAST],
        failed_in_a_row=3,
        failures=(failure,),
    )
    assert BEFORE.ended(run) == ended
    assert ended.ended(run).failures == (failure,)
    assert ended.decided(run) == replace(ended, failures=())


def test_what_is_tried_again_is_no_failure_yet() -> None:
    """Neither a retry nor a stop counts, and neither does an end whose time nobody knows."""
    for outcome in (Outcome.RETRYING, Outcome.STOPPED):
        ended = BEFORE.ended(replace(RUN, outcome=outcome))
        assert (ended.failed_in_a_row, ended.failures, ended.took) == (2, (), ())
    assert BEFORE.ended(replace(RUN, outcome=Outcome.FAILED, finished_at=None)).failures == ()
    assert BEFORE.ended(replace(RUN, outcome=Outcome.SUCCEEDED, finished_at=None)).took == ()
    assert BEFORE.ended(replace(RUN, outcome=Outcome.SUCCEEDED, started_at=None)).took == ()


def test_a_row_remembers_a_few_of_each() -> None:
    """The newest durations, failures and decisions are kept, and a decision no longer than a column has room for."""
    row = JobRow("nightly")
    for n in range(KEPT_FAILURES + 1):
        row = row.ended(replace(RUN, fire_time=NOW + timedelta(hours=n), outcome=Outcome.FAILED))
    assert [f.fire_time for f in row.failures] == [
        NOW + timedelta(hours=n) for n in range(1, KEPT_FAILURES + 1)
    ]
    for n in range(KEPT_TOOK + 1):
        row = row.ended(replace(RUN, outcome=Outcome.SUCCEEDED, finished_at=NOW + timedelta(seconds=n)))
    assert row.took == tuple(range(1, KEPT_TOOK + 1))
    run = RUN
    for n in range(KEPT_ATTEMPTS + 1):
        run = run.decided(f"{n:03}" + "x" * LONGEST_DECISION)
    assert run == replace(
        RUN, decisions=tuple(f"{n:03}" + "x" * (LONGEST_DECISION - 3) for n in range(1, KEPT_ATTEMPTS + 1))
    )


def test_the_parameters_of_what_waits_are_on_the_row() -> None:
    """Those it was asked for with; none of a fire time that does not wait."""
    row = JobRow("nightly", pending={NOW: Pending("asked", NOW, params='{"n":1}')})
    assert (row.params_of(NOW), row.params_of(NOW + timedelta(hours=1))) == ('{"n":1}', "")


def test_what_waits_takes_no_more_room_than_it_needs() -> None:
    """A row may have hundreds: who asked, and with which parameters, is written where there is something to write."""
    plain = {NOW: Pending("missed", NOW)}
    text = '{"2026-01-01T03:00:00Z":{"why":"missed","not_before":"2026-01-01T03:00:00Z","asked_at":""}}'
    assert encode(JobRow("nightly", pending=plain))["pending"] == text
    full = {NOW: Pending("asked", NOW, asked_at=NOW, params='{"n":1}', by="ana")}
    marks = {"0 0 * * * *": Mark(NOW, NOW - timedelta(days=1))}
    for row in (JobRow("nightly", pending=plain), JobRow("nightly", pending=full, marks=marks)):
        assert decode_job(Row("job:nightly", encode(row), "etag", NOW, NOW)) == row


def test_addresses_do_not_change() -> None:
    """An address of today is that of every later version: elsewhere a run would not be found, and run again."""
    assert run_key("nightly", NOW) == "run:nightly:8232763599"
    assert run_key("nightly", NOW, '{"n":1}') == "run:nightly:8232763599:5cc5204090f6f973"
    assert entry_key("nightly", "a b/ü%") == "entry:nightly:a b=2F=C3=BC=25"
    assert replace(RUN, generation=2).idempotency_key == "nightly:20260101T030000Z-5cc5204090f6f973:2"


def test_a_range_of_keys_is_one_jobs_or_all() -> None:
    """Its first key and one past its last; another job whose name begins the same lies outside."""
    assert key_range("job") == ("job:", "job;")
    assert key_range("run", "night") == ("run:night:", "run:night;")
