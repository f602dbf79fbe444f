"""The Container Apps jobs host: one execution is one process, and its exit code is all the platform hears.

The platform starts an execution again when it ends with anything but 0, a few times and at once, knowing nothing
of what happened. The toolkit keeps retries in its own rows, with their delays. So an execution ends with 0 for
everything that is recorded and goes on by itself, and with something else where starting it again is right:
storage could not be reached, or the run was stopped and can go on from its checkpoint. A run that failed for good
ends with 1, to be seen as failed; started again it ends with 1 once more, and its code does not run.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.hosts.manifest import START_UP
from runonce.messages.consumer import Consumer
from runonce.runs.result import Refusal
from runonce.runs.rows import Outcome
from runonce.runs.table import read_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.result import Result
    from runonce.settings import Settings

MARK = "CONTAINER_APP_JOB_NAME"
"""Set by the platform in every execution."""
GRACE = 20.0
"""Seconds a stopping run may take here, whatever the settings say: 30 s after SIGTERM the process is killed."""
LATE = timedelta(seconds=START_UP)
"""How late an execution may begin its work and still be for its fire time: an image is pulled first."""


def fitted(settings: Settings, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings, with the grace time this host leaves where it is the one we run on."""
    env = os.environ if environ is None else environ
    if not env.get(MARK) or settings.shutdown_timeout <= GRACE:
        return settings
    return replace(settings, shutdown_timeout=GRACE)


def due(job: ScheduledJob, now: datetime) -> datetime | None:
    """The fire time an execution that starts now is for; None when its cron expression ticks more often than the job.

    An execution that begins so late that the next fire time has passed takes that one; the earlier one is found
    by recovery.
    """
    return job.schedule.snap(now, tolerance=LATE)


def start_again(result: Result) -> bool:
    """Whether the platform should start the execution again."""
    if not result.ran:
        return isinstance(result.error, StoreError)
    return result.outcome in (Outcome.STOPPED, Outcome.ABANDONED) or not result.recorded


def failed_for_good(dispatcher: Dispatcher, result: Result) -> bool:
    """Whether the fire time has failed, or is unknown: now, or in an execution that was started again.

    Costs one read where the fire time was turned away as done.
    """
    if result.outcome in (Outcome.FAILED, Outcome.UNKNOWN):
        return result.recorded
    if result.refusal is not Refusal.TURNED_AWAY:
        return False
    try:
        row, _ = read_job(dispatcher.registry, result.job)
    except StoreError:
        return False  # it is recorded, and an alert watches the log of the run itself
    return row.last_fire_time == result.fire_time and row.last_outcome in (Outcome.FAILED, Outcome.UNKNOWN)


def consume(runtime: Runtime, handler: Handler, max_messages: int | None, max_wait: float | None) -> int:
    """Handle messages until so many are done or none has come for so long; how many were settled.

    Raises:
        TransportError: The broker was out of reach to the end, so that nothing says the queue is empty.
    """
    consumer = Consumer(runtime.deliverer, runtime.transport, handler)
    handled = consumer.run(max_messages=max_messages, max_wait=max_wait)
    if consumer.trouble is not None and runtime.stop.cause is None:
        raise consumer.trouble
    return handled
