"""The Functions host's own moves, around the toolkit's own code for it.

As that host was seen to do it: one instance has all timers, and another one's first tick comes a minute after it has
gone; a timer does not tick while its invocation runs. A message that was fetched is hidden for ten minutes, if it
is of the internal queue, or renewed while its function runs; it is settled by how its function ends, and given up after
five deliveries, or ten. A host that stops starts what it had fetched for ten seconds, completes nothing that ends
meanwhile, and then kills its worker, whatever runs in it.

Either may go without the other. A worker that is killed has what ran in it failed by its host, which starts another one
at once. A host that is killed, or told to stop alone, leaves a worker that hears nothing of it.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
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
from simulation.world import SimHost

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from datetime import datetime

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.stores.protocols import QueueItem, QueueStore
    from runonce.transports.protocols import Received
    from simulation.baton import Task
    from simulation.jobs import JobWorld
    from simulation.messages import MessageWorld

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


@dataclass(eq=False)
class Invocation:
    """A message that was fetched for a function."""

    link: Any
    received: Received
    ended: bool = False
    """Whether the host has nothing more to do with it."""


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


class Instance(SimHost):
    """A Functions host and its worker, of which either may go without the other."""

    takes_more = True
    """Whether the host fetches and starts anything."""
    is_orphan = False
    """Whether the worker is left alone."""
    is_replaced = False
    """Whether the host has, or is to have, another worker."""

    @property
    def serves(self) -> bool:
        return super().serves and self.takes_more

    @property
    def has_gone(self) -> bool:
        """Whether there is no such host any more."""
        return self.is_orphan or (self.dead and not self.is_replaced)

    @abstractmethod
    def fail(self) -> None:
        """What the host does once its worker has died: what ran in it has failed."""

    @abstractmethod
    def forget(self) -> None:
        """What becomes of what runs once there is no host: nobody renews or settles it."""

    def replace(self, name: str) -> None:
        """Another worker, on the same machine."""
        self.world.add(name, self.clock.skew)


class FunctionsJobHost(Instance, JobHost):
    """An instance with a job's timer, the recovery timer and the function of the internal queue."""

    _ticking: Task | None = None

    def __init__(self, world: JobWorld, name: str, skew: float, version: int) -> None:
        super().__init__(world, name, skew, version)
        self._fetched: list[QueueItem] = []

    def fires(self) -> bool:
        """Whether a timer ticks here now."""
        is_over = self._ticking is None or self._ticking.done
        return is_over and self.world.timers_on(self)

    def takes(self) -> bool:
        return not self.dead and self.takes_more

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
        if item is None or self.is_orphan:
            return
        self._fetched.append(item)
        simulator().sleep(FETCHED * self.rng.random())
        if item not in self._fetched:
            return
        try:
            app._report(self.dispatcher.handle_request(item.body))
        except Exception as error:  # noqa: BLE001 - its function fails
            is_its = isinstance(error, RunonceError)
            if not is_its:
                self.world.checks.violated("nothing is raised into the host", repr(error))
            self.world.note(self.name, f"a request fails: {error}")
            self._settle(queue, item, is_done=False)
        else:
            self._settle(queue, item, is_done=True)

    def _settle(self, queue: QueueStore, item: QueueItem, *, is_done: bool) -> None:
        """As the function's end says, if there is a host; without an answer it comes again."""
        if item not in self._fetched:
            return
        self._fetched.remove(item)
        with suppress(StoreError):
            if is_done or item.dequeue_count >= DELIVERIES:
                queue.delete(item)
            else:
                queue.hide(item, AGAIN)

    def fail(self) -> None:
        for item in list(self._fetched):
            self._settle(self.world.server.queue, item, is_done=False)

    def forget(self) -> None:
        self._fetched.clear()

    def replace(self, name: str) -> None:
        super().replace(name)
        self.world.timers_stay(self, cast("FunctionsJobHost", self.world.hosts[-1]))

    def stop(self) -> None:
        self.world.note(self.name, "is told to stop, by the Functions host")
        _told_to_stop(self, lambda: self.dispatcher.drain(DRAIN), self.dispatcher.abandon, self._left)

    def _left(self) -> list[datetime]:
        return [started.claim.run.fire_time for started in self.dispatcher.running]


class FunctionsMessageHost(Instance, MessageHost):
    """An instance with a function for each handler, on Service Bus."""

    kind = "servicebus"

    def __init__(self, world: MessageWorld, name: str, skew: float) -> None:
        super().__init__(world, name, skew)
        self._invoked: list[Invocation] = []

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
            for received in () if self.is_orphan else found:
                self._invoked.append(one := Invocation(link, received))
                self.spawn(lambda it=one: self._invoke(it, handle), f"{handler.name} invoked")  # type: ignore[misc]

    def _invoke(self, one: Invocation, handle: Callable[..., None]) -> None:
        self.spawn(lambda: self._renew(one), "renewal")
        simulator().sleep(FETCHED * self.rng.random())
        if self.is_orphan:
            return
        try:
            handle(one.received, lambda error: self._settle(one, error))
        except Exception as error:  # noqa: BLE001 - its function fails
            if not isinstance(error, RunonceError):
                self.world.checks.violated("nothing is raised into the host", repr(error))
            self._settle(one, error)
        else:
            self._settle(one, None)

    def _renew(self, one: Invocation) -> None:
        while not one.ended:
            simulator().sleep(one.received.renew_in)
            try:
                if one.ended or one.link.renew(one.received) is None:
                    return
            except TransportError:
                continue

    def _settle(self, one: Invocation, error: BaseException | None) -> None:
        """As the function's end says; the first one counts."""
        if one.ended:
            return
        one.ended = True
        try:
            if error is not None or not self.serves:  # the extension completes nothing while it stops
                one.link.give_back(one.received)
            else:
                one.link.settle(one.received, Complete())
        except TransportError:
            return  # its lock runs out

    def fail(self) -> None:
        for one in self._invoked:
            if not one.ended:
                one.ended = True
                self._fail(one)

    def _fail(self, one: Invocation) -> None:
        """As the host does, whose own calls do not go through the worker."""
        with suppress(TransportError):
            self.world.broker.give_back(one.link.queue, *one.received.native)

    def forget(self) -> None:
        for one in self._invoked:
            one.ended = True

    def stop(self) -> None:
        self.world.note(self.name, "is told to stop, by the Functions host")
        _told_to_stop(self, lambda: self.deliverer.drain(DRAIN), self._give_back, self._left)

    def _left(self) -> list[tuple[str, str]]:
        return [(working.handler.name, working.claim.row.key) for working in self.deliverer.running]

    def _give_back(self) -> None:
        handlers.give_up(self._runtime)
