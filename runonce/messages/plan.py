"""What a delivery of a message means, decided from its claim row alone. Pure: no I/O, and no code of the user's.

Whether another holder's claim has ended is judged by the server's clock on both sides: when it last wrote the
row (`Timestamp`), and when it answered the read (`Date`). Only the wait for a retry goes by this host's clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from runonce.execution.options import MAX_ABANDONED
from runonce.messages.backoff import backoff
from runonce.messages.rows import MessageRow, State, anew, closed
from runonce.stores.columns import to_text
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from runonce.execution.options import OnAbandoned
    from runonce.stores.protocols import Row

RESOLUTION = 2.0
"""Seconds added to a lease before it counts as ended: the `Date` header counts whole ones."""
EARLY = timedelta(seconds=2)
"""How early a scheduled copy may arrive: brokers' clocks and ours differ a little."""
OF_BYTES = re.compile(r"[0-9a-f]{32}")
"""A fingerprint as older versions made it, of a body's bytes: it tells nothing about one of its JSON."""


class Claimant(Protocol):
    """What claims are made for: a handler, or a function that is called once for each key."""

    @property
    def name(self) -> str:
        """What the claims are filed under."""

    @property
    def entity(self) -> str:
        """Where what is claimed comes from."""

    @property
    def on_abandoned(self) -> OnAbandoned:
        """What becomes of what a host died on."""

    @property
    def retention(self) -> float:
        """Seconds a finished claim is kept."""

    def about(self, message_id: str) -> str:
        """What an error about one message or call begins with."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery, as far as the decision needs it."""

    holder: str
    host: str
    now: datetime
    message_id: str
    fingerprint: str
    lease: int
    reschedules: int
    expires_at: datetime | None = None
    """When its claim is forgotten though nobody finishes it; None: never, for its message comes again."""


@dataclass(frozen=True, slots=True)
class Claimable:
    """The message is ours once its row is so."""

    row: MessageRow


@dataclass(frozen=True, slots=True)
class Settle:
    """The message is not to be handled."""

    settlement: Settlement
    row: MessageRow | None = None
    """What its row becomes first; None: it stays as it is."""
    asks: bool = False
    """Whether knowing if the effect happened would change this."""


Verdict = Claimable | Settle


def first(handler: Claimant, key: str, arrival: Arrival) -> MessageRow:
    """The row of a message nobody has claimed yet."""
    row = MessageRow(handler=handler.name, entity=handler.entity, key=key)
    return _claimed(row, arrival)


def decide(  # noqa: PLR0911 - one answer for each state
    handler: Claimant,
    row: MessageRow,
    read: Row,
    arrival: Arrival,
    happened: bool | None = None,
) -> Verdict:
    """What a delivery means when the message was claimed before.

    `happened` says, where it is known, whether an attempt whose host died had its effect.
    """
    if row.fingerprint != arrival.fingerprint and not OF_BYTES.fullmatch(row.fingerprint):
        return _changed(handler, row, arrival)
    match row.state:
        case State.DONE:
            return Settle(Complete(duplicate=True))
        case State.FAILED:
            return Settle(DeadLetter(row.dead_as or "Failed", row.reason))
        case State.UNKNOWN:
            return _reconciled(handler, row, arrival, happened)
        case State.RELEASED:
            if row.retry_at is not None and row.retry_at - arrival.now > EARLY:
                wait = (row.retry_at - arrival.now).total_seconds()
                return Settle(Reschedule(wait, f"its retry is due at {to_text(row.retry_at)}"))
            return Claimable(_claimed(row, arrival))
        case State.CLAIMED:
            if not expired(row, read):
                return Settle(Reschedule(backoff(arrival.reschedules), f"in progress on {row.host}"))
            return _abandoned(handler, row, arrival, happened)


def expired(row: MessageRow, read: Row) -> bool:
    """Whether the claim's holder has given no sign of life for the length of its lease."""
    return (read.read_at - read.timestamp).total_seconds() > row.lease + RESOLUTION


def _claimed(row: MessageRow, arrival: Arrival) -> MessageRow:
    return replace(
        row,
        state=State.CLAIMED,
        attempts=closed(row) if row.attempt else (),
        reason="",
        error="",
        holder=arrival.holder,
        token=row.token + 1,
        attempt=row.attempt + 1,
        fingerprint=arrival.fingerprint,
        message_id=arrival.message_id,
        host=arrival.host,
        lease=arrival.lease,
        started_at=arrival.now,
        finished_at=None,
        retry_at=None,
        expires_at=arrival.expires_at,
    )


def _changed(handler: Claimant, row: MessageRow, arrival: Arrival) -> Verdict:
    """A message of the same key with another body: the correction of one that failed, or a key used twice."""
    if row.state is State.FAILED and arrival.fingerprint not in row.superseded:
        return Claimable(_claimed(anew(row, arrival.fingerprint, arrival.now), arrival))
    # A body that a correction has replaced must not take turns with it as each of the two is redelivered.
    return Settle(
        DeadLetter(
            "KeyReused",
            f"{handler.about(arrival.message_id)}: its key came before with another body (message "
            f"{row.message_id}, {row.state}). One key means one effect: give a changed message a key of its own (the "
            f'number 1 and the text "1" are one key).',
        ),
    )


def _abandoned(handler: Claimant, row: MessageRow, arrival: Arrival, happened: bool | None) -> Verdict:
    """The holder died: take over, or find out first whether the effect happened."""
    # The row changes hands even where nobody handles the message now, so that the holder, should it only have
    # been paused, can no longer write.
    row = replace(row, abandoned=row.abandoned + 1, holder=arrival.holder)
    if handler.on_abandoned == "hold":
        return _reconciled(handler, row, arrival, happened)
    return _again(handler, row, arrival)


def _again(handler: Claimant, row: MessageRow, arrival: Arrival) -> Verdict:
    """Handle it once more, unless that has killed too many hosts."""
    if row.abandoned - row.survived < MAX_ABANDONED:
        return Claimable(_claimed(row, arrival))
    reason = (
        f"{handler.about(arrival.message_id)}: its host died during {row.abandoned} attempts; the "
        f"message itself may be what kills it. Correct the handler, then `runonce dead-letters replay {handler.name}`."
    )
    failed = finished(handler, row, State.FAILED, arrival.now, reason)
    return Settle(DeadLetter("Abandoned", reason), failed)


def _reconciled(handler: Claimant, row: MessageRow, arrival: Arrival, happened: bool | None) -> Verdict:
    """Where nobody knows whether the effect happened, the message is unknown."""
    if happened is True:
        done = finished(handler, row, State.DONE, arrival.now, "reconciled: the effect had happened")
        return Settle(Complete(), done)
    if happened is False:
        return _again(handler, row, arrival)
    reason = (
        f"{handler.about(arrival.message_id)}: its host {row.host} died while handling it, so nobody "
        f"knows whether it took effect. Find out, then `runonce dead-letters replay {handler.name}` or purge it."
    )
    if row.state is State.UNKNOWN:
        return Settle(DeadLetter("Unknown", reason), asks=True)
    return Settle(DeadLetter("Unknown", reason), replace(row, state=State.UNKNOWN, reason=reason), asks=True)


def finished(handler: Claimant, row: MessageRow, state: State, now: datetime, reason: str = "") -> MessageRow:
    """The row when nothing more is to be done about the message.

    A failed one is kept for as long as its dead letter may be: until an operator replays or purges that.
    """
    kept = row.expires_at if state is State.FAILED else now + timedelta(seconds=handler.retention)
    return replace(row, state=state, reason=reason, finished_at=now, retry_at=None, expires_at=kept)
