"""What looks after a run beside its body, begun when the first of it is due: most runs have ended before.

One thread waits for that. It becomes the dead man's switch, and starts those that renew the lease, that say in time
when it is lost, and that end the run's own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.errors import LeaseLost, TimeLimitExceeded
from runonce.execution.threads import start_thread
from runonce.runs.switch import AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.runs.dispatch import Started


def attend(started: Started, clock: Clock, limit: Callable[[], None], *, kept: bool) -> None:
    """Look after a run until it is over.

    Args:
        started: The run; a loss of its lease is told by whoever finds it, from the start.
        clock: The host's.
        limit: Waits for the run's deadline and ends it, where it has one.
        kept: Whether its lease is renewed already.
    """
    job, lease, now = started.job, started.lease, clock.elapsed()
    first = min(AFTER, started.deadline - now, AFTER if kept else lease.renews_at - now)
    if clock.wait(started.over, first):
        return
    try:
        if not kept:
            lease.keep(started.stop.set)
        if job.max_runtime is not None:
            start_thread(limit, f"runonce-limit-{job.name}")
    except Exception as error:  # noqa: BLE001 - no thread is to be had, of whatever kind the error is
        started.stop.set(LeaseLost(f"Job {job.name}: nobody can renew its lease, or end its time: {error}"))
    started.switch.keep(started.over)


def over_its_time(started: Started) -> None:
    """Tell a run that it is over its max_runtime, and the log, unless it has to stop already."""
    if started.stop.cause is None:
        limit = f"its max_runtime of {started.job.max_runtime:g} s"
        started.stop.set(TimeLimitExceeded(f"Job {started.job.name} ran longer than {limit}."))
        started.run.log.error("over %s: it is told to stop, and counts as failed", limit)
