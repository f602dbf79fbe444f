"""One HTTP request to somebody who is told something: bounded in time, tried a little, its URL never in a log.

It goes by azure-core's transport, which the storage clients bring along: certificates, proxies and connections are
looked after there. Of an answer only the status is read, and a redirection is not followed: the URL is the secret.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline import Pipeline
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest

from runonce.execution.threads import in_thread

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

log = logging.getLogger("runonce.notify")

CONNECT, ANSWER = 3.0, 5.0
"""Seconds to connect, and to begin to answer."""
PAUSES = (0.5, 2.0)
"""Seconds before the second and the third try."""
LONGEST = 10.0
"""Seconds for one try."""
OK, REDIRECTION, FAULTY, AGAIN = 200, 300, 500, (408, 429)
"""Statuses from which on an answer is good, is elsewhere, is a fault; a fault, and those two, are tried again."""


class _Unheard(logging.Filter):
    """Within it, nothing that the HTTP library says of this thread's requests, with their paths, is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def __enter__(self) -> None:
        self.threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.threads.discard(threading.get_ident())

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread not in self.threads


_unheard = _Unheard()
logging.getLogger("urllib3.connectionpool").addFilter(_unheard)


def post(what: str, url: str, body: bytes, headers: Mapping[str, str]) -> bool:
    """Send it, at most three times; whether it was taken. `what` is how the log calls the receiver."""
    for pause in (*PAUSES, None):
        # A server may go on answering, a byte at a time, for as long as it likes.
        sent = in_thread(lambda: _send(url, body, headers), "runonce-notify")
        try:
            status = sent.result(LONGEST)
        except (OSError, ValueError, AzureError) as error:
            said = type(error).__name__  # its text has the URL
        else:
            if OK <= status < REDIRECTION:
                return True
            said = f"HTTP {status}"
            if status not in AGAIN and status < FAULTY:
                break
        if pause is not None:
            threading.Event().wait(pause)
    log.warning("%s was not told: %s", what, said)
    return False


def _send(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    transport = RequestsTransport(connection_timeout=CONNECT, read_timeout=ANSWER)
    with Pipeline(transport) as pipeline, _unheard:
        request = HttpRequest("POST", url, content=body, headers=dict(headers))
        return int(pipeline.run(request, stream=True).http_response.status_code)


def extended(url: str, path: str, run: uuid.UUID) -> str:
    """A ping's URL with a path after its own, and the run it is of."""
    parts = urlsplit(url)
    query = f"{parts.query}&rid={run}" if parts.query else f"rid={run}"
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, query=query))
