"""Consuming one handler's messages: through one inbox, or side by side through several where each is for one thread."""

from __future__ import annotations

import logging
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING

from runonce.errors import TransportRefusedError
from runonce.execution.threads import in_thread
from runonce.execution.workers import Workers
from runonce.messages import lane
from runonce.messages.lane import Lane, Tally

if TYPE_CHECKING:
    from runonce.errors import TransportError
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.transports.protocols import Transport

log = logging.getLogger("runonce.consumer")

ONE_INBOX = 8
"""Messages at a time that go through one inbox which is for one thread: it settles them one after the other."""


class Consumer:
    """Consumes a handler's messages until it is told to stop, or until the queue is empty."""

    def __init__(self, deliverer: Deliverer, transport: Transport, handler: Handler) -> None:
        self._deliverer = deliverer
        self._transport = transport
        self._handler = handler
        self._tally = Tally(deliverer.clock, None)

    @property
    def trouble(self) -> TransportError | None:
        """Why the latest receive failed; None when it did not."""
        return self._tally.trouble

    def run(self, *, max_messages: int | None = None, max_wait: float | None = None) -> int:
        """Consume; the number of messages settled.

        Args:
            max_messages: Stop after receiving so many.
            max_wait: Stop when nothing has come for so many seconds; None waits for ever.

        Raises:
            TransportRefusedError: Its messages can never be received as things are; what was begun is settled.
        """
        self._tally = Tally(self._deliverer.clock, max_messages)
        name = f"runonce-{self._handler.name}"
        workers = Workers(name)
        first, *others = self._lanes(workers, max_messages)
        ends = [in_thread(partial(other.run, max_wait), name) for other in others]
        try:
            first.run(max_wait)
        finally:
            wait(ends)
            workers.close()
        for end in ends:
            end.result()
        return self._tally.handled

    def _lanes(self, workers: Workers, max_messages: int | None) -> list[Lane]:
        handler, inbox = self._handler, self._transport.inbox(self._handler)
        wanted = handler.concurrency if max_messages is None else min(handler.concurrency, max_messages)
        count = 1 if inbox.any_thread else max(1, -(-wanted // ONE_INBOX))
        share, more = divmod(handler.concurrency, count)
        return [
            Lane(
                self._deliverer,
                handler,
                self._transport.inbox(handler) if n else inbox,
                share + (n < more),
                self._tally,
                workers,
            )
            for n in range(count)
        ]

    def run_for_ever(self) -> None:
        """Consume until the host stops, beginning anew after whatever goes wrong with the broker."""
        clock, stopping = self._deliverer.clock, self._deliverer.stop.event
        rest = lane.REST
        while not stopping.is_set():
            try:
                self.run()
            except TransportRefusedError as refused:
                log.error("handler %s: %s", self._handler.name, refused)  # noqa: TRY400 - its text has the remedy
            except Exception:
                log.exception("handler %s: its consumer failed and starts again", self._handler.name)
            rest = lane.REST if self._tally.handled else min(lane.LONGEST_REST, rest * 2)
            clock.wait(stopping, rest)
