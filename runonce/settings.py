"""The settings, read once from the environment, checked alone and against each other.

| variable | default | what |
|---|---|---|
| RUNONCE_STORAGE | AzureWebJobsStorage | connection string, or `…__accountName` / `…__blobServiceUri` and so on |
| RUNONCE_NAMESPACE | on the emulator, the folder's | application and environment; prefixes locks, keys and queues |
| RUNONCE_JOBS | `jobs` | the folder of job files |
| RUNONCE_LEASES | in the storage account | `postgresql://…` or `redis://…`: where leases are held instead |
| RUNONCE_LEASE_DURATION | 45 | seconds a lease lasts, 15 to 60 |
| RUNONCE_LEASE_RENEWAL | 20 | seconds between renewals, less than half of the duration |
| RUNONCE_LEASE_MARGIN | 5 | seconds before its end that a lease is no longer trusted |
| RUNONCE_RECOVERY_INTERVAL | 60 | seconds between recovery ticks (local host; elsewhere the host's timer) |
| RUNONCE_MISFIRE_GRACE | 30 | seconds after which a fire time nobody ran counts as missed |
| RUNONCE_HISTORY_DAYS | 90 | days that the records of ended runs are kept, unless a job says otherwise |
| RUNONCE_SERVICEBUS | ServiceBusConnection | connection string, or `…__fullyQualifiedNamespace` |
| RUNONCE_TRANSPORT | servicebus where one is set, else storage | what carries the handlers' messages |
| RUNONCE_QUEUE_NAMES | namespaced | `plain`: handlers' queues and topics without the namespace before their names |
| RUNONCE_CLAIM_LEASE | 60 | seconds without a sign of life after which a message's claim is taken over |
| RUNONCE_MAX_BODY | 262144 | bytes of a message's body; with Premium up to 104857600 |
| RUNONCE_SHUTDOWN_TIMEOUT | 45 | seconds a stopping host waits for its runs; at most 5 on Functions |
| RUNONCE_DEPLOYMENT | | when this was deployed to Container Apps; `infra/jobs.bicep` sets it |
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from runonce.environment import is_base64, number, server, whole, word
from runonce.errors import SettingsError
from runonce.watched import Watched, is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = re.compile(r"(?=.{3,40}\Z)[a-z0-9](?:-?[a-z0-9])+")
"""A namespace becomes part of a queue's name: letters, digits, single hyphens, and room for a suffix."""

LONGEST_FOLDER = 20
"""Characters of a folder's name that its namespace has, which leaves a Storage queue's name 29 of its own."""

