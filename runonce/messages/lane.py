"""One inbox's part of a consumer: a thread talks to the broker, others run the handler.

A broker's client may be for one thread, and a handler may block. So the talking thread receives what there is room
for, renews what is being worked on, and settles what the working threads are done with. Where the client is for all
threads, each settles its own message, and renewals are side by side.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from runonce.errors import TransportError, TransportRefusedError
from runonce.execution.turns import Turns
from runonce.messages.batch import deliver_batch
from runonce.messages.ended import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.execution.turns import Turn
    from runonce.execution.workers import Workers
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.transports.protocols import Inbox, Received
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
NEVER = float("inf")


class Tally:
    """What the lanes of a consumer have in common: how many messages may still come, and since when none has."""

    def __init__(self, clock: Clock, left: int | None) -> None:
        self._clock = clock
        self._left = left
        self._asked_for = 0
        self._lock = threading.Lock()
        self._quiet_since = clock.elapsed()
        self._ended = False
        self.handled = 0
        self.trouble: TransportError | None = None

    def ask_for(self, room: int) -> int:
        """How many of so many a lane may receive."""
        with self._lock:
            asked = room if self._left is None else min(room, self._left - self._asked_for)
            self._asked_for += asked
            return asked

    def came(self, asked: int, found: int) -> None:
        """So many of those came."""
        with self._lock:
            self._asked_for -= asked
            if self._left is not None:
                self._left -= found

    def busy(self) -> None:
        """Something has come, or is being worked on."""
        self._quiet_since = self._clock.elapsed()

    @property
    def quiet(self) -> float:
        """Seconds for which no lane had anything to do."""
        return self._clock.elapsed() - self._quiet_since

    def settled(self) -> None:
        """One more message is settled."""
        with self._lock:
            self.handled += 1

    def end(self) -> None:
        """No lane is to receive any more."""
        self._ended = True

    @property
    def over(self) -> bool:
        """Whether no lane may receive any more."""
        return self._ended or self._left == 0


@dataclass(eq=False, slots=True)
class _Job:
    received: Received
    renew_at: float
    turn: Turn | _Share
    lost: bool = False
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is renewed, and by whoever says that it is over."""


class _Share:
    """A turn that the messages of a batch have together."""

    def __init__(self, turn: Turn, count: int) -> None:
        self._turn, self._left = turn, count

    def end(self) -> None:
        """One of them has ended; the turn ends with the last."""
        self._left -= 1
        if self._left == 0:
            self._turn.end()


