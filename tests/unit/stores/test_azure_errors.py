"""Transient, permanent and not known, of storage and of the broker, are three things, each decided in one place."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    IncompleteReadError,
    SerializationError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import CredentialUnavailableError
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from runonce.cli.exits import Exit, of_error
from runonce.errors import StoreError, StoreUnavailableError, TransportError, TransportRefusedError
from runonce.execution.patience import PATIENCE, Patience
from runonce.stores.azure.errors import Answer, answer, translated
from runonce.testing import ManualClock
from runonce.transports.bus_receiver import translated as of_the_broker


def refused(status: int, **headers: str) -> HttpResponseError:
    """What the SDK raises for a reply of that status."""
    reply: Any = SimpleNamespace(
        status_code=status, reason="", headers=headers, text=lambda: "", content_type=""
    )
    return HttpResponseError("no", response=reply)


UNKNOWN = [
    CredentialUnavailableError(message="no endpoint"),
    ClientAuthenticationError(message="the token endpoint failed"),
    ServiceRequestError("refused"),
    ServiceResponseError("cut"),
    IncompleteReadError("cut"),
    DecodeError("half"),
    AzureError("whatever"),
    ConnectionResetError("reset"),
    socket.gaierror("no such name"),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
def test_without_a_status_nothing_is_known(error: Exception) -> None:
    """A token that could not be had and a broken connection say nothing of the call, which is tried again."""
    assert answer(error) is Answer.UNKNOWN
    with pytest.raises(StoreUnavailableError), translated("row"):
        raise error


@pytest.mark.parametrize("status", [401, 408, 429, 500, 502, 503, 504])
def test_what_ends_by_itself_is_tried_again(status: int) -> None:
    """A token that ran out, a busy or broken server: with the pause that it asks for."""
    assert answer(refused(status)) is Answer.TRANSIENT
    with pytest.raises(StoreUnavailableError, match=str(status)) as raised, translated("row"):
        raise refused(status, **{"Retry-After": "7"})
    assert raised.value.retry_after == 7


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 411, 412, 413, 414])
def test_a_refusal_is_one(status: int) -> None:
    """A request that the server would refuse again is not tried again."""
    assert answer(refused(status)) is Answer.PERMANENT
    with pytest.raises(StoreError, match=str(status)) as raised, translated("row"):
        raise refused(status)
    assert not isinstance(raised.value, StoreUnavailableError)


def test_what_cannot_be_written_down_is_refused() -> None:
    """A value of ours that no request can be made of has no status either, and no other try helps it."""
    assert answer(SerializationError("a set")) is Answer.PERMANENT


@pytest.mark.parametrize("said", ["soon", "", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_pause_that_cannot_be_read_is_none(said: str) -> None:
    """The toolkit then goes by its own pauses."""
    with pytest.raises(StoreUnavailableError) as raised, translated("row"):
        raise refused(503, **{"Retry-After": said})
    assert raised.value.retry_after == 0


def test_the_servers_pause_is_kept_within_the_patience() -> None:
    """A server that asks for five seconds is left alone for five, one that asks for an hour for the minute."""
    clock = ManualClock()
    waited: list[float] = []
    clock.wait = lambda _, seconds: bool(waited.append(seconds))  # type: ignore[method-assign, func-returns-value]
    patience = Patience(clock)
    for asked in (0, 5, 3600):
        patience.spend(StoreUnavailableError("busy", retry_after=asked))
    assert waited == [0.1, 5, PATIENCE]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (MessagingEntityNotFoundError(message="no"), "make it"),
        (ServiceBusAuthorizationError(message="no"), "Data Receiver or Sender"),
        (MessageSizeExceededError(message="no"), "in a blob"),
        (ValueError("The queue name provided does not match the EntityPath"), "without EntityPath"),
        ("\ud83d", "not valid Unicode"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_broker_will_not_do_is_said_with_its_remedy(error: Any, remedy: str) -> None:
    """What no waiting mends has an error of its own, and 5 for an exit code."""
    with pytest.raises(TransportRefusedError, match=remedy) as raised, of_the_broker("sending to q"):
        error.encode() if isinstance(error, str) else raise_(error)
    assert of_error(raised.value) is Exit.CONFIGURATION


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusServerBusyError(message="busy"),
        ServiceBusConnectionError(message="away"),
        ServiceBusAuthenticationError(message="no token"),
        ServiceBusQuotaExceededError(message="full"),
        OperationTimeoutError(message="slow"),
        ValueError("The handler has already been shutdown."),
        *UNKNOWN,
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_broker_may_do_later_is_tried_again(error: Exception) -> None:
    """A busy broker, a full queue and a token that could not be had are none of the message's business."""
    with pytest.raises(TransportError) as raised, of_the_broker("sending to q"):
        raise error
    assert not isinstance(raised.value, TransportRefusedError)
    assert of_error(raised.value) is Exit.STORAGE


def raise_(error: Exception) -> None:
    raise error
