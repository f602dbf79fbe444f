"""The job you must not run twice: scheduled jobs and queue handlers on Azure, once each.

Public are this module, `runonce.once`, `runonce.hooks`, `runonce.testing` and `runonce.hosts.functions`. Every other
module is internal, whatever its name looks like, and may change in any release.
"""

import runonce.early  # noqa: F401 - before all the rest
from runonce.client import effects, enqueue, enqueue_many
from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    HostStopping,
    InputError,
    LeaseLost,
    PermanentError,
    RunInterrupted,
    RunonceError,
    TimeLimitExceeded,
)
from runonce.execution.every import Tick, every
from runonce.messages.definition import handler
from runonce.messages.message import Message
from runonce.runs.definition import scheduled
from runonce.runs.run import Run

__all__ = [
    "AlreadyRecordedError",
    "Fenced",
    "HostStopping",
    "InputError",
    "LeaseLost",
    "Message",
    "PermanentError",
    "Run",
    "RunInterrupted",
    "RunonceError",
    "Tick",
    "TimeLimitExceeded",
    "effects",
    "enqueue",
    "enqueue_many",
    "every",
    "handler",
    "scheduled",
]
