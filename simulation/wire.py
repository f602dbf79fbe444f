"""The way from a host to storage, and what happens on it."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING, Any

from runonce.errors import RunonceError, StoreUnavailableError
from runonce.settings import CALL_TIMEOUT
from runonce.stores.protocols import Stores
from simulation.baton import Killed, Process, simulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.baton import Waiting
    from simulation.case import Case

CALL_FAULTS = ("request lost", "reply lost", "carried out later", "throttled", "hangs", "hangs and answers")
PATIENCE = (0.0, 1.0, CALL_TIMEOUT)
"""Seconds until a call that gets no answer is given up."""
LATER = (0.5, 3.0, 8.0, 20.0, 50.0)
"""Seconds until a call that hangs is answered, or one that was given up is carried out."""
FAULTS = tuple(product(CALL_FAULTS, PATIENCE, LATER, (True, False)))


class Wire:
    """One host's connection: slow at times, cut at others, and with faults of single calls."""

    def __init__(self, case: Case, host: Process, server: Process, note: Callable[[str, str], None]) -> None:
        self.cut = False
        self.slowness = 1.0
        self.fault_rate = case.fault_rate
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        """Told of each call to storage, and what it is given, as it is made."""
        self.awaited: dict[str, Waiting] = {}
        """Who waits for a message, by queue; of all wires, if they are to hear of it."""
        self.stopping: Waiting = []
        """Who waits for a stop of the host."""
        self._case = case
        self._host = host
        self._server = server
        self._note = note
        self._calls = 0
        # Its own, so that leaving out what happens to one host changes nothing for another.
        self._rng = random.Random(f"{case.seed} {host.name}")

    def stores(self, stores: Stores) -> Stores:
        """The stores as they look from here."""
        far: list[Any] = [
            _Far(self, store)
            for store in (stores.leases, stores.runs, stores.claims, stores.requests, stores.blobs)
        ]
        return Stores(*far)

    def call(
        self, name: str, carry_out: Callable[[], Any], *, error: type[RunonceError] = StoreUnavailableError
    ) -> Any:
        """Carry out one call, or not, or later."""
        sim = simulator()
        self._calls += 1
        there, back, dice = self._latency(), self._latency(), self._rng.random()
        sim.sleep(there)
        if self.cut:
            sim.sleep(PATIENCE[int(dice * len(PATIENCE))])
            raise error(f"{name}: cut off")
        this = ""
        if dice >= self.fault_rate or (this := f"{self._host.name}.{self._calls}") in self._case.without:
            answer = _answer(carry_out)
            sim.sleep(back)
            return answer()
        # All from one number, so that a fault that is left out moves nothing that comes after it.
        kind, patience, later, at_once = FAULTS[int(dice / self.fault_rate * len(FAULTS))]
        self._note(this, f"{name}: {kind}")
        if kind == "throttled":
            raise error(f"{name}: 503")
        if kind == "hangs and answers":
            sim.sleep(0.0 if at_once else later)
            answer = _answer(carry_out)
            sim.sleep(later)
            return answer()
        if kind == "reply lost":
            _answer(carry_out)
        if kind == "carried out later":

            def carry_out_later() -> None:
                sim.sleep(later)
                _answer(carry_out)

            sim.spawn(carry_out_later, self._server, f"late {name}")
        sim.sleep(later if kind == "hangs" else patience)
        raise error(f"{name}: {kind}")

    def idle(self, queue: str, seconds: float) -> None:
        """Wait for what may come, or a stop."""
        simulator().wait(self.awaited.setdefault(queue, []), seconds, also=self.stopping)

    def _latency(self) -> float:
        dice = self._rng.random()
        if dice < 0.85:
            return self.slowness * (0.005 + 0.06 * dice)
        return self.slowness * (8.0 * dice - 6.7) if dice < 0.97 else 100.0 * dice - 96.5


class _Far:
    """A store at the other end of a wire."""

    def __init__(self, wire: Wire, store: Any) -> None:
        self._wire = wire
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            self._wire.before(name, args)
            return self._wire.call(name, lambda: method(*args, **options))

        setattr(self, name, call)
        return call


def _answer(carry_out: Callable[[], Any]) -> Callable[[], Any]:
    """What the server answers, as something to be received later."""
    try:
        answer = carry_out()
    except Killed:
        raise
    except RunonceError as error:
        refused = error  # the name in `except` ends with it
        return lambda: _refuse(refused)
    if hasattr(answer, "__next__"):
        answer = list(answer)
    return lambda: answer


def _refuse(error: RunonceError) -> None:
    raise error
