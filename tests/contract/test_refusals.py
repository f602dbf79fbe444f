"""What commands say of the errors of the first day, on real HTTP answers of a storage account."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AccessToken
from support.command_line import invoke
from support.proxy import proxies, proxy  # noqa: F401 - fixtures

from runonce.cli.context import Context
from runonce.errors import StoreError, StoreUnavailableError
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.settings import StorageConnection
from runonce.stores.azure import refusals
from runonce.stores.azure.errors import translated
from runonce.stores.azure.refusals import explained, signed_in_by
from runonce.testing.proxy import Fault, StorageProxy

if TYPE_CHECKING:
    from typer.testing import Result

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ADA = {"upn": "ada@example.com", "oid": "11111111-2222-3333-4444-555555555555"}
BY_IDENTITY = StorageConnection(endpoints={"table": "https://shop.table.core.windows.net"})


def token(claims: dict[str, Any]) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


class Credential:
    """Whoever a test signs in."""

    def __init__(self, claims: dict[str, Any]) -> None:
        self._claims = claims

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(token(self._claims), 2**31)


def status(connection_string: str, command: str = "status") -> Result:
    """A command that looks, on that account."""
    environ = {"RUNONCE_STORAGE": connection_string, "RUNONCE_NAMESPACE": "first-day"}
    return invoke(Context(Runtime(environ=environ, found=Discovered())), command)


def forbid(proxy: StorageProxy, code: str, status: int = 403) -> None:  # noqa: F811 - the fixture's value
    proxy.inject(Fault(apply=False, status=status, code=code), times=99)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AuthenticationFailed", "the account key in RUNONCE_STORAGE is not this account's: it was rotated"),
        ("KeyBasedAuthenticationNotPermitted", "Set RUNONCE_STORAGE__accountName instead"),
        ("AuthorizationFailure", "its firewall does not let this network in"),
        ("AccountIsDisabled", "Somebody has to enable it"),
    ],
)
@pytest.mark.parametrize("command", ["status", "audit"])
def test_a_refusal_is_one_line_with_its_remedy(
    proxy: StorageProxy,  # noqa: F811
    code: str,
    said: str,
    command: str,
) -> None:
    """403 says what Azure calls it, of which account and table, what it means and what to do; it ends with 6."""
    forbid(proxy, code)
    result = status(proxy.connection_string, command)
    assert result.exit_code == 6
    assert result.stderr.count("\n") == 1
    assert f"refused ({code}, table runonce): " in result.stderr
    assert said in result.stderr


def test_a_wrong_key_is_told(azurite: str) -> None:
    """A key that is not the account's, as the account itself refuses it."""
    wrong = base64.b64encode(b"x" * 64).decode()
    result = status(azurite.replace(KEY, wrong))
    assert result.exit_code == 6
    assert "the account key in RUNONCE_STORAGE is not this account's" in result.stderr
    assert wrong not in result.stderr


@pytest.mark.parametrize(
    ("service", "role", "what"),
    [
        ("table", "Storage Table Data Contributor", "table runonce"),
        ("blob", "Storage Blob Data Contributor", "lease shop/nightly"),
        ("queue", "Storage Queue Data Contributor", "queue runonce-requests"),
    ],
)
def test_a_role_that_is_missing_is_named_with_who_lacks_it(
    proxy: StorageProxy,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    role: str,
    what: str,
) -> None:
    """Signed in without the right: who, by the token's claims, which role of that service, and that it takes time."""
    from azure.data.tables import TableClient  # noqa: PLC0415
    from azure.storage.blob import BlobClient  # noqa: PLC0415
    from azure.storage.queue import QueueClient  # noqa: PLC0415

    calls = {
        "table": lambda: TableClient.from_connection_string(proxy.connection_string, "runonce").get_entity(
            "p", "r"
        ),
        "blob": lambda: BlobClient.from_connection_string(
            proxy.connection_string, "leases", "nightly"
        ).get_blob_properties(),
        "queue": lambda: QueueClient.from_connection_string(
            proxy.connection_string, "requests", retry_total=0
        ).receive_message(),
    }
    forbid(proxy, "AuthorizationPermissionMismatch")
    monkeypatch.setattr(refusals, "credential", lambda _: Credential(ADA))
    with pytest.raises(StoreError) as caught, translated(what):
        calls[service]()
    said = explained(caught.value, BY_IDENTITY, "account shop")
    assert said.startswith(f"account shop refused (AuthorizationPermissionMismatch, {what}): ada@example.com")
    assert f"lacks the role '{role}'" in said
    assert f'--assignee 11111111-2222-3333-4444-555555555555 --role "{role}"' in said
    assert "ten minutes" in said


