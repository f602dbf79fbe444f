"""Requests and answers: an entity's `$management` node, and `$cbs`, which takes tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton

from servicebus import management, tokens
from servicebus.errors import Refused

if TYPE_CHECKING:
    from servicebus.broker import Broker

CBS = "$cbs"
MANAGEMENT = "/$management"


def answer(broker: Broker, claims: set[str], node: str, raw: bytes) -> tuple[str | None, bytes]:
    """Where to, and the encoded answer to one encoded request; a faulty request is answered too."""
    request = proton.Message()
    try:
        request.decode(raw)
    except proton.ProtonException as fault:
        raise ValueError(f"a request that is no message: {fault}") from fault
    try:
        status, text, body = _act(broker, claims, node, request)
        error = None
    except Refused as refusal:
        status, text, body, error = refusal.status, refusal.text, None, refusal.condition
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as fault:
        status, text, body, error = 400, f"Bad request: {fault!r}", None, "com.microsoft:argument-error"
    # The two nodes spell their answers differently, and the SDK looks for exactly these.
    names = ("status-code", "status-description") if node == CBS else ("statusCode", "statusDescription")
    properties: dict[str, Any] = {names[0]: proton.int32(status), names[1]: text}
    if error and node != CBS:
        properties["errorCondition"] = proton.symbol(error)
    reply = proton.Message(body=body, properties=properties)
    reply.correlation_id = request.id
    return request.reply_to, bytes(reply.encode())


def _act(
    broker: Broker, claims: set[str], node: str, request: proton.Message
) -> tuple[int, str, dict[str, Any] | None]:
    properties = request.properties or {}
    operation = str(properties.get("operation"))
    if node != CBS:
        queue = broker.entities[node.removesuffix(MANAGEMENT)]
        status, body = management.perform(broker, queue, operation, request.body)
        return status, "OK", body
    if operation != "put-token":
        raise Refused("amqp:not-implemented", f"$cbs has no operation {operation}.", 501)
    if not tokens.valid(request.body, broker.keys):
        raise Refused(
            "amqp:unauthorized-access", "The token is not signed with a known key, or has expired.", 401
        )
    claims.add(tokens.scope(str(properties.get("name", ""))))
    return 202, "Accepted", None
