"""What each host does by itself, done: a thread for each, on the grid of its first tick, until the host stops."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

from runonce.execution.body import Begun, Steps
from runonce.execution.every import Tick
from runonce.execution.log import run_logger
from runonce.execution.stop import StopSignal
from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from runonce.clock import Clock
    from runonce.execution.every import Periodic

log = logging.getLogger("runonce.every")


def start(all_of_them: Iterable[Periodic], clock: Clock, stop: StopSignal) -> list[threading.Thread]:
    """Begin each in a thread, which ends when the host stops."""
    return [
        start_thread(lambda one=one: tick_on(one, clock, stop), f"runonce-every-{one.name}")  # type: ignore[misc]
        for one in all_of_them
    ]


def tick_on(periodic: Periodic, clock: Clock, stop: StopSignal) -> None:
    """Call it now, and then at each multiple of its interval from now that no call of it takes up."""
    began, number = clock.elapsed(), 0
    while stop.cause is None:
        _call(periodic, stop)
        due = max(number + 1, int((clock.elapsed() - began) // periodic.interval) + 1)
        if due > number + 1:
            log.warning(
                "%s took longer than its interval of %g s: %d of its ticks were left out",
                periodic.name,
                periodic.interval,
                due - number - 1,
            )
        number = due
        clock.wait(stop.event, began + number * periodic.interval - clock.elapsed())


def _call(periodic: Periodic, host: StopSignal) -> None:
    stop = StopSignal(host)
    tick = Tick(periodic.name, stop, run_logger(periodic.name, "on this host", 1))

    def begin() -> Begun | None:
        return Begun(
            who=f"Job {periodic.name}",
            body=periodic.body,
            arguments=[tick] if periodic.takes_tick else [],
            stop=stop,
            context=contextvars.copy_context(),
        )

    def finish(_: Begun, __: Any, error: BaseException | None) -> None:
        if error is not None and stop.cause is None:
            log.error("%s failed; it is called again at its next tick", periodic.name, exc_info=error)

    Steps(begin, finish).run()
    stop.detach()
