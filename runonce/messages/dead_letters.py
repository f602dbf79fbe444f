"""Dead letters: what was put aside and why, and sending it through once more.

A replay is a new generation of the claim: recorded on its row, with attempts counted from nought and another
idempotency key, for the operator has decided that the effect shall happen (again).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, PermanentError, StoreError
from runonce.messages.message import Message
from runonce.messages.reading import body_print, read_key
from runonce.messages.rows import MessageRow, State, anew, decode_message, place
from runonce.stores.columns import encode, to_text
from runonce.stores.protocols import Replace
from runonce.transports.copies import known_as
from runonce.transports.ids import replay_id
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
    except PermanentError as bad:
        if not dead.reason:  # whoever put it aside could not say why, and it can be told once more
            dead = replace(dead, reason=getattr(bad, "reason", type(bad).__name__), description=str(bad))
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
    sent_as = known_as(delivery)
    message_id = replay_id(handler.queue, handler.name, sent_as, delivery.body, generation, dead.place)
    sender.send(
        handler.queue,
        [
            Outgoing(
                delivery.body,
                message_id,
                correlation_id=delivery.correlation_id,
                properties=delivery.properties,
                reschedules=1,  # it has been here before: its claim is read first
                sent_as=sent_as,
                original=delivery.original,
            )
        ],
    )
    letters.remove(dead)
    return message_id


def _reopen(registry: Registry, handler: Handler, dead: Dead) -> int:
    """The claim's new generation, or 0 when there is no claim to reopen."""
    message = Message(handler, dead.delivery)
    try:
        key, told = read_key(handler, message), body_print(handler, message)
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
        # A corrected body is what the operator wants handled, so it is the one that counts from now on.
        reopened = anew(row, told, registry.clock.now())
        try:
            registry.table.commit(partition, [Replace(row_key, encode(reopened), read.etag)])
        except ConflictError:
            continue
        return reopened.generation
    raise StoreError(
        f"Handler {handler.name}, message {dead.delivery.message_id}: its claim keeps changing; try again."
    )
