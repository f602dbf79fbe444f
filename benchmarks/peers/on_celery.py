"""Celery with Redis: a message is a task; a schedule is RedBeat's, whose beats agree on one through a lock in Redis.

As its documentation has it for tasks that may run twice but must not be lost: `acks_late` and `reject_on_worker_lost`,
and with those a prefetch multiplier of 1. `visibility_timeout` is as it is, an hour: what a worker that was killed had
in hand comes again only then. Redis appends each write to its file and syncs once a second. The pool is the default,
processes. A replica is a worker and a beat, two processes, for production is to have them apart.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import work
from celery import Celery

app = Celery("on_celery", broker=work.URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    beat_scheduler="redbeat.RedBeatScheduler",
    beat_schedule={"job": {"task": "job", "schedule": timedelta(seconds=work.EVERY)}},
    redbeat_redis_url=work.URL,
)


@app.task(name="send_invoice")
def send_invoice(message: dict[str, Any]) -> None:
    """Handle a message."""
    work.do(message["invoice_id"])


@app.task(name="job", bind=True)
def job(self: Any) -> None:
    """Run at a fire time, of which it is told nothing."""
    work.do(self.request.id)


def send(messages: list[dict[str, Any]]) -> None:
    """Enqueue, over one connection."""
    with app.producer_pool.acquire(block=True) as producer:
        for message in messages:
            send_invoice.apply_async((message,), producer=producer)


def handle() -> None:
    """Work until killed."""
    app.worker_main(["worker", "-c", str(work.AT_ONCE), "-n", f"{work.REPLICA}@%h", "--loglevel", "WARNING"])


def schedule() -> None:
    """A worker with a beat beside it."""
    command = [sys.executable, "-m", "celery", "-A", "on_celery", "beat", "--loglevel", "WARNING"]
    with subprocess.Popen(command, cwd=Path(__file__).parent):
        handle()


if __name__ == "__main__":
    work.main(lambda _: None, send, handle, schedule)
