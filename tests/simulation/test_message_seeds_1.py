"""Schedules of messages, the first half of those that the tests simulate; a nightly run takes 100,000 of all."""

from __future__ import annotations

import pytest
from support.seeds import MESSAGE_FAULTS, hold

PIECE = 350


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1, 701, PIECE))
def test_no_schedule_of_faults_breaks_what_must_hold(first: int) -> None:
    """Over hundreds of seeded schedules of messages, with every kind of fault, no invariant is violated."""
    assert hold(range(first, first + PIECE, 2)) == MESSAGE_FAULTS