EMULATED = "devstoreaccount1"
# Azurite's published development key: the same on every machine, and no secret.
EMULATED_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SERVICES = ("blob", "queue", "table")
LEASE_SERVERS = ("postgresql://", "postgres://", "redis://", "rediss://")
CREDENTIALS = ("managedidentity", "workloadidentity")
CALL_TIMEOUT = 4.0
"""Seconds one storage call may take where a lease's deadline hangs on it; two of them fit in the margin's lead."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How a lease is held. The three figures hang together, so they are checked together, here."""

    duration: int = 45
    renewal: float = 20.0
    margin: float = 5.0

    def __post_init__(self) -> None:
        if not 15 <= self.duration <= 60:  # noqa: PLR2004 - Azure's own bounds for a finite blob lease
            raise SettingsError(
                f"RUNONCE_LEASE_DURATION={self.duration} must be 15 to 60 seconds: Azure allows no other finite "
                f"blob lease, and an infinite one outlives a dead holder."
            )
        if not 0 < self.renewal < self.duration / 2:
            raise SettingsError(
                f"RUNONCE_LEASE_RENEWAL={self.renewal:g} must be more than 0 and less than half of "
                f"RUNONCE_LEASE_DURATION={self.duration}, so that one failed renewal does not lose the lease."
            )
        if not 0 < self.margin <= self.duration - 2 * self.renewal + 1e-9:  # so that 7.4 and 0.2 fit in 15
            raise SettingsError(
                f"RUNONCE_LEASE_MARGIN={self.margin:g} must be more than 0 and at most "
                f"{self.duration - 2 * self.renewal:g}: two renewals of {self.renewal:g} s and the margin "
                f"have to fit in a lease of {self.duration} s."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """Who signs in where there is no connection string, in the forms that the Functions host knows."""

    client_id: str | None = None
    """Of a managed identity, a workload identity or an application."""
    tenant_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    credential: Literal["", "managedidentity", "workloadidentity"] = ""
    """The only kind that is tried; with none, what azure-identity's DefaultAzureCredential finds."""


@dataclass(frozen=True, slots=True)
class StorageConnection(SignIn):
    """How the storage account is reached: a connection string, or one address for each service with an identity."""

    connection_string: str | None = field(default=None, repr=False)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Service ("blob", "queue", "table") to its URL, where there is no connection string."""
    setting: str = "RUNONCE_STORAGE"
    """The setting it was read from, which is what a Functions binding calls a connection."""

    @property
    def is_local(self) -> bool:
        """Whether this is an emulator on this machine."""
        fields = _fields(emulator(self.connection_string) or self.connection_string or "")
        given = [fields.get(f"{service}endpoint", "") for service in SERVICES]
        hosts = [urlsplit(url).hostname for url in (*given, *self.endpoints.values()) if url]
        return bool(hosts) and all(h in ("127.0.0.1", "localhost", "::1") for h in hosts)


@dataclass(frozen=True, slots=True)
class ServiceBusConnection(SignIn):
    """How the Service Bus namespace is reached: a connection string, or its name with an identity."""

    connection_string: str | None = field(default=None, repr=False)
    fully_qualified_namespace: str = ""
    setting: str = "RUNONCE_SERVICEBUS"


def emulator(connection_string: str | None) -> str | None:
    """What UseDevelopmentStorage=true stands for, in full; None for another connection string.

    Raises:
        ValueError: Its DevelopmentStorageProxyUri is not a URL of a machine, such as http://azurite.
    """
    fields = _fields(connection_string or "")
    if fields.get("usedevelopmentstorage", "").lower() != "true":
        return None
    given = fields.get("developmentstorageproxyuri") or "http://127.0.0.1"
    if not is_url(given):
        raise ValueError(f"DevelopmentStorageProxyUri={given!r} must be a URL such as http://azurite")
    uri = urlsplit(given)
    host = f"[{uri.hostname}]" if ":" in str(uri.hostname) else uri.hostname
    ports = (("Blob", 10000), ("Queue", 10001), ("Table", 10002))
    endpoints = [f"{name}Endpoint={uri.scheme}://{host}:{port}/{EMULATED}" for name, port in ports]
    return ";".join(
        [
            f"DefaultEndpointsProtocol={uri.scheme}",
            f"AccountName={EMULATED}",
            f"AccountKey={EMULATED_KEY}",
            *endpoints,
        ]
    )


def _fields(connection_string: str) -> dict[str, str]:
    parts = (part.partition("=") for part in connection_string.split(";"))
    return {key.strip().lower(): value.strip() for key, _, value in parts}


def address(fields: Mapping[str, str], service: str) -> str:
    """The URL of a service, by the fields of a connection string; their names are in lower case."""
    account, suffix = fields.get("accountname", ""), fields.get("endpointsuffix") or "core.windows.net"
    protocol = fields.get("defaultendpointsprotocol") or "https"
    return fields.get(f"{service}endpoint") or f"{protocol}://{account}.{service}.{suffix}"


TransportName = Literal["servicebus", "storage"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the environment decides. Construct it in tests; `from_env` elsewhere."""

    namespace: str
    storage: StorageConnection
    lease: LeaseTerms = field(default_factory=LeaseTerms)
    leases: str = field(default="", repr=False)
    """The address of the PostgreSQL or Redis server that holds the leases; empty is the storage account."""
    jobs_folder: str = "jobs"
    recovery_interval: float = 60.0
    misfire_grace: float = 30.0
    history_days: int = 90
    shutdown_timeout: float = 45.0
    leader: bool = False
    """Whether of several local hosts with the same jobs one leads and the others stand by."""
    watched: Watched = field(default_factory=Watched)
    deployment: str = ""
    """When this was deployed to Container Apps, such as 20261130T120000Z: later is greater. Empty elsewhere."""

    servicebus: ServiceBusConnection | None = None
    transport: TransportName = "storage"
    claim_lease: int = 60
    queue_prefix: str = ""
    """What the names of handlers' queues and topics begin with, so that two namespaces share no message."""
    max_body: int = 262_144
    """Bytes of a message's body; the default is what Service Bus Standard allows, Premium is set to more."""

    dashboard: str = ""
    """off, read or act: whether there are pages, and whether they may change anything; empty is the host's own way."""

    runs_table: str = "runonce"
    claims_table: str = "runonceclaims"
    lease_container: str = "runonce-leases"
    data_container: str = "runonce-data"

    def __post_init__(self) -> None:
        if not NAMESPACE.fullmatch(self.namespace):
            raise SettingsError(
                f"RUNONCE_NAMESPACE={self.namespace!r} must be 3 to 40 lower-case letters and digits with single "
                f'hyphens between them, such as "shop-production".'
            )

    @property
    def request_queue(self) -> str:
        """The internal queue of this namespace's requests."""
        return f"runonce-{self.namespace}-requests"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
        """Read the settings.

        Args:
            environ: Default: this process's environment.
            folder: The project's, which the emulator's namespace is called after. Default: the current one.

        Raises:
            SettingsError: One is missing or wrong; the message names the variable, its value and the remedy.
        """
        env = os.environ if environ is None else environ
        storage = _storage(env)
        servicebus = _servicebus(env)
        namespace = env.get("RUNONCE_NAMESPACE", "")
        if not namespace:
            if not storage.is_local:
                raise SettingsError(
                    "RUNONCE_NAMESPACE is not set: name the application and environment, such as "
                    '"shop-production". It prefixes every lock and key, so that staging never blocks production.'
                )
            namespace = namespace_of(folder or Path.cwd())
        queue_names = word(env, "RUNONCE_QUEUE_NAMES", "namespaced", "plain")
        return cls(
            namespace=namespace,
            storage=storage,
            lease=LeaseTerms(
                duration=whole(env, "RUNONCE_LEASE_DURATION", 45),
                renewal=number(env, "RUNONCE_LEASE_RENEWAL", 20),
                margin=number(env, "RUNONCE_LEASE_MARGIN", 5),
            ),
            leases=server(env, "RUNONCE_LEASES", *LEASE_SERVERS),
            servicebus=servicebus,
            transport=_transport(env, servicebus),
            queue_prefix="" if queue_names == "plain" else f"{namespace}-",
            dashboard=word(env, "RUNONCE_DASHBOARD", "", "off", "read", "act"),
            claim_lease=whole(env, "RUNONCE_CLAIM_LEASE", 60, low=3, high=3600),
            max_body=whole(env, "RUNONCE_MAX_BODY", 262_144, low=1, high=104_857_600, unit="bytes"),
            jobs_folder=env.get("RUNONCE_JOBS") or "jobs",
            watched=Watched.from_env(env),
            leader=word(env, "RUNONCE_LEADER", "off", "on") == "on",
            deployment=env.get("RUNONCE_DEPLOYMENT", "").strip(),
            recovery_interval=number(env, "RUNONCE_RECOVERY_INTERVAL", 60, low=1, high=3600),
            misfire_grace=number(env, "RUNONCE_MISFIRE_GRACE", 30, low=1, high=86400),
            history_days=whole(env, "RUNONCE_HISTORY_DAYS", 90, low=1, high=3650, unit="days"),
            shutdown_timeout=number(env, "RUNONCE_SHUTDOWN_TIMEOUT", 45, low=0, high=3600),
        )


def namespace_of(folder: Path) -> str:
    """The namespace of a project on the emulator: its folder's name, and four digits of where that lies.

    So two checkouts on one machine have nothing in common, not even when their folders are called the same.
    """
    place = folder.resolve()
    plain = unicodedata.normalize("NFKD", place.name).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_FOLDER].strip("-") or "jobs"
    return f"{name}-{hashlib.sha256(os.path.normcase(place).encode()).hexdigest()[:4]}"


