"""Every store there is, each with its own way to let time pass, for the contract suite.

The fixtures are in tests/contract/conftest.py.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest

from runonce.settings import LeaseTerms, Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.stores.protocols import Stores

T = TypeVar("T")

PATIENCE = 10.0
LOOK_EVERY = 0.1


@dataclass
class Kit:
    """Stores under test, names nobody else uses, and how to wait."""

    stores: Stores
    clock: ManualClock | None
    name: str = field(default_factory=lambda: f"n-{uuid.uuid4().hex[:12]}")
    """Of a lock, a partition or a blob's folder of this test's own."""
    term: int = 15
    """Seconds of the shortest lease there is."""

    def until(self, call: Callable[[], T | None]) -> T:
        """What `call` gives once it gives something: time passes between the looks."""
        for _ in range(int(PATIENCE / LOOK_EVERY)):
            if (found := call()) is not None:
                return found
            if self.clock is not None:
                self.clock.advance(LOOK_EVERY)
            else:
                threading.Event().wait(LOOK_EVERY)
        pytest.fail(f"nothing came within {PATIENCE:g} s")


def fresh_settings(connection_string: str) -> Settings:
    """Settings whose containers, table and queue do not exist yet."""
    unique = uuid.uuid4().hex[:12]
    return Settings(
        f"t-{unique}",
        StorageConnection(connection_string),
        LeaseTerms(15, 5, 2),
        runs_table=f"t{unique}",
        lease_container=f"leases-{unique}",
        data_container=f"data-{unique}",
    )


def memory_kit() -> Kit:
    """Empty stores in memory."""
    clock = ManualClock()
    return Kit(memory_stores(clock), clock)
