"""Signs of life on a table that answers slowly: no claim is lost to another's write."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.clock import PATIENCE, SteppedClock
from support.messages import LEASE, begun, delivery, handling

from runonce.messages import heartbeat
from runonce.messages.deliver import Deliverer
from runonce.messages.heartbeat import LOOK
from runonce.stores.memory import memory_stores
from runonce.testing import Complete, MemorySender, Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.stores.protocols import Write

ONE = handling(max_runtime=None)
CLAIMS = 32
OURS = ("runonce-heartbeat", "runonce-beat")


class SlowTable:
    """A table whose writes take some seconds of a clock, however many are under way."""

    def __init__(self, table: Any, clock: SteppedClock, seconds: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self._seconds = seconds
        self.slow = False
        self.at_once = 0
        self._writing = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, partition: str, writes: Sequence[Write]) -> Any:
        """Write when the time has passed."""
        if self.slow:
            self._writing += 1
            self.at_once = max(self.at_once, self._writing)
            self._clock.wait(threading.Event(), self._seconds())
            self._writing -= 1
        return self._table.commit(partition, writes)


class World:
    """A host with many messages, begun at once or not, whose time passes when all of its threads wait for it."""

    def __init__(self, seed: int) -> None:
        random_ = random.Random(seed)
        self.clock = SteppedClock()
        self._others = set(threading.enumerate())
        stores = memory_stores(self.clock)
        seconds = lambda: 2.0 if seed == 0 else random_.uniform(1, 3)  # noqa: E731
        self.table = SlowTable(stores.claims, self.clock, seconds)
        bench = Workbench(clock=self.clock)
        stores = replace(stores, claims=self.table)
        self.host = Deliverer(stores, MemorySender(), bench.settings, self.clock, host="test")
        self.workings = []
        for n in range(CLAIMS):
            self.workings.append(begun(self.host, ONE, delivery({"id": f"k{n}"}, message_id=f"m{n}")))
            if seed and random_.random() < 0.5:
                self.pass_time(LOOK)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK)):
            self._settle()
            self.clock.advance(LOOK)
        self._settle()

    def _settle(self) -> None:
        """Wait until each thread of the host waits for a time that has not come, or has ended."""
        give_up_at = time.monotonic() + PATIENCE
        while not all(
            self.clock._until.get(t.ident or 0, 0.0) > self.clock.elapsed() for t in self._threads()
        ):
            assert time.monotonic() < give_up_at
            time.sleep(0.0005)

    def _threads(self) -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name in OURS and t not in self._others]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_claim_is_lost_where_each_write_takes_two_seconds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 claims, begun at once or one after the other, keep theirs for three leases, and each ends as it should."""
    monkeypatch.setattr(heartbeat, "wait", lambda *_: None)  # which is by the machine's clock
    world = World(seed)
    world.table.slow = True
    world.pass_time(3 * LEASE)
    world.table.slow = False
    world.pass_time(5)  # until what is being written is written
    assert [working.rights.stop.cause for working in world.workings] == [None] * CLAIMS
    assert all(working.claim.held for working in world.workings)
    assert world.table.at_once > 1
    assert {world.host.finish(working, None, None) for working in world.workings} == {Complete()}
