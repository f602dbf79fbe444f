"""The terms of one run or one message: until when it may work, and until when anything is kept for it.

Jobs and handlers both go by these, so that a limit which one of them has the other has too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """Instants on the elapsed clock (see `Clock`); both are infinite where there is no max_runtime."""

    deadline: float
    """When it must have ended: from then on it is told to stop, and counts as failed."""
    let_go: float
    """When it is waited for no longer: its lease, lock, claim and message are given up, though its code may go on."""


WAITING = Terms(float("inf"), float("inf"))
"""Of what still waits for its lock: nothing of its time passes."""


def terms(max_runtime: float | None, grace: float, now: float) -> Terms:
    """The terms of what begins now.

    Args:
        max_runtime: Seconds it may take; None is no limit.
        grace: Seconds it has to stop once it is told: the same as when its host stops.
        now: The elapsed time.
    """
    deadline = float("inf") if max_runtime is None else now + max_runtime
    return Terms(deadline, deadline + grace)
