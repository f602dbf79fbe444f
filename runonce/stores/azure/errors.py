"""What Azure's SDKs raise, told apart: unknown (ask again), refused for good, or a conflict the caller expects.

Unknown is wider than "no answer": a reply that breaks off in the middle has been carried out, and reaches us as
a decoding error without a status, or out of a table's batch as the HTTP library's own exception.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from runonce.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD_REQUEST = 400
SERVER_TROUBLE = 500
TRY_AGAIN = (408, 429)
CONFLICT = (404, 409, 412)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the SDK's errors into the toolkit's; conflicts are for the caller to recognise first."""
    try:
        yield
    except (ServiceRequestError, ServiceResponseError, DecodeError) as error:
        raise StoreUnavailableError(f"{what}: storage did not answer ({_brief(error)}).") from error
    except HttpResponseError as error:
        status = error.status_code or 0
        if status >= SERVER_TROUBLE or status in TRY_AGAIN:
            raise StoreUnavailableError(f"{what}: storage answered {status} ({_brief(error)}).") from error
        raise StoreError(f"{what}: storage refused with {status} ({_brief(error)}).") from error
    except AzureError as error:
        raise StoreError(f"{what}: {_brief(error)}") from error
    except (OSError, HTTPException) as error:  # those of requests are among them
        raise StoreUnavailableError(f"{what}: the connection broke ({error}).") from error


def _brief(error: AzureError) -> str:
    return str(error.message or error).strip().partition("\n")[0][:200]


def code_of(error: HttpResponseError) -> str:
    """Azure's name for the error, such as "ContainerNotFound"."""
    return str(getattr(error, "error_code", "") or "")


def table_code(error: HttpResponseError) -> str:
    """The same of the table service, whose SDK leaves it in the reply's body when an insert is refused."""
    if (code := code_of(error)) or error.response is None:
        return code
    try:
        return str(json.loads(error.response.text())["odata.error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def unless_conflict(call: Any) -> bool:
    """False when the lease is not what the call needs it to be: 409, 412, or no such blob."""
    try:
        call()
    except HttpResponseError as error:
        if error.status_code in CONFLICT:
            return False
        raise
    return True


def ignoring(kind: type[Exception], call: Any, *args: Any) -> None:
    """Call, and take that kind of error for success."""
    try:
        call(*args)
    except kind:
        return
