"""A message's claim: taken by whoever is first, kept alive while it is worked on, finished once.

Every transition is conditional on the row being as it was, so a paused holder that wakes up after a takeover
changes nothing, and rows it commits with its claim are rolled back with it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from runonce.errors import (
    ConflictError,
    Fenced,
    LeaseLost,
    NotKeptError,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.owned import Owned
from runonce.messages.plan import Arrival, Claimable, Claimant, Settle, Verdict, decide, finished, first
from runonce.messages.rows import MessageRow, State, decode_message, effect_key, place
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert, Replace, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from runonce.execution.lease import Lease
    from runonce.execution.registry import Registry
    from runonce.stores.protocols import Value
    from runonce.transports.settlement import Settlement

TRIES = 6
MARGIN = 0.2
"""Part of a claim's lease before its end in which its holder no longer trusts it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a claim needs to know of a delivery."""

    key: str
    message_id: str
    fingerprint: str
    redelivered: bool
    reschedules: int
    reconcile: Callable[[MessageRow], bool | None] | None = None
    expires_at: datetime | None = None
    """As `Arrival.expires_at`."""
    holder: str = ""
    """Of this delivery, where it may be tried before it is claimed by itself; empty: a fresh one."""


class Settled(NamedTuple):
    """A message that is not to be handled, and its claim's row where that was read."""

    settlement: Settlement
    row: MessageRow | None
    written: bool = False
    """Whether this delivery has changed the row."""


def claim_message(
    registry: Registry, handler: Claimant, delivered: Delivered, lease: int
) -> MessageClaim | Settled:
    """Claim a message, or how it is to be settled instead.

    One call on a first delivery (insert, for mostly nobody was there), one for a redelivery of finished work
    (read first).

    Raises:
        StoreUnavailableError: The table did not answer. Nothing may run.
    """
    at = place(registry.namespace, handler.entity, handler.name, delivered.key)
    arrival = arrival_of(registry, delivered, lease)
    started = registry.clock.elapsed()
    judge = _Judge(handler, delivered, arrival)
    read: Row | None = None
    look = delivered.redelivered
    failure: StoreError | None = None
    taken_over: float | None = None
    for _ in range(TRIES):
        try:
            if look:
                read = registry.table.get(*at)
            row = None if read is None else decode_message(read)
            if read and row and row.holder == arrival.holder and row.state is State.CLAIMED:
                # An earlier try of ours.
                return MessageClaim(registry, handler, at, row, read.etag, started, taken_over)
            taken_over = _taken_over(row, read)
            verdict = judge(row, read)
            if verdict.row is None:
                return Settled(verdict.settlement, row)
            after = replace(verdict.row, write_id=arrival.holder)
            write = Replace(at[1], encode(after), read.etag) if read else Insert(at[1], encode(after))
            etag = registry.table.commit(at[0], [write])[0]
        except (ConflictError, StoreUnavailableError) as error:
            look, failure = True, error
        else:
            if isinstance(verdict, Claimable):
                return MessageClaim(registry, handler, at, after, etag, started, taken_over)
            return Settled(verdict.settlement, after, written=True)
    raise StoreUnavailableError(f"{handler.about(delivered.message_id)}: {failure}")


def arrival_of(registry: Registry, delivered: Delivered, lease: int) -> Arrival:
    """The delivery as it comes to this host now."""
    return Arrival(
        holder=delivered.holder or str(uuid.uuid4()),
        host=registry.host,
        now=registry.clock.now(),
        message_id=delivered.message_id,
        fingerprint=delivered.fingerprint,
        lease=lease,
        reschedules=delivered.reschedules,
        expires_at=delivered.expires_at,
    )


def _taken_over(row: MessageRow | None, read: Row | None) -> float | None:
    """Seconds since its holder's last sign of life, where it is still claimed."""
    if row is None or read is None or row.state is not State.CLAIMED:
        return None
    return (read.read_at - read.timestamp).total_seconds()


