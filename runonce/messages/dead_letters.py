"""Dead letters: what was put aside and why, and sending it through once more.

A replay is a new generation of the claim: recorded on its row, with attempts counted from nought and another
idempotency key, for the operator has decided that the effect shall happen (again).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, PermanentError, StoreError
from runonce.messages.message import Message
from runonce.messages.reading import read_key
from runonce.messages.rows import MessageRow, State, decode_message, fingerprint, place
from runonce.stores.columns import encode, to_text
from runonce.stores.protocols import Replace
from runonce.transports.ids import suffixed
from runonce.transports.protocols import Dead, Outgoing

if TYPE_CHECKING:
    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.transports.protocols import DeadLetters, Sender

TRIES = 5


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter with what its claim knows of it."""

    dead: Dead
    key: str
    """Empty when it has none that can be read."""
    row: MessageRow | None

    @property
    def reason(self) -> str:
        """A short name; where the host put the message aside without one, that of the claim's state."""
        return self.dead.reason or ("Failed" if self.row is not None else "MaxDeliveryCountExceeded")

    @property
    def description(self) -> str:
        """What happened; the claim's row knows it where the broker does not."""
        told = self.dead.reason not in ("", "MaxDeliveryCountExceeded")
        if not told and self.row is not None and self.row.reason:
            return self.row.reason
        return self.dead.description


def view(registry: Registry, handler: Handler, dead: Dead) -> DeadLetterView:
    """A dead letter with its claim; one call."""
    message = Message(handler, dead.delivery)
    try:
        key = read_key(handler, message)
    except PermanentError:
        return DeadLetterView(dead, "", None)
    read = registry.table.get(*place(registry.namespace, handler.entity, handler.name, key))
    return DeadLetterView(dead, key, None if read is None else decode_message(read))


def replay(registry: Registry, sender: Sender, handler: Handler, letters: DeadLetters, dead: Dead) -> str:
    """Send a taken dead letter through once more; the id it goes under.

    First the claim is reopened, then the message sent, then the dead letter removed: whatever dies in between,
    the message is still there, and the claim lets it have one effect.

    Raises:
        StoreError: Its claim says that it is done, so replaying it would change nothing.
    """
    delivery = dead.delivery
    generation = _reopen(registry, handler, dead)
    suffix = f"~g{generation}" if generation else f"~g-{uuid.uuid4().hex[:8]}"
    sent_as = delivery.sent_as or delivery.message_id
    message_id = suffixed(sent_as, suffix)
    sender.send(
        handler.queue,
        [
            Outgoing(
                delivery.body,
                message_id,
                correlation_id=delivery.correlation_id,
                properties=delivery.properties,
                reschedules=1,  # it has been here before: its claim is read first
                only_for=handler.subscription or "",
                sent_as=sent_as,
            )
        ],
    )
    letters.remove(dead)
    return message_id


def _reopen(registry: Registry, handler: Handler, dead: Dead) -> int:
    """The claim's new generation, or 0 when there is no claim to reopen."""
    try:
        key = read_key(handler, Message(handler, dead.delivery))
    except PermanentError:
        return 0  # it never had one; it is judged anew, perhaps by a corrected handler
    partition, row_key = place(registry.namespace, handler.entity, handler.name, key)
    for _ in range(TRIES):
        read = registry.table.get(partition, row_key)
        if read is None:
            return 0
        row = decode_message(read)
        if row.state is State.DONE and row.outbox:
            return (
                row.generation
            )  # its follow-ups may not have been sent; the copy sends them, under the same ids
        if row.state is State.DONE:
            raise StoreError(
                f"Handler {handler.name}, message {dead.delivery.message_id}: key {key!r} is done since "
                f"{to_text(row.finished_at)}, so a replay would change nothing; `runonce dead-letters purge "
                f"{handler.name}` removes it."
            )
        if row.state not in (State.FAILED, State.UNKNOWN):
            return row.generation  # under way, or to be taken over: the copy finds out
        reopened = replace(
            row,
            state=State.RELEASED,
            generation=row.generation + 1,
            failures=0,
            abandoned=0,
            retry_at=None,
            expires_at=None,
            fingerprint=fingerprint(
                dead.delivery.body
            ),  # a corrected body is what the operator wants handled
            replays=(*row.replays, to_text(registry.clock.now()))[-20:],
        )
        try:
            registry.table.commit(partition, [Replace(row_key, encode(reopened), read.etag)])
        except ConflictError:
            continue
        return reopened.generation
    raise StoreError(
        f"Handler {handler.name}, message {dead.delivery.message_id}: its claim keeps changing; try again."
    )
