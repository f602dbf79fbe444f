from __future__ import annotations

import pytest

from runonce.errors import SettingsError
from runonce.settings import LeaseTerms, ServiceBusConnection, Settings, StorageConnection

EMULATOR = {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
KEY = "c2VjcmV0LWtleQ=="
CLOUD = f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={KEY};EndpointSuffix=core.windows.net"


def test_defaults_hold_together() -> None:
    """With nothing but a storage account everything has the documented default."""
    settings = Settings.from_env(EMULATOR)
    assert settings.lease == LeaseTerms(45, 20, 5)
    assert (settings.namespace, settings.jobs_folder) == ("local", "jobs")
    assert (settings.recovery_interval, settings.misfire_grace, settings.shutdown_timeout) == (60, 30, 45)
    assert (settings.transport, settings.servicebus, settings.claim_lease) == ("storage", None, 60)
    assert settings.history_days == 90


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
