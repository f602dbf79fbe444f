"""A lease renewed by a small process of its own, for jobs that hold the interpreter longer than a thread can wait.

The keeper renews while the job makes progress, which every look at its lease is (`run.check`, a batch, a checkpoint,
a blob). It stops when there was none for `stall_after` seconds, so that a wedged job cannot hold its lock for ever, and
it releases the lease when the job's process has ended, however it did: that is seen at once, and not waited out.

The two share a page of memory: until when the lease is trusted, when the job last made progress, and why no renewal
follows. Elapsed time is the same for all processes of a machine (see `Clock`).
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.execution.lease import Lease

TRUST, PROGRESS, STALLED = range(3)
"""The places in the shared page, eight bytes each."""
_PLACE = struct.Struct("d")
LOOK = 0.2
"""Seconds between two looks of the keeper at the job's process and its progress."""
PATIENCE = 10.0
"""Seconds that a keeper may take to release the lease: two calls that time out."""


class Shared:
    """Numbers that two processes see; each has one writer."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PLACE.size * 3)

    def __getitem__(self, place: int) -> float:
        value: float = _PLACE.unpack_from(self._page, place * _PLACE.size)[0]
        return value

    def __setitem__(self, place: int, value: float) -> None:
        _PLACE.pack_into(self._page, place * _PLACE.size, value)


class Keeper:
    """The job's side.

    Args:
        start: Starts the process for the shared page at that path, with a pipe as its standard input.
        trusted_until, now: Elapsed times.
    """

    def __init__(
        self, start: Callable[[str], subprocess.Popen[bytes]], trusted_until: float, now: float
    ) -> None:
        number, self._path = tempfile.mkstemp(prefix="runonce-keeper-")
        os.write(number, _PLACE.pack(trusted_until) + _PLACE.pack(now) + _PLACE.pack(0))
        os.close(number)
        self._shared = Shared(self._path)
        self._process = start(self._path)

    @property
    def trusted_until(self) -> float:
        """The elapsed time until which the lease is believed."""
        return self._shared[TRUST]

    @property
    def stalled(self) -> bool:
        """Whether it stopped renewing because the job made no progress."""
        return self._shared[STALLED] > 0

    def progress(self, now: float) -> None:
        """The job did something."""
        self._shared[PROGRESS] = now

    def close(self) -> bool:
        """Have it release the lease and end; False when it could not be waited for, and is ended without."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            return self._process.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        finally:
            Path(self._path).unlink(missing_ok=True)


def keep(lease: Lease, clock: Clock, path: str, stall_after: float, let_go: float, parent: int) -> None:
    """The keeper's side: renew until the job's process has closed our standard input or ended, then release.

    The pipe alone would not tell: the job's forked children have its other end, too.

    Args:
        lease: As it was granted to the job.
        clock: This machine's.
        path: Of the shared page.
        stall_after: Seconds without progress after which the lease may lapse.
        let_go: The elapsed time after which it may lapse in any case.
        parent: The job's process.
    """
    shared = Shared(path)
    closed = threading.Event()
    lease.renew_until(min(let_go, shared[PROGRESS] + stall_after))
    lease.keep(lambda _: None)
    start_thread(partial(_wait_for_the_end, closed), "runonce-keeper-pipe")
    while not clock.wait(closed, LOOK) and os.getppid() == parent:
        stalls = shared[PROGRESS] + stall_after
        lease.renew_until(min(let_go, stalls))
        shared[STALLED] = float(clock.elapsed() >= stalls)
        shared[TRUST] = lease.trusted_until if lease.held else float("-inf")
    lease.release()
    Path(path).unlink(missing_ok=True)  # nobody else does for a job that was killed


def _wait_for_the_end(closed: threading.Event) -> None:
    sys.stdin.buffer.read()
    closed.set()
