"""A Functions host for tests: it starts the production Python worker in a process that can be killed.

What it proves: the app is indexed by the worker Azure runs, its metadata passes the host's rules, invocations
make the round trip over gRPC, and what becomes of them when the process is killed or told to stop.
What it does not run: the host itself, with its listeners, schedule parser, retries and settlement.

    with FunctionsHost(app_dir, env={"AzureWebJobsStorage": connection_string}) as host:
        assert host.invoke("nightly_report", timer()).success
"""

from .environment import worker_python
from .host import FunctionsHost
from .invocation import (
    AppRefusedError,
    Invocation,
    Log,
    NoResponseError,
    PendingInvocation,
    WorkerExitedError,
)
from .live import LiveHost
from .metadata import Function, InvalidMetadataError, validate
from .times import Times
from .triggers import AmqpValue, Trigger, queue, servicebus, timer

__all__ = [
    "AmqpValue",
    "AppRefusedError",
    "Function",
    "FunctionsHost",
    "InvalidMetadataError",
    "Invocation",
    "LiveHost",
    "Log",
    "NoResponseError",
    "PendingInvocation",
    "Times",
    "Trigger",
    "WorkerExitedError",
    "queue",
    "servicebus",
    "timer",
    "validate",
    "worker_python",
]
