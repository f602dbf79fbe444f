from __future__ import annotations

import pytest

from runonce.messages.backoff import LONGEST_WAIT, backoff


@pytest.mark.parametrize(
    ("times", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (7, 60), (10**6, 60)]
)
def test_waits_double_up_to_a_minute(times: int, seconds: float) -> None:
    """A message that keeps coming back waits 1, 2, 4 … 60 s."""
    assert backoff(times, spread=lambda: 0.5) == pytest.approx(seconds)


def test_waits_are_spread() -> None:
    """Waits differ by a fifth either way, so that what came back together does not come again together."""
    assert backoff(3, spread=lambda: 0.0) == pytest.approx(6.4)
    assert backoff(3, spread=lambda: 1.0) == pytest.approx(9.6)
    assert len({backoff(3) for _ in range(20)}) > 1
    assert max(backoff(100) for _ in range(50)) <= 1.2 * LONGEST_WAIT
