"""The connections to Azurite that many threads share."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from runonce.stores.azure.stores import azure_stores

if TYPE_CHECKING:
    import pytest

    from runonce.settings import Settings

THREADS = 40


def test_many_threads_keep_their_connections(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """As many calls at once as there are jobs throw no connection away, which the library would warn of each time."""
    leases = azure_stores(settings).leases
    together = threading.Barrier(THREADS)

    def look(n: int) -> bool:
        held = leases.held(f"together/{n}")
        together.wait(30)
        return held or leases.held(f"together/{n}")

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(THREADS) as pool:
        assert not any(pool.map(look, range(THREADS)))
    assert "Connection pool is full" not in caplog.text
