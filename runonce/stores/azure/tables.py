"""A table, with transactions and conditional writes."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from azure.core.exceptions import DecodeError, HttpResponseError

from runonce.errors import ConflictError
from runonce.stores.azure.errors import CONFLICT, code_of, translated
from runonce.stores.azure.wire import REFUSED, refusal
from runonce.stores.protocols import Delete, Insert, Replace, Row, Value, Write, check_transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runonce.stores.azure.wire import Reply, Service

INT32 = range(-(2**31), 2**31)
PAGE = 1000
NOT_FOUND = 404
READ = {"Accept": "application/json;odata=minimalmetadata", "DataServiceVersion": "3.0"}
WRITE = {**READ, "Content-Type": "application/json"}
INSERT = {**WRITE, "Prefer": "return-no-content"}
TYPE = "@odata.type"
PART = re.compile(rb"\r\n\r\nHTTP/1\.1 (\d{3})[^\r\n]*\r\n(.*?)(?:\r\n\r\n(.*?))?(?=\r\n--)", re.DOTALL)
"""One answer in that to a transaction; JSON has no line's end in it that could be taken for one of these."""
ETAG = re.compile(rb"^etag: *(.*?)\r?$", re.IGNORECASE | re.MULTILINE)
AT_ROW = re.compile(r"(\d+):")


class Typed(str):  # noqa: SLOT000 - it has what slots would keep away
    """A value of a type that the toolkit never writes, such as an instant put in by hand: it is kept as it is."""

    type: str