def test_a_token_of_another_tenant_is_told(
    proxy: StorageProxy,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """401 for whoever is signed in names them and says how to sign in to the account's tenant."""
    from azure.data.tables import TableClient  # noqa: PLC0415

    forbid(proxy, "InvalidAuthenticationInfo", 401)
    monkeypatch.setattr(refusals, "credential", lambda _: Credential(ADA))
    with pytest.raises(StoreUnavailableError) as caught, translated("table runonce"):
        TableClient.from_connection_string(proxy.connection_string, "runonce").get_entity("p", "r")
    assert "ada@example.com is signed in, and its token is not accepted here" in explained(
        caught.value, BY_IDENTITY, "account shop"
    )


@pytest.mark.parametrize(
    ("claims", "who"),
    [
        (ADA, "ada@example.com"),
        ({"preferred_username": "bob@example.com", "oid": "1"}, "bob@example.com"),
        (
            {
                "oid": "1",
                "appid": "2",
                "xms_mirid": "/subscriptions/s/providers/Microsoft.ManagedIdentity/userAssignedIdentities/shop-id",
            },
            "the identity shop-id",
        ),
        (
            {"oid": "1", "xms_mirid": "/subscriptions/s/providers/Microsoft.Web/sites/shop"},
            "the system-assigned identity of shop",
        ),
        ({"oid": "1", "appid": "2"}, "the application 2"),
    ],
)
def test_who_a_token_is_of(claims: dict[str, Any], who: str) -> None:
    """A person by name, a managed identity by its resource, an application by its id."""
    assert signed_in_by(token(claims)).who == who


def test_a_token_without_claims_is_no_error() -> None:
    """A token that cannot be read is of somebody without a name."""
    assert "no readable claims" in signed_in_by("opaque").who


def test_nobody_is_signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key and without anybody signed in the command says so in one line, and how to sign in."""
    for name in ("IDENTITY_ENDPOINT", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")  # no az, azd or pwsh
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    environ = {"RUNONCE_STORAGE__accountName": "shop", "RUNONCE_NAMESPACE": "first-day"}
    result = invoke(Context(Runtime(environ=environ, found=Discovered())), "status")
    assert result.exit_code == 6
    assert result.stderr.count("\n") == 1, result.stderr
    assert (
        "Nobody is signed in, and RUNONCE_STORAGE has no key. On your machine: `az login`." in result.stderr
    )


def test_an_account_that_does_not_exist_is_told() -> None:
    """A name without an address is called that, and where to correct it."""
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=nosuchshop;AccountKey={KEY};"
        "BlobEndpoint=http://nosuchshop.invalid/;QueueEndpoint=http://nosuchshop.invalid/;"
        "TableEndpoint=http://nosuchshop.invalid/"
    )
    result = status(connection)
    assert result.exit_code == 6
    assert "There is no account nosuchshop: its name has no address" in result.stderr


def test_a_namespace_without_rows_names_those_that_have_some(azurite: str) -> None:
    """A look at the wrong namespace says that nothing ever ran there, and where something did."""
    for namespace in ("right-one", "other-one"):
        environ = {"RUNONCE_STORAGE": azurite, "RUNONCE_NAMESPACE": namespace}
        with Runtime(environ=environ, found=Discovered()) as runtime:
            from runonce.runs.recovery import recover  # noqa: PLC0415

            recover(runtime.dispatcher)
    environ = {"RUNONCE_STORAGE": azurite, "RUNONCE_NAMESPACE": "wrong-one"}
    result = invoke(Context(Runtime(environ=environ, found=Discovered())), "status")
    assert "nothing ever ran in this namespace" in result.stderr
    assert {"right-one", "other-one"} <= set(result.stderr.replace(",", "").split())
    right = invoke(
        Context(Runtime(environ={**environ, "RUNONCE_NAMESPACE": "right-one"}, found=Discovered())), "status"
    )
    assert "nothing ever ran" not in right.stderr


def test_a_setting_that_is_missing_is_named() -> None:
    """Without a storage account the command ends with 5, and one line has the variable and its forms."""
    result = invoke(Context(Runtime(environ={}, found=Discovered())), "status")
    assert result.exit_code == 5
    assert result.stderr.count("\n") == 1
    assert "RUNONCE_STORAGE is not set" in result.stderr
