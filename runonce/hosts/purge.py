"""The toolkit's own job, which every host runs: once a night it removes what nobody can need any more."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING

from runonce.errors import UnreadableRowError
from runonce.execution.options import Retry
from runonce.messages.purge import purge_claims
from runonce.messages.rows import SHARDS, of_calls
from runonce.messages.status import known_handlers
from runonce.runs.definition import ScheduledJob
from runonce.runs.presence import forget
from runonce.runs.purge import forget_actions, jobs_with_runs, purge_runs
from runonce.schedules.schedule import Schedule

if TYPE_CHECKING:
    from runonce.execution.registry import Registry
    from runonce.hosts.discover import Discovered
    from runonce.runs.run import Run

NAME = "runonce_purge"
SCHEDULE = "0 30 3 * * *"
MAX_RUNTIME = 3600.0
"""Seconds; what is left then is removed the next night."""


def purge_job(runs: Registry, claims: Registry, found: Discovered, history_days: int) -> ScheduledJob:
    """The job that removes runs older than their job's history, and claims (also of calls) whose retention is over.

    Stopped or killed it begins again, and finds what is left.

    Args:
        runs: Where the rows of runs are.
        claims: Where the claims of messages are.
        found: The jobs and handlers; their options say how long what is kept.
        history_days: Days that runs are kept of jobs which do not say, or are no longer in the code.
    """
    days = {name: job.history_days for name, job in found.jobs.items()}
    handlers = sorted(found.handlers)

    def purge(run: Run) -> None:
        """Removes old runs, and claims of messages that can no longer come again."""
        for name in jobs_with_runs(runs):
            before = run.fire_time - timedelta(days=days.get(name) or history_days)
            try:
                removed = purge_runs(runs, name, before, run.check)
            except UnreadableRowError as error:  # it keeps its job's history, and no other's
                run.log.error("%s: its runs are kept: %s", name, error)  # noqa: TRY400 - the message says where
                continue
            if removed:
                run.log.info("%s: %d runs from before %s removed", name, removed, before)
        forget(runs)
        forget_actions(runs, run.fire_time - timedelta(days=history_days), run.check)
        calls = of_calls(claims)
        for registry, names in ((claims, handlers), (calls, known_handlers(calls))):
            for name, shard in product(names, range(SHARDS)):
                removed = purge_claims(registry, name, shard, run.fire_time, run.check)
                if removed:
                    run.log.info("%s, shard %d: %d claims removed", name, shard, removed)

    return ScheduledJob(
        name=NAME,
        body=purge,
        schedule=Schedule.parse(SCHEDULE),
        misfire="latest",
        misfire_cap=1,
        retry=Retry(3, 600.0),
        max_runtime=MAX_RUNTIME,
        on_abandoned="rerun",
        history_days=None,
    )
