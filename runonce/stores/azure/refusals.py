"""What a storage account's refusal means for a person: who is signed in, what that one lacks, and what to do."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from runonce.stores.azure.clients import credential
from runonce.stores.azure.errors import brief, code_of

if TYPE_CHECKING:
    from runonce.settings import StorageConnection

UNAUTHENTICATED, FORBIDDEN = 401, 403
SCOPE = "https://storage.azure.com/.default"
ROLES = {
    "table": "Storage Table Data Contributor",
    "queue": "Storage Queue Data Contributor",
    "blob": "Storage Blob Data Contributor",
}
SERVICE_OF = {"table": "table", "queue": "queue", "lease": "blob", "leases": "blob", "blob": "blob"}
"""What an error begins with, and the service it is of."""
NO_SUCH_HOST = (
    "Failed to resolve",
    "Name or service not known",
    "getaddrinfo failed",
    "nodename nor servname",
)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Whoever a token is of."""

    who: str
    """ "ada@example.com", "the managed identity shop-id", "the application 0b1c…"."""
    id: str
    """What `--assignee` takes."""


def explained(error: BaseException, storage: StorageConnection, account: str) -> str:
    """What a refusal means and what to do about it; empty where there is nothing to add to the error's own text.

    Args:
        error: What the toolkit raised; the SDK's own error is its cause.
        storage: How the account is reached.
        account: Its name, as people know it.
    """
    cause = error.__cause__
    if isinstance(cause, ClientAuthenticationError) and not isinstance(cause.status_code, int):
        return _nobody(storage, cause)
    if any(text in str(cause) for text in NO_SUCH_HOST):
        return (
            f"There is no {account}: its name has no address. Correct the name in {storage.setting}, or let this "
            f"machine find it (a private endpoint needs its own DNS zone)."
        )
    if isinstance(cause, HttpResponseError) and cause.status_code in (UNAUTHENTICATED, FORBIDDEN):
        code = code_of(cause)
        what = f"{account} refused ({code or cause.status_code}, {str(error).partition(':')[0]})"
        return f"{what}: {_refused(cause, code, storage, str(error))}"
    return ""


def _refused(cause: HttpResponseError, code: str, storage: StorageConnection, text: str) -> str:
    if code == "KeyBasedAuthenticationNotPermitted":
        return (
            f"it takes no account keys. Set {storage.setting}__accountName instead of the connection string, and sign "
            f"in: `az login`, or a managed identity."
        )
    if code == "AccountIsDisabled":
        return (
            f"the account is disabled. Somebody has to enable it, or {storage.setting} names the wrong one."
        )
    if code == "AuthorizationFailure" and "authenticate" not in brief(cause):
        return (
            "its firewall does not let this network in, or what signs in may not do this. Let the network in (the "
            "account's Networking page), or run where it is let in."
        )
    if storage.connection_string is not None:
        return _wrong_key(storage, code)
    return _lacking(storage, _service(cause, text), code)


def _wrong_key(storage: StorageConnection, code: str) -> str:
    if "sharedaccesssignature" in (storage.connection_string or "").lower():
        lacks = code in ("AuthorizationPermissionMismatch", "AuthorizationServiceMismatch")
        return (
            f"the shared access signature in {storage.setting} "
            + ("does not allow this" if lacks else "is wrong or has run out")
            + ". Make one for blob, queue and table with all permissions, or sign in with an identity."
        )
    return (
        f"the account key in {storage.setting} is not this account's: it was rotated, or copied in part or from "
        f"another account. Copy the connection string whole. (A clock that is wrong by a quarter of an hour has this "
        f"effect too.)"
    )


def _lacking(storage: StorageConnection, service: str, code: str) -> str:
    signed_in = who_is_signed_in(storage)
    if code != "AuthorizationPermissionMismatch":
        return (
            f"{signed_in.who} is signed in, and its token is not accepted here. Sign in to the tenant that the account "
            f"is in: `az login --tenant …`, or AZURE_TENANT_ID."
        )
    role = ROLES[service]
    return (
        f"{signed_in.who} is signed in and lacks the role {role!r} on it. `az role assignment create --assignee "
        f'{signed_in.id} --role "{role}" --scope <the account\'s resource id>` gives it; a new role takes up to ten '
        f"minutes to work."
    )


def _nobody(storage: StorageConnection, cause: AzureError) -> str:
    if storage.credential or storage.client_secret:
        return (
            f"Nobody could be signed in with what {storage.setting}__… says: {brief(cause)} Correct the client's id, "
            f"tenant and secret, or give this app the identity."
        )
    return (
        f"Nobody is signed in, and {storage.setting} has no key. On your machine: `az login`. On Azure: give the app a "
        f"managed identity (of several {storage.setting}__clientId says which). Or set {storage.setting} to a "
        f"connection string."
    )


def _service(cause: HttpResponseError, text: str) -> str:
    """Which service refused: by its address, else by what the error begins with."""
    request: Any = getattr(cause.response, "request", None)
    host = urlsplit(str(getattr(request, "url", ""))).hostname or ""
    by_host = next((name for name in ROLES if f".{name}." in host), "")
    return by_host or SERVICE_OF.get(text.partition(" ")[0], "queue")


def who_is_signed_in(storage: StorageConnection) -> SignedIn:
    """Whoever the token is of that the account is shown; read from its claims, which nobody checks here."""
    try:
        token = str(credential(storage).get_token(SCOPE).token)
    except AzureError:
        return SignedIn("an identity that could not be asked for its name", "<its object id>")
    return signed_in_by(token)


def signed_in_by(token: str) -> SignedIn:
    """Whoever a token is of."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return SignedIn("an identity whose token has no readable claims", "<its object id>")
    person = next(
        (claims[name] for name in ("upn", "preferred_username", "unique_name") if claims.get(name)), ""
    )
    own = str(claims.get("oid") or person or claims.get("appid") or "<its object id>")
    if person:
        return SignedIn(str(person), own)
    if resource := str(claims.get("xms_mirid") or ""):
        kind = (
            "the system-assigned identity of"
            if "/Microsoft.ManagedIdentity/" not in resource
            else "the identity"
        )
        return SignedIn(f"{kind} {resource.rpartition('/')[2]}", own)
    return SignedIn(f"the application {claims.get('app_displayname') or claims.get('appid') or own}", own)
