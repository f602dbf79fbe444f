"""APScheduler 4, before its release: a message is a job in the data store; a schedule is kept there, too.

Version 3 is not here: its documentation says that processes must not share a job store. Each replica has a scheduler on
the same PostgreSQL, which also carries the events between them, and jobs run in its pool of threads. A scheduler's
identity is its process's, as it comes: one that is started again under its old identity gives up what it had begun.
"""

from __future__ import annotations

from typing import Any

import work
from apscheduler import Scheduler, TaskDefaults, current_job
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.psycopg import PsycopgEventBroker
from apscheduler.triggers.cron import CronTrigger
from sqlalchemy.ext.asyncio import create_async_engine


def scheduler() -> Scheduler:
    """A scheduler on the database."""
    engine = create_async_engine(work.URL.replace("postgresql://", "postgresql+psycopg://"))
    return Scheduler(
        SQLAlchemyDataStore(engine),
        PsycopgEventBroker(work.URL),
        max_concurrent_jobs=work.AT_ONCE,
        task_defaults=TaskDefaults(job_executor="threadpool", max_running_jobs=None),
    )


def send_invoice(message: dict[str, Any]) -> None:
    """Handle a message."""
    work.do(message["invoice_id"])


def job() -> None:
    """Run at a fire time."""
    fire_time = current_job.get().scheduled_fire_time
    work.do(fire_time.isoformat() if fire_time else "none")


def prepare(_: str) -> None:
    """The tables, and the tasks."""
    with scheduler() as one:
        one.configure_task("send_invoice", func=send_invoice)
        one.configure_task("job", func=job)


def send(messages: list[dict[str, Any]]) -> None:
    """Add jobs."""
    with scheduler() as one:
        one.configure_task("send_invoice", func=send_invoice)
        for message in messages:
            one.add_job("send_invoice", args=[message])


def handle() -> None:
    """Run jobs until killed."""
    with scheduler() as one:
        one.configure_task("send_invoice", func=send_invoice)
        one.run_until_stopped()


def schedule() -> None:
    """The same with the schedule."""
    with scheduler() as one:
        one.configure_task("job", func=job)
        one.add_schedule("job", CronTrigger(second=f"*/{work.EVERY}"), id="job")
        one.run_until_stopped()


if __name__ == "__main__":
    work.main(prepare, send, handle, schedule)
