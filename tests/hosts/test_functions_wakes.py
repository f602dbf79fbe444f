"""What waits for an instant on Functions begins at it, and not with the recovery timer: its message comes then."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from runonce.runs.requests import HELD_AGAIN
from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import LiveHost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

JOBS = """
from runonce import Run, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip", retries=1, retry_delay=4)
def fails_once(run: Run) -> None:
    run.log.info("attempt %s works", run.attempt)
    if run.attempt == 1:
        raise OSError("the other side is down")
"""
REQUEST = '{"job": "fails_once", "fire_time": "2026-01-01T00:00:00Z", "why": "asked"}'
POLL = 2.0
"""Seconds between two looks of the host at the queue, at most."""
SLACK = 1.5


@pytest.fixture
def host(tmp_path: Path, settings: Settings) -> Iterator[LiveHost]:
    """A Functions host of that job; nothing calls its recovery before the next minute, and then in vain."""
    app = make_app(tmp_path / "app", {"fails_once.py": JOBS})
    hostid = {"AzureFunctionsWebHost__hostid": f"wakes-{uuid.uuid4().hex[:8]}"}
    with LiveHost(
        app, environment(settings) | hostid | {"AzureWebJobs.runonce_recovery.Disabled": "1"}
    ) as live:
        yield live


def test_a_retry_on_functions_comes_when_it_is_due(host: LiveHost, azure: Stores) -> None:
    """A delay of four seconds (and a fifth more or less) is that, with the recovery timer switched off."""
    azure.requests.send(REQUEST)
    host.console.wait_for("attempt 1 works", timeout=20)
    failed_at = time.monotonic()
    host.console.wait_for("attempt 2 works", timeout=20)
    assert 3.0 <= time.monotonic() - failed_at <= 4.8 + 1.0 + POLL + SLACK


@pytest.mark.slow
def test_what_waits_for_a_lease_on_functions_comes_when_it_ends(
    host: LiveHost, settings: Settings, azure: Stores
) -> None:
    """A host died between its lease and its claim: the request that met that lease runs a moment after its end."""
    assert azure.leases.acquire(f"{settings.namespace}/fails_once", str(uuid.uuid4()), 15)
    ends_at = time.monotonic() + 15
    azure.requests.send(REQUEST)
    host.console.wait_for("attempt 1 works", timeout=30)
    late = time.monotonic() - ends_at
    assert late <= HELD_AGAIN.total_seconds() + POLL + SLACK
    assert late > -1.0
