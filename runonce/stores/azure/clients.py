"""How the SDK's clients are made: credentials, patience, endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.settings import CALL_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.settings import StorageConnection

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


def make_client(
    kind: Any, storage: StorageConnection, service: str, options: Mapping[str, Any], **more: Any
) -> Any:
    """A client of the SDK's for one service, by connection string or with the identity of this process."""
    from runonce.stores.azure.connections import OwnConnections  # noqa: PLC0415 - as the SDK itself, when it is used

    options = {"transport": OwnConnections(**options), **options}
    text = storage.connection_string
    if text is not None:
        if "usedevelopmentstorage=true" in text.lower().replace(" ", ""):
            text = EMULATOR
        return kind.from_connection_string(text, **more, **options)
    return kind(storage.endpoints[service], credential=credential(storage.client_id), **more, **options)


def credential(client_id: str | None) -> Any:
    """What signs in as a managed identity, or as whoever this process runs for."""
    # Imported here: 0.4 s and 40 MiB that a connection string does not need.
    from azure.identity import DefaultAzureCredential, ManagedIdentityCredential  # noqa: PLC0415

    return ManagedIdentityCredential(client_id=client_id) if client_id else DefaultAzureCredential()
