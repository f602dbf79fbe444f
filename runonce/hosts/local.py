"""The local host: timers, recovery and the internal queue in one process. Several of them behave as replicas.

Every run has a thread to itself, so that a job that blocks holds up no timer. Nothing here decides what may
run; that is `dispatch`.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from runonce.errors import HostStopping, StoreError
from runonce.execution import ticking
from runonce.execution.threads import start_thread
from runonce.execution.workers import Workers
from runonce.hosts.leader import leader_of
from runonce.hosts.signals import end_process, heard
from runonce.runs.presence import Presence
from runonce.runs.recovery import ask_for_orphans, recover
from runonce.stores.protocols import SessionLeases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from runonce.execution.every import Periodic
    from runonce.messages.consumer import Consumer
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher

log = logging.getLogger("runonce.local")

POLL = 1.0
"""Seconds between looks at the internal queue while it is empty."""
LOOK = 0.5
"""Seconds between looks for leases whose holder's connection has ended."""
REST = 5.0
"""Seconds to wait after storage did not answer."""
RELEASE = 2.0
"""Seconds for the releases of a host that was told twice to stop; what storage did not take ends with its lease."""
MAX_REQUESTS = 16
"""Requests run at the same time, at most."""
EXIT_FAULT, EXIT_STUCK = 70, 75


