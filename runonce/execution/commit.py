"""A conditional write whose outcome is known in the end, whatever replies are lost on the way."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.clock import Clock
    from runonce.stores.protocols import TableStore, Write

log = logging.getLogger("runonce.execution.commit")

PATIENCE = 60.0
"""Seconds a write keeps trying while the table does not answer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


def commit_surely(
    table: TableStore,
    partition: str,
    clock: Clock,
    *,
    check: Callable[[], None],
    build: Callable[[], Sequence[Write]],
    read_back: Callable[[], bool],
    refused: Callable[[ConflictError], None],
) -> list[str] | None:
    """Commit what `build` says, again and again, until it is known to be carried out or refused.

    Args:
        table: Where to.
        partition: Of the rows.
        clock: For the pauses and the patience.
        check: Raises once the writer has no right to write any more; called before every try.
        build: The writes, made from the rows as they were last read.
        read_back: Reads the rows anew; True when this very write had been carried out already, for its reply
            may have been lost. Raises `Fenced` when they are somebody else's by now.
        refused: Told of a conflict that is not our own earlier write; raises if another try cannot help.

    Returns:
        The new ETags, or None when `read_back` found the write carried out (and so has the ETags).

    Raises:
        StoreUnavailableError: The table did not answer for a minute.
    """
    give_up_at = clock.elapsed() + PATIENCE
    pause = FIRST_PAUSE
    asked = False  # whether the rows have to be read before the next try
    conflict: ConflictError | None = None
    while True:
        check()
        try:
            if asked and read_back():
                return None
            if conflict is not None:
                refused(conflict)
            asked, conflict = False, None
            return table.commit(partition, build())
        except ConflictError as error:
            asked, conflict = True, error
        except StoreUnavailableError as error:
            if clock.elapsed() > give_up_at:
                raise
            log.warning("a write got no answer, reading back: %s", error)
            asked = True
            clock.wait(threading.Event(), pause)
            pause = min(LONGEST_PAUSE, pause * 2)
