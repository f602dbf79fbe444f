"""The connections to Azurite that many threads share, and all parts of a process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.stores.azure.kept import Kept
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import Connections
from runonce.transports.protocols import Outgoing
from tests.support.transports import make_handler

if TYPE_CHECKING:
    import pytest

    from runonce.settings import Settings

THREADS = 40


def test_many_threads_keep_their_connections(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls at once as there are jobs throw no connection away: the next ones have the same."""
    made: list[str] = []
    make = Kept._new

    def noting(kept: Kept) -> Any:
        made.append("one")
        return make(kept)

    monkeypatch.setattr(Kept, "_new", noting)
    leases = azure_stores(settings).leases
    together = threading.Barrier(THREADS)

    def look(n: int) -> bool:
        held = leases.held(f"together/{n}")
        together.wait(30)
        return held or leases.held(f"together/{n}")

    with ThreadPoolExecutor(THREADS) as pool:
        assert not any(pool.map(look, range(THREADS)))
    assert len(made) <= THREADS


def test_all_parts_of_a_process_have_the_same_connections(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores, sender, inboxes and dead letters keep one pool for each server, and let it go with the runtime."""
    made: list[str] = []
    pools: list[Any] = []
    make = Connections._make

    def noting(connections: Connections, server: str) -> Any:
        made.append(server)
        pools.append(make(connections, server))
        return pools[-1]

    monkeypatch.setattr(Connections, "_make", noting)
    to = make_handler(settings.namespace)
    with Runtime(settings, found=Discovered(), host="test") as runtime:
        runtime.stores.leases.held("x")
        runtime.stores.runs.get("p", "x")
        runtime.stores.requests.send("x")
        runtime.sender.send(to.queue, [Outgoing(b"{}", "1"), Outgoing(b"{}", "2")])
        for inbox in (runtime.transport.inbox(to), runtime.transport.inbox(to)):
            assert len(inbox.receive(1, 5)) == 1
            inbox.close()
        runtime.transport.dead_letters(to).peek(1)
        assert runtime.transport.backlog(to).dead == 0
        assert len(made) == len(set(made)) == 3
        assert all(pool._idle for pool in pools)
    assert not any(pool._idle for pool in pools)
