"""A Storage queue's trigger: fetches, renews, and deletes, shows again or puts aside."""

import base64
import binascii
import contextlib
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from . import triggers
from .project import Queues
from .storage import CLIENT, StorageAwayError, StorageWatch, kept
from .times import Times
from .workers import HostEndedError

if TYPE_CHECKING:
    from .metadata import Function

_FIRST_WAIT = 0.1
Run = Callable[["Function", triggers.Trigger, str], bool]
"""Executes a function to its end; whether it succeeded."""


class QueueListener:
    """Fetches `batchSize` messages whenever at most `newBatchThreshold` are being handled."""

    def __init__(
        self,
        function: "Function",
        connection: str,
        options: Queues,
        times: Times,
        watch: StorageWatch,
        run: Run,
    ) -> None:
        self._function, self._options, self._times = function, options, times
        self._watch, self._run = watch, run
        name = function.trigger["queueName"]
        self._queue = QueueClient.from_connection_string(connection, name, **CLIENT)
        self._poison = QueueClient.from_connection_string(connection, f"{name}-poison", **CLIENT)
        self._in_hand = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=f"queue-{name}", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def stop(self, *, exiting: bool) -> None:
        """Fetch no more; what was fetched goes on, and is settled also by a host that exits."""
        del exiting
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()

    def _listen(self) -> None:
        wait = _FIRST_WAIT
        while not self._stopped.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._in_hand <= self._options.new_batch_threshold or self._stopped.is_set()
                )
            if self._stopped.is_set():
                return
            messages = self._fetch()
            with self._changed:
                self._in_hand += len(messages)
            for message in messages:
                threading.Thread(target=self._handle, args=(message,), daemon=True).start()
            if messages:
                wait = _FIRST_WAIT
            else:
                self._stopped.wait(wait)
                wait = min(wait * 2, self._options.max_polling_interval)

    def _fetch(self) -> list[Any]:
        count = self._options.batch_size
        hidden = round(self._times.hidden)
        try:
            return self._watch.attempt(
                lambda: list(
                    self._queue.receive_messages(
                        messages_per_page=count, max_messages=count, visibility_timeout=hidden
                    )
                )
            )
        except (StorageAwayError, HttpResponseError):  # such as a queue that does not exist yet
            return []

    def _handle(self, message: Any) -> None:
        try:
            with kept(self._times.hidden / 2, lambda: self._show_again(message, self._times.hidden)):
                success = self._called(message)
            self._settle(message, success=success)
        except HostEndedError:
            pass  # the message stays hidden
        finally:
            with self._changed:
                self._in_hand -= 1
                self._changed.notify_all()

    def _called(self, message: Any) -> bool | None:
        """Whether the function succeeded; None when the message never can be handed to it."""
        if message.dequeue_count > self._options.max_dequeue_count:
            return None
        try:
            body = _decoded(message.content) if self._options.base64 else message.content.encode()
        except ValueError:
            return None
        trigger = triggers.queue(
            body,
            message_id=message.id,
            dequeue_count=message.dequeue_count,
            pop_receipt=message.pop_receipt,
            inserted=message.inserted_on.isoformat(),
            expires=message.expires_on.isoformat(),
            visible=message.next_visible_on.isoformat(),
        )
        reason = f"New queue message detected on '{self._queue.queue_name}': {message.id}"
        return self._run(self._function, trigger, reason)

    def _settle(self, message: Any, *, success: bool | None) -> None:
        if success is False and message.dequeue_count < self._options.max_dequeue_count:
            self._show_again(message, self._options.visibility_timeout)
            return
        with contextlib.suppress(StorageAwayError, HttpResponseError):  # it stays hidden, and comes again
            if not success:
                self._watch.attempt(lambda: self._put_aside(message.content))
            self._watch.attempt(lambda: self._queue.delete_message(message.id, message.pop_receipt))

    def _show_again(self, message: Any, after: float) -> None:
        def update() -> None:
            message.pop_receipt = self._queue.update_message(
                message.id, message.pop_receipt, visibility_timeout=round(after)
            ).pop_receipt

        with contextlib.suppress(StorageAwayError, HttpResponseError):  # then when its hiding ends
            self._watch.attempt(update)

    def _put_aside(self, content: str) -> None:
        """The poison queue's copy is another message, with an id and an expiry of its own."""
        life = round(self._times.poison_life)
        try:
            self._poison.send_message(content, time_to_live=life)
        except ResourceNotFoundError:
            self._poison.create_queue()
            self._poison.send_message(content, time_to_live=life)


def _decoded(content: str) -> bytes:
    """Base64, in which white space does not count; ValueError when it is none."""
    try:
        return base64.b64decode(re.sub(r"[ \t\r\n]", "", content), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
