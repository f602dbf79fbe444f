"""The Functions host's part for handlers: one trigger for each, and a settlement as that host knows it.

A Python function settles by how it ends: returning completes the message, raising abandons it. So a message to
come later is sent anew before the function returns. One that is dead is put into a Storage queue's poison queue with
its reason, and deleted, so that its function can fail for the host to count it without its being delivered again. A
queue of Service Bus takes nothing into its dead letters but what it delivered, so a copy is sent that carries the
reason and raises whenever it comes, which costs no call; the broker then puts that aside.

Every trigger is BINARY. For any other the host parses the body and lays its top-level fields over the message's own
metadata, so that a field named `id` in two bodies would make two messages one.
"""

from __future__ import annotations

import base64
import logging
import uuid
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import azure.functions as func

from runonce.errors import RunonceError, SettingsError, TransportError
from runonce.execution.body import to_its_end
from runonce.execution.threads import carried, in_thread, log_as
from runonce.execution.turns import Turns
from runonce.execution.workers import Workers
from runonce.hosts.runtime import check_transport
from runonce.messages.ended import WHEN_STOPPING, Working
from runonce.transports.bus_originals import ServiceBusOriginals
from runonce.transports.copies import copy_of, dead_copy
from runonce.transports.protocols import Delivery, Receipt
from runonce.transports.settlement import DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.hosts.functions.in_hand import InHand
    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.transports.bus_receiver import Source
    from runonce.transports.storage import StorageSender

log = logging.getLogger("runonce.functions")


class DeadLetteredError(RunonceError):
    """The message cannot be handled; the broker puts it among the dead letters after its last delivery."""


def add_handler(
    app: func.FunctionApp,
    runtime: Runtime,
    handler: Handler,
    in_hand: InHand,
    deliveries: int,
    *,
    off: bool = False,
) -> None:
    """Bind a handler's function to its queue; where a subscription does not forward, another one to that.

    Args:
        app: The app.
        runtime: What handles the messages.
        handler: The handler.
        in_hand: Is told of each message of a Storage queue while it is handled.
        deliveries: How often the host delivers a Storage queue's message before it puts that aside itself.
        off: Whether the host does not start the handler's function. Then what comes again to it waits likewise.

    Raises:
        SettingsError: The chosen transport cannot carry its messages.
    """
    settings = runtime.settings
    check_transport(settings, handler)
    turns = Turns(handler.concurrency, runtime.stop)
    if settings.transport == "storage":
        trigger = app.queue_trigger(
            arg_name="message",
            queue_name=settings.queue_prefix + handler.queue,
            connection=settings.storage.setting,
            data_type=func.DataType.BINARY,
        )
        handle = _function(runtime, handler, turns, from_storage, in_hand, deliveries)
        app.function_name(handler.name)(trigger(_awaiting(handle, func.QueueMessage)))
        return
    connection = settings.servicebus
    if connection is None:
        raise SettingsError("RUNONCE_SERVICEBUS is not set; see runonce.settings.")

    originals = ServiceBusOriginals(connection)
    for name, (named, subscription) in zip(handler.function_names, handler.sources, strict=True):
        entity = settings.queue_prefix + named
        if off and name != handler.name:
            continue  # the host knows nothing of its belonging to the other

        def read(message: func.ServiceBusMessage, source: Source = (entity, subscription)) -> Delivery:
            # The host tells no property's type, so a copy is made of the message as the broker has it.
            number = message.sequence_number or 0
            return replace(from_servicebus(message), original=lambda: originals.read(source, number))

        if subscription is None:
            trigger = app.service_bus_queue_trigger(
                arg_name="message",
                queue_name=entity,
                connection=connection.setting,
                data_type=func.DataType.BINARY,
            )
        else:
            trigger = app.service_bus_topic_trigger(
                arg_name="message",
                topic_name=entity,
                subscription_name=subscription,
                connection=connection.setting,
                data_type=func.DataType.BINARY,
            )
        handle = _function(runtime, handler, turns, read)
        app.function_name(name)(trigger(_awaiting(handle, func.ServiceBusMessage)))


