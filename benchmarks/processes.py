"""Processes with all that they have started: what they take, and their end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path


def tree(pid: int) -> list[int]:
    """A process and all that it has started, and these."""
    found = [pid]
    for one in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def cpu(pids: list[int]) -> float:
    """Seconds of CPU that processes, what they have started and what of that has ended have taken."""
    ticks = 0
    for pid in {each for root in pids for each in tree(root)}:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks += ticks_of(Path(f"/proc/{pid}/stat").read_text())
    return ticks / os.sysconf("SC_CLK_TCK")


def ticks_of(stat: str) -> int:
    """The clock ticks in a line of /proc/PID/stat: of the process, and of its children that have ended."""
    return sum(map(int, stat.rpartition(") ")[2].split()[11:15]))


def memory(pid: int) -> float:
    """MiB that a process has resident."""
    line = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(line[1]) / 1024 if line else 0.0


def kill(pid: int) -> None:
    """End a process and all that it has started, at once."""
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
