"""Starting replicas as processes of their own, and leaving none behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from experiments.effects import CLOCK
from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

START_SECONDS = 60.0
LOG_LINES = 8


class ExperimentError(Exception):
    """An experiment could not be carried out; the message says what did not happen."""


class Replica:
    """A replica's process. It is spoken to in lines; when this process is gone it ends by itself."""

    def __init__(self, arguments: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "experiments.replica", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environ),
                encoding="utf-8",
            )
        self.pid = self.process.pid
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        start_thread(self._listen, f"replica-{self.pid}")

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def tell(self, line: str) -> None:
        """Send it a line."""
        stream = self.process.stdin
        if stream is None:
            raise ExperimentError("the replica has no ear")
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError as error:
            raise ExperimentError(f"replica {self.pid} has ended: {self._last_words()}") from error

    def hear(self, word: str, timeout: float = START_SECONDS) -> str:
        """Wait for a line that begins with a word; the rest of that line."""
        until = CLOCK.elapsed() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - CLOCK.elapsed()))
            except Empty:
                raise ExperimentError(f"replica {self.pid} said no {word!r} within {timeout:g} s") from None
            if line is None:
                self._lines.put(None)
                raise ExperimentError(f"replica {self.pid} ended before {word!r}: {self._last_words()}")
            first, _, rest = line.partition(" ")
            if first == word:
                return rest

    def end(self) -> None:
        """Kill it, paused or not, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-LOG_LINES:]) or "it left no message"


class Processes:
    """All replicas of all experiments; `end` leaves none, whatever the experiments do meanwhile."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._replicas: list[Replica] = []

    def start(self, arguments: list[str], environ: Mapping[str, str], log: Path) -> Replica:
        """Start a replica."""
        with self._lock:
            if self.ended.is_set():
                raise ExperimentError("stopped before it was over")
            replica = Replica(arguments, environ, log)
            self._replicas.append(replica)
            return replica

    def end(self) -> None:
        """Kill what runs, and let nothing start any more."""
        self.ended.set()
        with self._lock:
            for replica in self._replicas:
                replica.process.kill()
            for replica in self._replicas:
                replica.end()