def _function(
    runtime: Runtime,
    handler: Handler,
    turns: Turns,
    read: Callable[[Any], Delivery],
    in_hand: InHand | None = None,
    deliveries: int = 0,
) -> Callable[..., Any]:
    """What is done with a message, in the thread that calls it, to its end.

    `ended` is called, with what its function fails with, if that end comes sooner.
    """

    def failure(delivery: Delivery, settlement: Settlement) -> DeadLetteredError | None:
        """Of a message that was put aside: the host counts it once, if nothing is left to deliver again."""
        # What failed at its last delivery the host would put aside too, where it is already.
        counted = isinstance(settlement, DeadLetter) and delivery.delivery_count < deliveries
        receipt = delivery.receipt
        if receipt is None or not (receipt.let_go() or counted):
            return None
        if not _removed(runtime, handler, receipt) or not isinstance(settlement, DeadLetter):
            return None
        return DeadLetteredError(f"{settlement.reason}: {settlement.description}") if counted else None

    def handle(message: Any, ended: Callable[[BaseException | None], None] = lambda _: None) -> None:
        delivery = read(message)
        early: list[Settlement] = []
        having = in_hand.having(handler.queue, delivery.receipt) if in_hand else nullcontext()
        with having, turns.one() as turn:

            def given_up(settlement: Settlement) -> None:
                """Its code does not end, which only the host can change; the message goes on without it."""
                turn.end()
                try:
                    settle(runtime, handler, delivery, settlement)
                except RunonceError as error:
                    log.warning("handler %s: it comes again when its function ends: %s", handler.name, error)
                else:
                    early.append(settlement)
                    ended(failure(delivery, settlement))

            settlement = runtime.deliverer.deliver(handler, delivery, turn, given_up)
            if early:
                return
            settle(runtime, handler, delivery, settlement)
        if (error := failure(delivery, settlement)) is not None:
            raise error

    return handle


def _awaiting(handle: Callable[..., None], kind: type) -> Callable[..., Any]:
    """The function the worker calls; its parameter's annotation tells the worker what to make of the message.

    A message may wait long, for a lock or for its turn. So it has a thread of its own, not one of the worker's pool,
    which all other functions share, and the worker's event loop does nothing but await it.
    """
    workers = Workers("runonce-message")

    async def function(message: Any, context: func.Context) -> None:
        end: Future[None] = Future()

        def ended(error: BaseException | None = None) -> None:
            with suppress(InvalidStateError):  # it was given up, and has ended after all
                end.set_result(None) if error is None else end.set_exception(error)

        def work() -> None:
            try:
                handle(message, ended)
            except Exception as error:  # noqa: BLE001 - it fails the function
                ended(error)
            except BaseException as error:  # noqa: BLE001 - it would end the worker's loop
                ended(RunonceError(repr(error)))
            else:
                ended()

        log_as(context.invocation_id)
        workers.start(carried(work))
        await to_its_end(end)

    function.__annotations__ = {"message": kind, "context": func.Context, "return": None}
    return function


def settle(runtime: Runtime, handler: Handler, delivery: Delivery, settlement: Settlement) -> None:
    """Do what a settlement says, as far as it is not done by returning.

    Whatever is sent is sent before this one is completed; if that fails the function raises, and the broker keeps it.

    Raises:
        DeadLetteredError: Service Bus shall dead-letter this delivery.
        TransportError: The broker did not answer.
    """
    match settlement:
        case Reschedule(delay):
            runtime.sender.send(handler.queue, [copy_of(handler, delivery, delay)])
        case DeadLetter():
            _put_aside(runtime, handler, delivery, settlement)


