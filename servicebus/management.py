"""The operations of an entity's `$management` node, named as the SDK names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton

from servicebus import transfers
from servicebus.errors import Refused
from servicebus.queue import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicebus.broker import Broker
    from servicebus.queue import MessageQueue

Body = dict[str, Any]
Answer = tuple[int, Body | None]

_PREFIX = "com.microsoft:"
_OUTCOMES = {
    "completed": Outcome.COMPLETE,
    "abandoned": Outcome.ABANDON,
    "defered": Outcome.DEFER,  # the protocol's spelling
    "suspended": Outcome.DEAD_LETTER,
}
_RECEIVE_AND_DELETE = 0


def perform(broker: Broker, queue: MessageQueue, name: str, body: Body) -> Answer:
    """Do one request's operation; returns its status and body."""
    try:
        operation, act = _OPERATIONS[name.removeprefix(_PREFIX)]
    except KeyError:
        raise Refused("amqp:not-implemented", f"This local broker has no operation {name}.", 501) from None
    if operation == "settle":
        operation = _OUTCOMES[body["disposition-status"]]
    with broker.operation(operation, queue.name):
        return act(queue, body)


def _renew(queue: MessageQueue, body: Body) -> Answer:
    until = [int(1000 * seconds) for seconds in queue.renew(_list(body["lock-tokens"]))]
    return 200, {"expirations": proton.Array(proton.UNDESCRIBED, proton.Data.TIMESTAMP, *until)}


def _peek(queue: MessageQueue, body: Body) -> Answer:
    found = queue.peek(body["from-sequence-number"], body["message-count"])
    return (200, {"messages": [{"message": message} for message in found]}) if found else (204, None)


def _schedule(queue: MessageQueue, body: Body) -> Answer:
    numbers = queue.publish([bytes(memoryview(entry["message"])) for entry in body["messages"]])
    return 200, {"sequence-numbers": proton.Array(proton.UNDESCRIBED, proton.Data.LONG, *numbers)}


def _cancel(queue: MessageQueue, body: Body) -> Answer:
    queue.cancel(_list(body["sequence-numbers"]))
    return 200, None


def _receive_deferred(queue: MessageQueue, body: Body) -> Answer:
    delete = body.get("receiver-settle-mode") == _RECEIVE_AND_DELETE
    found = queue.receive_deferred(_list(body["sequence-numbers"]), delete=delete)
    messages = [
        {"message": message, "lock-token": lock.token} if lock else {"message": message}
        for message, lock in found
    ]
    return 200, {"messages": messages}


def _settle(queue: MessageQueue, body: Body) -> Answer:
    queue.settle(
        _list(body["lock-tokens"]),
        _OUTCOMES[body["disposition-status"]],
        _text(body.get("deadletter-reason")),
        _text(body.get("deadletter-description")),
        transfers.encoded(body.get("properties-to-modify") or {}),
    )
    return 200, None


_OPERATIONS: dict[str, tuple[str, Callable[[MessageQueue, Body], Answer]]] = {
    "renew-lock": ("renew", _renew),
    "peek-message": ("peek", _peek),
    "schedule-message": ("schedule", _schedule),
    "cancel-scheduled-message": ("cancel", _cancel),
    "receive-by-sequence-number": ("receive-deferred", _receive_deferred),
    "update-disposition": ("settle", _settle),
}


def _text(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{type(value).__name__} where a text belongs")
    return value


def _list(value: Any) -> list[Any]:
    return list(value.elements) if isinstance(value, proton.Array) else list(value)
