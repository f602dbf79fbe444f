"""Work in front of a person or an orchestrator: a signal stops it as a host stops its runs.

The work goes to a thread of its own, so that the main one can leave it behind. The first Ctrl-C or SIGTERM tells
every run to stop and waits for it; the second releases what still runs, and the process ends.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from runonce.cli import output
from runonce.errors import HostStopping
from runonce.execution import hooks
from runonce.execution.threads import start_thread
from runonce.hosts.local import RELEASE
from runonce.hosts.signals import end_process, heard

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.runs.dispatch import Dispatcher

T = TypeVar("T")

HEARD = 1.0
"""Seconds for hooks to hear of what was done before the command says it."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """What the work returned, and the exit code of the signal that stopped it, if one did."""

    value: T
    interrupted: int | None


def in_foreground(dispatcher: Dispatcher, work: Callable[[], T]) -> Ended[T]:
    """Do the work, and stop it on a signal; does not return when it will not stop."""
    changed = threading.Condition()
    returned: list[T] = []
    raised: list[BaseException] = []
    received: list[int] = []
    releasing = threading.Event()

    def body() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            raised.append(error)
        finally:
            with changed:
                changed.notify()

    def release() -> None:
        for job in dispatcher.abandon():
            output.warn(f"{job} did not stop in time; it was released and goes on elsewhere")

    def told(number: int) -> None:
        received.append(number)  # before the work hears of it, and may return because of it
        if releasing.is_set():
            end_process(128 + received[0])
        with changed:
            changed.notify()
        dispatcher.stop.set(HostStopping(f"The host was asked to stop (signal {number})."))

    with heard(told), changed:
        start_thread(body, "runonce-foreground")
        changed.wait_for(lambda: returned or raised or received)
        if not (returned or raised):
            limit = dispatcher.settings.shutdown_timeout
            output.note(
                f"stopping: the run has {limit:g} s to reach a point where it can stop; once more releases it at once"
            )
            changed.wait_for(lambda: returned or raised or len(received) > 1, limit)
        if not (returned or raised):
            releasing.set()
            start_thread(release, "runonce-release").join(None if len(received) == 1 else RELEASE)
            end_process(128 + received[0])
    hooks.drain(HEARD)  # so that what they print is not taken for a part of the command's answer
    if raised:
        raise raised[0]
    return Ended(returned[0], 128 + received[0] if received else None)
