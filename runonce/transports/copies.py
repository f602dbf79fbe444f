"""The copy of a message that is to be delivered again later."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from runonce.transports.ids import copy_id
from runonce.transports.protocols import Delivery, Outgoing

if TYPE_CHECKING:
    from runonce.messages.definition import Handler


def copy_of(handler: Handler, delivery: Delivery, delay: float) -> Outgoing:
    """The copy that comes again to the handler's queue after a delay, under an id of its own."""
    times = delivery.reschedules + 1
    sent_as = known_as(delivery)
    at = datetime.now(UTC) + timedelta(seconds=delay)  # noqa: TID251 - an instant for the broker
    return Outgoing(
        body=delivery.body,
        message_id=copy_id(
            handler.entity, handler.name, delivery.message_id or sent_as, delivery.body, times
        ),
        at=at if delay > 0 else None,
        correlation_id=delivery.correlation_id,
        properties=delivery.properties,
        reschedules=times,
        sent_as=sent_as,
        original=delivery.original,
        skew=delivery.skew,
        alive_since=delivery.enqueued_at,
    )


def dead_copy(handler: Handler, delivery: Delivery, reason: str, description: str) -> Outgoing:
    """The copy that is dead-lettered when it comes, for a Functions host of Service Bus cannot do that itself."""
    return replace(copy_of(handler, delivery, 0.0), dead=(reason, description))


def known_as(delivery: Delivery) -> str:
    """The id of a message's first sending; where its sender gave it none, one of its number in the queue."""
    number = f"unnamed-{delivery.sequence}" if delivery.sequence else ""
    return delivery.sent_as or delivery.message_id or number
