"""The rows of jobs and runs in their table: read one, read all, and the write that replaces one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from runonce.errors import (
    StoreError,
)
from runonce.runs.rows import (
    JobRow,
    RunRow,
    decode_job,
    decode_run,
    job_key,
    key_range,
    run_key,
)
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert, Replace, Write

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.execution.registry import Registry


log = logging.getLogger("runonce.runs.table")


def read_job(registry: Registry, name: str) -> tuple[JobRow, str | None]:
    """The job's row and its ETag; a fresh row and None when there is none yet."""
    row = registry.table.get(registry.namespace, job_key(name))
    return (JobRow(name), None) if row is None else (decode_job(row), row.etag)


def read_run(registry: Registry, name: str, fire_time: datetime) -> tuple[RunRow, str] | None:
    """The row of a fire time's run and its ETag, or None."""
    row = registry.table.get(registry.namespace, run_key(name, fire_time))
    return None if row is None else (decode_run(row), row.etag)


def write(row: JobRow | RunRow, etag: str | None) -> Write:
    """The write that makes the row so, if it still is what it was."""
    key = job_key(row.name) if isinstance(row, JobRow) else run_key(row.job, row.fire_time)
    return Insert(key, encode(row)) if etag is None else Replace(key, encode(row), etag)


def read_jobs(registry: Registry) -> dict[str, tuple[JobRow, str]]:
    """Every job row of the namespace with its ETag, by name: one range read. One that is not readable is logged."""
    found = {}
    for row in registry.table.scan(registry.namespace, *key_range("job")):
        try:
            job = decode_job(row)
        except StoreError as error:
            log.error("%s", error)  # noqa: TRY400 - the message has the place; a traceback of ours adds none
            continue
        found[job.name] = job, row.etag
    return found
