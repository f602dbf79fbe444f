"""A real HTTP server on this machine that keeps what it is sent, and answers as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 10.0
HANG, DRIP = -1, -2
"""Instead of a status: no answer at all, and one of which a byte comes now and then."""


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str
    body: bytes
    content_type: str

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


class Listener:
    """Keeps requests; answers 200, or the statuses it was told to, one after the other."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.always = 200
        self.release = threading.Event()
        self._came = threading.Condition()

    def take(self, request: Request) -> int:
        """Note a request; the status to answer with."""
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
            return self.statuses.pop(0) if self.statuses else self.always

    def wait(self, count: int, timeout: float = PATIENCE) -> list[Request]:
        """The requests, once there are so many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= count, timeout), self.requests
            return list(self.requests)

    @property
    def paths(self) -> list[str]:
        """Of the requests so far, without their queries."""
        return [request.path.partition("?")[0] for request in self.requests]


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    """A server, while a test needs one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind = self.headers.get("Content-Type") or ""
            status = listener.take(Request(self.command, self.path, body, kind))
            if status == HANG:
                listener.release.wait(60)
                return
            if status == DRIP:
                for _ in range(600):
                    self.wfile.write(b"H")
                    self.wfile.flush()
                    if listener.release.wait(0.2):
                        return
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", f"{listener.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Not in a test's output."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that goes away is no fault."""

    server = Server(("127.0.0.1", 0), Handler)
    listener = Listener(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.release.set()
        server.shutdown()
        server.server_close()
