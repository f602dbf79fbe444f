"""The job you must not run twice: scheduled jobs and queue handlers on Azure, once each."""

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
from runonce.job import scheduled
from runonce.messages.handler import handler
from runonce.messages.message import Message
from runonce.producer import effects, enqueue, enqueue_many
from runonce.run import Run

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
    "TimeLimitExceeded",
    "effects",
    "enqueue",
    "enqueue_many",
    "handler",
    "scheduled",
]
