"""Schedules of jobs, the second half of those that the tests simulate; a nightly run takes 100,000 of all."""

from __future__ import annotations

import pytest
from support.seeds import JOB_FAULTS, hold

PIECE = 500


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1500, 3000, PIECE))
def test_no_schedule_of_faults_breaks_what_must_hold(first: int) -> None:
    """Over hundreds of seeded schedules of jobs, with every kind of fault, no invariant is violated."""
    assert hold(range(first, first + PIECE, 2)) == JOB_FAULTS