def _storage(env: Mapping[str, str]) -> StorageConnection:
    """The first of RUNONCE_STORAGE and AzureWebJobsStorage that is set, in any form the Functions host knows."""
    for name in ("RUNONCE_STORAGE", "AzureWebJobsStorage"):
        if text := env.get(name, "").strip():
            return StorageConnection(connection_string=_checked_connection_string(name, text), setting=name)
        endpoints = _endpoints(env, name)
        if endpoints:
            return StorageConnection(endpoints=endpoints, setting=name, **_sign_in(env, name))
    raise SettingsError(
        "RUNONCE_STORAGE is not set, nor is AzureWebJobsStorage: give a connection string "
        '("UseDevelopmentStorage=true" for Azurite on this machine, which `runonce dev` starts), or '
        "RUNONCE_STORAGE__accountName to use a managed identity."
    )


def _servicebus(env: Mapping[str, str]) -> ServiceBusConnection | None:
    for name in ("RUNONCE_SERVICEBUS", "ServiceBusConnection"):
        if text := env.get(name, "").strip():
            if not text.lower().replace(" ", "").startswith("endpoint=sb://"):
                raise SettingsError(
                    f"{name} is not a Service Bus connection string (a text of {len(text)} characters that does not "
                    f'begin with "Endpoint=sb://"): copy it whole, or give {name}__fullyQualifiedNamespace.'
                )
            return ServiceBusConnection(connection_string=text, setting=name)
        if host := env.get(f"{name}__fullyQualifiedNamespace", "").strip():
            return ServiceBusConnection(fully_qualified_namespace=host, setting=name, **_sign_in(env, name))
    return None


