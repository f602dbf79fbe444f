"""A host is killed in the middle of a run: another goes on when the lease has ended, and not a tick later."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from support.replica import START, Config, Replicas, elapsed

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.runs.operate import ask
from runonce.runs.presence import MISSED, Presence
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from tests.conftest import Calls

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no kill -9")

PROMISED = 2.0
"""Seconds after the end of the lease, at most."""


def test_a_killed_hosts_run_goes_on_when_its_lease_has_ended(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """Real processes, a lease of 15 s, recovery ticks an hour apart: two seconds after the lease it goes on."""
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(tmp_path / "diary"),
        began=elapsed(),
        jobs=["nightly"],
        schedule="0 0 3 * * *",
        items=400,
        pause=0.1,
        recovery_interval=3600.0,
    )
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("item")
        second = replicas.start("second")
        presence = Presence(dispatcher.registry, [], START)
        give_up_at = time.monotonic() + 30
        while len(presence.others()) < 2:
            assert time.monotonic() < give_up_at, replicas.logs()
            time.sleep(0.1)
        first.kill()
        killed_at = elapsed()
        while azure.leases.held(f"{settings.namespace}/nightly"):
            assert elapsed() - killed_at < 20
            time.sleep(0.05)
        free_at = elapsed()
        while not (later := [e for e in replicas.diary() if e["what"] == "start" and e["pid"] == second.pid]):
            assert elapsed() - free_at < 30, replicas.logs()
            time.sleep(0.05)
        waited = later[0]["at"] - free_at
        assert waited < PROMISED
        assert later[0]["attempt"] == 2
    found = read_run(dispatcher.registry, "nightly", START)
    assert found is not None
    assert (found[0].outcome, found[0].abandoned) == (Outcome.RUNNING, 1)


def test_a_host_that_ends_by_itself_is_not_missed(tmp_path: Path, settings: Settings) -> None:
    """It takes its row along."""
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(tmp_path / "diary"),
        began=elapsed(),
        jobs=["nightly"],
        schedule="0 0 3 * * *",
    )
    presence = Presence(config.dispatcher("operator").registry, [], START)
    with Replicas(config, tmp_path) as replicas:
        host = replicas.start("only")
        give_up_at = time.monotonic() + 30
        while not presence.others():
            assert time.monotonic() < give_up_at, replicas.logs()
            time.sleep(0.1)
        host.terminate()
        assert host.wait(20) == 0
    assert presence.others() == []


def test_what_a_check_in_costs(settings: Settings, azure: Stores, calls: Calls) -> None:
    """One call to say that a host lives, one to see the others, and one to take a missed one's row away."""
    ours, theirs = (
        Presence(Registry(azure.runs, settings.namespace, SystemClock(), name), ["nightly"], START)
        for name in ("ours", "theirs: host/1 #2")
    )
    ours.check_in()  # makes the table
    calls.made.clear()
    for _ in range(3):
        ours.check_in()
    assert len(calls.made) == 3
    theirs.check_in()
    calls.made.clear()
    (seen,) = ours.others()
    assert len(calls.made) == 1
    assert seen.name == "theirs: host/1 #2"
    assert not seen.is_missed
    assert seen.since < MISSED
    assert ours.gone(seen)
    assert not ours.gone(seen)
    assert ours.others() == []
    theirs.check_in()  # it finds its row gone, and writes it anew the next time
    theirs.check_in()
    assert [other.name for other in ours.others()] == ["theirs: host/1 #2"]
    ours.leave()
    assert [other.name for other in theirs.others()] == []
