from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import azure.identity
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from runonce.errors import SettingsError
from runonce.hosts.explained import where
from runonce.settings import (
    LeaseTerms,
    ServiceBusConnection,
    Settings,
    SignIn,
    StorageConnection,
    emulator,
    namespace_of,
)
from runonce.stores.azure.clients import credential
from runonce.stores.azure.wire import services

EMULATOR = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
KEY = "c2VjcmV0LWtleQ=="
CLOUD = f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.windows.net"


def test_defaults_hold_together() -> None:
    """With nothing but a storage account everything has the documented default."""
    settings = Settings.from_env(EMULATOR)
    assert settings.lease == LeaseTerms(45, 20, 5)
    assert (settings.namespace, settings.jobs_folder) == (namespace_of(Path.cwd()), "jobs")
    assert (settings.recovery_interval, settings.misfire_grace, settings.shutdown_timeout) == (60, 30, 45)
    assert (settings.transport, settings.servicebus, settings.claim_lease) == ("storage", None, 60)
    assert settings.history_days == 90


@pytest.mark.parametrize(
    ("folder", "begins"),
    [
        ("My Jobs", "my-jobs-"),
        ("Aufträge_2", "auftrage-2-"),
        ("注文", "jobs-"),
        ("x", "x-"),
        ("a-very-long-name-of-a-folder", "a-very-long-name-of-"),
        ("twenty-letters-here--and", "twenty-letters-here-"),
    ],
)
def test_each_folder_has_a_namespace_of_its_own_on_the_emulator(
    folder: str, begins: str, tmp_path: Path
) -> None:
    """It is called after the folder, is valid whatever that is called, and another folder of that name has another."""
    here, there = (namespace_of(tmp_path / parent / folder) for parent in ("one", "two"))
    assert here[:-4] == there[:-4] == begins
    assert here != there
    for name in (here, there):
        assert Settings(name, StorageConnection()).namespace == name
    settings = Settings.from_env(EMULATOR, tmp_path / "one" / folder)
    assert (settings.namespace, settings.queue_prefix) == (here, f"{here}-")


def test_queues_carry_the_namespace_unless_told_otherwise() -> None:
    """A namespace that is set goes first, and `plain` leaves names as the code has them."""
    env = {"RUNONCE_STORAGE": CLOUD, "RUNONCE_NAMESPACE": "shop-test"}
    assert Settings.from_env(env).queue_prefix == "shop-test-"
    assert Settings.from_env({**env, "RUNONCE_QUEUE_NAMES": "plain"}).queue_prefix == ""
    with pytest.raises(SettingsError, match="RUNONCE_QUEUE_NAMES='own' must be"):
        Settings.from_env({**env, "RUNONCE_QUEUE_NAMES": "own"})


def test_a_leader_is_wanted_or_not() -> None:
    """Off unless it is on; anything else is refused."""
    env = {"RUNONCE_STORAGE": CLOUD, "RUNONCE_NAMESPACE": "shop-test"}
    assert [Settings.from_env({**env, "RUNONCE_LEADER": text}).leader for text in ("", "off", "on")] == [
        False,
        False,
        True,
    ]
    with pytest.raises(SettingsError, match="RUNONCE_LEADER='yes' must be off or on"):
        Settings.from_env({**env, "RUNONCE_LEADER": "yes"})


def test_every_setting_is_read() -> None:
    """Each variable lands in its field, surrounding blanks aside."""
    settings = Settings.from_env(
        {
            "RUNONCE_STORAGE": CLOUD,
            "RUNONCE_NAMESPACE": "shop-production",
            "RUNONCE_JOBS": "my_jobs",
            "RUNONCE_LEASE_DURATION": " 60 ",
            "RUNONCE_LEASE_RENEWAL": "12.5",
            "RUNONCE_LEASE_MARGIN": "7",
            "RUNONCE_RECOVERY_INTERVAL": "10",
            "RUNONCE_MISFIRE_GRACE": "45",
            "RUNONCE_SHUTDOWN_TIMEOUT": "0",
            "RUNONCE_CLAIM_LEASE": "90",
            "RUNONCE_HISTORY_DAYS": "7",
        }
    )
    assert settings.lease == LeaseTerms(60, 12.5, 7)
    assert (settings.namespace, settings.jobs_folder) == ("shop-production", "my_jobs")
    assert (settings.recovery_interval, settings.misfire_grace, settings.shutdown_timeout) == (10, 45, 0)
    assert (settings.claim_lease, settings.history_days) == (90, 7)
    assert settings.storage == StorageConnection(CLOUD, setting="RUNONCE_STORAGE")


