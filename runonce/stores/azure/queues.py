"""The internal queue."""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from runonce.stores.azure.clients import make_client
from runonce.stores.azure.errors import (
    ignoring,
    translated,
)
from runonce.stores.protocols import (
    QueueItem,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.storage.queue import QueueClient

    from runonce.settings import StorageConnection


GONE = (400, 404)
"""The message is gone, or somebody else received it since."""


class AzureQueue:
    """A storage queue whose messages are Base64, which is what the Functions trigger reads by default."""

    def __init__(self, storage: StorageConnection, name: str, options: Mapping[str, Any]) -> None:
        self._storage = storage
        self._name = name
        self._options = options
        self._lock = threading.Lock()
        self._made: QueueClient | None = None

    def _client(self) -> QueueClient:
        with self._lock:
            if self._made is None:
                # Imported here: most ticks find nothing to ask for, and a cold start should not pay for it.
                from azure.storage.queue import QueueClient  # noqa: PLC0415

                more = {"queue_name": self._name}
                self._made = make_client(QueueClient, self._storage, "queue", self._options, **more)
            return self._made

    def close(self) -> None:
        """Close the client, if there was need of one."""
        if self._made is not None:
            self._made.close()

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> QueueItem:
        text = base64.b64encode(body.encode()).decode()
        options = {"visibility_timeout": delay, "time_to_live": time_to_live}
        with translated(f"queue {self._name}"):
            try:
                sent = self._client().send_message(text, **options)
            except ResourceNotFoundError:
                ignoring(ResourceExistsError, self._client().create_queue)
                sent = self._client().send_message(text, **options)
            return QueueItem(sent.id, str(sent.pop_receipt), body, 0)

    def hide(self, item: QueueItem, seconds: int) -> QueueItem | None:
        with translated(f"queue {self._name}"):
            try:
                hidden = self._client().update_message(item.id, item.receipt, visibility_timeout=seconds)
            except HttpResponseError as error:
                if error.status_code not in GONE:
                    raise
                return None
            return replace(item, receipt=str(hidden.pop_receipt))

    def receive(self, *, visibility: int) -> QueueItem | None:
        with translated(f"queue {self._name}"):
            try:
                message = self._client().receive_message(visibility_timeout=visibility)
            except ResourceNotFoundError:
                ignoring(ResourceExistsError, self._client().create_queue)
                return None
            if message is None:
                return None
            body = _decoded(str(message.content))
            return QueueItem(message.id, str(message.pop_receipt), body, int(message.dequeue_count or 1))

    def delete(self, item: QueueItem) -> None:
        with translated(f"queue {self._name}"):
            try:
                self._client().delete_message(item.id, pop_receipt=item.receipt)
            except HttpResponseError as error:
                if error.status_code not in GONE:
                    raise


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:  # not Base64, or not of a text
        return text  # sent by hand without Base64; whoever reads it judges it
