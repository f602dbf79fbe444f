"""A job whose row is gone goes on from its runs' rows: no token is given twice, and nothing is forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support.flows import at, job_row, recovered, replica, run_row

from runonce.runs.definition import scheduled
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.stores.protocols import Delete
from runonce.testing import Workbench

if TYPE_CHECKING:
    from runonce.runs.run import Run


def lose_row(bench: Workbench, name: str) -> None:
    """Delete a job's row, as a restored table or a person may."""
    row = bench.stores.runs.get("test", f"job:{name}")
    assert row is not None
    bench.stores.runs.commit("test", [Delete(row.key, row.etag)])


@pytest.mark.parametrize("first", ["timer", "recovery"])
def test_a_new_row_starts_above_every_token_ever_given(first: str) -> None:
    """A job whose row was lost writes to its blobs again: its next token is above all, those of older runs too."""

    @scheduled("0 0 3 * * *")
    def report(run: Run) -> None:
        run.blobs.write("latest.csv", f"token {run.fencing_token}")

    bench = Workbench(report)
    for night in range(5):
        assert bench.run(report, at(3) + timedelta(days=night)).outcome is Outcome.SUCCEEDED
    assert bench.dispatcher.execute(report, at(2), by="hand").outcome is Outcome.SUCCEEDED  # token 6
    lose_row(bench, "report")
    if first == "recovery":
        recover(bench.dispatcher)
    assert bench.run(report, at(3, day=6)).outcome is Outcome.SUCCEEDED
    assert run_row(bench, report, at(3, day=6)).token == job_row(bench, report).token == 7


def test_what_was_unfinished_when_the_row_was_lost_is_finished() -> None:
    """A run that waits for its retry, and one whose host died, are taken up although the job's row was lost."""

    @scheduled("0 0 * * * *", retries=3)
    def hourly(run: Run) -> None:
        if run.attempt == 1 and run.fire_time == at(3):
            raise OSError

    bench = Workbench(hourly)
    assert bench.run(hourly, at(3)).outcome is Outcome.RETRYING
    lose_row(bench, "hourly")
    recovered(replica(bench), bench.clock)
    assert run_row(bench, hourly, at(3)).outcome is Outcome.SUCCEEDED
    assert job_row(bench, hourly).pending == {}
