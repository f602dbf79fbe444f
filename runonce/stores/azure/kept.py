"""Connections to one server that are kept for the next request: as many as are in use at the same time.

A request is one call of the system, and an answer mostly another. While many threads talk, each further one hands the
interpreter to another of them, and costs as much as the rest of a request.
"""

from __future__ import annotations

import select
import socket
import ssl
import weakref
from collections import deque
from contextlib import closing, suppress
from http.client import HTTPException, HTTPMessage, HTTPResponse
from string import punctuation
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

from azure.core.exceptions import ServiceRequestError, ServiceResponseError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Answer(NamedTuple):
    """What a server said."""

    status: int
    reason: str
    headers: HTTPMessage | Mapping[str, str]
    data: bytes


class Kept:
    """Connections to a server, `http://host` or `https://host:port`, that no proxy is before.

    Args:
        server: Its address.
        connect, read: Seconds that making a connection, and each part of an answer, may take.
        trusted: The file of the certificates that TLS trusts.
    """

    def __init__(self, server: str, connect: float, read: float, trusted: str) -> None:
        address = urlsplit(server)
        self._name = address.netloc.rpartition("@")[2]
        self._host = address.hostname or ""
        self._tls, self._trusted = address.scheme == "https", trusted
        self._port = address.port or (443 if self._tls else 80)
        self._connect, self._read = connect, read
        self._context: ssl.SSLContext | None = None
        self._idle: deque[socket.socket] = deque()
        weakref.finalize(self, _closed, self._idle)  # who forgets it need not close it

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request and read all of the answer.

        Raises:
            ServiceRequestError: Nothing was sent.
            ServiceResponseError: There was no answer, or not all of one.
            ValueError: A line's end is in what would be one line.
        """
        if " " in target or not target.isascii():  # as in an address or a signature that somebody typed
            target = quote(target, safe=punctuation)
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._name}", "Accept-Encoding: identity"]
        if "Content-Length" not in headers and method in ("POST", "PUT"):
            lines.append("Content-Length: 0")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\n" in line or "\r" in line for line in lines):
            raise ValueError("a line's end in a request's address or headers")
        said = "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
        connection = self._one()
        try:
            # It may have answered before it had read all.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(said)
            with closing(HTTPResponse(connection, method=method)) as answer:
                answer.begin()
                data = answer.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise ServiceResponseError(f"{type(error).__name__}: {error}", error=error) from error
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return Answer(answer.status, answer.reason, answer.headers, data)

    def close(self) -> None:
        """Let the idle ones go."""
        _closed(self._idle)

    def _one(self) -> socket.socket:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._new()
            if not _readable(connection):
                return connection
            connection.close()  # what comes unasked is its end

    def _new(self) -> socket.socket:
        try:
            connection = socket.create_connection((self._host, self._port), self._connect)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls:
                    self._context = self._context or ssl.create_default_context(cafile=self._trusted)
                    connection = self._context.wrap_socket(connection, server_hostname=self._host)
                connection.settimeout(self._read)
            except BaseException:
                connection.close()
                raise
        except (OSError, UnicodeError) as error:  # the latter of a host's name
            raise ServiceRequestError(f"{type(error).__name__}: {error}", error=error) from error
        return connection


def _closed(idle: deque[socket.socket]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop().close()


def _readable(connection: socket.socket) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([connection], [], [], 0)[0])
    look = select.poll()
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))
