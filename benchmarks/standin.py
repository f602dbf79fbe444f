"""A stand-in for Azure Storage at a set distance, which is no limit itself: all is in memory, and nothing is checked.

    python benchmarks/standin.py --latency 0.05        # prints a connection string, and serves until its input ends

It answers what the toolkit asks, with the statuses that Azure gives, each answer held back for the latency however many
wait. It knows no keys and no errors but conflicts: it is to measure against, not to test with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "devstoreaccount1"
REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    404: "Not Found",
    409: "Conflict",
    412: "Failed",
}
KEYS = re.compile(r"^(\w+)\(PartitionKey='(.*?)',RowKey='(.*?)'\)$")
RANGE = re.compile(r"PartitionKey eq '(.*?)' and RowKey ge '(.*?)' and RowKey lt '(.*?)'")
PART = re.compile(rb"(POST|PUT|DELETE) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n(.*?)(?=\r\n--|\n--)", re.DOTALL)
NEVER = "Fri, 31 Dec 9999 23:59:59 GMT"
JSON = {"Content-Type": "application/json;odata=minimalmetadata"}
XML = {"Content-Type": "application/xml"}


class Request(NamedTuple):
    """A request, as far as it is looked at."""

    method: str
    path: list[str]
    """Below the account."""
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What is said to it."""

    status: int
    headers: dict[str, str] = {}  # noqa: RUF012 - of a tuple, which nobody changes
    body: bytes = b""


def now() -> datetime:
    """The instant; it is only shown."""
    return datetime.now(UTC)


def refused(status: int, code: str) -> Answer:
    """A refusal as the table service words it, with the code where the others have it too."""
    said = json.dumps({"odata.error": {"code": code, "message": {"lang": "en-US", "value": code}}})
    return Answer(status, {"x-ms-error-code": code, **JSON}, said.encode())


