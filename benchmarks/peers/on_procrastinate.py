"""procrastinate: a message is a task, deferred with its key as `queueing_lock`; a schedule is a periodic task.

As its documentation has it: synchronous tasks run in threads; those of workers that are gone are retried by a periodic
task of the user's own, which is the recipe of "Retry stalled jobs" each minute instead of every ten. `queueing_lock`
keeps the key single only while the task waits.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import work
from procrastinate import App, PsycopgConnector

EVERY = f"* * * * * */{work.EVERY}"
app = App(connector=PsycopgConnector(conninfo=work.URL, max_size=max(10, work.AT_ONCE)))


@app.task(queue="benchmark")
def send_invoice(invoice_id: str, **_: Any) -> None:
    """Handle a message."""
    work.do(invoice_id)


def job(timestamp: int) -> None:
    """Run at a fire time."""
    work.do(datetime.fromtimestamp(timestamp, UTC).isoformat())


@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled_jobs")
async def retry_stalled_jobs(**_: Any) -> None:
    """Retry the tasks of workers that have given no sign of life for 30 s."""
    for stalled in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(stalled)


async def prepare() -> None:
    """The tables."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def send(messages: list[dict[str, Any]]) -> None:
    """Defer."""
    async with app.open_async():
        for message in messages:
            await send_invoice.configure(queueing_lock=message["invoice_id"]).defer_async(**message)


async def handle() -> None:
    """Work until killed."""
    async with app.open_async():
        await app.run_worker_async(concurrency=work.AT_ONCE, install_signal_handlers=True)


def schedule() -> None:
    """The same with the periodic task."""
    app.periodic(cron=EVERY)(app.task(name="job")(job))
    asyncio.run(handle())


if __name__ == "__main__":
    work.main(
        lambda _: asyncio.run(prepare()),
        lambda messages: asyncio.run(send(messages)),
        lambda: asyncio.run(handle()),
        schedule,
    )