def test_an_empty_variable_is_not_set() -> None:
    """A variable that is there and empty, as deployment templates leave them, means the default."""
    names = (
        "NAMESPACE",
        "JOBS",
        "LEASE_DURATION",
        "LEASE_RENEWAL",
        "RECOVERY_INTERVAL",
        "TRANSPORT",
        "SERVICEBUS",
    )
    assert Settings.from_env({**EMULATOR, **{f"RUNONCE_{name}": "" for name in names}}) == Settings.from_env(
        EMULATOR
    )


def test_storage_of_its_own_comes_before_the_hosts() -> None:
    """RUNONCE_STORAGE wins over AzureWebJobsStorage, in whatever form; which was used is known."""
    both = {"AzureWebJobsStorage": CLOUD, "RUNONCE_NAMESPACE": "shop"}
    assert Settings.from_env(both).storage.setting == "AzureWebJobsStorage"
    assert Settings.from_env({**both, **EMULATOR}).storage.setting == "RUNONCE_STORAGE"
    identity = Settings.from_env({**both, "RUNONCE_STORAGE__accountName": "other"}).storage
    assert identity.connection_string is None
    assert identity.endpoints["table"] == "https://other.table.core.windows.net"


def test_an_account_name_gives_all_endpoints() -> None:
    """With a managed identity the account's name is enough; a service's own address wins over it."""
    storage = Settings.from_env(
        {
            "RUNONCE_NAMESPACE": "shop",
            "AzureWebJobsStorage__accountName": "acct",
            "AzureWebJobsStorage__tableServiceUri": "https://private.example",
            "AzureWebJobsStorage__clientId": "an-id",
            "AZURE_CLIENT_ID": "another",
        }
    ).storage
    assert storage.endpoints == {
        "blob": "https://acct.blob.core.windows.net",
        "queue": "https://acct.queue.core.windows.net",
        "table": "https://private.example",
    }
    assert storage.client_id == "an-id"


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("UseDevelopmentStorage=true", True),
        ("usedevelopmentstorage = TRUE;", True),
        (f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/a;", True),
        (f"AccountName=a;AccountKey={KEY};EndpointSuffix=b://[", False),
        (
            f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://localhost:1/a;QueueEndpoint=http://localhost:2/a",
            True,
        ),
        (
            f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://localhost:1/a;QueueEndpoint=https://b.example/a",
            False,
        ),
        (f"AccountName=a;AccountKey={KEY};BlobEndpoint=https://127.0.0.1.example/a", False),
        (CLOUD, False),
    ],
)
def test_an_emulator_is_recognised(text: str, local: bool) -> None:
    """Only an address on this machine is local: a namespace must be named for everything else."""
    assert StorageConnection(text).is_local is local


@pytest.mark.parametrize("name", ["abc", "shop-production", "a1-b2-c3", "a" * 40, "0-9"])
def test_a_namespace_is_accepted(name: str) -> None:
    """Lower-case letters, digits and single hyphens, 3 to 40, make a namespace whose queue Azure accepts."""
    queue = Settings(name, StorageConnection("UseDevelopmentStorage=true")).request_queue
    assert 3 <= len(queue) <= 63


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "a" * 41,
        "-".join("a" * 39),
        "Shop",
        "shop_prod",
        "a--b",
        "-abc",
        "abc-",
        "abc\n",
        "şop",
        "a b",
        "",
    ],
)
def test_a_namespace_is_refused(name: str) -> None:
    """What would not be a queue's name, or would be too long for one, is refused with the value in the message."""
    with pytest.raises(SettingsError) as refused:
        Settings(name, StorageConnection("UseDevelopmentStorage=true"))
    assert f"RUNONCE_NAMESPACE={name!r}" in str(refused.value)


