"""The machine's clock: how long it waits."""

from __future__ import annotations

import threading
from math import inf

import pytest

from runonce.clock import SystemClock


def test_it_waits_for_ever_where_nothing_else_is_due() -> None:
    """As for a lease that is not to be renewed any more, until its run is over."""
    over, came = threading.Event(), []
    waiting = threading.Thread(target=lambda: came.append(SystemClock().wait(over, inf)))
    waiting.start()
    over.set()
    waiting.join(10)
    assert came == [True]


@pytest.mark.parametrize("seconds", [0.0, -1.0, -inf])
def test_what_is_due_already_is_not_waited_for(seconds: float) -> None:
    """An instant that has passed is now."""
    assert not SystemClock().wait(threading.Event(), seconds)
