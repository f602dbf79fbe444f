"""The simulation's store and broker, and the memory transport, for the contract suite: nothing fails on the way."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from support.kit import Kit
from support.memory_transport import MemoryTransport
from support.transports import LOCK, Pipe

from runonce.clock import SystemClock
from runonce.testing import ManualClock
from simulation.broker import Broker, SimTransport
from simulation.server import Server
from simulation.storage import StorageQueues, StorageTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.errors import RunonceError

POLL = 0.05


class _Unwatched:
    """No invariants: what the contract suite does to a store is no run of a job."""

    def read(self, *_: object) -> None:
        pass

    def committed(self, *_: object) -> None:
        pass

    def blob_written(self, *_: object) -> None:
        pass


def simulated_kit() -> Kit:
    """Empty stores as the simulation's server has them."""
    clock = ManualClock()
    return Kit(Server(clock, _Unwatched()).stores, clock)


class _Straight:
    """The way to a broker on which nothing happens."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one = threading.RLock()

    def call(self, name: str, carry_out: Callable[[], Any], *, error: type[RunonceError]) -> Any:
        del name, error
        with self._one:
            return carry_out()

    cut = False

    def idle(self, queue: str, seconds: float) -> None:
        give_up_at = self._broker.clock.elapsed() + seconds
        while (left := give_up_at - self._broker.clock.elapsed()) > 0:
            if any(
                held.visible_at <= self._broker.clock.elapsed() for held in self._broker.queues.get(queue, [])
            ):
                return
            threading.Event().wait(min(left, POLL))


class SimulatedPipe(Pipe):
    """The simulation's broker, by the real clock."""

    kind = "simulated"

    def __init__(self) -> None:
        topics = {
            topic: (f"{topic}.billing", f"{topic}.shipping", f"{topic}/warehouse")
            for topic in ("events", "orders")
        }
        self._to(Broker(SystemClock(), topics, 600.0, lock=LOCK), SimTransport)

    def _to(self, broker: Broker, way: type[SimTransport]) -> None:
        self.broker = broker
        super().__init__(way(broker, _Straight(broker), broker.clock, any_thread=True))

    def queue(self) -> str:
        return f"q-{uuid.uuid4().hex[:12]}"

    def count(self, entity: str) -> int:
        return len(self.broker.queues.get(entity, []))

    def dead_count(self, entity: str) -> int:
        return len(self.broker.dead.get(entity, []))


class SimulatedStoragePipe(SimulatedPipe):
    """The simulation's Storage queues, likewise."""

    kind = "simulated storage"

    def __init__(self, hidden: float) -> None:
        self._to(StorageQueues(SystemClock(), {}, 0.0, lock=hidden), StorageTransport)


class MemoryPipe(Pipe):
    """The transport in memory that unit tests use, by the real clock."""

    kind = "memory"

    def __init__(self) -> None:
        transport = MemoryTransport(SystemClock(), LOCK)
        self.queues = transport.queues
        super().__init__(transport)

    def queue(self) -> str:
        return f"q-{uuid.uuid4().hex[:12]}"

    def count(self, entity: str) -> int:
        return len(self.queues.get(entity, []))

    def dead_count(self, entity: str) -> int:
        return self.count(f"{entity}/dead")