def _sign_in(env: Mapping[str, str], name: str) -> dict[str, Any]:
    """The fields of SignIn, by the connection's name."""
    given = {
        key: env.get(f"{name}__{key}", "").strip()
        for key in ("clientId", "tenantId", "clientSecret", "credential")
    }
    kind = given["credential"].lower()
    if kind not in ("", *CREDENTIALS):
        raise SettingsError(
            f"{name}__credential={given['credential']!r} must be {' or '.join(CREDENTIALS)}; leave it out for a client "
            f"secret, or for whatever identity this process has."
        )
    if given["clientSecret"] and not (given["clientId"] and given["tenantId"]):
        raise SettingsError(
            f"{name}__clientSecret is set without {name}__clientId and {name}__tenantId: set all three, or none."
        )
    return {
        "client_id": given["clientId"] or env.get("AZURE_CLIENT_ID", "").strip() or None,
        "tenant_id": given["tenantId"] or None,
        "client_secret": given["clientSecret"] or None,
        "credential": kind,
    }


def _transport(env: Mapping[str, str], servicebus: ServiceBusConnection | None) -> TransportName:
    chosen = env.get("RUNONCE_TRANSPORT", "").strip() or ("storage" if servicebus is None else "servicebus")
    if chosen == "storage":
        return "storage"
    if chosen != "servicebus":
        raise SettingsError(f'RUNONCE_TRANSPORT={chosen!r} must be "servicebus" or "storage".')
    if servicebus is None:
        raise SettingsError(
            "RUNONCE_TRANSPORT=servicebus needs RUNONCE_SERVICEBUS, a connection string, or "
            "RUNONCE_SERVICEBUS__fullyQualifiedNamespace; neither is set."
        )
    return "servicebus"


def _checked_connection_string(name: str, text: str) -> str:
    """The text if the SDKs can make clients of it; they notice much of this only at the first call."""
    try:
        if emulator(text) is not None:
            return text
    except ValueError as error:
        raise SettingsError(f"{name}: {error}.") from None
    fields = _fields(text)
    wrong = None
    if not fields.get("accountname") and not all(fields.get(f"{s}endpoint") for s in SERVICES):
        wrong = "without AccountName, or endpoints of blob, queue and table"
    elif not fields.get("accountkey") and not fields.get("sharedaccesssignature"):
        wrong = "without AccountKey or SharedAccessSignature"
    elif not all(is_url(address(fields, service)) for service in SERVICES):
        wrong = "whose AccountName, EndpointSuffix or endpoints make no URL"
    elif fields.get("accountkey") and not is_base64(fields["accountkey"]):
        wrong = "whose AccountKey is not Base64, as if part of it were missing"
    if wrong is None:
        return text
    # The value may hold a key, so it is never repeated in the message.
    raise SettingsError(
        f"{name} is not a storage connection string (a text of {len(text)} characters {wrong}): copy it whole from "
        f'the portal, or use "UseDevelopmentStorage=true" for Azurite.'
    )


def _endpoints(env: Mapping[str, str], name: str) -> dict[str, str]:
    account = env.get(f"{name}__accountName", "").strip()
    found = {s: env.get(f"{name}__{s}ServiceUri", "").strip() for s in SERVICES}
    if account:
        found = {s: found[s] or f"https://{account}.{s}.core.windows.net" for s in SERVICES}
    if bad := next((s for s in SERVICES if found[s] and not is_url(found[s])), ""):
        raise SettingsError(
            f"{name}__{bad}ServiceUri, or {name}__accountName, gives no URL, such as https://shop.{bad}.core.windows.net."
        )
    missing = [s for s in SERVICES if not found[s]]
    if len(missing) == len(SERVICES):
        return {}
    if missing:
        raise SettingsError(
            f"{name}__{missing[0]}ServiceUri is not set while another service's is: give all of "
            f"{', '.join(f'{name}__{s}ServiceUri' for s in SERVICES)}, or {name}__accountName alone."
        )
    return found
