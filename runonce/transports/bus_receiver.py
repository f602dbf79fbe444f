"""A receiver of a Service Bus queue, subscription or dead-letter queue, opened when it is used."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus._common.constants import (
    MGMT_REQUEST_FROM_SEQUENCE_NUMBER,
    MGMT_REQUEST_MAX_MESSAGE_COUNT,
    REQUEST_RESPONSE_PEEK_OPERATION,
)
from azure.servicebus._pyamqp import _decode
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from runonce.errors import TransportError, TransportRefusedError
from runonce.stores.azure.clients import credential
from runonce.transports import amqp
from runonce.transports.bus_messages import delivery_of
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.settings import ServiceBusConnection


def _char(buffer: memoryview, _depth: int = 0) -> tuple[memoryview, str]:
    return buffer[4:], bytes(buffer[:4]).decode("utf-32-be", "replace")


def _short_decimal(size: int, buffer: memoryview, _depth: int = 0) -> tuple[memoryview, bytes]:
    return buffer[size:], bytes(buffer[:size])


UNKNOWN: dict[int, Callable[..., Any]] = {
    0x73: _char,
    0x74: partial(_short_decimal, 4),
    0x84: partial(_short_decimal, 8),
}
"""Types that the SDK does not know, among them .NET's char: it could not read a queue that has one in a property."""
for _constructor, _read in UNKNOWN.items():
    _decode._DECODE_BY_CONSTRUCTOR[_constructor] = _read  # noqa: SLF001

Source = tuple[str, str | None]
"""A queue's name and None, or a topic's and a subscription's."""
RETRIES: dict[str, Any] = {"retry_total": 2, "retry_backoff_factor": 0.2, "retry_backoff_max": 5}
"""The SDK's own tries in one call; above them, consumers try again for ever and messages come again."""


def open_client(connection: ServiceBusConnection) -> ServiceBusClient:
    """A client of the namespace, which connects when it is used."""
    if connection.connection_string is not None:
        return ServiceBusClient.from_connection_string(connection.connection_string, **RETRIES)
    return ServiceBusClient(connection.fully_qualified_namespace, credential(connection), **RETRIES)


REMEDIES: dict[type[Exception], str] = {
    MessagingEntityNotFoundError: "there is no such queue or subscription in this namespace; make it (infra/ does), or "
    "correct the name in @handler",
    ServiceBusAuthorizationError: "it may not be done with this identity or key; give it the role Azure Service Bus "
    "Data Receiver or Sender, or a key with the rights Listen and Send",
    MessageSizeExceededError: "put the data in a blob and send its name",
}


def remedy(error: Exception) -> str:
    """What to do about a broker's refusal that waiting does not mend; empty for everything else.

    Everything else is tried again: a broker that is busy or away, a token that could not be had.
    """
    if isinstance(error, ValueError) and "EntityPath" in str(error):  # the SDK's own check
        return "its connection string is of another queue alone; give one of the whole namespace, without EntityPath"
    if isinstance(error, UnicodeError):
        return "a text in it is not valid Unicode; correct what sends it"
    return next((said for kind, said in REMEDIES.items() if isinstance(error, kind)), "")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """TransportError, with what was being done, for whatever goes wrong with the broker.

    Raises:
        TransportRefusedError: It will not go otherwise by waiting; the text says what to do.
    """
    try:
        yield
    except (AzureError, OSError, ValueError) as error:
        said = f"{what}: {type(error).__name__}: {str(error)[:300]}"
        if do := remedy(error):
            raise TransportRefusedError(f"{said.rstrip('.')}. So {do}.") from error
        raise TransportError(said) from error


class Receiver:
    """A receiver of one entity, opened on first use and opened anew after an error."""

    def __init__(self, connection: ServiceBusConnection, source: Source, *, dead: bool = False) -> None:
        self._connection = connection
        self.source = source
        self._dead = dead
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None

    def call(self, what: str, call: Callable[[ServiceBusReceiver], Any]) -> Any:
        with translated(f"{what} {'/'.join(filter(None, self.source))}"):
            try:
                return call(self._open())
            except MessageLockLostError:
                raise  # of that message; the link is fine
            except (AzureError, OSError, ValueError):
                self.close()
                raise

    @property
    def is_open(self) -> bool:
        return self._receiver is not None

    def original(self, number: int) -> bytes | None:
        """A message as it travels, whoever has it now; None when it has gone. Raises TransportError."""
        asked: dict[str, Any] = {
            MGMT_REQUEST_FROM_SEQUENCE_NUMBER: PyamqpTransport.AMQP_LONG_VALUE(number),
            MGMT_REQUEST_MAX_MESSAGE_COUNT: 1,
        }

        def peeked(status: int, answer: Any, *_: object, **__: object) -> list[bytes]:
            return (
                [bytes(m[b"message"]) for m in answer.value[b"messages"]] if status == HTTPStatus.OK else []
            )

        def peek(receiver: ServiceBusReceiver) -> list[bytes]:
            found: list[bytes] = receiver._mgmt_request_response_with_retry(  # noqa: SLF001 - peek_messages reads it
                REQUEST_RESPONSE_PEEK_OPERATION, asked, peeked, timeout=20
            )
            return found

        found: list[bytes] = self.call(f"peeking at message {number} of", peek)
        return next((raw for raw in found if amqp.sequence_number(raw) == number), None)

    def _open(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._client = open_client(self._connection)
            sub_queue = ServiceBusSubQueue.DEAD_LETTER if self._dead else None
            entity, subscription = self.source
            if subscription is None:
                self._receiver = self._client.get_queue_receiver(entity, sub_queue=sub_queue)
            else:
                self._receiver = self._client.get_subscription_receiver(
                    entity, subscription, sub_queue=sub_queue
                )
        return self._receiver

    def close(self) -> None:
        for link in (self._receiver, self._client):
            if link is not None:
                with contextlib.suppress(ServiceBusError, OSError, ValueError):
                    link.close()
        self._receiver = self._client = None


def received_by(receiver: Receiver, native: ServiceBusReceivedMessage) -> Delivery:
    """A message of a receiver's as a delivery, which can be copied whole."""
    number = _told(native, "sequence_number")
    original = None if number is None else partial(receiver.original, number)
    try:
        return delivery_of(native, original)
    except Exception as error:  # noqa: BLE001 - one message must not keep the others of its batch back
        count = _told(native, "delivery_count")
        return Delivery(
            b"",
            str(_told(native, "message_id") or ""),
            count + 1 if isinstance(count, int) else 1,
            sequence=str(number or ""),
            unreadable=f"of a form that cannot be read ({type(error).__name__})",
            original=original,
        )


def _told(native: ServiceBusReceivedMessage, name: str) -> Any:
    """What the SDK says of a message; None where it cannot."""
    try:
        return getattr(native, name)
    except Exception:  # noqa: BLE001 - whatever it stumbles over in a message that is malformed
        return None
