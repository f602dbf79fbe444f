"""Stores on Azure Storage: blob leases, a table, a queue and a container, each made on first use.

The SDK's own retries are off and its time-outs short. Left alone it waits up to 300 s for a connection and
tries four times (azure-core's and the storage packages' defaults), far past any lease; and an insert that it
retries after a lost reply is refused because of itself. Above, every caller knows what an unknown outcome
means to it.
"""

from __future__ import annotations

import base64
import threading
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
from azure.storage.blob import BlobClient, BlobLeaseClient, BlobServiceClient

from runonce.errors import ConflictError
from runonce.settings import CALL_TIMEOUT
from runonce.stores.azure_blobs import AzureBlobs
from runonce.stores.azure_errors import (
    BAD_REQUEST,
    CONFLICT,
    code_of,
    ignoring,
    table_code,
    translated,
    unless_conflict,
)
from runonce.stores.protocols import (
    Delete,
    Insert,
    QueueItem,
    Replace,
    Row,
    Stores,
    Value,
    Write,
    check_transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure.data.tables import TableClient, TableEntity
    from azure.storage.queue import QueueClient

    from runonce.settings import Settings, StorageConnection

EMULATOR = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    # Azurite's published development key: the same on every machine, and no secret.
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
    "QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;"
    "TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"
)
QUICK = {"retry_total": 0, "connection_timeout": 3, "read_timeout": CALL_TIMEOUT}
PATIENT = {"retry_total": 0, "connection_timeout": 5, "read_timeout": 60}
"""For jobs' own blobs, which may be large and on which no lease's deadline hangs."""

MAX_INT32 = 2**31 - 1


def azure_stores(settings: Settings, **options: Any) -> Stores:
    """The stores of the settings' storage account; `options` go to the SDK's clients (tests count with them).

    Nothing is sent before the first use.
    """
    storage = settings.storage
    blobs = make_client(BlobServiceClient, storage, "blob", {**QUICK, **options})
    data = make_client(BlobServiceClient, storage, "blob", {**PATIENT, **options})
    tables = make_client(TableServiceClient, storage, "table", {**QUICK, **options})
    return Stores(
        leases=AzureLeases(blobs, settings.lease_container),
        runs=AzureTable(tables, settings.runs_table),
        claims=AzureTable(tables, settings.claims_table),
        requests=AzureQueue(storage, settings.request_queue, {**QUICK, **options}),
        blobs=AzureBlobs(data, settings.data_container),
    )


def make_client(
    kind: Any, storage: StorageConnection, service: str, options: Mapping[str, Any], **more: Any
) -> Any:
    """A client of the SDK's for one service, by connection string or with the identity of this process."""
    text = storage.connection_string
    if text is not None:
        if "usedevelopmentstorage=true" in text.lower().replace(" ", ""):
            text = EMULATOR
        return kind.from_connection_string(text, **more, **options)
    return kind(storage.endpoints[service], credential=_credential(storage.client_id), **more, **options)


def _credential(client_id: str | None) -> Any:
    # Imported here: 0.4 s and 40 MiB that a connection string does not need.
    from azure.identity import DefaultAzureCredential, ManagedIdentityCredential  # noqa: PLC0415

    return ManagedIdentityCredential(client_id=client_id) if client_id else DefaultAzureCredential()


