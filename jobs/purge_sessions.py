"""Deletes expired sessions: blobs sessions/<id>.json such as {"user": "ada", "expires": "2026-11-29T02:10:00Z"}.

A session that is renewed while it is being looked at stays: what is deleted is what was read. The checkpoint
keeps the last name dealt with and not a count, because the list shrinks while it is worked through.
"""

from __future__ import annotations

import json
from datetime import datetime

from runonce import Run, scheduled

PREFIX = "sessions/"
BATCH = 50
"""Sessions between checkpoints."""


@scheduled("0 15 * * * *", name="purge_sessions", misfire="latest", retries=2)
def purge_sessions(run: Run) -> None:
    """Delete the sessions that had expired at the fire time."""
    state = run.checkpoint.load({"last": "", "deleted": 0})
    deleted = int(state["deleted"])
    names = [name for name in run.blobs.names(PREFIX) if name > state["last"]]
    for start in range(0, len(names), BATCH):
        for name in names[start : start + BATCH]:
            run.check()
            deleted += purge(run, name)
        run.checkpoint.save({"last": name, "deleted": deleted})
    run.log.info("deleted %d expired sessions", deleted)


def purge(run: Run, name: str) -> bool:
    """Delete a session if it has expired; one that cannot be read is reported and left alone."""

    def expired(data: bytes) -> bool:
        return expiry(data) <= run.fire_time

    try:
        return run.blobs.delete(name, when=expired)
    except ValueError as error:
        run.log.warning("blob %s stays: %s; correct it or delete it", name, error)
        return False


def expiry(data: bytes) -> datetime:
    """When a session expires.

    Raises:
        ValueError: The content does not say so.
    """
    try:
        text = json.loads(data)["expires"]
        instant = datetime.fromisoformat(text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f'it is not a session such as {{"expires": "2026-11-29T02:10:00Z"}} ({type(error).__name__})'
        ) from error
    if instant.tzinfo is None:
        raise ValueError(f'"expires" is {text!r}, without an offset such as Z')
    return instant