class Lane:
    """Handles what comes through one inbox, `concurrency` messages at a time."""

    def __init__(
        self,
        deliverer: Deliverer,
        handler: Handler,
        inbox: Inbox,
        concurrency: int,
        tally: Tally,
        workers: Workers,
    ) -> None:
        self._deliverer = deliverer
        self._handler = handler
        self._inbox = inbox
        self._tally = tally
        self._workers = workers
        self._clock = deliverer.clock
        self._stopping = deliverer.stop.event
        self._working: set[_Job] = set()
        self._turns = Turns(concurrency, deliverer.stop)
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._rest = REST

    def run(self, max_wait: float | None) -> None:
        """Consume until a stop, until all lanes are over, or until none had anything to do for `max_wait` seconds.

        Raises:
            TransportRefusedError: Messages can never be received as things are; what was begun is settled.
        """
        pause = FIRST_PAUSE
        try:
            while not (self._stopping.is_set() or self._tally.over):
                self._settle_done()
                self._renew_due()
                asked = self._tally.ask_for(self._room)
                found: list[Received] = []
                try:
                    found = self._receive(asked, max_wait)
                finally:
                    self._tally.came(asked, len(found))
                if self._stopping.is_set():
                    self._give_back(found)
                    break
                self._start(found)
                if found or self._working:
                    self._tally.busy()
                if found:
                    pause = FIRST_PAUSE
                elif self._working or not asked:
                    self._wait_for_one(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                elif max_wait is not None and self._tally.quiet >= max_wait:
                    break
            self._drain()
        except BaseException:
            self._tally.end()
            raise
        finally:
            self._inbox.close()

    def _receive(self, room: int, max_wait: float | None) -> list[Received]:
        if room <= 0:
            return []
        wait = BUSY_WAIT if self._working else min(IDLE_WAIT, IDLE_WAIT if max_wait is None else max_wait)
        try:
            found = self._inbox.receive(room, wait)
        except TransportRefusedError:
            self._tally.end()
            self._drain()
            raise
        except TransportError as error:
            log.warning("handler %s: the broker is out of reach, trying again: %s", self._handler.name, error)
            # What is being worked on wants to be renewed and settled, so then the rest is a short one.
            self._clock.wait(self._stopping, REST if self._working else self._rest)
            self._rest, self._tally.trouble = min(LONGEST_REST, self._rest * 2), error
            return []
        self._rest, self._tally.trouble = REST, None
        return found

    @property
    def _room(self) -> int:
        """How many messages may begin."""
        free = self._turns.free
        return free if self._handler.batch is None else min(free, 1) * self._handler.batch

    def _start(self, found: list[Received]) -> None:
        if self._handler.batch is None:
            for received in found:
                turn = self._turns.take()
                self._workers.start(partial(self._work, self._job(received, turn), turn))
        elif found:
            share = _Share(self._turns.take(), len(found))
            jobs = [self._job(received, share) for received in found]
            self._workers.start(partial(self._work_together, jobs))

    def _job(self, received: Received, turn: Turn | _Share) -> _Job:
        job = _Job(received, self._clock.elapsed() + received.renew_in, turn)
        self._working.add(job)
        return job

    def _work_together(self, jobs: list[_Job]) -> None:
        def end(number: int, settlement: Settlement) -> None:
            self._end(jobs[number], settlement)

        try:
            deliver_batch(self._deliverer, self._handler, [job.received.delivery for job in jobs], end)
        except BaseException as error:  # noqa: BLE001 - it is told in the log
            for job in jobs:
                if not job.over:
                    self._end(job, escaped(self._handler, job.received.delivery, error, delay=REST))

    def _work(self, job: _Job, turn: Turn) -> None:
        end, delivery = partial(self._end, job), job.received.delivery
        try:
            settlement = self._deliverer.deliver(self._handler, delivery, turn, end)
        except BaseException as error:  # noqa: BLE001 - it is told in the log
            settlement = escaped(self._handler, delivery, error, delay=REST)
        end(settlement)

    def _end(self, job: _Job, settlement: Settlement) -> None:
        with job.lock:
            if job.over:
                return  # it was given up, and has ended after all
            job.over = True
        if self._inbox.any_thread:
            settled = self._settle(job, settlement)
            self._done.put(lambda: self._ended(job, settled=settled))
        else:
            self._done.put(lambda: self._ended(job, settled=self._settle(job, settlement)))

    def _wait_for_one(self, seconds: float) -> None:
        """Settle the next one that is done; at most so long, and no longer than until one has to be renewed."""
        renewal = min((job.renew_at for job in self._working if not (job.lost or job.over)), default=NEVER)
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

    def _settle(self, job: _Job, settlement: Settlement) -> bool:
        if job.lost:
            return False  # the broker gave it to somebody else, who settles it by our claim
        try:
            self._inbox.settle(job.received, settlement)
        except TransportError as error:
            log.warning("handler %s: not settled, the message is redelivered: %s", self._handler.name, error)
            return False
        return True

    def _ended(self, job: _Job, *, settled: bool) -> None:
        self._working.discard(job)
        job.turn.end()
        if settled:
            self._tally.settled()

    def _renew_due(self) -> None:
        now = self._clock.elapsed()
        for job in [job for job in self._working if job.renew_at <= now and not (job.lost or job.over)]:
            job.renew_at = NEVER  # until this one is through
            if self._inbox.any_thread:
                self._workers.start(partial(self._renew, job))
            else:
                self._renew(job)

    def _renew(self, job: _Job) -> None:
        with job.lock:
            if job.over:
                return
            now = self._clock.elapsed()
            pause = REST
            try:
                again = self._inbox.renew(job.received)
                if again is None:
                    job.lost = True
                else:
                    job.received, pause = again, again.renew_in
            except TransportError as error:
                log.warning("handler %s: a message could not be renewed: %s", self._handler.name, error)
            finally:
                job.renew_at = now + pause

    def _give_back(self, found: list[Received]) -> None:
        for received in found:
            try:
                self._inbox.give_back(received)
            except TransportError as error:
                log.warning(
                    "handler %s: not given back, it is redelivered later: %s", self._handler.name, error
                )

    def _drain(self) -> None:
        """Settle what is still being worked on; a stopping host waits for it only so long."""
        give_up_at = NEVER
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
            self._renew_due()
            self._wait_for_one(LONGEST_PAUSE / 2)
