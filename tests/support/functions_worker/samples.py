"""Function apps of a few lines, with nothing but the SDK: what the tests of the double run."""

import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREAMBLE = """
    import json, logging, os, signal, sys, threading, time
    from pathlib import Path

    import azure.functions as func

    app = func.FunctionApp()
    log = logging.getLogger("sample")
"""

ECHO = """
    def of_queue(message):
        body = message.get_body()
        times = message.insertion_time, message.expiration_time, message.time_next_visible
        log.info("%s", json.dumps({
            "body": body.decode("latin-1"), "id": message.id, "count": message.dequeue_count,
            "times": [str(moment) for moment in times],
        }))

    def of_bus(message):
        names = ("message_id", "content_type", "correlation_id", "subject", "label", "to", "reply_to", "session_id",
                 "partition_key", "delivery_count", "sequence_number", "lock_token", "dead_letter_reason",
                 "dead_letter_error_description", "state", "time_to_live", "locked_until",
                 "scheduled_enqueue_time_utc", "enqueued_sequence_number", "application_properties",
                 "user_properties")
        seen = {name: getattr(message, name) for name in names}
        seen["body"] = message.get_body().decode("latin-1")
        for name in ("enqueued_time_utc", "expires_at_utc"):
            moment = getattr(message, name)
            seen[name] = [moment.isoformat(), str(moment.tzinfo)]
        log.info("%s", json.dumps(seen))

    @app.queue_trigger(arg_name="message", queue_name="text", connection="AzureWebJobsStorage")
    def queue_text(message: func.QueueMessage) -> None:
        of_queue(message)

    @app.queue_trigger(arg_name="message", queue_name="binary", connection="AzureWebJobsStorage",
                       data_type=func.DataType.BINARY)
    def queue_binary(message: func.QueueMessage) -> None:
        of_queue(message)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="text", connection="Bus")
    def bus_text(message: func.ServiceBusMessage) -> None:
        of_bus(message)

    @app.service_bus_queue_trigger(arg_name="message", queue_name="binary", connection="Bus",
                                   data_type=func.DataType.BINARY)
    def bus_binary(message: func.ServiceBusMessage) -> None:
        of_bus(message)

    @app.timer_trigger(arg_name="tick", schedule="0 0 3 * * *")
    def environment(tick: func.TimerRequest) -> None:
        log.info("%s", json.dumps(dict(os.environ)))
"""


def write_app(directory: Path, source: str, host_json: str = '{"version": "2.0"}') -> Path:
    """A function app with the usual imports, an `app` and a `log`, and these functions."""
    directory.mkdir(exist_ok=True)
    (directory / "function_app.py").write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(source))
    (directory / "host.json").write_text(host_json)
    return directory


def until(condition: Callable[[], Any], timeout: float = 20) -> Any:
    """What the condition returns as soon as it is true; for what only a look at storage can tell."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return found
