"""What is known of a namespace, on a real Azurite: few calls, whatever there is."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support.memory_transport import MemoryTransport

from runonce import Message, Run, handler, scheduled
from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.hosts.discover import Discovered
from runonce.hosts.facts import held, overview
from runonce.hosts.runtime import Runtime
from runonce.messages.rows import MessageRow, State
from runonce.messages.rows import place as claim_place
from runonce.runs.presence import Presence
from runonce.runs.rows import JobRow, Pending, job_key
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert

if TYPE_CHECKING:
    from conftest import Calls

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

NOW = datetime.now(UTC).replace(microsecond=0)
AN_HOUR_AGO = NOW - timedelta(hours=1)


def body(run: Run) -> None:
    """Do nothing."""


@handler(queue="orders", key="id")
def order(message: Message) -> None:
    """Do nothing."""


@pytest.mark.slow
def test_a_thousand_jobs_cost_a_handful_of_calls(settings: Settings, azure: Stores, calls: Calls) -> None:
    """An overview of 1,000 jobs, 300 of them running and 300 failed, makes a bounded number of calls and is quick."""
    jobs = {f"job_{n}": scheduled("0 0 3 * * *", name=f"job_{n}")(body) for n in range(1000)}
    rows = [JobRow(name, token=7, last_fire_time=AN_HOUR_AGO, last_outcome="failed") for name in jobs]
    for n, row in enumerate(rows):
        if n % 3 == 0:
            running = {AN_HOUR_AGO: Pending("running", AN_HOUR_AGO)}
            rows[n] = replace(row, running=AN_HOUR_AGO, pending=running, host="host-1", attempt=1)
    for first in range(0, 1000, 100):
        inserts = [Insert(job_key(row.name), encode(row)) for row in rows[first : first + 100]]
        azure.runs.commit(settings.namespace, inserts)
    for n, state in enumerate([State.CLAIMED, State.RELEASED, State.FAILED, State.UNKNOWN, State.DONE]):
        claim = MessageRow("order", "orders", f"k{n}", state, started_at=AN_HOUR_AGO, lease=60)
        partition, key = claim_place(settings.namespace, "orders", "order", claim.key)
        azure.claims.commit(partition, [Insert(key, encode(claim))])
    azure.leases.acquire(f"{settings.namespace}/job_0", "0b6a3f7e-4d0c-4a0e-8d51-0a0a0a0a0a0a", 60)
    Presence(Registry(azure.runs, settings.namespace, SystemClock(), "host-1"), jobs, NOW).check_in()
    found = Discovered(jobs, {"order": order})
    runtime = Runtime(settings, found=found, stores=azure, transport=MemoryTransport(SystemClock()))
    assert runtime.dispatcher.jobs
    calls.made.clear()
    began = time.perf_counter()
    looked = overview(runtime)
    took = time.perf_counter() - began
    assert len(calls.made) <= 12, calls.made
    assert took < 15, took  # half a second where nothing else runs
    states = {one.name: one.trouble for one in looked.jobs}
    assert states["job_0"] == "over its limit"
    assert (states["job_1"], states["job_3"]) == ("failed", "abandoned")
    (host,) = looked.hosts
    assert (host.name, host.is_alive, len(host.jobs)) == ("host-1", True, 500)
    (orders,) = looked.handlers
    assert (orders.running, orders.retrying, orders.failed, orders.held) == (1, 1, 1, 1)
    runs, messages = held(runtime)
    assert (runs, [row.key for row in messages]) == ([], ["k3"])
