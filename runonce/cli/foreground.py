"""Work in front of a person or an orchestrator: a signal stops it as a host stops its runs.

The work goes to a thread, since a signal reaches the main thread only. The first Ctrl-C or SIGTERM tells every
run to stop and waits for it; the second releases what still runs, and the process ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from runonce.cli import output
from runonce.errors import HostStopping
from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.runs.dispatch import Dispatcher

T = TypeVar("T")

LOOK = 0.1
"""Seconds between looks at what a signal handler noted; short waits also let Windows deliver Ctrl-C."""
SIGNALS = [number for name in ("SIGINT", "SIGTERM", "SIGBREAK") if (number := getattr(signal, name, None))]


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """What the work returned, and the exit code of the signal that stopped it, if one did."""

    value: T
    interrupted: int | None


def in_foreground(dispatcher: Dispatcher, work: Callable[[], T]) -> Ended[T]:
    """Do the work, and stop it on a signal; does not return when it will not stop."""
    done = threading.Event()
    returned: list[T] = []
    raised: list[BaseException] = []

    def body() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            raised.append(error)
        finally:
            done.set()

    with _noting_signals(dispatcher) as received:
        start_thread(body, "runonce-foreground")
        while not received and not done.wait(LOOK):
            pass
        if received and not done.is_set():
            _wait_for_stop(dispatcher, done, received)
    if raised:
        raise raised[0]
    return Ended(returned[0], 128 + received[0] if received else None)


@contextlib.contextmanager
def _noting_signals(dispatcher: Dispatcher) -> Iterator[list[int]]:
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        dispatcher.stop.set(HostStopping(f"The host was asked to stop (signal {number})."))

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_stop(dispatcher: Dispatcher, done: threading.Event, received: list[int]) -> None:
    limit = dispatcher.settings.shutdown_timeout
    output.note(
        f"stopping: the run has {limit:g} s to reach a point where it can stop; once more releases it at once"
    )
    give_up_at = dispatcher.clock.elapsed() + limit
    while not done.wait(LOOK):
        if len(received) > 1 or dispatcher.clock.elapsed() >= give_up_at:
            for job in dispatcher.abandon():
                output.warn(f"{job} did not stop in time; it was released and goes on elsewhere")
            logging.shutdown()
            sys.stdout.flush()
            os._exit(128 + received[0])  # its code still runs here and must not go on
