"""Two versions of the toolkit on one real table: what each does with the rows of the other, runs in flight included."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.rows import Outcome, job_key, run_key
from runonce.stores import columns
from runonce.stores.protocols import Insert, Replace

if TYPE_CHECKING:
    from runonce.runs.run import Run
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

OLD_ROWS = json.loads(
    (Path(__file__).parents[1] / "unit" / "stores" / "rows" / "format_0.json").read_text(encoding="utf-8")
)
FIRE_TIME = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
SEEN: list[Any] = []


@scheduled("0 0 * * * *")
def hourly(run: Run) -> None:
    SEEN.append((run.attempt, run.checkpoint.load(), run.fencing_token))


@pytest.fixture
def dispatcher(azure: Stores, settings: Settings) -> Dispatcher:
    SEEN.clear()
    return Dispatcher({"hourly": hourly}, azure, settings, SystemClock(), host="new")


def test_a_run_in_flight_goes_on_under_the_newer_version(dispatcher: Dispatcher, settings: Settings) -> None:
    """A run whose host was stopped by the deployment, as the earlier version wrote it, resumes from its checkpoint."""
    at = columns.to_text(FIRE_TIME)
    job = {
        **OLD_ROWS["job"],
        "name": "hourly",
        "paused_at": "",
        "running": at,
        "pending": json.dumps({at: {"why": "running", "not_before": at, "asked_at": ""}}),
        "watermark": at,
        "last_fire_time": "",
    }
    run = {**OLD_ROWS["run"], "job": "hourly", "fire_time": at, "outcome": "running", "token": job["token"]}
    rows = [Insert(job_key("hourly"), job), Insert(run_key("hourly", FIRE_TIME), run)]
    dispatcher.stores.runs.commit(settings.namespace, rows)
    result = dispatcher.execute(hourly, FIRE_TIME, by="request")
    assert result.outcome is Outcome.SUCCEEDED
    [(attempt, checkpoint, token)] = SEEN
    assert (attempt, checkpoint) == (run["attempt"] + 1, json.loads(run["checkpoint"]))
    assert token > job["token"]


def test_columns_of_the_newer_version_survive_going_back(dispatcher: Dispatcher, settings: Settings) -> None:
    """The earlier version runs a job whose row the newer one extended, and the extension is still there."""
    assert dispatcher.execute(hourly, FIRE_TIME - timedelta(hours=1), by="timer").outcome is Outcome.SUCCEEDED
    row = dispatcher.stores.runs.get(settings.namespace, job_key("hourly"))
    assert row is not None
    extended = Replace(row.key, {**row.values, "colour": "red", "size": 7}, row.etag)
    dispatcher.stores.runs.commit(settings.namespace, [extended])
    assert dispatcher.execute(hourly, FIRE_TIME, by="timer").outcome is Outcome.SUCCEEDED
    row = dispatcher.stores.runs.get(settings.namespace, job_key("hourly"))
    assert row is not None
    assert (row.values["colour"], row.values["size"]) == ("red", 7)


def test_a_row_of_a_newer_format_waits_for_the_newer_version(
    dispatcher: Dispatcher, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back over a raised format loses nothing: the job waits, untouched, and runs when the code is back."""
    with monkeypatch.context() as newer:
        newer.setattr(columns, "FORMAT", 2)
        assert dispatcher.execute(hourly, FIRE_TIME - timedelta(hours=1), by="timer").ran
    before = dispatcher.stores.runs.get(settings.namespace, job_key("hourly"))
    refused = dispatcher.execute(hourly, FIRE_TIME, by="timer")
    assert (refused.ran, refused.outcome) == (False, Outcome.SKIPPED)
    assert "newer version wrote it" in refused.reason
    after = dispatcher.stores.runs.get(settings.namespace, job_key("hourly"))
    assert before is not None
    assert after is not None
    assert after.etag == before.etag
    monkeypatch.setattr(columns, "FORMAT", 2)
    assert dispatcher.execute(hourly, FIRE_TIME, by="timer").outcome is Outcome.SUCCEEDED
