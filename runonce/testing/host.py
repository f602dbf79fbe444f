"""`runonce serve` as a process of its own, to be killed, paused and stopped by a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from runonce.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

READY = "Ctrl-C stops it."
PATIENCE = 30.0
"""Seconds to wait for what a test waits for."""
LOOK_EVERY = 0.02
SHOWN = 2000
"""Characters of a log's end in an error."""


class Host:
    """A host that serves the jobs folder; it serves already once it is made. Not on Windows, which has no SIGSTOP."""

    def __init__(self, folder: Path, log: Path, environ: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runonce", "serve"],
                cwd=folder,
                env={**os.environ, "RUNONCE_DASHBOARD": "off", "PYTHONUNBUFFERED": "1", **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            self.wait_for(READY)
        except AssertionError:
            self.kill()
            raise

    @property
    def log(self) -> str:
        """What it has printed and logged so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait until its log has that text.

        Raises:
            AssertionError: It has ended, or has not written it within so many seconds.
        """
        clock, never = SystemClock(), threading.Event()
        until = clock.elapsed() + timeout
        while True:
            ended = self.process.poll() is not None or clock.elapsed() >= until
            if text in self.log:
                return
            if ended:
                code = self.process.returncode
                why = f"within {timeout:g} s" if code is None else f"before it ended with {code}"
                raise AssertionError(f"runonce serve did not write {text!r} {why}:\n{self.log[-SHOWN:]}")
            clock.wait(never, LOOK_EVERY)

    def kill(self) -> None:
        """End it at once, as a crash or `kill -9` does; harmless when it has ended."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Let it do nothing more until `resume`: as a machine that is frozen, while its leases run out."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`, as if no time had passed."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout: float = PATIENCE) -> int:
        """Ask it to stop, as SIGTERM does, and wait for it; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout)