class _Judge:
    """Decides, and asks the handler's hook once for each holder that died, however often the row is read."""

    def __init__(self, handler: Claimant, delivered: Delivered, arrival: Arrival) -> None:
        self._handler = handler
        self._delivered = delivered
        self._arrival = arrival
        self._answers: dict[int, bool | None] = {}

    def __call__(self, row: MessageRow | None, read: Row | None) -> Verdict:
        if row is None or read is None:
            return Claimable(first(self._handler, self._delivered.key, self._arrival))
        verdict = decide(self._handler, row, read, self._arrival, self._answers.get(row.token))
        hook = self._delivered.reconcile
        if (
            isinstance(verdict, Settle)
            and verdict.asks
            and hook is not None
            and row.token not in self._answers
        ):
            self._answers[row.token] = hook(row)
            return self(row, read)
        return verdict


class MessageClaim(Owned[tuple[MessageRow]]):
    """A message that is ours, until it is finished, given back, or taken over."""

    def __init__(
        self,
        registry: Registry,
        handler: Claimant,
        place: tuple[str, str],
        row: MessageRow,
        etag: str,
        started: float,
        taken_over: float | None = None,
    ) -> None:
        partition, key = place
        super().__init__(registry, partition, (key,), (row,), (etag,))
        self._handler = handler
        self._lost: LeaseLost | None = None
        self._let_go = False
        self.taken_over = taken_over
        """Seconds since the last sign of life of a holder that died, where this claim follows it."""
        self.lock: Lease | None = None
        """What must be held too while the handler works; its end is recorded without it."""
        self._trust(started)

    @property
    def who(self) -> str:
        """What an error about it begins with."""
        return self._handler.about(self.row.message_id)

    @property
    def row(self) -> MessageRow:
        """The row as it was last written or read."""
        return self._rows[0]

    def _trust(self, started: float) -> None:
        self.trusted_until = started + self.row.lease * (1 - MARGIN)

    @property
    def held(self) -> bool:
        """Whether the claim can be trusted at this instant."""
        return self._lost is None and self._registry.clock.elapsed() < self.trusted_until

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be written."""
        return self._let_go or self.row.state is not State.CLAIMED

    def let_go(self) -> None:
        """Keep it alive no longer: if it could not be finished, it ends by itself and somebody else takes it over.

        Nothing is written with it any more.
        """
        self._let_go = True

    def check(self) -> None:
        """Return if the claim is held, and the handler's lock.

        Raises:
            LeaseLost: One of them is not.
        """
        if self._let_go or not self.held:
            raise self._lost or LeaseLost(f"{self.who}: its claim could not be kept alive.")
        if self.lock is not None:
            self.lock.check()

    def sent(self) -> None:
        """The follow-ups on the row are sent: they leave it with its next write."""
        with self._lock:
            self._rows = (replace(self.row, outbox=()),)

    def beat(self) -> None:
        """Show a sign of life: the same row again, whose timestamp is what others judge by.

        Raises:
            Fenced: Somebody else has it.
            StoreUnavailableError: No answer; the claim is still ours until its trusted time ends.
        """
        if not self._lock.acquire(blocking=False):
            return  # it is being written right now, which is a sign of life too
        try:
            for _ in range(2):
                if self.finished or not self.held:
                    return
                started = self._registry.clock.elapsed()
                try:
                    self._write(self._rows, [])
                except ConflictError:
                    self._read_back()  # raises if somebody else has it; else an earlier beat's reply was lost
                else:
                    self._trust(started)
                    return
        finally:
            self._lock.release()

    def save(
        self,
        checkpoint: str,
        progress: Mapping[str, int],
        *,
        steps: Mapping[str, Any] | None = None,
        outbox: Sequence[Mapping[str, Any]] = (),
        follow_ups: int = 0,
    ) -> None:
        """Keep a checkpoint, steps' results (None: as they are), and the follow-ups so far; raises as `done`."""

        def kept(row: MessageRow) -> MessageRow:
            after = replace(
                row,
                checkpoint=checkpoint,
                progress=dict(progress),
                steps=row.steps if steps is None else dict(steps),
            )
            # With progress the deaths count anew: what kills a host is not what lies behind it.
            survived = row.survived if after == row else row.abandoned
            return replace(after, survived=survived, outbox=tuple(outbox), follow_ups=follow_ups)

        self._change(kept)
        self.check()  # a handler that was paused meanwhile must not go on

    def done(
        self,
        *,
        outbox: Sequence[Mapping[str, Any]] = (),
        effects: Mapping[str, Mapping[str, Value]] | None = None,
        returned: str = "",
    ) -> None:
        """Mark the message done, and write the handler's rows with it: all or nothing.

        Being too late is no reason to refuse: as long as nobody else has taken the message over, which the
        table tells, its effect is recorded rather than repeated.

        Raises:
            LeaseLost, Fenced: The message is somebody else's by now; nothing was written.
            StoreUnavailableError: The table did not answer for a minute.
        """
        self._change(self.as_done(outbox, returned), effects or {})

    def as_done(
        self, outbox: Sequence[Mapping[str, Any]], returned: str = ""
    ) -> Callable[[MessageRow], MessageRow]:
        """How the row changes when the message is done now."""
        now = self._registry.clock.now()
        return lambda row: replace(
            finished(self._handler, row, State.DONE, now), outbox=tuple(outbox), returned=returned
        )

    def release(self, retry_at: datetime | None, reason: str, *, failed: bool, error: str = "") -> None:
        """Give the message back, to be claimed again from `retry_at`; raises as `done`."""
        now = self._registry.clock.now()
        self._change(
            lambda row: replace(
                row,
                state=State.RELEASED,
                finished_at=now,
                retry_at=retry_at,
                reason=reason,
                error=error,
                failures=row.failures + failed,
            )
        )

    def hold(self, reason: str) -> None:
        """Mark the message unknown: whether it took effect is for its reconcile hook or a person to say."""
        self._change(lambda row: replace(row, state=State.UNKNOWN, reason=reason))

    def fail(self, reason: str, error: str = "", dead_as: str = "") -> None:
        """Mark the message failed for good; raises as `done`."""
        now = self._registry.clock.now()
        self._change(
            lambda row: replace(
                finished(self._handler, row, State.FAILED, now, reason),
                error=error,
                dead_as=dead_as,
                failures=row.failures + 1,
            )
        )

    def _change(
        self,
        change: Callable[[MessageRow], MessageRow],
        effects: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> None:
        inserts = {
            name: Insert(effect_key(self._keys[0], name), {"name": name, "key": self.row.key, **values})
            for name, values in (effects or {}).items()
        }
        with self._lock:
            self._check_right()
            if self.row.state is not State.CLAIMED:
                raise NotKeptError(
                    f"{self.who}: it is {self.row.state} already, so "
                    f"nothing more can be written with it; let message.commit be the handler's last step."
                )
            started = self._registry.clock.elapsed()
            self._commit(lambda rows: (change(rows[0]),), inserts)
            self._trust(started)

    def _check_right(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._let_go:
            self.check()
        if self.lock is not None:
            self.lock.check()

    def _is_written(self, write_id: str) -> bool:
        """Also where an earlier write, whose reply never came, has finished the claim."""
        return super()._is_written(write_id) or self.row.state is not State.CLAIMED

    def _ours(self, read: tuple[Row | None, ...]) -> tuple[MessageRow]:
        row = None if read[0] is None else decode_message(read[0])
        if row is None or row.holder != self.row.holder or row.token != self.row.token:
            who = "nobody" if row is None else f"{row.host} with token {row.token}"
            self._lost = LeaseLost(f"{self.who} is {who}'s now.")
            raise Fenced(
                f"{self.who}: token {self.row.token} is older than what {who} holds; the write was refused."
            )
        return (row,)

    def _recorded(self, key: str) -> str:
        return f"{self.who}: it committed a row {key!r} before."
