from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runonce import Run, scheduled
from runonce.errors import InputError
from runonce.runs.backfill import to_backfill
from runonce.testing import ManualClock, Workbench

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@scheduled("0 * * * * *")
def minutely(run: Run) -> None:
    """Do nothing."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        (NOW, NOW - timedelta(days=1), "to a later one"),
        (NOW, NOW + timedelta(days=1), "that has passed"),
        (datetime(1, 1, 1, tzinfo=UTC), NOW, "since 1970"),
        (NOW - timedelta(days=365), NOW, "more than 100,000 fire times; take a shorter range"),
    ],
)
def test_a_range_that_nobody_means_is_refused(since: datetime, until: datetime, why: str) -> None:
    """A range that runs backwards, into the future, before 1970 or over very many fire times is one clear error."""
    bench = Workbench(minutely, clock=ManualClock(NOW))
    with pytest.raises(InputError, match=f"Job minutely: .*{why}"):
        to_backfill(bench.dispatcher, minutely, since, until)