@pytest.mark.parametrize(
    "terms", [(15, 5, 2), (15, 0.5, 14), (60, 20, 20), (45, 20, 5), (15, 7.4, 0.2), (60, 0.1, 59.8)]
)
def test_terms_that_fit_are_accepted(terms: tuple[int, float, float]) -> None:
    """Two renewals and the margin fit in the lease, exactly or with room."""
    assert LeaseTerms(*terms).duration == terms[0]


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ((14, 5, 2), "RUNONCE_LEASE_DURATION=14"),
        ((61, 5, 2), "RUNONCE_LEASE_DURATION=61"),
        ((45, 0, 5), "RUNONCE_LEASE_RENEWAL=0"),
        ((45, 22.5, 5), "RUNONCE_LEASE_RENEWAL=22.5"),
        ((45, -1, 5), "RUNONCE_LEASE_RENEWAL=-1"),
        ((45, 20, 5.1), "RUNONCE_LEASE_MARGIN=5.1"),
        ((45, 20, 0), "RUNONCE_LEASE_MARGIN=0"),
        ((45, 20, float("nan")), "RUNONCE_LEASE_MARGIN=nan"),
    ],
)
def test_terms_that_do_not_fit_are_refused(terms: tuple[int, float, float], named: str) -> None:
    """Terms under which one failed renewal would lose the lease are refused, wherever they come from."""
    with pytest.raises(SettingsError) as refused:
        LeaseTerms(*terms)
    assert named in str(refused.value)


def test_service_bus_is_used_where_it_is_set() -> None:
    """A Service Bus connection makes it the transport, unless told otherwise."""
    bus = {**EMULATOR, "ServiceBusConnection__fullyQualifiedNamespace": "shop.servicebus.windows.net"}
    settings = Settings.from_env(bus)
    assert settings.transport == "servicebus"
    assert settings.servicebus == ServiceBusConnection(
        fully_qualified_namespace="shop.servicebus.windows.net", setting="ServiceBusConnection"
    )
    assert Settings.from_env({**bus, "RUNONCE_TRANSPORT": "storage"}).transport == "storage"


def test_premium_takes_larger_bodies() -> None:
    """The size of a body is a setting in bytes, up to the 100 MB that Premium can be set to."""
    assert Settings.from_env(EMULATOR).max_body == 262_144
    assert Settings.from_env({**EMULATOR, "RUNONCE_MAX_BODY": "1048576"}).max_body == 1_048_576
    for wrong in ("0", "1e9", "1.5", "1 MB"):
        with pytest.raises(SettingsError, match=r"RUNONCE_MAX_BODY=.*bytes from 1 to 104857600"):
            Settings.from_env({**EMULATOR, "RUNONCE_MAX_BODY": wrong})


def test_no_secret_shows() -> None:
    """Neither a printed connection nor printed settings show a connection string."""
    bus = f"Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey={KEY}"
    settings = Settings.from_env(
        {"RUNONCE_STORAGE": CLOUD, "RUNONCE_NAMESPACE": "shop", "RUNONCE_SERVICEBUS": bus}
    )
    assert KEY not in repr(settings)
    assert KEY not in str(settings)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "redis", "rediss"])
def test_leases_may_be_held_elsewhere(scheme: str) -> None:
    """The address is taken as it is, and is not shown."""
    address = f"{scheme}://app:secret-word@host/0"
    settings = Settings.from_env(EMULATOR | {"RUNONCE_LEASES": f" {address} "})
    assert settings.leases == address
    assert "secret-word" not in repr(settings)


@pytest.mark.parametrize("address", ["secret-word@host", "mysql://app:secret-word@host", "redis:secret-word"])
def test_leases_of_another_kind_are_refused(address: str) -> None:
    """The message says what there is, and not what was given, in which a password may be."""
    with pytest.raises(
        SettingsError, match=f"RUNONCE_LEASES .*{len(address)} characters.*postgresql://"
    ) as caught:
        Settings.from_env(EMULATOR | {"RUNONCE_LEASES": address})
    assert "secret-word" not in str(caught.value)


