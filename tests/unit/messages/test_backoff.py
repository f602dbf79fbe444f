from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runonce.messages.backoff import LONGEST_WAIT, backoff
from runonce.transports.ids import LONGEST_ID, copy_id, suffixed


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


def test_a_copy_has_an_id_of_its_own() -> None:
    """Each copy's id differs from the message's and from the other copies', and does not grow."""
    assert copy_id("m-1", 1) == "m-1~r1"
    assert copy_id("m-1~r1", 2) == "m-1~r2"
    assert copy_id("m-1~g2~r9", 10) == "m-1~g2~r10"
    assert copy_id("sent-as~r5", 1) == "sent-as~r5~r1", "a first copy's id is its sender's"


@given(st.text(max_size=200), st.integers(min_value=1, max_value=10**9))
def test_an_id_always_fits(message_id: str, times: int) -> None:
    """A copy's id is short enough for Service Bus whatever the message's id was, and never that id."""
    made = copy_id(message_id, times)
    assert len(made) <= LONGEST_ID
    assert made.endswith(f"~r{times}")
    assert made != copy_id(made, times + 1)


def test_long_ids_that_differ_at_their_end_stay_apart() -> None:
    """Copies of two messages never share an id, or duplicate detection would drop the second one."""
    first, second = copy_id("x" * 127 + "1", 1), copy_id("x" * 127 + "2", 1)
    assert first != second
    assert copy_id(first, 2) != copy_id(second, 2)
    assert len(suffixed("y" * 5000, "~g1")) == LONGEST_ID
