"""The trail of what people did, the newest first."""

from __future__ import annotations

from datetime import timedelta

from support.flows import at

from runonce.runs.trail import Action, actions, note
from runonce.testing import Workbench


def test_what_was_done_within_a_second_is_in_order_too() -> None:
    """A job that is paused and resumed at once was paused first."""
    registry = Workbench().dispatcher.registry
    for number in range(9):
        instant = at(3) + timedelta(milliseconds=100 * number)
        note(registry, Action(instant, "ops", f"did {number}", "nightly"))
    assert [one.did for one in actions(registry, 9)] == [f"did {number}" for number in reversed(range(9))]