def test_settings_cannot_change() -> None:
    """Settings are read once: changing a field is an error."""
    settings = Settings.from_env(EMULATOR)
    with pytest.raises(AttributeError):
        settings.namespace = "other"  # type: ignore[misc]


def test_the_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the process's environment is what counts."""
    monkeypatch.setenv("RUNONCE_STORAGE", "UseDevelopmentStorage=true")
    monkeypatch.setenv("RUNONCE_NAMESPACE", "from-environment")
    assert Settings.from_env().namespace == "from-environment"


SIGN_INS = [
    ({"AZURE_CLIENT_ID": "app"}, "DefaultAzureCredential", {"managed_identity_client_id": "app"}),
    ({}, "DefaultAzureCredential", {}),
    (
        {"__clientId": "own", "AZURE_CLIENT_ID": "app"},
        "DefaultAzureCredential",
        {"managed_identity_client_id": "own"},
    ),
    (
        {"__clientId": "own", "__credential": "ManagedIdentity"},
        "ManagedIdentityCredential",
        {"client_id": "own"},
    ),
    ({"__credential": "managedidentity"}, "ManagedIdentityCredential", {"client_id": None}),
    (
        {"__clientId": "own", "__tenantId": "t", "__credential": "workloadidentity"},
        "WorkloadIdentityCredential",
        {"client_id": "own", "tenant_id": "t"},
    ),
    (
        {"__clientId": "own", "__tenantId": "t", "__clientSecret": "s"},
        "ClientSecretCredential",
        ("t", "own", "s"),
    ),
]


@pytest.mark.parametrize(("given", "kind", "arguments"), SIGN_INS)
@pytest.mark.parametrize(
    "name", ["RUNONCE_STORAGE", "AzureWebJobsStorage", "RUNONCE_SERVICEBUS", "ServiceBusConnection"]
)
def test_who_signs_in(
    monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, str], kind: str, arguments: Any
) -> None:
    """Each connection signs in as the Functions host would: the kind it names, a secret, or whatever there is."""
    made: list[tuple[str, Any]] = []
    for one in {kind for _, kind, _ in SIGN_INS}:
        monkeypatch.setattr(azure.identity, one, lambda *a, _one=one, **kw: made.append((_one, a or kw)))
    env = {name + key if key.startswith("__") else key: value for key, value in given.items()}
    if "Bus" in name or "BUS" in name:
        settings = Settings.from_env({**EMULATOR, f"{name}__fullyQualifiedNamespace": "shop.example", **env})
        connection: SignIn | None = settings.servicebus
    else:
        connection = Settings.from_env(
            {"RUNONCE_NAMESPACE": "shop", f"{name}__accountName": "shop", **env}
        ).storage
    assert connection is not None
    assert "'s'" not in repr(connection), "a secret is not shown"
    credential(connection)
    ((called, passed),) = made
    assert called == kind
    named = passed if isinstance(passed, tuple) else {key: passed.get(key) for key in arguments}
    assert named == arguments


@pytest.mark.parametrize("form", ["secret", "certificate", "federated"])
def test_an_application_signs_in_by_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    """AZURE_CLIENT_ID with a secret, a certificate or a federated token is that application, no managed identity."""
    for name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TENANT_ID", "11111111-1111-1111-1111-111111111111")
    monkeypatch.setenv("AZURE_CLIENT_ID", "app")
    if form == "secret":
        monkeypatch.setenv("AZURE_CLIENT_SECRET", "s")
    elif form == "certificate":
        (tmp_path / "certificate.pem").write_bytes(certificate())
        monkeypatch.setenv("AZURE_CLIENT_CERTIFICATE_PATH", str(tmp_path / "certificate.pem"))
    else:
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    env = {**os.environ, "RUNONCE_NAMESPACE": "shop", "RUNONCE_STORAGE__accountName": "shop"}
    first, second, *_ = credential(Settings.from_env(env).storage).credentials
    chosen = second if form == "federated" else first._credential
    assert (
        type(chosen).__name__
        == {
            "secret": "ClientSecretCredential",
            "certificate": "CertificateCredential",
            "federated": "WorkloadIdentityCredential",
        }[form]
    )