class LocalHost:
    """Runs a dispatcher's jobs until it is told to stop."""

    def __init__(
        self, dispatcher: Dispatcher, consumers: Sequence[Consumer] = (), every: Iterable[Periodic] = ()
    ) -> None:
        self._dispatcher = dispatcher
        self._consumers = consumers
        self._every = every
        self._ending: list[threading.Thread] = []
        """What has to be waited for when the host stops."""
        self._ticks = Workers("runonce-tick")
        self._clock = dispatcher.clock
        self._stopping = dispatcher.stop.event
        self._handling: set[object] = set()
        self._fault: BaseException | None = None
        self._leaving = threading.Event()
        self._asked = threading.Event()
        interval = dispatcher.settings.recovery_interval
        leader = dispatcher.settings.leader
        self._presence = Presence(
            dispatcher.registry, dispatcher.jobs, self._clock.now(), every=interval, leads=leader
        )
        self._leader = leader_of(dispatcher) if leader else None

    def serve(self, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until SIGTERM, Ctrl-C, or the dispatcher's stop signal; then drain. The exit code.

        `ready` is called once signals are heard.

        0 when everything stopped in time, 75 when runs had to be abandoned (they go on elsewhere), 70 when
        the host itself failed.
        """
        with heard(self._on_signal):
            ready()
            for work in (self._timers, self._recovery, self._requests, self._orphans):
                start_thread(self._guarded(work), f"runonce{work.__name__}")
            if self._leader is not None:
                self._ending.append(start_thread(self._guarded(self._leader.run), "runonce-leader"))
            self._ending += ticking.start(self._every, self._clock, self._dispatcher.stop)
            for consumer in self._consumers:
                self._ending.append(start_thread(self._guarded(consumer.run_for_ever), "runonce-consumer"))
            self._stopping.wait()
            return self._stop()

    def _on_signal(self, number: int) -> None:
        if not self._stopping.is_set():
            self._dispatcher.stop.set(HostStopping(f"The host was asked to stop (signal {number})."))
        elif self._leaving.is_set():
            end_process(EXIT_STUCK)
        else:  # nobody waits for the runs any more
            os.write(2, b"runonce: still stopping; running jobs are being released\n")
            start_thread(lambda: self._leave_behind(RELEASE), "runonce-hurry")

    def _stop(self) -> int:
        settings = self._dispatcher.settings
        log.info("stopping: waiting up to %g s for running jobs", settings.shutdown_timeout)
        give_up_at = self._clock.elapsed() + settings.shutdown_timeout
        drained = self._dispatcher.drain(settings.shutdown_timeout)
        for thread in self._ending:  # each settles what it is working on, or gives its lease back, and ends
            thread.join(max(0.0, give_up_at - self._clock.elapsed()))
        late = [thread.name for thread in self._ending if thread.is_alive()]
        if late:
            log.error("did not end in time: %s", ", ".join(late))
        if late or not drained:
            self._leave_behind()
        self._leave()
        log.info("stopped")
        return 0 if self._fault is None else EXIT_FAULT

    def _leave_behind(self, patience: float | None = None) -> NoReturn:
        """Release what did not stop, as far as storage answers within so many seconds, and end."""
        self._leaving.set()

        def release() -> None:
            for job in self._dispatcher.abandon():
                log.error("%s did not stop in time; it was released and goes on elsewhere", job)
            self._leave()

        start_thread(release, "runonce-leave").join(patience)
        end_process(EXIT_STUCK)

    def _leave(self) -> None:
        try:
            self._presence.leave()
        except StoreError as error:
            log.debug("the host's row stays for a day: %s", error)

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """A part of the host that fails takes the host down loudly: half a host looks healthy and is not."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                log.critical("the local host failed and stops", exc_info=error)
                self._fault = error
                self._dispatcher.stop.set(HostStopping("The host failed."))

        return run

    # -- leading ------------------------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        """Whether this host is to look for work; all do where none is to lead."""
        return self._leader is None or self._leader.leads

    def _stand_by(self) -> None:
        """Wait for this host's turn to lead, for a while."""
        if self._leader is not None:
            self._clock.wait(self._leader.turn, REST)

    # -- timers -------------------------------------------------------------------------------------------------

    def _timers(self) -> None:
        """Wake at each job's next fire time and tick it."""
        jobs = self._dispatcher.jobs.values()
        now = self._clock.now()
        upcoming: dict[str, datetime] = {j.name: t for j in jobs if (t := j.schedule.next(now)) is not None}
        while upcoming:
            earliest = min(upcoming.values())
            # At most a second at a time: the wall clock may be set, and a laptop may sleep.
            if self._clock.wait(self._stopping, min((earliest - self._clock.now()).total_seconds(), 1.0)):
                return
            now = self._clock.now()
            for name in [n for n, t in upcoming.items() if t <= now]:
                job = self._dispatcher.jobs[name]
                if self._leads:
                    self._ticks.start(self._tick_of(job))
                following = job.schedule.next(max(now, upcoming[name]))
                if following is None:
                    del upcoming[name]
                else:
                    upcoming[name] = following
        self._stopping.wait()

    def _tick_of(self, job: ScheduledJob) -> Callable[[], None]:
        def tick() -> None:
            try:
                result = self._dispatcher.tick(job)
            except Exception:
                log.exception("job %s: its tick failed; the next recovery tick finds the fire time", job.name)
            else:
                if result is not None and not result.ran:
                    log.debug("%s at %s: %s", job.name, result.fire_time, result.reason)

        return tick

    # -- recovery -----------------------------------------------------------------------------------------------

    def _recovery(self) -> None:
        """A recovery tick at once, for what died with an earlier host, then one every interval."""
        starting = True
        while not self._stopping.is_set():
            if not self._leads:
                if not starting:
                    self._leave()
                starting = True
                self._stand_by()
                continue
            if recover(self._dispatcher, starting=starting):
                self._asked.set()
            self._presence.say()
            starting = False
            ended = self._stopping if self._leader is None else self._leader.off
            self._clock.wait(ended, self._dispatcher.settings.recovery_interval)

    def _orphans(self) -> None:
        """Where a lease ends with its holder's connection, its run is asked for as soon as that is seen."""
        leases, wait = self._dispatcher.stores.leases, LOOK
        while isinstance(leases, SessionLeases) and not self._clock.wait(self._stopping, wait):
            wait = LOOK
            if not self._leads:
                self._stand_by()
                continue
            try:
                if ask_for_orphans(self._dispatcher, leases):
                    self._asked.set()
            except StoreError as error:
                log.debug("the lease server was not looked at, trying again: %s", error)
                wait = REST

    # -- requests -----------------------------------------------------------------------------------------------

    def _requests(self) -> None:
        """Take requests from the internal queue and run each in a thread."""
        while not self._stopping.is_set():
            if not self._leads:
                self._stand_by()
                continue
            # Where as many as may are at work the message stays in the queue, for another replica.
            body = self._next_request() if self._at_work() < MAX_REQUESTS else None
            if body is None:
                self._clock.wait(self._asked, POLL)
                self._asked.clear()
            else:
                self._handling.add(one := object())
                start_thread(partial(self._handle, one, body), "runonce-request")

    def _at_work(self) -> int:
        """How many requests are being run, but for runs whose code goes on after they were given up."""
        now, grace = self._clock.elapsed(), self._dispatcher.settings.shutdown_timeout
        given_up = [
            started
            for started in self._dispatcher.running
            if started.claim.run.by == "request" and started.deadline + grace <= now
        ]
        return len(self._handling) - len(given_up)

    def _next_request(self) -> str | None:
        queue = self._dispatcher.stores.requests
        try:
            item = queue.receive(visibility=30)
            if item is not None and self._stopping.is_set():
                return None  # not for us any more: another replica sees it in 30 s
            if item is not None:
                # Deleted before it is run: a request is a hint, and the recovery tick repeats a lost one.
                queue.delete(item)
                return item.body
        except StoreError as error:
            log.warning("the internal queue is out of reach, trying again: %s", error)
            self._clock.wait(self._stopping, REST)
            return None
        return None

    def _handle(self, one: object, body: str) -> None:
        try:
            self._dispatcher.handle_request(body)
        except Exception:
            log.exception("a request failed; the next recovery tick repeats it: %s", body[:200])
        finally:
            self._handling.discard(one)
            self._asked.set()
