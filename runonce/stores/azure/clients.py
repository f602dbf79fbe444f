"""How the SDK's clients are made: credentials, patience, endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runonce.settings import CALL_TIMEOUT, emulator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.settings import SignIn, StorageConnection

PATIENT = {"retry_total": 0, "connection_timeout": 5, "read_timeout": 60}
"""For jobs' own blobs, which may be large and on which no lease's deadline hangs. The SDK's own tries are off, as
every caller knows what an unknown outcome means to it."""


QUICK = {"retry_total": 0, "connection_timeout": 3, "read_timeout": CALL_TIMEOUT}
"""For what hosts ask for: one call is one request, and no lease may run out meanwhile."""


def make_client(
    kind: Any, storage: StorageConnection, service: str, options: Mapping[str, Any], **more: Any
) -> Any:
    """A client of the SDK's for one service, by connection string or with the identity of this process."""
    from runonce.stores.azure.connections import OwnConnections  # noqa: PLC0415 - as the SDK itself, when it is used

    # A machine's own emulator is not behind the proxy of its network.
    transport = OwnConnections(**options, use_env_settings=not storage.is_local)
    options = {"transport": transport, **options}
    text = storage.connection_string
    if text is not None:
        return kind.from_connection_string(emulator(text) or text, **more, **options)
    return kind(storage.endpoints[service], credential=credential(storage), **more, **options)


def sdk_client(storage: StorageConnection, service: str, transport: Any = None) -> Any:
    """The SDK's client for the tables or queues of an account, which makes them; as patient as all our calls."""
    # Imported here: half a second, and used once in a namespace's life.
    if service == "table":
        from azure.data.tables import TableServiceClient as Client  # noqa: PLC0415
    else:
        from azure.storage.queue import QueueServiceClient as Client  # type: ignore[assignment]  # noqa: PLC0415
    return make_client(Client, storage, service, QUICK | ({"transport": transport} if transport else {}))


def credential(signs_in: SignIn) -> Any:
    """What signs in as the settings say, or as whoever this process runs for."""
    # Imported here: 0.4 s and 40 MiB that a connection string does not need.
    import azure.identity as azure  # noqa: PLC0415

    client, tenant = signs_in.client_id, signs_in.tenant_id
    if signs_in.credential == "managedidentity":
        return azure.ManagedIdentityCredential(client_id=client)
    if signs_in.credential == "workloadidentity":
        return azure.WorkloadIdentityCredential(client_id=client, tenant_id=tenant)
    if signs_in.client_secret and client and tenant:
        return azure.ClientSecretCredential(tenant, client, signs_in.client_secret)
    named = {
        "managed_identity_client_id": client,
        "workload_identity_client_id": client,
        "workload_identity_tenant_id": tenant,
    }
    return azure.DefaultAzureCredential(**{option: value for option, value in named.items() if value})