class Tables:
    """The table service; every table exists."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)

    def answer(self, request: Request) -> Answer:
        """Do it."""
        name = request.path[0]
        if name == "Tables":
            return Answer(204)
        if name == "$batch":
            return self._batch(request)
        if request.method == "GET":
            return self._read(request, name)
        return self._write(request.method, name, request.headers, request.body)

    def _read(self, request: Request, name: str) -> Answer:
        if one := KEYS.match(name):
            table, partition, key = _unquoted(one)
            row = self._rows[table, partition].get(key)
            return (
                refused(404, "ResourceNotFound")
                if row is None
                else Answer(200, JSON, json.dumps(row).encode())
            )
        within = RANGE.search(request.query.get("$filter", ""))
        partition, first, last = within.groups() if within else ("", "", "")
        rows, after = self._rows[name.removesuffix("()"), partition], request.query.get("NextRowKey", "")
        found = [key for key in sorted(rows) if max(first, after) <= key < last]
        top = int(request.query.get("$top", 1000))
        said = json.dumps({"value": [rows[key] for key in found[:top]]}).encode()
        if len(found) <= top:
            return Answer(200, JSON, said)
        names = {"NextPartitionKey": partition, "NextRowKey": found[top]}
        return Answer(
            200, {**JSON, **{f"x-ms-continuation-{name}": key for name, key in names.items()}}, said
        )

    def _write(self, method: str, name: str, headers: dict[str, str], body: bytes) -> Answer:
        values = json.loads(body) if body else {}
        one = KEYS.match(name)
        table, partition, key = _unquoted(one) if one else (name, values["PartitionKey"], values["RowKey"])
        rows = self._rows[table, partition]
        row, expected = rows.get(key), headers.get("if-match")
        if method == "POST" and row is not None:
            return refused(409, "EntityAlreadyExists")
        if method != "POST" and row is None:
            return refused(404, "ResourceNotFound")
        if row is not None and expected not in ("*", row["odata.etag"]):
            return refused(412, "UpdateConditionNotSatisfied")
        if method == "DELETE":
            del rows[key]
            return Answer(204)
        etag, written = f"W/\"datetime'{uuid.uuid4().hex}'\"", now().isoformat().replace("+00:00", "Z")
        rows[key] = {
            "odata.etag": etag,
            **values,
            "PartitionKey": partition,
            "RowKey": key,
            "Timestamp": written,
        }
        return Answer(204, {"ETag": etag, "Preference-Applied": "return-no-content"})

    def _batch(self, request: Request) -> Answer:
        """One after the other: a conflict after the first row, of which the toolkit has none here, undoes nothing."""
        said: list[Answer] = []
        for number, (method, url, lines, body) in enumerate(PART.findall(request.body)):
            headers = dict(_header(line) for line in lines.decode().split("\r\n"))
            path = unquote(urlsplit(url.decode()).path.rpartition("/")[2])
            done = self._write(method.decode(), path, headers, body.strip())
            if done.status >= 400:  # noqa: PLR2004
                said = [done._replace(body=done.body.replace(b'"value": "', b'"value": "%d:' % number))]
                break
            said.append(done)
        parts = "".join(map(_part, said))
        text = f"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n{parts}--c--\r\n--b--\r\n"
        return Answer(202, {"Content-Type": "multipart/mixed; boundary=b"}, text.encode())


def _unquoted(keys: re.Match[str]) -> list[str]:
    return [key.replace("''", "'") for key in keys.groups()]


def _part(one: Answer) -> str:
    head = "--c\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in one.headers.items())
    return f"{head}HTTP/1.1 {one.status} {REASONS[one.status]}\r\n{lines}\r\n{one.body.decode()}\r\n"


class Queues:
    """The queue service; every queue exists."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)

    def answer(self, request: Request) -> Answer:
        """Do it."""
        name, *rest = request.path
        if not rest:
            return Answer(201)
        messages = self._queues[name]
        if len(rest) == 1:
            return (
                self._receive(request, messages) if request.method == "GET" else self._send(request, messages)
            )
        message = messages.get(rest[1])
        if message is None or message["receipt"] != request.query.get("popreceipt"):
            return refused(404, "MessageNotFound")
        if request.method == "DELETE":
            del messages[rest[1]]
            return Answer(204)
        headers = self._hide(message, int(request.query["visibilitytimeout"]))
        return Answer(204, headers)

    def _hide(self, message: dict[str, Any], seconds: int) -> dict[str, str]:
        message["receipt"] = uuid.uuid4().hex
        message["visible"] = now() + timedelta(seconds=seconds)
        return {"x-ms-popreceipt": message["receipt"], "x-ms-time-next-visible": _date(message["visible"])}

    def _send(self, request: Request, messages: dict[str, dict[str, Any]]) -> Answer:
        text = re.search(rb"<MessageText>(.*)</MessageText>", request.body, re.DOTALL)
        made = {"text": b"" if text is None else text[1], "count": 0}
        self._hide(made, int(request.query.get("visibilitytimeout", 0)))
        messages[str(uuid.uuid4())] = made
        return Answer(201, XML, _list([_item(next(reversed(messages)), made, text=False)]))

    def _receive(self, request: Request, messages: dict[str, dict[str, Any]]) -> Answer:
        found, wanted, at = [], int(request.query.get("numofmessages", 1)), now()
        for name, message in messages.items():
            if message["visible"] <= at:
                message["count"] += 1
                self._hide(message, int(request.query.get("visibilitytimeout", 30)))
                found.append(_item(name, message, text=True))
                if len(found) == wanted:
                    break
        return Answer(200, XML, _list(found))


def _item(name: str, message: dict[str, Any], *, text: bool) -> bytes:
    body = b"<DequeueCount>%d</DequeueCount><MessageText>%s</MessageText>" % (
        message["count"],
        message["text"],
    )
    dates = f"<InsertionTime>{_date(now())}</InsertionTime><ExpirationTime>{NEVER}</ExpirationTime>"
    head = f"<MessageId>{name}</MessageId>{dates}<PopReceipt>{message['receipt']}</PopReceipt>"
    seen = f"<TimeNextVisible>{_date(message['visible'])}</TimeNextVisible>"
    return b"<QueueMessage>" + (head + seen).encode() + body * text + b"</QueueMessage>"


def _list(items: list[bytes]) -> bytes:
    listed = b"".join(items)
    return b'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList>' + listed + b"</QueueMessagesList>"