def certificate() -> bytes:
    """A self-signed one with its key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shop")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
    made = builder.not_valid_after(datetime(2036, 1, 1, tzinfo=UTC)).sign(key, hashes.SHA256())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"__credential": "secret"},
            "RUNONCE_STORAGE__credential='secret' must be managedidentity or workloadidentity",
        ),
        (
            {"__clientSecret": "s"},
            "RUNONCE_STORAGE__clientSecret is set without RUNONCE_STORAGE__clientId and",
        ),
        ({"__clientSecret": "s", "__clientId": "own"}, "set all three, or none"),
    ],
)
def test_half_a_sign_in_is_refused(wrong: dict[str, str], said: str) -> None:
    """What can sign nobody in is named, and the secret is not."""
    env = {f"RUNONCE_STORAGE{key}": value for key, value in wrong.items()}
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"RUNONCE_NAMESPACE": "shop", "RUNONCE_STORAGE__accountName": "shop", **env})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "table", "local"),
    [
        ("UseDevelopmentStorage=true", "http://127.0.0.1:10002/devstoreaccount1", True),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=",
            "http://127.0.0.1:10002/devstoreaccount1",
            True,
        ),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite",
            "http://azurite:10002/devstoreaccount1",
            False,
        ),
        (
            "DevelopmentStorageProxyUri=https://localhost/; UseDevelopmentStorage = True;",
            "https://localhost:10002/devstoreaccount1",
            True,
        ),
        (
            "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://[::1]:8",
            "http://[::1]:10002/devstoreaccount1",
            True,
        ),
    ],
)
def test_development_storage_may_be_another_machine(text: str, table: str, local: bool) -> None:
    """DevelopmentStorageProxyUri says where the emulator is, as with Azure's own SDKs; the ports stay."""
    storage = Settings.from_env({"RUNONCE_STORAGE": text, "RUNONCE_NAMESPACE": "shop"}).storage
    assert storage.is_local is local
    assert f"TableEndpoint={table}" in str(emulator(storage.connection_string))
    assert services(storage, "table")[0].url == table
    assert (
        table.removeprefix("http://").removesuffix("/devstoreaccount1") in where(storage) or "https" in table
    )


def test_a_development_storage_that_is_nowhere_is_refused() -> None:
    """A DevelopmentStorageProxyUri that is no URL is named with its setting."""
    with pytest.raises(
        SettingsError, match=r"RUNONCE_STORAGE: DevelopmentStorageProxyUri='azurite' must be a URL"
    ):
        Settings.from_env(
            {"RUNONCE_STORAGE": "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=azurite"}
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RUNONCE_STORAGE__tableServiceUri": "http://[::1"}, "RUNONCE_STORAGE__tableServiceUri"),
        ({"RUNONCE_STORAGE__queueServiceUri": "shop.queue"}, "RUNONCE_STORAGE__queueServiceUri"),
        ({"RUNONCE_STORAGE__accountName": "shop prod"}, "RUNONCE_STORAGE__accountName"),
        ({"RUNONCE_STORAGE": f"AccountName=a;AccountKey={KEY};BlobEndpoint=http://[a"}, "RUNONCE_STORAGE"),
        ({"RUNONCE_STORAGE": f"AccountName=shop prod;AccountKey={KEY}"}, "RUNONCE_STORAGE"),
        (
            {"RUNONCE_STORAGE": f"AccountName=a;AccountKey={KEY};DefaultEndpointsProtocol=ftp"},
            "RUNONCE_STORAGE",
        ),
        (
            {"RUNONCE_STORAGE": "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://[a"},
            "http://azurite",
        ),
    ],
)
def test_an_address_that_is_none_is_told_with_its_setting(change: dict[str, str], named: str) -> None:
    """The URL of a service that cannot be one is a settings error, and nothing that the first call stumbles over."""
    with pytest.raises(SettingsError, match=re.escape(named)):
        _ = Settings.from_env(
            {"RUNONCE_STORAGE__accountName": "shop", "RUNONCE_NAMESPACE": "shop", **change}
        ).storage
