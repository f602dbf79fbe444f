"""Service Bus triggers: each message in a task, its lock renewed, completed on success and abandoned on failure."""

import asyncio
import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient, ServiceBusReceiver
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import ServiceBusError

from . import triggers
from .amqp_types import plain
from .console import Console
from .project import Bus
from .workers import HostEndedError

if TYPE_CHECKING:
    from .metadata import Function
    from .queue_listener import Run

_POLL = 0.5
"""Seconds of one receive, after which a stop is heard."""


class BusListener:
    """The queue or subscription of one function."""

    def __init__(
        self, function: "Function", connection: str, options: Bus, console: Console, run: "Run"
    ) -> None:
        self._function, self._connection, self._options = function, connection, options
        self._console, self._run = console, run
        self._pool = ThreadPoolExecutor(options.max_calls, thread_name_prefix=f"bus-{function.name}")
        self._stopped, self._ended, self._exiting = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._listen()), name=f"bus-{function.name}", daemon=True
        )

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def stop(self, *, exiting: bool) -> None:
        """Receive no more; what was received goes on. Of a host that exits it comes again even when it succeeds."""
        if exiting:
            self._exiting.set()
        self._stopped.set()

    def end(self) -> None:
        """Leave with locks unsettled, as a host that exits."""
        self.stop(exiting=True)
        self._ended.set()
        self._thread.join()
        self._pool.shutdown()

    async def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                async with (
                    ServiceBusClient.from_connection_string(self._connection, retry_total=0) as client,
                    self._receiver(client) as receiver,
                ):
                    await self._receive(receiver)
            except (ServiceBusError, OSError) as error:
                self._console.say(f"Message processing error (Action=Receive): {error}")
                await asyncio.sleep(_POLL)

    def _receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        trigger, prefetch = self._function.trigger, self._options.prefetch
        if topic := trigger.get("topicName"):
            return client.get_subscription_receiver(
                topic, trigger["subscriptionName"], prefetch_count=prefetch
            )
        return client.get_queue_receiver(trigger["queueName"], prefetch_count=prefetch)

    async def _receive(self, receiver: ServiceBusReceiver) -> None:
        tasks: set[asyncio.Task] = set()
        async with AutoLockRenewer(max_lock_renewal_duration=self._options.max_renewal) as renewer:
            while not self._stopped.is_set():
                if len(tasks) >= self._options.max_calls:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=_POLL)
                    continue
                for message in await receiver.receive_messages(1, max_wait_time=_POLL):
                    renewer.register(receiver, message)
                    task = asyncio.create_task(self._handle(receiver, message))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            while tasks and not self._ended.is_set():
                await asyncio.wait(tasks, timeout=_POLL / 5)
            for task in tasks:
                task.cancel()

    async def _handle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        entity = receiver.entity_path
        reason = f"New ServiceBus message detected on '{entity}': {message.message_id}"
        call = asyncio.get_running_loop().run_in_executor(
            self._pool, self._run, self._function, trigger_of(message), reason
        )
        try:
            success = await call
            if success and not self._exiting.is_set():
                if self._options.auto_complete:
                    await receiver.complete_message(message)
            else:
                await receiver.abandon_message(message)
        except HostEndedError:
            pass  # its lock runs out
        except (ServiceBusError, ValueError) as error:  # the lock or the receiver is gone
            self._console.say(f"Message processing error (Action=Complete): {error}")


def trigger_of(message: ServiceBusReceivedMessage) -> triggers.Trigger:
    """What the host makes of a received message."""
    enqueued = message.enqueued_time_utc or dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    expires = message.expires_at_utc or dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    return triggers.servicebus(
        _body(message),
        message_id=_text(message.message_id),
        delivery_count=(message.delivery_count or 0) + 1,
        sequence_number=message.sequence_number or 0,
        properties={
            plain(name): plain(value) for name, value in (message.application_properties or {}).items()
        },
        enqueued=enqueued,
        expires=expires,
        lock_token=str(message.lock_token),
        content_type=_text(message.content_type),
        CorrelationId=_text(message.correlation_id),
        Subject=_text(message.subject),
        Label=_text(message.subject),
        To=_text(message.to),
        ReplyTo=_text(message.reply_to),
        SessionId=_text(message.session_id),
        PartitionKey=_text(message.partition_key),
    )


def _body(message: ServiceBusReceivedMessage) -> bytes | triggers.AmqpValue:
    body: Any = message.body
    if message.body_type is AmqpMessageBodyType.DATA:
        return b"".join(body)
    if message.body_type is AmqpMessageBodyType.SEQUENCE:
        return triggers.AmqpValue([list(part) for part in body])
    return b"" if body is None else triggers.AmqpValue(plain(body))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(plain(value))
