"""What claims the calls of this process: made of its settings, when the first function with a key is called."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runonce.hosts.runtime import Runtime
from runonce.messages.calls import Calls
from runonce.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_instead: list[Calls] = []
_ours: list[Calls] = []
_inherited: list[list[Calls]] = []
"""In a forked child: its parents', which share connections with theirs and are neither used nor closed."""


def calls() -> Calls:
    """What claims calls in this process; raises SettingsError."""
    if _instead:
        return _instead[-1]
    with _lock:
        if not _ours:
            settings = Settings.from_env()
            _ours.append(Calls(Runtime(settings).claims, settings.claim_lease))
        return _ours[0]


@contextmanager
def calling_by(other: Calls) -> Iterator[None]:
    """Within the block, in all threads, calls are claimed by this one: a test bench keeps them in memory."""
    _instead.append(other)
    try:
        yield
    finally:
        _instead.remove(other)


def _after_fork() -> None:
    global _lock, _ours
    _inherited.append(_ours)
    _lock, _ours = threading.Lock(), []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
