"""A double of the Azure Functions host around the production Python worker, which runs in a process of its own.

Two forms. `FunctionsHost` has no listeners: a test invokes a function itself and says what comes of it.

    with FunctionsHost(app_dir, env={"AzureWebJobsStorage": connection_string}) as host:
        assert host.invoke("purge_sessions", timer()).success

`LiveHost` runs by itself: timers, Storage queues and Service Bus, by host.json and the settings.

    with LiveHost(app_dir, env={"AzureWebJobsStorage": connection_string}) as host:
        host.console.wait_for("report written")
        host.terminate()            # as SIGTERM to the host; interrupt() as Ctrl-C, worker.kill() as kill -9
        assert host.wait(12) == 0

Both were made after what the host was seen to do; how long things take is in `Times`. By hand:
`python -m tests.support.functions_worker [FOLDER]`.
What is not here: listening for HTTP requests, output bindings, sessions and batches of Service Bus, retry policies,
scaling.
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
from .triggers import AmqpValue, Trigger, http, queue, servicebus, timer

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
    "http",
    "queue",
    "servicebus",
    "timer",
    "validate",
    "worker_python",
]
