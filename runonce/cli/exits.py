"""What the exit codes mean, and which one an error or a result has."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from runonce.errors import RunonceError, StoreError, TransportError, TransportRefusedError
from runonce.runs.rows import Outcome

if TYPE_CHECKING:
    from runonce.runs.result import Result


class Exit(IntEnum):
    """The exit codes; a process that a signal ends has 128 and the signal's number."""

    DONE = 0
    FAILED = 1
    """The run failed for good."""
    USAGE = 2
    """The command line is wrong."""
    NOTHING_RAN = 3
    """Held elsewhere, or done already."""
    NOT_FINISHED = 4
    """Stopped, abandoned, unknown, or waiting for its next attempt."""
    CONFIGURATION = 5
    """A setting, a job's name, a job file or an input is wrong."""
    STORAGE = 6
    """Storage or the message broker is out of reach, or refuses."""
    FAULT = 70
    """A defect of runonce itself; the traceback is on stderr."""


HELP = """Exit codes:
  0  done
  1  the run failed for good
  2  wrong usage
  3  nothing ran: another host holds the lease, or it is done
  4  not finished: stopped, abandoned, unknown, or to be retried
  5  a setting, job name, job file or input is wrong
  6  storage or broker out of reach
130  stopped by Ctrl-C, 143 by SIGTERM"""

BY_OUTCOME = {
    Outcome.SUCCEEDED: Exit.DONE,
    Outcome.FAILED: Exit.FAILED,
    Outcome.SKIPPED: Exit.NOTHING_RAN,
}


def of_error(error: RunonceError) -> Exit:
    """The exit code of a command that could not do its work."""
    if isinstance(error, TransportRefusedError):
        return Exit.CONFIGURATION
    return Exit.STORAGE if isinstance(error, StoreError | TransportError) else Exit.CONFIGURATION


def of_result(result: Result) -> Exit:
    """The exit code of a run."""
    if not result.ran and isinstance(result.error, StoreError):
        return Exit.STORAGE
    return BY_OUTCOME.get(result.outcome, Exit.NOT_FINISHED)
