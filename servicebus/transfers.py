"""Deliveries on a link, both ways, and what settles them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import proton

from servicebus import values
from servicebus.conditions import condition
from servicebus.errors import Refused, Silenced
from servicebus.queue import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servicebus.broker import Broker
    from servicebus.locks import Lock
    from servicebus.values import Raw

_DEAD_LETTER = "com.microsoft:dead-letter"


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


def encoded(properties: Mapping[Any, Any]) -> dict[Raw, Raw]:
    """Properties as a message holds them, their types kept."""
    found: dict[Raw, Raw] = {}
    for key, value in properties.items():
        data = proton.Data()
        data.put_object(value)
        found[values.string(str(key))] = bytes(data.encode())
    return found


def _outcome(delivery: proton.Delivery) -> Outcome | None:
    """What Azure makes of a state; an abandon of .NET's or JavaScript's client does not say that it failed."""
    if delivery.remote_state == proton.Disposition.MODIFIED:
        return Outcome.DEFER if delivery.remote.undeliverable else Outcome.ABANDON
    return {
        proton.Disposition.ACCEPTED: Outcome.COMPLETE,
        proton.Disposition.RELEASED: Outcome.RELEASE,
        proton.Disposition.REJECTED: Outcome.DEAD_LETTER,
    }.get(delivery.remote_state)


def _reason(delivery: proton.Delivery) -> tuple[str | None, str | None, dict[Raw, Raw]]:
    """Why a message is dead-lettered, in the error's info or else the error itself; and properties to set."""
    if delivery.remote_state == proton.Disposition.MODIFIED:
        return None, None, encoded(delivery.remote.annotations or {})
    error = delivery.remote.condition if delivery.remote_state == proton.Disposition.REJECTED else None
    if error is None:
        return None, None, {}
    info = {str(key): value for key, value in error.info.items()} if isinstance(error.info, dict) else {}
    own = (None, None) if error.name == _DEAD_LETTER else (error.name, error.description)
    reason, description = info.pop("DeadLetterReason", own[0]), info.pop("DeadLetterErrorDescription", own[1])
    return _text(reason), _text(description), encoded(info)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
