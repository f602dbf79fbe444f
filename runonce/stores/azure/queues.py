"""Queues of a storage account, and the internal one among them."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from azure.core.exceptions import DecodeError, HttpResponseError, ResourceExistsError

from runonce.stores.azure.errors import translated
from runonce.stores.azure.wire import xml_of
from runonce.stores.protocols import QueueItem

if TYPE_CHECKING:
    from datetime import datetime
    from xml.etree.ElementTree import Element

    from runonce.stores.azure.wire import Reply, Service

NOT_FOUND = 404
NOT_THE_LATEST = (400, 404)
"""What a receipt is refused with that is not the message's latest, or whose message has gone."""
XML = {"Accept": "application/xml", "Content-Type": "application/xml"}


@dataclass(slots=True)
class QueueMessage:
    """A message as it was received, or seen."""

    id: str
    pop_receipt: str
    content: str
    dequeue_count: int
    inserted_on: datetime
    expires_on: datetime | None


class Queue:
    """One queue, which is made when something is sent to it or received from it."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self.name = name

    def send(self, text: str, *, hidden: int, lives: int) -> QueueMessage:
        """Put a text, hidden for some seconds; `lives` is -1 for ever. Its id and receipt are in what it gives back."""
        message = f"<QueueMessage><MessageText>{escape(text, quote=False)}</MessageText></QueueMessage>"
        body = f"<?xml version='1.0' encoding='utf-8'?>\n{message}".encode()
        query = f"visibilitytimeout={hidden}&messagettl={lives}"
        try:
            reply = self._service.ask("POST", self._path(), query, XML, body)
        except HttpResponseError as error:
            if error.status_code != NOT_FOUND:
                raise
            self.make()
            reply = self._service.ask("POST", self._path(), query, XML, body)
        return _listed(reply)[0]

    def receive(self, count: int, *, hidden: int, make: bool = True) -> list[QueueMessage]:
        """At most so many messages (Azure's limit is 32), hidden from others for some seconds."""
        try:
            return self._list(f"numofmessages={count}&visibilitytimeout={hidden}")
        except HttpResponseError as error:
            if error.status_code != NOT_FOUND:
                raise
            if make:
                self.make()
            return []

    def peek(self, count: int) -> list[QueueMessage]:
        """The first of the queue, without receiving them; none where there is no queue."""
        try:
            return self._list(f"numofmessages={count}&peekonly=true")
        except HttpResponseError as error:
            if error.status_code != NOT_FOUND:
                raise
            return []

    def count(self) -> int:
        """About how many messages there are, hidden ones too; none where there is no queue."""
        try:
            reply = self._service.ask("GET", quote(self.name), "comp=metadata")
        except HttpResponseError as error:
            if error.status_code != NOT_FOUND:
                raise
            return 0
        return int(reply.headers.get("x-ms-approximate-messages-count", 0))

    def delete(self, message_id: str, receipt: str) -> bool:
        """Remove a received message; False where the receipt is not its latest."""
        return self._with_receipt("DELETE", message_id, f"popreceipt={quote(receipt, safe='')}") is not None

    def update(self, message_id: str, receipt: str, *, hidden: int) -> str | None:
        """Hide a received message anew; its new receipt, or None where that one is not its latest."""
        return self._with_receipt(
            "PUT", message_id, f"popreceipt={quote(receipt, safe='')}&visibilitytimeout={hidden}"
        )

    def make(self) -> None:
        """Make the queue; it may have been made meanwhile."""
        with suppress(ResourceExistsError):
            self._service.sdk().create_queue(self.name)

    def _with_receipt(self, method: str, message_id: str, query: str) -> str | None:
        try:
            reply = self._service.ask(method, self._path(message_id), query)
        except HttpResponseError as error:
            if error.status_code not in NOT_THE_LATEST:
                raise
            return None
        return reply.headers.get("x-ms-popreceipt", "")

    def _list(self, query: str) -> list[QueueMessage]:
        return _listed(self._service.ask("GET", self._path(), query, {"Accept": "application/xml"}))

    def _path(self, message_id: str = "") -> str:
        return f"{quote(self.name)}/messages" + (f"/{quote(message_id, safe='')}" if message_id else "")


def _listed(reply: Reply) -> list[QueueMessage]:
    try:
        return [_message(one) for one in xml_of(reply)]
    except (ValueError, TypeError) as error:
        raise DecodeError(message=f"the answer cannot be read ({type(error).__name__}: {error})") from error


def _message(one: Element) -> QueueMessage:
    expires = one.findtext("ExpirationTime")
    return QueueMessage(
        id=one.findtext("MessageId", ""),
        pop_receipt=one.findtext("PopReceipt", ""),
        content=one.findtext("MessageText", ""),
        dequeue_count=int(one.findtext("DequeueCount") or 1),
        inserted_on=parsedate_to_datetime(one.findtext("InsertionTime", "")),
        expires_on=parsedate_to_datetime(expires) if expires else None,
    )


class AzureQueue:
    """The internal queue, whose messages are Base64, which is what the Functions trigger reads by default."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def send(self, body: str, *, delay: int = 0, time_to_live: int = 3600) -> QueueItem:
        text = base64.b64encode(body.encode()).decode()
        with translated(f"queue {self._queue.name}"):
            sent = self._queue.send(text, hidden=delay, lives=time_to_live)
        return QueueItem(sent.id, sent.pop_receipt, body, 0)

    def hide(self, item: QueueItem, seconds: int) -> QueueItem | None:
        with translated(f"queue {self._queue.name}"):
            receipt = self._queue.update(item.id, item.receipt, hidden=seconds)
        return None if receipt is None else replace(item, receipt=receipt)

    def receive(self, *, visibility: int) -> QueueItem | None:
        with translated(f"queue {self._queue.name}"):
            found = self._queue.receive(1, hidden=visibility)
        return next(
            (QueueItem(m.id, m.pop_receipt, _decoded(m.content), m.dequeue_count) for m in found), None
        )

    def delete(self, item: QueueItem) -> None:
        with translated(f"queue {self._queue.name}"):
            self._queue.delete(item.id, item.receipt)  # or it is gone, or somebody else has received it since


def _decoded(text: str) -> str:
    with suppress(ValueError):
        return base64.b64decode(text, validate=True).decode()
    return text  # sent by hand without Base64, or no text in it; whoever reads it judges it
