"""Hearing SIGTERM inside somebody else's process, whose main thread sleeps in an event loop of its own.

Python runs a signal handler in the main thread, when that thread next runs Python code. A main thread that is
just going to sleep may do so only when something else wakes it, so a handler alone sometimes comes too late
(seen in about one of thirty stops of a Functions worker). The byte that Python writes to the wake-up pipe is
written by the signal itself, at once; a thread of ours reads it.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def on_sigterm(shut_down: Callable[[], None]) -> None:
    """Call `shut_down`, once and in a thread of its own, when SIGTERM comes.

    Raises:
        ValueError: This is not the main thread, where Python allows no handler to be set.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler the signal would end the process
    hear, tell = os.pipe()
    os.set_blocking(tell, False)
    earlier = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def listen() -> None:
        while True:
            for number in os.read(hear, 64):
                if number == signal.SIGTERM:
                    shut_down()
                    return
                if earlier != -1:  # whoever listened before us hears of every other signal
                    os.write(earlier, bytes([number]))

    threading.Thread(target=listen, name="runonce-sigterm", daemon=True).start()
