"""The toolkit's own job: what it removes, on which hosts, and how long what is kept."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from support.flows import at

from runonce.hosts.discover import Discovered
from runonce.hosts.purge import NAME, purge_job
from runonce.hosts.runtime import Runtime
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.rows import Outcome, RunRow, decode_run, key_range
from runonce.runs.table import write
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Replace
from runonce.testing import ManualClock

if TYPE_CHECKING:
    import pytest

    from runonce.runs.run import Run

DAY = 86_400


def job(name: str, history_days: int | None = None) -> ScheduledJob:
    """A job that does nothing."""

    @scheduled("0 0 * * * *", name=name, history_days=history_days)
    def body(run: Run) -> None:
        """Does nothing."""

    return body


def runtime(*jobs: ScheduledJob, history_days: int = 90) -> Runtime:
    """A host of these jobs, in memory."""
    clock = ManualClock()
    settings = Settings("test", StorageConnection("UseDevelopmentStorage=true"), history_days=history_days)
    found = Discovered({one.name: one for one in jobs})
    return Runtime(settings, found=found, stores=memory_stores(clock), clock=clock, host="test")


def aged(host: Runtime, name: str, *days: float) -> None:
    """Runs of that job ended so many days ago."""
    for ago in days:
        ended = host.clock.now() - timedelta(days=ago)
        host.stores.runs.commit(
            "test", [write(RunRow(name, ended, Outcome.SUCCEEDED, finished_at=ended), None)]
        )


def purged(host: Runtime) -> None:
    """Run the purge for this instant."""
    fire_time = host.clock.now()
    result = host.dispatcher.execute(host.jobs[NAME], fire_time, by="hand")
    assert result.outcome is Outcome.SUCCEEDED, result


def ages(host: Runtime, name: str) -> list[int]:
    """How many days old the runs are that are left."""
    now = host.clock.now()
    rows = host.stores.runs.scan("test", *key_range("run", name))
    return sorted((now - decode_run(row).fire_time).days for row in rows)


def test_every_host_has_the_toolkits_own_job() -> None:
    """With or without handlers it is among what a host runs, and among what the folder defines it is not."""
    host = runtime(job("a"))
    assert set(host.dispatcher.jobs) == {"a", NAME}
    assert set(host.found.jobs) == {"a"}


def test_it_is_a_job_like_any_other() -> None:
    """It runs at night, and catches up when missed."""
    host = runtime()
    own = purge_job(host.runs, host.claims, host.found, 90)
    assert own.name == "runonce_purge"
    assert own.schedule.next(at(0)) == at(3, 30)
    assert own.misfire == "latest"
    assert own.summary == "Removes old runs, and claims of messages that can no longer come again."


def test_each_job_has_its_own_history() -> None:
    """A job's history_days goes before the setting, which counts for the others and for those without code."""
    host = runtime(job("short", 7), job("long", 1000), job("plain"), history_days=30)
    for name in ("short", "long", "plain", "bygone"):
        aged(host, name, 5, 8, 29, 31, 999)
    purged(host)
    assert ages(host, "short") == [5]
    assert ages(host, "long") == [5, 8, 29, 31, 999]
    assert ages(host, "plain") == ages(host, "bygone") == [5, 8, 29]


def test_its_own_runs_end_too() -> None:
    """The toolkit's own job leaves no history that outlasts the others'."""
    host = runtime(history_days=2)
    for _ in range(5):
        purged(host)
        host.clock.advance(DAY)  # type: ignore[attr-defined]
    assert ages(host, NAME) == [1, 2, 3]  # the third is to the second as old as history is kept


def test_a_job_whose_row_cannot_be_read_keeps_its_runs_and_no_other_job_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A row of a newer release is said by name, its job's runs stay, and the purge goes on with the next job."""
    host = runtime(job("a"), job("b"))
    for name in ("a", "b"):
        host.dispatcher.execute(host.jobs[name], host.clock.now(), by="hand")
        aged(host, name, 100)
    row = host.stores.runs.get("test", "job:a")
    assert row is not None
    host.stores.runs.commit("test", [Replace(row.key, {**row.values, "pending": "{"}, row.etag)])
    with caplog.at_level(logging.ERROR):
        purged(host)
    assert "job:a" in caplog.text
    assert (ages(host, "a"), ages(host, "b")) == ([0, 100], [0])


def test_what_it_removed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """How many runs went, and of which job."""
    host = runtime()
    aged(host, "bygone", 100, 101)
    with caplog.at_level(logging.INFO):
        purged(host)
    assert "bygone: 2 runs from before" in caplog.text
