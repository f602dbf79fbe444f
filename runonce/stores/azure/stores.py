"""Stores on Azure Storage: blob leases, a table, a queue and a container, each made on first use.

Nothing is tried again, and time-outs are short: the SDK left alone waits up to 300 s for a connection and tries
four times (azure-core's and the storage packages' defaults), far past any lease; and an insert that is tried again
after a lost reply is refused because of itself. Above, every caller knows what an unknown outcome means to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.errors import MissingExtraError
from runonce.stores.azure.blobs import AzureBlobs
from runonce.stores.azure.clients import PATIENT, make_client
from runonce.stores.azure.leases import AzureLeases
from runonce.stores.azure.queues import AzureQueue, Queue
from runonce.stores.azure.tables import AzureTable
from runonce.stores.azure.wire import services
from runonce.stores.protocols import Stores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from runonce.settings import Settings
    from runonce.stores.azure.wire import Service
    from runonce.stores.postgresql import PostgreSQLLeases
    from runonce.stores.protocols import LeaseStore
    from runonce.stores.redis import RedisLeases


def azure_stores(
    settings: Settings,
    account: Sequence[Service] = (),
    *,
    closing: ExitStack | None = None,
    **options: Any,
) -> Stores:
    """The stores of the settings' storage account; nothing is sent before the first use.

    Args:
        settings: Which account, and how it is reached.
        account: Its services, where others ask them too: "blob", "queue", "table".
        closing: Takes what closes the clients that were made here.
        options: Go to the SDK's clients; their `transport` is for all requests (tests count with it).
    """
    storage = settings.storage
    blob, queue, table = account or services(
        storage, "blob", "queue", "table", transport=options.get("transport")
    )
    data = AzureBlobs(
        lambda: make_client(_blob_client(), storage, "blob", {**PATIENT, **options}), settings.data_container
    )
    if closing is not None:
        for made in (data, *(() if account else (blob, queue, table))):
            closing.callback(made.close)
    return Stores(
        leases=_other_leases(settings, closing) or AzureLeases(blob, settings.lease_container),
        runs=AzureTable(table, settings.runs_table),
        claims=AzureTable(table, settings.claims_table),
        requests=AzureQueue(Queue(queue, settings.request_queue)),
        blobs=data,
    )


def _other_leases(settings: Settings, closing: ExitStack | None) -> LeaseStore | None:
    """Leases on the server that the settings name, if they do; its client is loaded only then."""
    if not settings.leases:
        return None
    kind = "redis" if settings.leases.startswith("redis") else "postgresql"
    made: PostgreSQLLeases | RedisLeases
    try:
        if kind == "redis":
            from runonce.stores.redis import RedisLeases  # noqa: PLC0415

            made = RedisLeases(settings.leases)
        else:
            from runonce.stores.postgresql import PostgreSQLLeases  # noqa: PLC0415

            made = PostgreSQLLeases(settings.leases)
    except ImportError as error:
        raise MissingExtraError(f"RUNONCE_LEASES={kind}://…", kind) from error
    if closing is not None:
        closing.callback(made.close)
    return made


def _blob_client() -> Any:
    # Imported here: a quarter of a second that only jobs' own blobs need.
    from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

    return BlobServiceClient
