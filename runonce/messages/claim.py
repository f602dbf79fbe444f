"""A message's claim: taken by whoever is first, kept alive while it is worked on, finished once.

Every transition is conditional on the row being as it was, so a paused owner that wakes up after a takeover
changes nothing, and rows it commits with its claim are rolled back with it.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runonce.errors import (
    AlreadyRecordedError,
    ConflictError,
    Fenced,
    InputError,
    LeaseLost,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.commit import commit_surely
from runonce.messages.plan import Arrival, Verdict, decide, finished, first
from runonce.messages.rows import MessageRow, State, decode_message, effect_key, place
from runonce.stores.columns import column_problem, encode
from runonce.stores.protocols import Insert, Replace, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.stores.protocols import Value
    from runonce.transports.settlement import Settlement

TRIES = 6
MARGIN = 0.2
"""Part of a claim's lease before its end in which its owner no longer trusts it."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a claim needs to know of a delivery."""

    key: str
    message_id: str
    fingerprint: str
    redelivered: bool
    reschedules: int
    reconcile: Callable[[MessageRow], bool | None] | None = None


def claim_message(
    registry: Registry, handler: Handler, delivered: Delivered, lease: int
) -> MessageClaim | tuple[Settlement, MessageRow | None]:
    """Claim a message, or how it is to be settled instead, with its row.

    One call on a first delivery (insert, for mostly nobody was there), one for a redelivery of finished work
    (read first).

    Raises:
        StoreUnavailableError: The table did not answer. Nothing may run.
    """
    partition, row_key = place(registry.namespace, handler.entity, handler.name, delivered.key)
    owner = str(uuid.uuid4())
    started = registry.clock.elapsed()
    arrival = Arrival(
        owner=owner,
        host=registry.host,
        now=registry.clock.now(),
        message_id=delivered.message_id,
        fingerprint=delivered.fingerprint,
        lease=lease,
        reschedules=delivered.reschedules,
    )
    read: Row | None = None
    look = delivered.redelivered
    failure: StoreError | None = None
    for _ in range(TRIES):
        try:
            if look:
                read = registry.table.get(partition, row_key)
            verdict = _verdict(handler, delivered, read, arrival)
            if isinstance(verdict, MessageRow):  # ours already: an earlier try was carried out
                return MessageClaim(
                    registry, handler, partition, row_key, verdict, read.etag if read else "", started
                )
            if verdict.row is None:
                row = decode_message(read) if read is not None else None
                return verdict.settlement or _never(), row
            row = replace(verdict.row, write_id=uuid.uuid4().hex)
            write = Replace(row_key, encode(row), read.etag) if read else Insert(row_key, encode(row))
            etag = registry.table.commit(partition, [write])[0]
        except ConflictError as error:
            look, failure = True, error
        except StoreUnavailableError as error:
            look, failure = True, error
        else:
            if verdict.settlement is not None:
                return verdict.settlement, row
            return MessageClaim(registry, handler, partition, row_key, row, etag, started)
    raise StoreUnavailableError(f"Handler {handler.name}, message {delivered.message_id}: {failure}")


def _verdict(
    handler: Handler, delivered: Delivered, read: Row | None, arrival: Arrival
) -> Verdict | MessageRow:
    if read is None:
        return Verdict(first(handler, delivered.key, arrival))
    row = decode_message(read)
    if row.owner == arrival.owner and row.state is State.CLAIMED:
        return row
    return decide(handler, row, read, arrival, delivered.reconcile)


def _never() -> Settlement:
    raise AssertionError("a verdict that changes no row settles the message")


