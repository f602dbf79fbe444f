"""A proxy in front of Azurite that loses, delays, cuts and refuses: for tests of what an unknown outcome means.

    with StorageProxy(azurite) as proxy:
        monkeypatch.setenv("RUNONCE_STORAGE", proxy.connection_string)
        proxy.table.inject(DROP_REPLY, "^POST")  # the next transaction is carried out, and its reply is lost
        ...
        assert proxy.table.requests == ["POST /devstoreaccount1/$batch"]

Each service has a proxy of its own (`proxy.blob`, `proxy.queue`, `proxy.table`) which understands just enough
HTTP to know where a request and its reply end. Requests are noted once they have been read whole, before
anything is done about them. A fault is used up by the requests it meets, `times` of them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

HOST = "127.0.0.1"
SERVICES = ("blob", "queue", "table")
LONGEST_HANG = 60.0
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request. The steps come in the order of the fields."""

    delay: float = 0.0
    """Seconds before anything is done."""
    hang: bool = False
    """Wait until the client gives up, or the proxy is reset, then do nothing more."""
    apply: bool = True
    """Hand the request to Azurite."""
    status: int | None = None
    """Answer with this status instead of Azurite's reply."""
    code: str = ""
    """With a status: Azure's own word for it, such as AuthorizationPermissionMismatch, given as Azure gives it."""
    cut: bool = False
    """Send the reply's head and half its body, then close the connection; a reply without a body is lost."""
    drop: bool = False
    """Close the connection instead of replying."""


DROP_REPLY = Fault(drop=True)
"""Carried out, the reply is lost."""
DROP_REQUEST = Fault(apply=False, drop=True)
"""Lost on the way: not carried out, no reply."""
CUT_REPLY = Fault(cut=True)
"""Carried out, the connection breaks in the middle of the reply."""
BUSY = Fault(apply=False, status=503)
"""Turned away: not carried out, answered 503."""
FAILED_AFTER_APPLY = Fault(status=500)
"""Carried out, yet answered 500."""
HANG = Fault(apply=False, hang=True)
"""Read, and then nothing."""


@dataclass(slots=True)
class _Planned:
    fault: Fault
    matching: re.Pattern[str]
    times: int


