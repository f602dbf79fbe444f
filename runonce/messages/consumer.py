"""Consuming one handler's messages: one thread talks to the broker, others run the handler.

A broker's client may be for one thread, and a handler may block. So the talking thread receives what there is room
for, renews what is being worked on, and settles what the working threads are done with; where the client is for all
threads, each settles its own message.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runonce.errors import TransportError, TransportRefusedError
from runonce.execution.threads import start_thread
from runonce.execution.turns import Turns
from runonce.messages.ended import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.turns import Turn
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.transports.protocols import Inbox, Received, Transport
    from runonce.transports.settlement import Settlement

log = logging.getLogger("runonce.consumer")

IDLE_WAIT = 1.0
"""Seconds one receive waits while nothing is being worked on; a stop is noticed as late as that."""
BUSY_WAIT = 0.05
"""The same while messages are being worked on, which wait to be settled."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between receives while messages are being worked on and no others come; what is done ends a pause."""
REST, LONGEST_REST = 2.0, 30.0
"""Seconds to wait after the broker did not answer; twice as long each time, up to the second."""


@dataclass(eq=False, slots=True)
class _Job:
    received: Received
    renew_at: float
    turn: Turn
    lost: bool = False
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is renewed, and by whoever says that it is over."""


class Consumer:
    """Consumes a handler's messages until it is told to stop, or until the queue is empty."""

    def __init__(self, deliverer: Deliverer, transport: Transport, handler: Handler) -> None:
        self._deliverer = deliverer
        self._transport = transport
        self._handler = handler
        self._clock = deliverer.clock
        self._stopping = deliverer.stop.event
        self._working: set[_Job] = set()
        self._turns = Turns(handler.concurrency, deliverer.stop)
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._rest = REST
        self.handled = 0
        """Messages settled so far."""
        self.trouble: TransportError | None = None
        """Why the latest receive failed; None when it did not."""

    def run(self, *, max_messages: int | None = None, max_wait: float | None = None) -> int:
        """Consume; the number of messages settled.

        Args:
            max_messages: Stop after receiving so many.
            max_wait: Stop when nothing has come for so many seconds; None waits for ever.

        Raises:
            TransportRefusedError: Its messages can never be received as things are; what was begun is settled.
        """
        inbox = self._transport.inbox(self._handler)
        left = max_messages
        quiet_since = self._clock.elapsed()
        pause = FIRST_PAUSE
        try:
            while not self._stopping.is_set() and (left is None or left > 0):
                self._settle_done()
                self._renew_due(inbox)
                room = self._turns.free
                found = self._receive(inbox, room if left is None else min(room, left), max_wait)
                if self._stopping.is_set():
                    self._give_back(inbox, found)
                    break
                for received in found:
                    self._start(inbox, received)
                if left is not None:
                    left -= len(found)
                if found:
                    quiet_since, pause = self._clock.elapsed(), FIRST_PAUSE
                elif self._working:
                    self._wait_for_one(pause)
                    quiet_since, pause = self._clock.elapsed(), min(pause * 2, LONGEST_PAUSE)
                elif max_wait is not None and self._clock.elapsed() - quiet_since >= max_wait:
                    break
            self._drain(inbox)
        finally:
            inbox.close()
        return self.handled

    def run_for_ever(self) -> None:
        """Consume until the host stops, beginning anew after whatever goes wrong with the broker."""
        rest = REST
        while not self._stopping.is_set():
            handled = self.handled
            try:
                self.run()
            except TransportRefusedError as refused:
                log.error("handler %s: %s", self._handler.name, refused)  # noqa: TRY400 - its text has the remedy
            except Exception:
                log.exception("handler %s: its consumer failed and starts again", self._handler.name)
            rest = REST if self.handled > handled else min(LONGEST_REST, rest * 2)
            self._clock.wait(self._stopping, rest)

    def _receive(self, inbox: Inbox, room: int, max_wait: float | None) -> list[Received]:
        if room <= 0:
            return []
        wait = BUSY_WAIT if self._working else min(IDLE_WAIT, IDLE_WAIT if max_wait is None else max_wait)
        try:
            found = inbox.receive(room, wait)
        except TransportRefusedError:
            self._drain(inbox)
            raise
        except TransportError as error:
            log.warning("handler %s: the broker is out of reach, trying again: %s", self._handler.name, error)
            # What is being worked on wants to be renewed and settled, so then the rest is a short one.
            self._clock.wait(self._stopping, REST if self._working else self._rest)
            self._rest, self.trouble = min(LONGEST_REST, self._rest * 2), error
            return []
        self._rest, self.trouble = REST, None
        return found

    def _start(self, inbox: Inbox, received: Received) -> None:
        job = _Job(received, self._clock.elapsed() + received.renew_in, self._turns.take())
        self._working.add(job)
        start_thread(self._worker(inbox, job), f"runonce-{self._handler.name}")

    def _worker(self, inbox: Inbox, job: _Job) -> Callable[[], None]:
        def end(settlement: Settlement) -> None:
            with job.lock:
                if job.over:
                    return  # it was given up, and has ended after all
                job.over = True
            if inbox.any_thread:
                settled = self._settle(inbox, job, settlement)
                self._done.put(lambda: self._ended(job, settled=settled))
            else:
                self._done.put(lambda: self._ended(job, settled=self._settle(inbox, job, settlement)))

        def work() -> None:
            delivery = job.received.delivery
            try:
                settlement = self._deliverer.deliver(self._handler, delivery, job.turn, end)
            except BaseException as error:  # noqa: BLE001 - it is told in the log
                settlement = escaped(self._handler, delivery, error, delay=REST)
            end(settlement)

        return work

    def _wait_for_one(self, seconds: float) -> None:
        """Settle the next one that is done; at most so long, and no longer than until one has to be renewed."""
        renewal = min(
            (job.renew_at for job in self._working if not (job.lost or job.over)), default=float("inf")
        )
        try:
            self._done.get(timeout=min(seconds, max(0.01, renewal - self._clock.elapsed())))()
        except queue.Empty:
            return

    def _settle_done(self) -> None:
        while True:
            try:
                settle = self._done.get_nowait()
            except queue.Empty:
                return
            settle()

    def _settle(self, inbox: Inbox, job: _Job, settlement: Settlement) -> bool:
        if job.lost:
            return False  # the broker gave it to somebody else, who settles it by our claim
        try:
            inbox.settle(job.received, settlement)
        except TransportError as error:
            log.warning("handler %s: not settled, the message is redelivered: %s", self._handler.name, error)
            return False
        return True

    def _ended(self, job: _Job, *, settled: bool) -> None:
        self._working.discard(job)
        job.turn.end()
        self.handled += settled

    def _renew_due(self, inbox: Inbox) -> None:
        now = self._clock.elapsed()
        for job in [job for job in self._working if job.renew_at <= now and not job.lost]:
            with job.lock:
                if not job.over:
                    self._renew(inbox, job, now)

    def _renew(self, inbox: Inbox, job: _Job, now: float) -> None:
        try:
            again = inbox.renew(job.received)
        except TransportError as error:
            log.warning("handler %s: a message could not be renewed: %s", self._handler.name, error)
            job.renew_at = now + REST
            return
        if again is None:
            job.lost = True
        else:
            job.received, job.renew_at = again, now + again.renew_in

    def _give_back(self, inbox: Inbox, found: list[Received]) -> None:
        for received in found:
            try:
                inbox.give_back(received)
            except TransportError as error:
                log.warning(
                    "handler %s: not given back, it is redelivered later: %s", self._handler.name, error
                )

    def _drain(self, inbox: Inbox) -> None:
        """Settle what is still being worked on; a stopping host waits for it only so long."""
        give_up_at = float("inf")
        while self._working:
            if self._stopping.is_set():
                give_up_at = min(
                    give_up_at, self._clock.elapsed() + self._deliverer.settings.shutdown_timeout
                )
            if self._clock.elapsed() >= give_up_at:
                log.error(
                    "handler %s: %d message(s) did not end in time; they come again",
                    self._handler.name,
                    len(self._working),
                )
                return
            self._renew_due(inbox)
            self._wait_for_one(LONGEST_PAUSE / 2)
