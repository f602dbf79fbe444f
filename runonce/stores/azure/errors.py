"""What Azure's SDKs raise, told apart: not known, try again, refused for good, or a conflict the caller expects.

Not known is wider than "no answer": a token that could not be had, so that nothing was asked, or a reply that breaks
off in the middle, which has been carried out and may reach us as a decoding error without a status.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import ParseError

from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    SerializationError,
    ServiceRequestError,
    ServiceResponseError,
)

from runonce.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

BAD_REQUEST = 400
SERVER_TROUBLE = 500
TRY_AGAIN = (401, 408, 429)
"""Among the refusals those that end by themselves: 401 is a token that has run out, or not come round yet."""
CONFLICT = (404, 409, 412)


class Answer(Enum):
    """What an error says of the call that raised it."""

    UNKNOWN = auto()
    """Nobody said anything: it may have been carried out, or never have left."""
    TRANSIENT = auto()
    """The service said that it could not, or not now."""
    PERMANENT = auto()
    """The service said no, and would say it again."""


def answer(error: BaseException) -> Answer:
    """What an error of an SDK for storage, of azure-identity or of their HTTP library says."""
    if isinstance(error, SerializationError):  # of ours: what was to be sent cannot be written down
        return Answer.PERMANENT
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or isinstance(
        error, ServiceRequestError | ServiceResponseError | DecodeError
    ):
        return Answer.UNKNOWN
    if status >= SERVER_TROUBLE or status in TRY_AGAIN:
        return Answer.TRANSIENT
    return Answer.PERMANENT if status >= BAD_REQUEST else Answer.UNKNOWN


def retry_after(error: BaseException) -> float:
    """Seconds that a server asks to be left alone; 0 where it says nothing."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("x-ms-retry-after-ms", 0.001), ("Retry-After", 1.0)):
        with suppress(ValueError):
            return max(0.0, float(headers.get(name, "")) * unit)
    return 0.0


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the SDK's errors into the toolkit's; conflicts are for the caller to recognise first."""
    try:
        yield
    # Those of requests are among the second; the last is an answer that breaks off, or is somebody else's.
    except (AzureError, OSError, ParseError) as error:
        match answer(error):
            case Answer.UNKNOWN:
                raise StoreUnavailableError(f"{what}: storage did not answer ({brief(error)}).") from error
            case Answer.TRANSIENT:
                said = f"{what}: storage answered {_status(error)} ({brief(error)})."
                raise StoreUnavailableError(said, retry_after=retry_after(error)) from error
            case Answer.PERMANENT:
                raise StoreError(
                    f"{what}: storage refused with {_status(error)} ({brief(error)})."
                ) from error


def _status(error: BaseException) -> str:
    return str(getattr(error, "status_code", None) or "no status")


def brief(error: BaseException) -> str:
    """The first line of what an error says."""
    return str(getattr(error, "message", None) or error).strip().partition("\n")[0][:200]


def code_of(error: HttpResponseError) -> str:
    """Azure's name for the error, such as "ContainerNotFound"."""
    code = getattr(error, "error_code", "") or ""
    return str(getattr(code, "value", code))  # the table service's is an enumeration


def ignoring(kind: type[Exception], call: Any, *args: Any) -> None:
    """Call, and take that kind of error for success."""
    try:
        call(*args)
    except kind:
        return
