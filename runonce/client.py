"""For any program beside the hosts: sending messages to handlers, and reading what they wrote."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from runonce.messages.definition import Handler
    from runonce.stores.protocols import Value
    from runonce.transports.protocols import Sender

_lock = threading.Lock()
_senders: dict[str, Sender] = {}
_inherited: list[dict[str, Sender]] = []
"""In a forked child: its parents' senders, which share connections with theirs and are neither used nor closed."""


def enqueue(
    handler: Handler,
    body: Any,
    *,
    key: str | None = None,
    at: datetime | None = None,
    correlation_id: str = "",
) -> str:
    """Send a message to a handler, by the transport and connection of this process's settings; its id.

    Sending the same message again is safe: it gets the same id, which the broker's duplicate detection drops
    within its window, and the same key, which the handler's claim recognises for as long as it is kept.

    Args:
        handler: Whom it is for; what `@handler` made of the function.
        body: bytes and text as they are; anything else as JSON.
        key: What the message id is made of; default is the handler's own key of the body.
        at: When it shall be there, an aware datetime; default is at once.
        correlation_id: Passed on to the handler.

    Raises:
        InputError: The body is not JSON, or the time has no offset.
        PermanentError: The body lacks the handler's key.
        SettingsError: A setting is missing or wrong.
        TransportError: The broker did not take it.
    """
    return enqueue_many(handler, [body], key=key, at=at, correlation_id=correlation_id)[0]


def enqueue_many(
    handler: Handler,
    bodies: Iterable[Any],
    *,
    key: str | None = None,
    at: datetime | None = None,
    correlation_id: str = "",
) -> list[str]:
    """Send messages to a handler in batches; their ids.

    Raises as `enqueue`, before any is sent if it can, and InputError when several messages are given one key.
    """
    from runonce.messages.sending import check_one_key, outgoing, send_all  # noqa: PLC0415 - with the rest of what sends

    listed = list(bodies)
    check_one_key(handler, key, len(listed))
    messages = [outgoing(handler, body, key=key, at=at, correlation_id=correlation_id) for body in listed]
    send_all(_sender(), handler, messages)
    return [message.sent_as or message.message_id for message in messages]


def effects(handler: Handler) -> Iterator[dict[str, Value]]:
    """Every row a handler wrote with `Message.commit`: {"name": …, "key": the message's key, column: value, …}.

    Raises:
        SettingsError: A setting is missing or wrong.
        StoreError: Storage did not answer.
    """
    from runonce.hosts.runtime import Runtime  # noqa: PLC0415 - as above
    from runonce.messages.effects import read_effects  # noqa: PLC0415
    from runonce.settings import Settings  # noqa: PLC0415

    settings = Settings.from_env()
    return read_effects(Runtime(settings).stores.claims, settings.namespace, handler.name)


def _sender() -> Sender:
    """This process's sender, kept: opening a connection costs half a second."""
    from runonce.hosts.runtime import Runtime  # noqa: PLC0415 - imports the SDKs
    from runonce.settings import Settings  # noqa: PLC0415

    settings = Settings.from_env()
    name = repr((settings.transport, settings.storage.connection_string, settings.servicebus))
    with _lock:
        if name not in _senders:
            _senders[name] = Runtime(settings).sender
        return _senders[name]


def _after_fork() -> None:
    global _lock, _senders
    _inherited.append(_senders)
    _lock, _senders = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
