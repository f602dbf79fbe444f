"""The signals that tell a process to stop, heard at once and by this process alone.

Python runs a signal handler in the main thread, when that thread next runs Python code. One that is just going to
sleep may do so only when something else wakes it (seen in about one of thirty stops of a Functions worker). The byte
that Python writes to the wake-up socket is written by the signal itself, at once; a thread of ours reads it.

A forked child inherits the handlers and that socket. Left so, it would not end when it is told to, as pools of
`multiprocessing` tell theirs, and its signals would be heard as the parent's. So a child begins with none of it, and
is not interrupted before that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNALS = [number for name in ("SIGINT", "SIGTERM", "SIGBREAK") if (number := getattr(signal, name, None))]


@contextlib.contextmanager
def heard(told: Callable[[int], None]) -> Iterator[None]:
    """Call `told`, in a thread of its own, with the number of each signal to stop that comes meanwhile.

    In another thread than the main one, where Python allows no handler, nothing is heard.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = listen(told)
    try:
        yield
    finally:
        listener.close()


def listen(told: Callable[[int], None]) -> Listener:
    """The same until it is closed.

    Raises:
        ValueError: This is not the main thread.
    """
    return Listener(told)


class Listener:
    """Hears signals from when it is made; the one made last hears them."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._hear, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        # Without a handler the signal would end the process.
        self._before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        # Whoever listened before us hears of every other signal.
        self._earlier = signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)
        _listeners.append(self)
        threading.Thread(target=self._listen, name="runonce-signals", daemon=True).start()

    def _listen(self) -> None:
        while numbers := self._hear.recv(64):
            for number in numbers:
                if number in SIGNALS:
                    self._told(number)
                elif self._earlier != -1:
                    with contextlib.suppress(OSError):
                        os.write(self._earlier, bytes([number]))
        self._hear.close()

    def close(self) -> None:
        """Leave signals to whoever had them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._earlier)
        self._tell.close()  # which ends the thread
        _listeners.remove(self)

    def forget(self) -> None:
        """In a forked child: be as if there had been no listener."""
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._hear.close()
        self._tell.close()


def end_process(code: int) -> NoReturn:
    """End at once, with the children that `multiprocessing` began here: code that still runs must not go on."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    try:
        for child in [] if multiprocessing is None else multiprocessing.active_children():
            child.kill()
        logging.shutdown()
        sys.stdout.flush()
    finally:
        os._exit(code)


_listeners: list[Listener] = []
_masks = threading.local()


def _before_fork() -> None:
    if _listeners:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork_in_parent() -> None:
    if (mask := _masks.__dict__.pop("before", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    while _listeners:
        _listeners.pop().forget()
    _after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
