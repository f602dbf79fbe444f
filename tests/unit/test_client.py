"""What operators decide, from Python: the same as by the command line, on the settings' storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, job_row, recovered, replica, requests, run_row

from runonce import client
from runonce.errors import InputError
from runonce.hosts.runtime import Runtime
from runonce.runs.definition import scheduled
from runonce.runs.rows import Outcome
from runonce.testing import Workbench

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.run import Run

T = at(3)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> tuple[Workbench, ScheduledJob, list[str]]:
    """A bench that the client's settings name, and a job that fails at first."""
    seen: list[str] = []

    @scheduled("0 0 3 * * *")
    def report(run: Run, *, region: str = "eu") -> None:
        seen.append(f"{run.idempotency_key} {region}")
        if seen == ["report:20260101T030000Z eu"]:
            raise ValueError("the first time")

    made = Workbench(report)

    def runtime(settings: Any, *, found: Any) -> Runtime:
        return Runtime(settings, found=found, stores=made.stores, clock=made.clock, sender=made.sender)

    monkeypatch.setattr("runonce.hosts.runtime.Runtime", runtime)
    monkeypatch.setenv("RUNONCE_STORAGE", "UseDevelopmentStorage=true")
    monkeypatch.setenv("RUNONCE_NAMESPACE", "test")
    assert made.run(report, T).outcome is Outcome.FAILED
    return made, report, seen


def test_each_verb_does_what_its_command_does(bench: tuple[Workbench, ScheduledJob, list[str]]) -> None:
    """resume_run goes on under the same key, replay again under another; mark and cancel run nothing."""
    made, report, seen = bench
    client.resume_run(report, T, why="corrected", by="ada")
    assert len(requests(made)) == 1
    recovered(replica(made), made.clock)
    client.replay("report", T, by="ada")
    recovered(replica(made), made.clock)
    assert seen == ["report:20260101T030000Z eu"] * 2 + ["report:20260101T030000Z:1 eu"]
    client.mark(report, T, "failed", why="it was wrong", by="ada")
    client.cancel(report, at(3, day=2), why="holiday", by="ada")
    recovered(replica(made), made.clock)
    assert len(seen) == 3
    assert [line.split()[1] for line in run_row(made, report, T).decisions] == [
        "resumed",
        "replayed",
        "marked",
    ]
    assert run_row(made, report, at(3, day=2)).outcome is Outcome.CANCELLED


def test_ask_and_backfill_take_parameters(bench: tuple[Workbench, ScheduledJob, list[str]]) -> None:
    """A run with parameters is asked of the hosts, or run here for a range."""
    made, report, seen = bench
    client.ask(report, T, parameters={"region": "us"})
    recovered(replica(made), made.clock)
    assert seen[1].endswith(" us")
    made.clock.advance(3 * 86_400)
    recovered(replica(made), made.clock)  # the schedule's own runs come first
    results = list(client.backfill(report, T, at(3, day=3), parameters={"region": "asia"}))
    assert [(r.fire_time.day, r.outcome) for r in results] == [(day, Outcome.SUCCEEDED) for day in (1, 2, 3)]


def test_pause_and_resume_say_who(bench: tuple[Workbench, ScheduledJob, list[str]]) -> None:
    """A pause is on the row with its reason and who made it."""
    made, report, _ = bench
    client.pause("report", why="moving", by="ada")
    assert job_row(made, report).paused_why == "moving, by ada"
    client.resume(report)
    assert job_row(made, report).paused_at is None


def test_what_cannot_be_meant_is_refused(bench: tuple[Workbench, ScheduledJob, list[str]]) -> None:
    """A naive fire time, and parameters of a job that is only named."""
    _, report, _ = bench
    with pytest.raises(InputError, match="has no time zone"):
        client.cancel(report, T.replace(tzinfo=None))
    with pytest.raises(InputError, match="has no time zone"):
        client.ask(report, T.replace(tzinfo=None))
    with pytest.raises(InputError, match="has no time zone"):
        list(client.backfill(report, T, T.replace(tzinfo=None)))
    with pytest.raises(InputError, match="give the job itself"):
        client.cancel("report", T, parameters={"region": "us"})