class Proxy:
    """A proxy in front of one HTTP service."""

    def __init__(self, upstream: int) -> None:
        self.requests: list[str] = []
        """Every request since the last reset, as "METHOD /path?query"."""
        self._upstream = upstream
        self._planned: list[_Planned] = []
        self._lock = threading.Condition()
        self._released = threading.Event()
        self._open: set[socket.socket] = set()
        self._server = _Server((HOST, 0), self)
        self.port: int = self._server.server_port
        self._thread: threading.Thread | None = None
        self._serve()

    # -- what a test says ---------------------------------------------------------------------------------------

    def inject(self, fault: Fault, matching: str = "", *, times: int = 1) -> None:
        """Do this to the next `times` requests whose "METHOD /path?query" the pattern is found in."""
        with self._lock:
            self._planned.append(_Planned(fault, re.compile(matching), times))

    def wait_for(self, count: int, timeout: float = 10.0) -> None:
        """Wait until so many requests have been read; fails after `timeout` seconds."""
        with self._lock:
            arrived = self._lock.wait_for(lambda: len(self.requests) >= count, timeout)
        if not arrived:
            raise AssertionError(f"waited for {count} requests, saw {self.requests}")

    def refuse(self) -> None:
        """Refuse connections, and break those there are, until `restore`."""
        self._halt()

    def restore(self) -> None:
        """Accept connections again, on the same port."""
        if self._thread is None:
            self._server = _Server((HOST, self.port), self)
            self._serve()

    def reset(self) -> None:
        """Forget the faults and the requests, let go of what hangs, accept connections."""
        with self._lock:
            self._planned.clear()
            self.requests.clear()
            self._released.set()
            self._released = threading.Event()
        self.restore()

    def close(self) -> None:
        """Stop for good."""
        self._halt()

    # -- how it is done -----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="proxy")
        self._thread.start()

    def _halt(self) -> None:
        if self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._thread = None
        with self._lock:
            self._released.set()
            self._released = threading.Event()
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # joins the connections' threads

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def take(self, request: str) -> tuple[Fault, threading.Event]:
        """Note a request; the fault planned for it, and what ends its hanging."""
        with self._lock:
            self.requests.append(request)
            self._lock.notify_all()
            for planned in self._planned:
                if planned.times > 0 and planned.matching.search(request):
                    planned.times -= 1
                    return planned.fault, self._released
            return Fault(), self._released

    def forward(self, handler: _Handler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(HOST, self._upstream, timeout=LONGEST_HANG)
        try:
            upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    upstream.putheader(name, value)
            if body or "Content-Length" in handler.headers:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body)
            reply = upstream.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            upstream.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.proxy.connected(self.connection)

    def finish(self) -> None:
        self.server.proxy.disconnected(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Stay silent."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._relay
        raise AttributeError(name)

    def _relay(self) -> None:
        body = self._body()
        fault, released = self.server.proxy.take(f"{self.command} {self.path}")
        if fault.delay:
            released.wait(fault.delay)
        if fault.hang:
            released.wait(LONGEST_HANG)
            self._drop()
            return
        status = 503
        headers: list[tuple[str, str]] = []
        data = b""
        if fault.apply:
            status, headers, data = self.server.proxy.forward(self, body)
        if fault.drop:
            self._drop()
            return
        if fault.status is not None:
            status, headers, data = fault.status, *_refusal(fault.code, self.path)
        self._reply(status, headers, data, cut=fault.cut)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool) -> None:
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in HOP_BY_HOP]
        length = str(len(data))
        if self.command == "HEAD":
            length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        if status != http.HTTPStatus.NO_CONTENT:  # which may have none
            lines.append(f"Content-Length: {length}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if cut:
            if data:
                self.wfile.write(head + data[: len(data) // 2])
            self._drop()
            return
        self.wfile.write(head + data)

    def _drop(self) -> None:
        self.close_connection = True


def _refusal(code: str, path: str) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a refusal: JSON of the table service, XML of the others (Status and error codes, REST)."""
    if not code:
        return [], b""
    said = f"{code}: this request is not what Azure takes.\nRequestId:1\nTime:2026-11-30T00:00:00Z"
    headers = [("x-ms-error-code", code), ("x-ms-request-id", "1")]
    if "(" in path or "$batch" in path or path.partition("?")[0].count("/") == 2:  # noqa: PLR2004 - /account/table
        body = {"odata.error": {"code": code, "message": {"lang": "en-US", "value": said}}}
        return [*headers, ("Content-Type", "application/json;odata=minimalmetadata")], json.dumps(
            body
        ).encode()
    text = (
        f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{said}</Message></Error>'
    )
    return [*headers, ("Content-Type", "application/xml")], text.encode()


class StorageProxy:
    """A proxy in front of each service of the Azurite with this connection string."""

    def __init__(self, connection_string: str, kind: type[Proxy] = Proxy) -> None:
        self.connection_string = connection_string
        """For the settings of what is to go through the proxies."""
        made = []
        for service in SERVICES:
            endpoint = re.search(rf"{service}Endpoint=([^;]+)", connection_string, re.IGNORECASE)
            port = urlsplit(endpoint[1]).port if endpoint else None
            if port is None:
                raise ValueError(f"No {service} endpoint with a port in the emulator's connection string.")
            proxy = kind(port)
            made.append(proxy)
            self.connection_string = self.connection_string.replace(f":{port}/", f":{proxy.port}/")
        self.blob, self.queue, self.table = made
        self.all = tuple(made)

    @property
    def requests(self) -> list[str]:
        """What all three have seen since the last reset."""
        return [request for proxy in self.all for request in proxy.requests]

    def inject(self, fault: Fault, matching: str = "", *, times: int = 1) -> None:
        """Plan the fault in each of the three."""
        for proxy in self.all:
            proxy.inject(fault, matching, times=times)

    def refuse(self) -> None:
        """All three refuse connections."""
        for proxy in self.all:
            proxy.refuse()

    def reset(self) -> None:
        """All three forget."""
        for proxy in self.all:
            proxy.reset()

    def close(self) -> None:
        """All three stop."""
        for proxy in self.all:
            proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