class MessageClaim:
    """A message that is ours, until it is finished, given back, or taken over."""

    def __init__(
        self,
        registry: Registry,
        handler: Handler,
        partition: str,
        row_key: str,
        row: MessageRow,
        etag: str,
        started: float,
    ) -> None:
        self.row = row
        self._registry = registry
        self._handler = handler
        self._partition = partition
        self._row_key = row_key
        self._etag = etag
        self._lock = threading.Lock()
        self._lost: LeaseLost | None = None
        self._let_go = False
        self._trust(started)

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
        """Keep it alive no longer: if it could not be finished, it ends by itself and somebody else takes it over."""
        self._let_go = True

    def check(self) -> None:
        """Return if the claim is held.

        Raises:
            LeaseLost: It is not.
        """
        if not self.held:
            raise self._lost or LeaseLost(
                f"Handler {self._handler.name}, message {self.row.message_id}: its claim could not be kept alive."
            )

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
                    self._etag = self._registry.table.commit(
                        self._partition, [Replace(self._row_key, encode(self.row), self._etag)]
                    )[0]
                except ConflictError:
                    self._read_back(
                        ""
                    )  # raises if somebody else has it; else an earlier beat's reply was lost
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
        outbox: Sequence[Mapping[str, Any]] = (),
        follow_ups: int = 0,
    ) -> None:
        """Keep a checkpoint, and the follow-ups of the work it stands for; raises as `done`."""
        self._commit(
            lambda row: replace(
                row,
                checkpoint=checkpoint,
                progress=dict(progress),
                outbox=tuple(outbox),
                follow_ups=follow_ups,
            )
        )
        self.check()  # a handler that was paused meanwhile must not go on

    def done(
        self,
        *,
        result: str = "",
        outbox: Sequence[Mapping[str, Any]] = (),
        effects: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> None:
        """Mark the message done, and write the handler's rows with it: all or nothing.

        Being too late is no reason to refuse: as long as nobody else has taken the message over, which the
        table tells, its effect is recorded rather than repeated.

        Raises:
            LeaseLost, Fenced: The message is somebody else's by now; nothing was written.
            StoreUnavailableError: The table did not answer for a minute.
        """
        now = self._registry.clock.now()
        self._commit(
            lambda row: replace(
                finished(self._handler, row, State.DONE, now), result=result, outbox=tuple(outbox)
            ),
            effects or {},
        )

    def release(self, retry_at: datetime | None, reason: str, *, failed: bool, error: str = "") -> None:
        """Give the message back, to be claimed again from `retry_at`; raises as `done`."""
        self._commit(
            lambda row: replace(
                row,
                state=State.RELEASED,
                retry_at=retry_at,
                reason=reason,
                error=error,
                failures=row.failures + failed,
            )
        )

    def fail(self, reason: str, error: str = "") -> None:
        """Mark the message failed for good; raises as `done`."""
        now = self._registry.clock.now()
        self._commit(
            lambda row: replace(
                finished(self._handler, row, State.FAILED, now, reason),
                error=error,
                failures=row.failures + 1,
            )
        )

    def _commit(
        self,
        change: Callable[[MessageRow], MessageRow],
        effects: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> None:
        write_id = uuid.uuid4().hex
        inserts = [
            Insert(effect_key(self._row_key, name), {"name": name, "key": self.row.key, **values})
            for name, values in (effects or {}).items()
        ]

        def changed() -> MessageRow:
            return replace(change(self.row), write_id=write_id)

        def refused(error: ConflictError) -> None:
            if error.exists:
                name = list(effects or {})[error.index - 1]
                raise AlreadyRecordedError(
                    f"Handler {self._handler.name}, message {self.row.message_id}: it committed a row {name!r} before."
                ) from error

        with self._lock:
            if self.row.state is not State.CLAIMED:
                raise InputError(
                    f"Handler {self._handler.name}, message {self.row.message_id}: it is {self.row.state} already, so "
                    f"nothing more can be written with it; let message.commit be the handler's last step."
                )
            started = self._registry.clock.elapsed()
            after: MessageRow | None = None

            def build() -> list[Insert | Replace]:
                nonlocal after
                after = changed()
                return [Replace(self._row_key, encode(after), self._etag), *inserts]

            etags = commit_surely(
                self._registry.table,
                self._partition,
                self._registry.clock,
                check=self._check_not_taken,
                build=build,
                read_back=lambda: self._read_back(write_id),
                refused=refused,
            )
            if etags is not None and after is not None:
                self.row, self._etag = after, etags[0]
                self._trust(started)

    def _check_not_taken(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _read_back(self, write_id: str) -> bool:
        """Take over the row as it is; True when nothing is left to write.

        That is when this very write had been carried out, or an earlier one that finished the claim, whose
        reply never came.
        """
        read = self._registry.table.get(self._partition, self._row_key)
        row = None if read is None else decode_message(read)
        if read is None or row is None or row.owner != self.row.owner or row.epoch != self.row.epoch:
            who = "nobody" if row is None else f"{row.host} with epoch {row.epoch}"
            self._lost = LeaseLost(
                f"Handler {self._handler.name}, message {self.row.message_id} is {who}'s now."
            )
            raise Fenced(
                f"Handler {self._handler.name}, message {self.row.message_id}: epoch {self.row.epoch} is older than "
                f"what {who} holds; the write was refused."
            )
        self.row, self._etag = row, read.etag
        return row.write_id == write_id or row.state is not State.CLAIMED


def result_text(value: Any, handler: str) -> str:
    """A handler's result as it is kept.

    Raises:
        InputError: It is not JSON, or too long.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"Handler {handler}: keep_result needs a JSON result: {error}.") from error
    if (problem := column_problem("result", text)) is not None:
        raise InputError(f"Handler {handler}: its result is too long to be kept: {problem}.")
    return text