class AzureLeases:
    """Leases on zero-byte blobs.

    Azure's facts used here (Lease Blob, REST reference): acquiring with a proposed id that already holds the
    lease succeeds, so a repeated acquire is safe; an expired lease can be renewed until somebody takes it.
    """

    def __init__(self, service: BlobServiceClient, container: str) -> None:
        self._service = service
        self._container = container

    def _blob(self, name: str) -> BlobClient:
        return self._service.get_blob_client(self._container, name)

    def acquire(self, name: str, holder: str, duration: int) -> bool:
        blob = self._blob(name)
        with translated(f"lease {name}"):
            try:
                blob.acquire_lease(lease_duration=duration, lease_id=holder)
            except ResourceNotFoundError as error:
                self._make(blob, container_missing=code_of(error) == "ContainerNotFound")
            except HttpResponseError as error:
                if error.status_code == 409:  # noqa: PLR2004 - LeaseAlreadyPresent, or it is being broken
                    return False
                raise
            else:
                return True
            try:
                blob.acquire_lease(lease_duration=duration, lease_id=holder)
            except ResourceExistsError:
                return False
            return True

    def _make(self, blob: BlobClient, *, container_missing: bool) -> None:
        if container_missing:
            ignoring(ResourceExistsError, self._service.create_container, self._container)
        try:
            blob.upload_blob(b"", overwrite=False)
        except HttpResponseError as error:
            # Somebody else made it at the same instant, and may have leased it already (412).
            if error.status_code not in (409, 412):
                raise

    def renew(self, name: str, holder: str) -> bool:
        with translated(f"lease {name}"):
            return unless_conflict(BlobLeaseClient(self._blob(name), lease_id=holder).renew)

    def release(self, name: str, holder: str) -> None:
        with translated(f"lease {name}"):
            unless_conflict(BlobLeaseClient(self._blob(name), lease_id=holder).release)

    def break_lease(self, name: str) -> bool:
        if not self.held(name):  # Azure breaks an expired or broken lease too, as if it had been one
            return False
        lease = BlobLeaseClient(self._blob(name))
        with translated(f"lease {name}"):
            return unless_conflict(lambda: lease.break_lease(lease_break_period=0))

    def held(self, name: str) -> bool:
        with translated(f"lease {name}"):
            try:
                state = self._blob(name).get_blob_properties().lease.state
            except ResourceNotFoundError:
                return False
            return state in ("leased", "breaking")


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
        answered: list[datetime] = []
        column, text = before or ("", "")
        older = f" and {column} gt '' and {column} lt @text" if before else ""
        with translated(f"table {self._name}"):
            pages = self._client.query_entities(
                "PartitionKey eq @partition and RowKey ge @first and RowKey lt @last" + older,
                parameters={"partition": partition, "first": first, "last": last, "text": text},
                results_per_page=min(limit or 1000, 1000),
                raw_response_hook=_dates(answered),
            )
            count = 0
            try:
                for entity in pages:
                    yield _row(entity, answered[-1])
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


class AzureQueue:
    """A storage queue whose messages are Base64, which is what the Functions trigger reads by default."""

    def __init__(self, storage: StorageConnection, name: str, options: Mapping[str, Any]) -> None:
        self._storage = storage
        self._name = name
        self._options = options
        self._lock = threading.Lock()
        self._made: QueueClient | None = None

    def _client(self) -> QueueClient:
        with self._lock:
            if self._made is None:
                # Imported here: most ticks find nothing to ask for, and a cold start should not pay for it.
                from azure.storage.queue import QueueClient  # noqa: PLC0415

                more = {"queue_name": self._name}
                self._made = make_client(QueueClient, self._storage, "queue", self._options, **more)
            return self._made

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> None:
        text = base64.b64encode(body.encode()).decode()
        options = {"visibility_timeout": delay, "time_to_live": time_to_live}
        with translated(f"queue {self._name}"):
            try:
                self._client().send_message(text, **options)
            except ResourceNotFoundError:
                ignoring(ResourceExistsError, self._client().create_queue)
                self._client().send_message(text, **options)

    def receive(self, *, visibility: int) -> QueueItem | None:
        with translated(f"queue {self._name}"):
            try:
                message = self._client().receive_message(visibility_timeout=visibility)
            except ResourceNotFoundError:
                ignoring(ResourceExistsError, self._client().create_queue)
                return None
            if message is None:
                return None
            body = _decoded(str(message.content))
            return QueueItem(message.id, str(message.pop_receipt), body, int(message.dequeue_count or 1))

    def delete(self, item: QueueItem) -> None:
        with translated(f"queue {self._name}"):
            try:
                self._client().delete_message(item.id, pop_receipt=item.receipt)
            except HttpResponseError as error:
                if error.status_code not in (400, 404):  # gone, or received again by somebody else since
                    raise


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:  # not Base64, or not of a text
        return text  # sent by hand without Base64; whoever reads it judges it
