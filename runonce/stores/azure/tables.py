"""A table, with transactions and conditional writes."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.data.tables import (
    EdmType,
    EntityProperty,
    TableServiceClient,
    TableTransactionError,
    TransactionOperation,
    UpdateMode,
)

from runonce.errors import ConflictError
from runonce.stores.azure.errors import (
    BAD_REQUEST,
    CONFLICT,
    ignoring,
    table_code,
    translated,
)
from runonce.stores.protocols import (
    Delete,
    Insert,
    Replace,
    Row,
    Value,
    Write,
    check_transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure.data.tables import TableClient, TableEntity


MAX_INT32 = 2**31 - 1


class AzureTable:
    """Rows in an Azure table."""

    def __init__(self, service: TableServiceClient, name: str) -> None:
        self._client: TableClient = service.get_table_client(name)
        self._name = name

    def get(self, partition: str, key: str) -> Row | None:
        answered: list[datetime] = []
        with translated(f"table {self._name}"):
            try:
                entity = self._client.get_entity(partition, key, raw_response_hook=_dates(answered))
            except ResourceNotFoundError:
                return None
            return _row(entity, answered[-1])

    def scan(
        self,
        partition: str,
        first: str,
        last: str,
        *,
        limit: int | None = None,
        before: tuple[str, str] | None = None,
    ) -> Iterator[Row]:
        column, text = before or ("", "")
        older = f" and {column} gt '' and {column} lt @text" if before else ""
        found = self._query(
            "PartitionKey eq @partition and RowKey ge @first and RowKey lt @last" + older,
            {"partition": partition, "first": first, "last": last, "text": text},
            limit,
        )
        return (row for _, row in found)

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
        column, texts = one_of or ("", ())
        wanted = " or ".join(f"{column} eq @text{n}" for n in range(len(texts)))
        return self._query(
            "PartitionKey ge @first and PartitionKey lt @last and RowKey ge @low and RowKey lt @high"
            + (f" and ( {wanted} )" if wanted else "")
            + (f" and {since[0]} ge @since" if since else ""),
            {
                "first": first,
                "last": last,
                "low": keys[0],
                "high": keys[1],
                "since": since[1] if since else "",
                **{f"text{n}": text for n, text in enumerate(texts)},
            },
            limit,
        )

    def _query(
        self, wanted: str, parameters: Mapping[str, str], limit: int | None
    ) -> Iterator[tuple[str, Row]]:
        answered: list[datetime] = []
        with translated(f"table {self._name}"):
            pages = self._client.query_entities(
                wanted,
                parameters=dict(parameters),
                results_per_page=min(limit or 1000, 1000),
                raw_response_hook=_dates(answered),
            )
            count = 0
            try:
                for entity in pages:
                    yield str(entity["PartitionKey"]), _row(entity, answered[-1])
                    count += 1
                    if count == limit:
                        return
            except ResourceNotFoundError:  # no such table yet: no rows
                return

    def commit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        check_transaction(writes)  # the SDK cannot read Azure's own refusal of more than a hundred
        call = partial(self._submit, partition, writes)
        write = writes[0]
        if len(writes) == 1 and not isinstance(
            write, Delete
        ):  # the SDK takes a missing row for a deleted one
            call = partial(self._write, partition, write)
        with translated(f"table {self._name}"):
            try:
                return self._with_table(call)
            except HttpResponseError as error:
                index = error.index if isinstance(error, TableTransactionError) else 0
                code = table_code(error)
                if error.status_code not in CONFLICT or code in ("TableNotFound", "TableBeingDeleted"):
                    raise
                raise ConflictError(
                    f"table {self._name}: row {writes[index].key} was not as expected ({code}).",
                    index=index,
                    exists=code == "EntityAlreadyExists",
                ) from error

    def _with_table(self, call: Callable[[], list[str]]) -> list[str]:
        try:
            return call()
        except HttpResponseError as error:
            if table_code(error) != "TableNotFound":
                raise
            ignoring(ResourceExistsError, self._client.create_table)
            return call()

    def _submit(self, partition: str, writes: Sequence[Write]) -> list[str]:
        done = self._client.submit_transaction([_operation(partition, write) for write in writes])
        return [str(result.get("etag", "")) for result in done]

    def _write(self, partition: str, write: Insert | Replace) -> list[str]:
        """One row by itself: a transaction of one costs the SDK nearly three times as much."""
        entity = {"PartitionKey": partition, "RowKey": write.key, **_columns(write.values)}
        if isinstance(write, Insert):
            try:
                done = self._client.create_entity(entity, response_preference="return-no-content")
            except (
                AttributeError
            ) as stumbled:  # the SDK (12.7) looks for the headers of a reply that never came
                if isinstance(stumbled.__context__, AzureError):
                    raise stumbled.__context__ from stumbled
                raise
        else:
            done = self._client.update_entity(
                entity, UpdateMode.REPLACE, etag=write.etag, match_condition=MatchConditions.IfNotModified
            )
        return [str(done["etag"])]


def _columns(values: Mapping[str, Value]) -> dict[str, Any]:
    """The values as the SDK takes them: it keeps an int in 32 bits unless told otherwise."""
    return {
        name: (value, EdmType.INT64) if type(value) is int and abs(value) > MAX_INT32 else value
        for name, value in values.items()
    }


def _operation(partition: str, write: Write) -> tuple[Any, ...]:
    keys = {"PartitionKey": partition, "RowKey": write.key}
    if isinstance(write, Insert):
        return TransactionOperation.CREATE, {**keys, **_columns(write.values)}
    condition = {"etag": write.etag, "match_condition": MatchConditions.IfNotModified}
    if isinstance(write, Delete):
        return TransactionOperation.DELETE, keys, condition
    return (
        TransactionOperation.UPDATE,
        {**keys, **_columns(write.values)},
        {**condition, "mode": UpdateMode.REPLACE},
    )


def _row(entity: TableEntity, read_at: datetime) -> Row:
    metadata: Any = entity.metadata
    values = {
        name: value.value if isinstance(value, EntityProperty) else value  # a 64-bit int comes wrapped
        for name, value in entity.items()
        if name not in ("PartitionKey", "RowKey")
    }
    return Row(str(entity["RowKey"]), values, str(metadata["etag"]), metadata["timestamp"], read_at)


def _dates(into: list[datetime]) -> Any:
    def hook(response: Any) -> None:
        if response.http_response.status_code < BAD_REQUEST:  # whoever refuses need not say the time
            into.append(parsedate_to_datetime(response.http_response.headers["Date"]).astimezone(UTC))

    return hook
