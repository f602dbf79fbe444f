"""What a message in hand may do, and what it has given out: its claim, its lock, its follow-ups."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runonce.errors import NotKeptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runonce.execution.blobs import Blobs
    from runonce.execution.checkpoint import Checkpoint
    from runonce.execution.log import RunLogger
    from runonce.execution.stop import StopSignal
    from runonce.messages.claim import MessageClaim
    from runonce.messages.definition import Handler


@dataclass(eq=False, slots=True)
class Rights:
    """What comes with a claim."""

    claim: MessageClaim
    stop: StopSignal
    blobs: Blobs
    checkpoint: Checkpoint
    log: RunLogger
    outbox: list[Mapping[str, Any]] = field(default_factory=list)
    """Follow-ups that are not known to be sent; begins with what is on the claim's row."""
    follow_ups: int = 0
    """How many there were so far, in this attempt and up to the checkpoint it began from."""
    in_batch: bool = False
    """Whether its handler takes a list of messages."""
    failure: Exception | None = None
    """Why a batch's function says that this message failed."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def follow_up(self, handler: Handler, body: Any, key: str | None) -> None:
        """Put a follow-up into the outbox."""
        from runonce.messages.sending import follow_up  # noqa: PLC0415 - enqueue needs this module's classes

        if self.claim.finished:
            raise NotKeptError(
                f"Handler {self.claim.row.handler}: message.enqueue came after message.commit, which sends what was "
                f"enqueued before it; swap the two."
            )
        with self.lock:
            self.outbox.append(follow_up(self.claim.row, self.follow_ups, handler, body, key))
            self.follow_ups += 1

    def sent(self, items: Iterable[Mapping[str, Any]]) -> None:
        """These, which the claim's row has, are known to be sent.

        By their ids: a row that was read back may have again what was sent, and has left the outbox, before.
        """
        ids = {item["id"] for item in items}
        with self.lock:
            self.outbox[:] = [item for item in self.outbox if item["id"] not in ids]
        self.claim.sent()

    def noted(self) -> tuple[list[Mapping[str, Any]], int]:
        """The follow-ups so far and their count, of one moment."""
        with self.lock:
            return list(self.outbox), self.follow_ups