class Blobs:
    """The blob service: leases on empty blobs in containers that exist."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[str, datetime] | None] = {}

    def answer(self, request: Request) -> Answer:
        """Do it."""
        name = "/".join(request.path)
        if "restype" in request.query:
            return Answer(201)
        if name not in self._leases and request.query.get("comp") != "lease" and request.method == "PUT":
            self._leases[name] = None
            return Answer(201, {"ETag": '"1"', "Last-Modified": _date(now())})
        if name not in self._leases:
            return refused(404, "BlobNotFound")
        if request.query.get("comp") == "lease":
            return self._lease(name, request.headers)
        return refused(409, "BlobAlreadyExists") if request.method == "PUT" else Answer(200, {"ETag": '"1"'})

    def _lease(self, name: str, headers: dict[str, str]) -> Answer:
        held, action = self._leases[name], headers["x-ms-lease-action"]
        wanted = headers.get("x-ms-proposed-lease-id") or headers.get("x-ms-lease-id", "")
        if held is not None and held[1] > now() and held[0] != wanted:
            return refused(409, "LeaseAlreadyPresent")
        ends = timedelta(seconds=int(headers.get("x-ms-lease-duration", 60)))
        self._leases[name] = None if action == "release" else (wanted, now() + ends)
        return Answer(
            {"acquire": 201}.get(action, 200),
            {"x-ms-lease-id": wanted, "ETag": '"1"', "Last-Modified": _date(now())},
        )


def _date(at: datetime) -> str:
    return formatdate(at.timestamp(), usegmt=True)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


async def serve(service: Any, latency: float) -> int:
    """Serve one service; its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(_header(line) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                url = urlsplit(target)
                query = {
                    name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
                }
                path = [unquote(part) for part in url.path.strip("/").split("/")[1:]]
                said = service.answer(Request(method, path, query, headers, body))
                await asyncio.sleep(latency)
                length = {} if said.status == 204 else {"Content-Length": str(len(said.body))}  # noqa: PLR2004
                lines = [
                    f"HTTP/1.1 {said.status} {REASONS[said.status]}",
                    f"Date: {_date(now())}",
                    "x-ms-version: 2025-11-05",
                ]
                lines += [f"{name}: {value}" for name, value in {**said.headers, **length}.items()]
                writer.write(
                    ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + said.body * (method != "HEAD")
                )
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20, backlog=1000)
    port: int = server.sockets[0].getsockname()[1]
    return port


async def run(latency: float) -> None:
    """Serve all three until the input ends."""
    services = {"Blob": Blobs(), "Queue": Queues(), "Table": Tables()}
    ports = {name: await serve(service, latency) for name, service in services.items()}
    ends = "".join(f"{name}Endpoint=http://127.0.0.1:{port}/{ACCOUNT};" for name, port in ports.items())
    print(f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey=c3RhbmQtaW4=;{ends}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def relay_to(port: int, latency: float) -> None:
    """Hand on what comes, half the latency later in each direction, until the input ends."""
    loop = asyncio.get_running_loop()

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            loop.call_later(latency / 2, writer.write, data)
        loop.call_later(latency / 2, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(hand_on(reader, back), hand_on(there, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def _serving(*arguments: str) -> Iterator[str]:
    """This file in a process of its own; the line it says first."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or not (said := process.stdout.readline().strip()):
            raise SystemExit("the stand-in did not start")
        try:
            yield said
        finally:
            process.communicate()


def storage(latency: float) -> contextlib.AbstractContextManager[str]:
    """A stand-in in a process of its own; its connection string."""
    return _serving("--latency", str(latency))


def relay(port: int, latency: float) -> contextlib.AbstractContextManager[str]:
    """A relay to a port of this machine, in a process of its own; its port."""
    return _serving("--latency", str(latency), "--relay", str(port))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--latency", type=float, default=0.0, help="seconds until an answer")
    parser.add_argument("--relay", type=int, metavar="PORT", help="hand on to a port of this machine instead")
    options = parser.parse_args()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(relay_to(options.relay, options.latency) if options.relay else run(options.latency))
