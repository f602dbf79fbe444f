"""Stores on Azure Storage: blob leases, a table, a queue and a container, each made on first use.

The SDK's own retries are off and its time-outs short. Left alone it waits up to 300 s for a connection and
tries four times (azure-core's and the storage packages' defaults), far past any lease; and an insert that it
retries after a lost reply is refused because of itself. Above, every caller knows what an unknown outcome
means to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.data.tables import (
    TableServiceClient,
)
from azure.storage.blob import BlobServiceClient

from runonce.stores.azure.blobs import AzureBlobs
from runonce.stores.azure.clients import PATIENT, QUICK, make_client
from runonce.stores.azure.leases import AzureLeases
from runonce.stores.azure.queues import AzureQueue
from runonce.stores.azure.tables import AzureTable
from runonce.stores.protocols import (
    Stores,
)

if TYPE_CHECKING:
    from contextlib import ExitStack

    from runonce.settings import Settings


def azure_stores(settings: Settings, *, closing: ExitStack | None = None, **options: Any) -> Stores:
    """The stores of the settings' storage account; nothing is sent before the first use.

    Args:
        settings: Which account, and how it is reached.
        closing: Takes what closes the clients.
        options: Go to the SDK's clients (tests count with them).
    """
    storage = settings.storage
    blobs = make_client(BlobServiceClient, storage, "blob", {**QUICK, **options})
    data = make_client(BlobServiceClient, storage, "blob", {**PATIENT, **options})
    tables = make_client(TableServiceClient, storage, "table", {**QUICK, **options})
    requests = AzureQueue(storage, settings.request_queue, {**QUICK, **options})
    if closing is not None:
        for made in (blobs, data, tables, requests):
            closing.callback(made.close)
    return Stores(
        leases=AzureLeases(blobs, settings.lease_container),
        runs=AzureTable(tables, settings.runs_table),
        claims=AzureTable(tables, settings.claims_table),
        requests=requests,
        blobs=AzureBlobs(data, settings.data_container),
    )
