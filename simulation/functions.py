"""The Functions host's own moves, around the toolkit's own code for it.

As that host was seen to do it: one instance has all timers, and another one's first tick comes a minute after it has
gone; a timer does not tick while its invocation runs. A message that was fetched is hidden for ten minutes, if it
is of the internal queue, or renewed while its function runs; it is settled by how its function ends, and given up after
five deliveries, or ten. A host that stops starts what it had fetched for ten seconds, completes nothing that ends
meanwhile, and then kills its worker, whatever runs in it.
"""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from runonce.errors import RunonceError, StoreError, TransportError
from runonce.execution.turns import Turns
from runonce.hosts.functions import app, handlers
from runonce.runs.recovery import recover
from runonce.transports.settlement import Complete
from simulation.baton import simulator
from simulation.faults import TOLD
from simulation.jobs import RECOVERY, JobHost
from simulation.messages import MessageHost

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from datetime import datetime

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Received
    from simulation.baton import Task
    from simulation.world import SimHost

HIDDEN = 600
"""Seconds that a message which was received stays hidden when its host is killed."""
AGAIN = 30
"""Seconds until a message comes again whose function failed."""
DELIVERIES = 5
"""Of a Storage queue's messages."""
DRAIN = app.PATIENCE - app.RECORDING - app.LAST_WORDS
"""Seconds in which what runs may stop by itself."""
BATCH = 4
REST = 2.0
"""Seconds until a trigger asks a broker again that gave no answer."""
FETCHED = 3.0
"""Seconds, at most, until a message that was fetched starts."""
LOOK = 30.0
"""Seconds that a call waits for what may come."""


def _told_to_stop(
    host: SimHost,
    drain: Callable[[], object],
    give_up: Callable[[], object],
    left: Callable[[], Iterable[Hashable]],
) -> None:
    """The worker hears it, drains and gives back; after ten seconds the host ends it, however far it is.

    Where storage took all of that time, what was `left` is cut off, as by a death.
    """

    def leave() -> None:
        if not drain():
            give_up()

    def end() -> None:
        if not leaving.done:
            host.world.checks.cut_off.update(left())
        host.leaves()

    leaving = host.spawn(leave, "stop")
    host.world.sim.at(host.world.sim.now + TOLD, end)


class FunctionsJobHost(JobHost):
    """An instance with a job's timer, the recovery timer and the function of the internal queue."""

    _ticking: Task | None = None

    def fires(self) -> bool:
        """Whether a timer ticks here now."""
        is_over = self._ticking is None or self._ticking.done
        return is_over and self.world.timers_on(self)

    def takes(self) -> bool:
        return not self.dead

    def _tick(self) -> None:
        self._ticking = simulator().task
        super()._tick()

    def _recovery(self) -> None:
        while not self.dead:
            if self.world.timers_on(self):
                recover(self.dispatcher)
            simulator().sleep(RECOVERY)

    def fetch(self) -> None:
        queue = self.dispatcher.stores.requests
        try:
            item = queue.receive(visibility=HIDDEN)
        except StoreError:
            return
        if item is None:
            return
        simulator().sleep(FETCHED * self.rng.random())
        try:
            app._report(self.dispatcher.handle_request(item.body))
        except Exception as error:  # noqa: BLE001 - its function fails
            is_its = isinstance(error, RunonceError)
            if not is_its:
                self.world.checks.violated("nothing is raised into the host", repr(error))
            if item.dequeue_count < DELIVERIES:
                self.world.note(self.name, f"a request fails: {error}")
                self._quietly(lambda: queue.hide(item, AGAIN))
                return
        self._quietly(lambda: queue.delete(item))

    @staticmethod
    def _quietly(call: Callable[[], object]) -> None:
        try:
            call()
        except StoreError:  # then it comes again
            return

    def stop(self) -> None:
        self.world.note(self.name, "is told to stop, by the Functions host")
        _told_to_stop(self, lambda: self.dispatcher.drain(DRAIN), self.dispatcher.abandon, self._left)

    def _left(self) -> list[datetime]:
        return [started.claim.run.fire_time for started in self.dispatcher.running]


class FunctionsMessageHost(MessageHost):
    """An instance with a function for each handler, on Service Bus."""

    kind = "servicebus"

    def start(self) -> None:
        self.world.note(self.name, f"starts on Functions, {self.clock.skew:+.0f} s")
        for one in self.world.handlers.values():
            handle = self._function(one, Turns(one.concurrency, self.deliverer.stop))
            self.spawn(lambda one=one, handle=handle: self._listen(one, handle), f"trigger of {one.name}")  # type: ignore[misc]

    @cached_property
    def _runtime(self) -> Runtime:
        return cast("Runtime", self._parts())

    def _parts(self) -> SimpleNamespace:
        """What `handlers` asks of a runtime."""
        return SimpleNamespace(
            deliverer=self.deliverer,
            sender=self.transport.sender(),
            settings=SimpleNamespace(transport=self.kind),
        )

    def _function(self, handler: Handler, turns: Turns) -> Callable[..., None]:
        return handlers._function(self._runtime, handler, turns, lambda received: received.delivery)

    def _listen(self, handler: Handler, handle: Callable[..., None]) -> None:
        link = self.transport.inbox(handler)
        while self.serves:
            try:
                found = link.receive(BATCH, LOOK)
            except TransportError:
                simulator().sleep(REST)
                continue
            for received in found:
                self.spawn(lambda it=received: self._invoke(link, it, handle), f"{handler.name} invoked")  # type: ignore[misc]

    def _invoke(self, link: Any, received: Received, handle: Callable[..., None]) -> None:
        task = simulator().task
        assert task is not None  # noqa: S101 - invocations are tasks
        ended: list[bool] = []
        self.spawn(lambda: self._renew(link, received, ended), "renewal")
        simulator().sleep(FETCHED * self.rng.random())
        try:
            handle(received, lambda error: self._settle(link, received, ended, error))
        except Exception as error:  # noqa: BLE001 - its function fails
            if not isinstance(error, RunonceError):
                self.world.checks.violated("nothing is raised into the host", repr(error))
            self._settle(link, received, ended, error)
        else:
            self._settle(link, received, ended, None)

    def _renew(self, link: Any, received: Received, ended: list[bool]) -> None:
        while not ended:
            simulator().sleep(received.renew_in)
            try:
                if ended or link.renew(received) is None:
                    return
            except TransportError:
                continue

    def _settle(self, link: Any, received: Received, ended: list[bool], error: BaseException | None) -> None:
        """As the function's end says; the first one counts."""
        if ended:
            return
        ended.append(True)
        try:
            if error is not None or not self.serves:  # the extension completes nothing while it stops
                link.give_back(received)
            else:
                link.settle(received, Complete())
        except TransportError:
            return  # its lock runs out

    def stop(self) -> None:
        self.world.note(self.name, "is told to stop, by the Functions host")
        _told_to_stop(self, lambda: self.deliverer.drain(DRAIN), self._give_back, self._left)

    def _left(self) -> list[tuple[str, str]]:
        return [(working.handler.name, working.claim.row.key) for working in self.deliverer.running]

    def _give_back(self) -> None:
        handlers.give_up(self._runtime)