class AzureTable:
    """Rows in an Azure table, which is made on the first write."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    def get(self, partition: str, key: str) -> Row | None:
        with translated(f"table {self._name}"):
            try:
                reply = self._service.ask("GET", self._path(partition, key), headers=READ)
            except HttpResponseError as error:
                if error.status_code == NOT_FOUND:
                    return None
                raise
            with _readable():
                return _row(json.loads(reply.text()), _answered(reply))

    def scan(
        self,
        partition: str,
        first: str,
        last: str,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
    ) -> Iterator[Row]:
        where = f"PartitionKey eq {_text(partition)} and RowKey ge {_text(first)} and RowKey lt {_text(last)}"
        if before:
            where += f" and {before[0]} gt '' and {before[0]} lt {_text(before[1])}"
        return (row for _, row in self._query(where, limit))

    def scan_partitions(
        self,
        first: str,
        last: str,
        *,
        keys: tuple[str, str] = ("", "~"),
        one_of: tuple[str, Sequence[str]] | None = None,
        since: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Row]]:
        where = f"PartitionKey ge {_text(first)} and PartitionKey lt {_text(last)}"
        where += f" and RowKey ge {_text(keys[0])} and RowKey lt {_text(keys[1])}"
        if one_of and one_of[1]:
            where += f" and ( {' or '.join(f'{one_of[0]} eq {_text(text)}' for text in one_of[1])} )"
        if since:
            where += f" and {since[0]} ge {_text(since[1])}"
        return self._query(where, limit)

    def _query(self, where: str, limit: int | None) -> Iterator[tuple[str, Row]]:
        query, more, count = f"$top={min(limit or PAGE, PAGE)}&$filter={quote(where)}", "", 0
        while True:
            with translated(f"table {self._name}"):
                try:
                    reply = self._service.ask("GET", f"{self._name}()", query + more, READ)
                except HttpResponseError as error:
                    if error.status_code == NOT_FOUND:  # no such table yet: no rows
                        return
                    raise
                with _readable():
                    entities = json.loads(reply.text())["value"]
                    found = [(str(one["PartitionKey"]), _row(one, _answered(reply))) for one in entities]
            for one in found:
                yield one
                count += 1
                if count == limit:
                    return
            names = ("NextPartitionKey", "NextRowKey")
            goes_on = {name: reply.headers.get(f"x-ms-continuation-{name}") for name in names}
            more = "".join(f"&{name}={quote(value, safe='')}" for name, value in goes_on.items() if value)
            if not more:
                return

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        check_transaction(writes)
        with translated(f"table {self._name}"):
            try:
                return self._with_table(partition, writes)
            except HttpResponseError as error:
                code = code_of(error)
                if error.status_code not in CONFLICT or code in ("TableNotFound", "TableBeingDeleted"):
                    raise
                at_row = AT_ROW.match(error.message) if len(writes) > 1 else None
                index = int(at_row[1]) if at_row else 0
                raise ConflictError(
                    f"table {self._name}: row {writes[index].key} was not as expected ({code}).",
                    index=index,
                    exists=code == "EntityAlreadyExists",
                ) from error

    def _with_table(self, partition: str, writes: Sequence[Write]) -> list[str]:
        call = self._one if len(writes) == 1 else self._all
        try:
            return call(partition, writes)
        except HttpResponseError as error:
            if code_of(error) != "TableNotFound":
                raise
        self._service.sdk().create_table_if_not_exists(self._name)
        return call(partition, writes)

    def _one(self, partition: str, writes: Sequence[Write]) -> list[str]:
        """One row by itself."""
        method, path, headers, body = self._request(partition, writes[0])
        return [self._service.ask(method, path, headers=headers, body=body).headers.get("ETag", "")]

    def _all(self, partition: str, writes: Sequence[Write]) -> list[str]:
        """All or nothing: an entity group transaction (Performing entity group transactions, REST reference)."""
        batch, changes = "batch_of_runonce", "changeset_of_runonce"  # no row has a line that begins with "--"
        lines = [f"--{batch}\r\nContent-Type: multipart/mixed; boundary={changes}\r\n\r\n".encode()]
        for number, write in enumerate(writes):
            method, path, headers, body = self._request(partition, write)
            said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            lines.append(
                f"--{changes}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
                f"Content-ID: {number}\r\n\r\n{method} {self._service.url}/{path} HTTP/1.1\r\n"
                f"{said}Content-Length: {len(body or b'')}\r\n\r\n".encode()
            )
            lines += [body or b"", b"\r\n"]
        lines.append(f"--{changes}--\r\n\r\n--{batch}--\r\n".encode())
        headers = {**READ, "Content-Type": f"multipart/mixed; boundary={batch}"}
        answers = PART.findall(
            self._service.ask("POST", "$batch", headers=headers, body=b"".join(lines)).content
        )
        for status, _, told in answers:
            if int(status) >= REFUSED:
                raise refusal(int(status), told.decode("utf-8", "replace"))
        if len(answers) != len(writes):
            raise DecodeError(message=f"{len(answers)} answers to {len(writes)} writes")
        etags = [ETAG.search(head) for _, head, _ in answers]
        return [etag[1].decode() if etag else "" for etag in etags]

    def _request(self, partition: str, write: Write) -> tuple[str, str, dict[str, str], bytes | None]:
        if isinstance(write, Insert):
            return "POST", self._name, INSERT, _body(partition, write)
        path = self._path(partition, write.key)
        if isinstance(write, Delete):
            return "DELETE", path, {**READ, "If-Match": write.etag}, None
        return "PUT", path, {**WRITE, "If-Match": write.etag}, _body(partition, write)

    def _path(self, partition: str, key: str) -> str:
        return f"{self._name}(PartitionKey={_text(partition, quoted=True)},RowKey={_text(key, quoted=True)})"


def _text(text: str, *, quoted: bool = False) -> str:
    """A text in a query, or quoted for a path too."""
    doubled = text.replace("'", "''")
    return f"'{quote(doubled, safe='') if quoted else doubled}'"


def _body(partition: str, write: Insert | Replace) -> bytes:
    columns: dict[str, Any] = {"PartitionKey": partition, "RowKey": write.key}
    for name, value in write.values.items():
        columns[name] = value
        if type(value) is int and value not in INT32:
            columns[name], columns[name + TYPE] = str(value), "Edm.Int64"
        elif isinstance(value, float):
            columns[name + TYPE] = "Edm.Double"
            if not math.isfinite(value):
                columns[name] = "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        elif isinstance(value, Typed):
            columns[name + TYPE] = value.type
    return json.dumps(columns).encode()


@contextmanager
def _readable() -> Iterator[None]:
    """Around what is read out of an answer."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(message=f"the answer cannot be read: {type(error).__name__}") from error


def _row(entity: Mapping[str, Any], read_at: datetime) -> Row:
    values: dict[str, Value] = {}
    for name, value in entity.items():
        if (
            name in ("PartitionKey", "RowKey", "Timestamp")
            or name.startswith("odata.")
            or name.endswith(TYPE)
        ):
            continue
        kind = entity.get(name + TYPE, "Edm.String")
        if kind == "Edm.Int64":
            values[name] = int(value)
        elif kind == "Edm.Double":
            values[name] = float(value)
        elif isinstance(value, str) and kind != "Edm.String":
            values[name] = typed = Typed(value)
            typed.type = kind
        else:
            values[name] = value
    written = datetime.fromisoformat(entity["Timestamp"])
    return Row(str(entity["RowKey"]), values, str(entity["odata.etag"]), written, read_at)


def _answered(reply: Reply) -> datetime:
    return parsedate_to_datetime(reply.headers["Date"]).astimezone(UTC)
