"""Deliveries on a link, both ways, and what settles them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import proton

from servicebus.conditions import condition
from servicebus.errors import Refused, Silenced
from servicebus.queue import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicebus.broker import Broker
    from servicebus.locks import Lock


def send(link: proton.Sender, message: bytes, lock: Lock | None) -> None:
    """Send one message, tagged with the lock token in the byte order of a .NET Guid: the SDK expects it."""
    token = lock.token if lock else uuid.uuid4()
    delivery = link.delivery(token.bytes_le)  # never read the tag back: Proton decodes it as UTF-8
    if lock:
        delivery.lock = lock  # kept with the C object, so the event of its settling brings it back
    link.stream(message)
    link.advance()
    if lock is None:
        delivery.settle()


def take_in(link: proton.Receiver, delivery: proton.Delivery, act: Callable[[bytes], None]) -> None:
    """Act on a delivery once it is whole, and settle it accordingly."""
    if delivery.aborted:
        link.advance()
        delivery.settle()
        link.flow(1)
        return
    if not delivery.readable or delivery.partial:
        return
    raw = bytes(link.recv(delivery.pending) or b"")
    link.advance()
    outcome = proton.Disposition.ACCEPTED
    try:
        act(raw)
    except Silenced:
        return
    except Refused as refusal:
        delivery.local.condition = condition(refusal.condition, refusal.text)
        outcome = proton.Disposition.REJECTED
    except (ValueError, IndexError) as error:
        delivery.local.condition = condition("amqp:decode-error", f"Malformed message: {error}")
        outcome = proton.Disposition.REJECTED
    delivery.update(outcome)
    delivery.settle()
    link.flow(1)


def settle(broker: Broker, delivery: proton.Delivery) -> None:
    """Apply what a receiver decided, and echo it: the SDK settles only when it has seen the echo."""
    if not delivery.updated:
        return
    lock: Lock | None = getattr(delivery, "lock", None)
    state, remote = delivery.remote_state, delivery.remote
    outcome = _outcome(delivery)
    if lock is None or outcome is None:
        if delivery.settled:
            delivery.settle()
        return
    delivery.lock = None
    try:
        with broker.operation(outcome, lock.queue.name):
            lock.queue.settle([lock.token], outcome, *_reason(delivery))
    except Silenced:
        return
    except Refused as refusal:
        delivery.local.condition = condition(refusal.condition, refusal.text)
        state = proton.Disposition.REJECTED
    else:
        if state == proton.Disposition.MODIFIED:
            delivery.local.failed, delivery.local.undeliverable = remote.failed, remote.undeliverable
    if not delivery.settled:
        delivery.update(state)
    delivery.settle()


def _outcome(delivery: proton.Delivery) -> Outcome | None:
    state, remote = delivery.remote_state, delivery.remote
    if state == proton.Disposition.MODIFIED:
        if remote.undeliverable:
            return Outcome.DEFER
        return Outcome.ABANDON if remote.failed else Outcome.RELEASE
    return {
        proton.Disposition.ACCEPTED: Outcome.COMPLETE,
        proton.Disposition.RELEASED: Outcome.RELEASE,
        proton.Disposition.REJECTED: Outcome.DEAD_LETTER,
    }.get(state)


def _reason(delivery: proton.Delivery) -> tuple[str | None, str | None]:
    """Why a message is dead-lettered: in the error's info, or else the error itself."""
    error = delivery.remote.condition if delivery.remote_state == proton.Disposition.REJECTED else None
    if error is None:
        return None, None
    info = error.info or {}
    return (
        info.get("DeadLetterReason", error.name),
        info.get("DeadLetterErrorDescription", error.description),
    )
