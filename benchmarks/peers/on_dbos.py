"""DBOS: a message is a workflow in a queue, its effect a step; a schedule is kept in the database.

As its documentation has it: the key is the workflow's id, and each process an executor with an id of its own, which
recovers its workflows when it is started again (another executor does so only by DBOS' hosted or licensed Conductor,
which is not here). How many at once is the size of the pool of threads, for a queue with a `worker_concurrency` starts
no more than that many each time it polls, once a second.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import work
from dbos import DBOS, DBOSClient

if TYPE_CHECKING:
    from datetime import datetime

QUEUE, APP = "benchmark", "benchmark"


def launch() -> None:
    """Become an executor."""
    DBOS.launch()
    DBOS.register_queue(QUEUE)


@DBOS.step()
def effect(key: str) -> None:
    """The effect."""
    work.do(key)


@DBOS.workflow()
def send_invoice(message: dict[str, Any]) -> None:
    """Handle a message."""
    effect(message["invoice_id"])


@DBOS.workflow()
def job(fire_time: datetime, _context: Any) -> None:
    """Run at a fire time."""
    effect(fire_time.isoformat())


def prepare(what: str) -> None:
    """The tables, and the schedule."""
    launch()
    if what == "schedule":
        DBOS.create_schedule(schedule_name="job", workflow_fn=job, schedule=f"*/{work.EVERY} * * * * *")
    DBOS.destroy()


def send(messages: list[dict[str, Any]]) -> None:
    """Enqueue."""
    client = DBOSClient(system_database_url=work.URL, application_name=APP)
    for message in messages:
        client.enqueue(
            {"workflow_name": "send_invoice", "queue_name": QUEUE, "workflow_id": message["invoice_id"]},
            message,
        )
    client.destroy()


def run() -> None:
    """Run workflows until killed."""
    launch()
    threading.Event().wait()


if __name__ == "__main__":
    DBOS(
        config={
            "name": APP,
            "system_database_url": work.URL,
            "executor_id": work.REPLICA,
            "application_version": "1",
            "max_executor_threads": work.AT_ONCE,
            "log_level": "WARNING",
        }
    )
    work.main(prepare, send, run, run)
