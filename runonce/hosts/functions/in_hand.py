"""The Storage queue messages that a worker has, written down so that they come again soon if it is killed.

The host hides what it receives for ten minutes, and nobody but a holder of its pop receipt can end that. So each
worker keeps the receipts of what it has had for a second in a row of its own, and whoever finds that such a row has
had no sign of life shows its messages again, for when their claims have ended too. Nothing is decided by that: a
message that comes once more too soon, or is done, meets its claim.

After five minutes the host hides a message anew, under a receipt that nobody is told. So before that the worker does
it itself; the host's receipt is then worth nothing, to which it says no word, and the worker deletes the message.
"""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from runonce.errors import ConflictError, StoreError, TransportError, UnreadableRowError
from runonce.messages.plan import RESOLUTION
from runonce.runs.presence import CHECK_IN, MISSED, OwnRow, partition, row_key
from runonce.stores.columns import LONGEST_COLUMN, UNREADABLE, unreadable
from runonce.stores.protocols import Delete
from runonce.transports.protocols import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.hosts.runtime import Runtime
    from runonce.stores.protocols import Row
    from runonce.transports.storage import StorageSender

log = logging.getLogger("runonce.functions")

FIRST, LAST = "hand:", "hand;"
EVERY = 1.0
"""Seconds between looks at what this worker has."""
IDLE = 60.0
"""Seconds between looks at other workers' rows while there are none."""
RENEW = 240.0
"""Seconds after which a message in hand is hidden anew; the host does it after 300."""
HIDDEN = 600.0
"""Seconds it is hidden for, as by the host."""


@dataclass(eq=False, slots=True)
class _Held:
    queue: str
    receipt: Receipt
    renew_at: float

    @property
    def line(self) -> str:
        return f"{self.queue} {self.receipt.message_id} {self.receipt.pop_receipt}"


class InHand:
    """What this worker has, and the rows of all workers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._registry = runtime, runtime.runs
        # On Azure a host is called after its instance, which several workers have, at once and one after the other.
        self._row = OwnRow(self._registry, row_key(FIRST, f"{runtime.host} {uuid.uuid4()}"))
        self._lock = threading.Lock()
        self._have: set[_Held] = set()
        self._before: set[_Held] = set()
        """What it had at the last look."""
        self._written: set[str] = set()
        self._ended = threading.Event()

    @contextmanager
    def having(self, queue: str, receipt: Receipt | None) -> Iterator[None]:
        """A message is in hand for as long as the block runs."""
        if receipt is None:
            yield
            return
        held = _Held(queue, receipt, self._runtime.clock.elapsed() + RENEW)
        with self._lock:
            self._have.add(held)
        try:
            yield
        finally:
            with self._lock:
                self._have.discard(held)

    def run(self) -> None:
        """Keep the row, and look after those of others, until `leave`."""
        clock = self._runtime.clock
        beat_at = look_at = clock.elapsed()
        while not clock.wait(self._ended, EVERY):
            now = clock.elapsed()
            try:
                if self.keep(alive=now >= beat_at):
                    beat_at = now + CHECK_IN
                if now >= look_at:
                    look_at = now + (CHECK_IN if self.look() else IDLE)
                self.renew()
            except (StoreError, TransportError) as error:
                log.debug("messages in hand: trying again: %s", error)

    def leave(self) -> None:
        """Take the row away: what this worker had is settled, or sent back.

        Raises:
            StoreError: It stays, and its messages may come once more, which harms nothing.
        """
        self._ended.set()
        self._row.remove()

    def keep(self, *, alive: bool) -> bool:
        """Write the row where what it says has changed, or as a sign of life; whether it was written."""
        with self._lock:
            have = set(self._have)
        lasting, self._before = {held.line for held in have & self._before}, have
        if lasting == self._written and not (lasting and alive):
            return False
        if lasting:
            lease = self._runtime.settings.claim_lease
            if not self._row.write({"claim_lease": lease, "messages": "\n".join(_fitting(lasting))}):
                return False
        else:
            self._row.remove()
        self._written = lasting
        return True

    def renew(self) -> None:
        """Hide anew what the host would hide soon. Raises TransportError: it is tried again."""
        now = self._runtime.clock.elapsed()
        with self._lock:
            due = [held for held in self._have if now >= held.renew_at]
        for held in due:
            with held.receipt.lock:  # what is being settled has its latest receipt, or waits for it
                if held.receipt.is_let_go:
                    continue
                held.renew_at = now + CHECK_IN
                latest = self._sender.show(held.queue, held.receipt, HIDDEN)
                held.renew_at = now + RENEW if latest else float("inf")

    @property
    def _sender(self) -> StorageSender:
        return cast("StorageSender", self._runtime.sender)

    def look(self) -> bool:
        """Show again what workers had that are gone; whether other workers have anything."""
        at = partition(self._registry.namespace)
        others = [row for row in self._registry.table.scan(at, FIRST, LAST) if row.key != self._row.key]
        for row in others:
            if row.read_at - row.timestamp > MISSED:
                try:
                    self._show_again(row)
                except UnreadableRowError as error:
                    log.warning(
                        "messages in hand of a worker that is gone come when the host lets them: %s", error
                    )
                    continue
                with suppress(ConflictError):  # another worker did the same, or that one lives
                    self._registry.table.commit(at, [Delete(row.key, row.etag)])
        return bool(others)

    def _show_again(self, row: Row) -> None:
        silent = (row.read_at - row.timestamp).total_seconds()
        try:
            wait = max(0.0, int(row.values["claim_lease"]) + RESOLUTION - silent)
            entries = []
            for entry in str(row.values["messages"]).splitlines():
                queue, message_id, pop_receipt = entry.split(" ")
                entries.append((queue, Receipt(message_id, pop_receipt)))
        except UNREADABLE as error:
            raise unreadable(row, error) from error
        shown = sum(self._sender.show(queue, receipt, wait) for queue, receipt in entries)
        log.warning(
            "a worker that had %d messages has not been heard of for %.0f s: %d of them come again in %.0f s",
            *(len(entries), silent, shown, wait),
        )


def _fitting(entries: set[str]) -> Iterator[str]:
    """As many of them as a row takes, which are some hundreds."""
    left = LONGEST_COLUMN
    for entry in sorted(entries):
        left -= len(entry) + 1
        if left < 0:
            return
        yield entry
