"""Dead letters: what was put aside and why, and sending it through once more.

A replay is a new generation of the claim: recorded on its row, with attempts counted from nought and another
idempotency key, for the operator has decided that the effect shall happen (again).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from runonce.errors import ConflictError, PermanentError, StoreError
from runonce.execution.options import MAX_ABANDONED
from runonce.messages.message import Message
from runonce.messages.reading import body_print, prepare, read_key
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
MAY_REPEAT = {"Unknown", "DoneButNotRecorded"}
"""Reasons of dead letters whose effect may have happened."""
CLAIMED = {"Failed", "Abandoned", "FollowUpRefused", *MAY_REPEAT}
"""Reasons of dead letters that had a claim."""
COUNTED = "MaxDeliveryCountExceeded"
"""The broker's word for a message that it delivered as often as it may, which is no reason."""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter with what its claim knows of it."""

    dead: Dead
    key: str
    """Empty when it has none that can be read."""
    row: MessageRow | None

    @property
    def reason(self) -> str:
        """A short name."""
        return self.dead.reason

    @property
    def description(self) -> str:
        """What happened."""
        return self.dead.description


def view(registry: Registry, handler: Handler, dead: Dead, *, max_body: int = sys.maxsize) -> DeadLetterView:
    """A dead letter with its claim; one call.

    It may not say why it is there: another sender's on a Storage queue has no room for that, and the Functions host
    does not know. Then that is judged once more, from its body, which may have `max_body` bytes, and its claim.
    """
    told = dead.reason not in ("", COUNTED)
    try:
        prepared = prepare(handler, dead.delivery, sys.maxsize if told else max_body)
    except PermanentError as bad:
        reason = getattr(bad, "reason", type(bad).__name__)
        return DeadLetterView(dead if told else replace(dead, reason=reason, description=str(bad)), "", None)
    key = prepared.message.key
    read = registry.table.get(*place(registry.namespace, handler.entity, handler.name, key))
    row = None if read is None else decode_message(read)
    if not told:
        reason, description = _judged(row, prepared.fingerprint)
        dead = replace(dead, reason=reason, description=description or dead.description)
    return DeadLetterView(dead, key, row)


def _judged(row: MessageRow | None, fingerprint: str) -> tuple[str, str]:
    """What the claim tells of a message that was put aside without a reason."""
    if row is None:
        return COUNTED, ""
    if fingerprint != row.fingerprint:
        name = "Failed" if fingerprint in row.superseded else "KeyReused"
        return name, f"its key came with another body too (message {row.message_id}, {row.state})"
    match row.state:
        case State.UNKNOWN:
            return "Unknown", row.reason
        case State.FAILED:
            gone = "Abandoned" if row.abandoned >= MAX_ABANDONED else "Failed"
            return row.dead_as or gone, row.reason
        case State.DONE:
            return "Done", f"it had its effect at {to_text(row.finished_at)}, and could not be completed"
    return COUNTED, row.reason


def replay(
    registry: Registry,
    sender: Sender,
    handler: Handler,
    letters: DeadLetters,
    dead: Dead,
    *,
    from_scratch: bool = False,
) -> str:
    """Send a taken dead letter through once more; the id it goes under.

    First the claim is reopened, then the message sent, then the dead letter removed: whatever dies in between,
    the message is still there, and the claim lets it have one effect.

    Raises:
        StoreError: Its claim says that it is done, so replaying it would change nothing; or the claim is gone, and with
            it what was done already, unless that is to be done `from_scratch`.
    """
    delivery = dead.delivery
    generation = _reopen(registry, handler, dead, from_scratch=from_scratch)
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


def may_have_happened(registry: Registry, handler: Handler, dead: Dead) -> bool:
    """Whether its effect may have happened, and nobody knows."""
    one = view(registry, handler, dead)
    return one.reason in MAY_REPEAT and (one.row is None or one.row.state is not State.DONE)


def let_expire(registry: Registry, handler: Handler, dead: Dead) -> None:
    """Its dead letter is removed: what is known of a message that failed need not be kept for ever any more."""
    try:
        key = read_key(handler, Message(handler, dead.delivery))
    except PermanentError:
        return
    partition, row_key = place(registry.namespace, handler.entity, handler.name, key)
    read = registry.table.get(partition, row_key)
    row = None if read is None else decode_message(read)
    if read is None or row is None or row.state not in (State.FAILED, State.UNKNOWN):
        return
    kept = registry.clock.now() + timedelta(seconds=handler.retention)
    with suppress(ConflictError):  # somebody has a use for it
        registry.table.commit(partition, [Replace(row_key, encode(replace(row, expires_at=kept)), read.etag)])


def _had_a_claim(registry: Registry, handler: Handler, dead: Dead) -> bool:
    """Whether a claim must have been made that is no longer there."""
    came = dead.delivery.enqueued_at
    old = came is not None and registry.clock.now() - came > timedelta(seconds=handler.retention)
    return old or dead.reason in CLAIMED


def _reopen(registry: Registry, handler: Handler, dead: Dead, *, from_scratch: bool) -> int:
    """The claim's new generation, or 0 when there is no claim to reopen."""
    message = Message(handler, dead.delivery)
    try:
        key, told = read_key(handler, message), body_print(handler, message)
    except PermanentError:
        return 0  # it never had one; it is judged anew, perhaps by a corrected handler
    partition, row_key = place(registry.namespace, handler.entity, handler.name, key)
    for _ in range(TRIES):
        read = registry.table.get(partition, row_key)
        if read is None and not from_scratch and _had_a_claim(registry, handler, dead):
            raise StoreError(
                f"Handler {handler.name}, message {dead.delivery.message_id}: the claim of key {key!r} is gone, and "
                f"with it how far it had come: a replay would begin from nought and send its follow-ups again. If "
                f"that may be, add --from-scratch."
            )
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