def _put_aside(runtime: Runtime, handler: Handler, delivery: Delivery, dead: DeadLetter) -> None:
    if delivery.dead is not None:
        raise DeadLetteredError(
            f"{dead.reason}: {dead.description}"
        )  # once for each delivery that is allowed
    if runtime.settings.transport == "servicebus":
        runtime.sender.send(handler.queue, [dead_copy(handler, delivery, dead.reason, dead.description)])
        return
    from runonce.transports.storage import put_aside  # noqa: PLC0415 - only where they are used

    put_aside(cast("StorageSender", runtime.sender), handler.queue, delivery, dead)


def _removed(runtime: Runtime, handler: Handler, receipt: Receipt) -> bool:
    """Delete a message that is settled; False where that did not work, and it may come once more."""
    try:
        return cast("StorageSender", runtime.sender).remove(handler.queue, receipt)
    except TransportError as error:
        log.warning("handler %s: a message that is settled stays for now: %s", handler.name, error)
        return False


def give_up(runtime: Runtime) -> None:
    """Give back what did not heed the stop, all at once; only right before the process ends, as `abandon`."""
    wait(
        [
            in_thread(partial(_give_back, runtime, working), "runonce-give-back")
            for working in runtime.deliverer.running
        ]
    )


def _give_back(runtime: Runtime, working: Working) -> None:
    try:
        settlement = runtime.deliverer.finish(working, None, SystemExit())
        # What is held as unknown now is put aside when its message comes again, of which there must be but one.
        if working.handler.on_abandoned != "hold":
            settle(runtime, working.handler, working.delivery, settlement)
        elif (receipt := working.delivery.receipt) is not None:
            receipt.let_go()
            cast("StorageSender", runtime.sender).show(working.handler.queue, receipt, WHEN_STOPPING)
    except RunonceError as error:
        log.warning("handler %s: not given back, it comes again by itself: %s", working.handler.name, error)


def from_storage(message: func.QueueMessage) -> Delivery:
    """A Storage queue's message as the transport's own inbox would deliver it."""
    from runonce.transports.envelope import unwrap  # noqa: PLC0415 - only where Storage queues are used

    body = message.get_body()
    delivery, envelope = unwrap(
        body,
        message_id=message.id or _by_hand(),
        delivery_count=message.dequeue_count or 1,
        enqueued_at=_aware(message.insertion_time),
    )
    receipt = Receipt(message.id, message.pop_receipt) if message.id and message.pop_receipt else None
    if envelope:
        return replace(delivery, receipt=receipt)
    # The host has decoded it, and reads nothing but Base64.
    return replace(delivery, receipt=receipt, original=lambda: base64.b64encode(body))


def from_servicebus(message: func.ServiceBusMessage) -> Delivery:
    """The same of a Service Bus message, but for `original`."""
    from runonce.transports.bus_messages import skew_of, take_own  # noqa: PLC0415 - only where Service Bus is used

    properties = dict(message.application_properties or message.user_properties or {})
    own = take_own(properties)
    return Delivery(
        body=message.get_body(),
        message_id=message.message_id or ("" if message.sequence_number else _by_hand()),
        delivery_count=message.delivery_count or 1,
        enqueued_at=_aware(message.enqueued_time_utc),
        correlation_id=message.correlation_id or "",
        properties=properties,
        skew=skew_of(_aware(message.enqueued_time_utc), _aware(message.locked_until)),
        sequence=str(message.sequence_number or ""),
        subject=message.subject or message.label or "",
        content_type=message.content_type or "",
        **own,
    )


def _by_hand() -> str:
    """An id for what no queue delivered: the portal's Test/Run."""
    return f"by-hand-{uuid.uuid4().hex[:8]}"


def _aware(instant: datetime | None) -> datetime | None:
    """The host tells some instants without the zone they are in, which is UTC."""
    return instant if instant is None or instant.tzinfo else instant.replace(tzinfo=UTC)
