"""What a delivery of a message means, decided from its claim row alone. Pure: no I/O, no client's clock.

Whether another holder's claim has ended is judged by the server's clock on both sides: when it last wrote the
row (`Timestamp`), and when it answered the read (`Date`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from runonce.execution.options import MAX_ABANDONED
from runonce.messages.backoff import backoff
from runonce.messages.rows import MessageRow, State
from runonce.stores.columns import to_text
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.definition import Handler
    from runonce.stores.protocols import Row

RESOLUTION = 2.0
"""Seconds added to a lease before it counts as ended: the `Date` header counts whole ones."""
EARLY = timedelta(seconds=2)
"""How early a scheduled copy may arrive: brokers' clocks and ours differ a little."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery, as far as the decision needs it."""

    owner: str
    host: str
    now: datetime
    message_id: str
    fingerprint: str
    lease: int
    reschedules: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the row becomes (None: it stays), and either the claim is ours or the message is settled so."""

    row: MessageRow | None
    settlement: Settlement | None = None


def first(handler: Handler, key: str, arrival: Arrival) -> MessageRow:
    """The row of a message nobody has claimed yet."""
    row = MessageRow(handler=handler.name, entity=handler.entity, key=key)
    return _claimed(row, arrival)


def decide(  # noqa: PLR0911 - one answer for each state
    handler: Handler,
    row: MessageRow,
    read: Row,
    arrival: Arrival,
    reconcile: Callable[[MessageRow], bool | None] | None = None,
) -> Verdict:
    """What a delivery means when the message was claimed before."""
    if row.fingerprint != arrival.fingerprint:
        return Verdict(None, _reused(handler, row, arrival))
    match row.state:
        case State.DONE:
            return Verdict(None, Complete(duplicate=True))
        case State.FAILED:
            return Verdict(None, DeadLetter("Failed", row.reason))
        case State.UNKNOWN:
            return _reconciled(handler, row, arrival, reconcile)
        case State.RELEASED:
            if row.retry_at is not None and row.retry_at - arrival.now > EARLY:
                wait = (row.retry_at - arrival.now).total_seconds()
                return Verdict(None, Reschedule(wait, f"its retry is due at {to_text(row.retry_at)}"))
            return Verdict(_claimed(row, arrival))
        case State.CLAIMED:
            if not expired(row, read):
                return Verdict(None, Reschedule(backoff(arrival.reschedules), f"in progress on {row.host}"))
            return _abandoned(handler, row, arrival, reconcile)


def expired(row: MessageRow, read: Row) -> bool:
    """Whether the claim's holder has given no sign of life for the length of its lease."""
    return (read.read_at - read.timestamp).total_seconds() > row.lease + RESOLUTION


def _claimed(row: MessageRow, arrival: Arrival) -> MessageRow:
    return replace(
        row,
        state=State.CLAIMED,
        reason="",
        error="",
        owner=arrival.owner,
        epoch=row.epoch + 1,
        attempt=row.attempt + 1,
        fingerprint=arrival.fingerprint,
        message_id=arrival.message_id,
        host=arrival.host,
        lease=arrival.lease,
        started_at=arrival.now,
        finished_at=None,
        retry_at=None,
        expires_at=None,
    )


def _reused(handler: Handler, row: MessageRow, arrival: Arrival) -> DeadLetter:
    return DeadLetter(
        "KeyReused",
        f"Handler {handler.name}, message {arrival.message_id}: its key came before with another body (message "
        f"{row.message_id}, {row.state}). One key means one effect: give a changed message a key of its own.",
    )


def _abandoned(
    handler: Handler, row: MessageRow, arrival: Arrival, reconcile: Callable[[MessageRow], bool | None] | None
) -> Verdict:
    """The holder died: take over, or find out first whether the effect happened."""
    # The row changes hands even where nobody handles the message now, so that the holder, should it only have
    # been paused, can no longer write.
    row = replace(row, abandoned=row.abandoned + 1, owner=arrival.owner)
    if handler.on_abandoned == "hold":
        return _reconciled(handler, row, arrival, reconcile)
    return _again(handler, row, arrival)


def _again(handler: Handler, row: MessageRow, arrival: Arrival) -> Verdict:
    """Handle it once more, unless that has killed too many hosts."""
    if row.abandoned < MAX_ABANDONED:
        return Verdict(_claimed(row, arrival))
    reason = (
        f"Handler {handler.name}, message {arrival.message_id}: its host died during {row.abandoned} attempts; the "
        f"message itself may be what kills it. Correct the handler, then `runonce dead-letters replay {handler.name}`."
    )
    failed = finished(handler, row, State.FAILED, arrival.now, reason)
    return Verdict(failed, DeadLetter("Abandoned", reason))


def _reconciled(
    handler: Handler, row: MessageRow, arrival: Arrival, reconcile: Callable[[MessageRow], bool | None] | None
) -> Verdict:
    """Ask the handler's hook whether the effect happened; without an answer the message is unknown."""
    happened = None if reconcile is None else reconcile(row)
    if happened is True:
        done = finished(handler, row, State.DONE, arrival.now, "reconciled: the effect had happened")
        return Verdict(done, Complete())
    if happened is False:
        return _again(handler, row, arrival)
    reason = (
        f"Handler {handler.name}, message {arrival.message_id}: its host {row.host} died while handling it, so nobody "
        f"knows whether it took effect. Find out, then `runonce dead-letters replay {handler.name}` or purge it."
    )
    if row.state is State.UNKNOWN:
        return Verdict(None, DeadLetter("Unknown", reason))
    return Verdict(replace(row, state=State.UNKNOWN, reason=reason), DeadLetter("Unknown", reason))


def finished(handler: Handler, row: MessageRow, state: State, now: datetime, reason: str = "") -> MessageRow:
    """The row when nothing more is to be done about the message."""
    kept = timedelta(seconds=handler.retention)
    return replace(row, state=state, reason=reason, finished_at=now, retry_at=None, expires_at=now + kept)
