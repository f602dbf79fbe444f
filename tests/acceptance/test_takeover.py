"""A host is killed in the middle of a run: another goes on when the lease has ended, and not a tick later."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from support.functions_app import environment, make_app
from support.functions_worker import LiveHost
from support.replica import START, Config, Replicas, elapsed

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.runs.operate import ask
from runonce.runs.presence import Presence, hosts
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from runonce.runs.dispatch import Dispatcher
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from tests.conftest import Calls

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no kill -9")

SOON = 10.0
"""Seconds after the end of the lease, with much else to do (alone it is one or two); the next tick is an hour away."""
LONG = """
import time
from runonce import Run, scheduled

@scheduled("0 0 0 1 1 *", misfire="skip")
def nightly(run: Run) -> None:
    run.log.info("attempt %s of %s works", run.attempt, run.fire_time)
    for _ in run.batches(range(600), size=1):
        time.sleep(0.1)
"""


def waited_after(azure: Stores, settings: Settings, goes_on: Callable[[], bool]) -> float:
    """Seconds from when the dead host's lease was seen to have ended until another host goes on."""
    ends_by, free_at = elapsed() + 20, None
    while not goes_on():
        if free_at is None and not azure.leases.held(f"{settings.namespace}/nightly"):
            free_at = elapsed()
        assert elapsed() < (free_at or ends_by) + 30
        time.sleep(0.02)
    return 0.0 if free_at is None else elapsed() - free_at  # it was quicker than we looked


def asked_for(settings: Settings, folder: Path, **values: Any) -> tuple[Config, Dispatcher]:
    """Replicas to be, whose recovery ticks are an hour apart, and who has asked for the run that one of them begins."""
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(folder / "diary"),
        began=elapsed(),
        jobs=["nightly"],
        schedule="0 0 3 * * *",
        items=400,
        recovery_interval=3600.0,
        **values,
    )
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    return config, dispatcher


def start_second(replicas: Replicas, dispatcher: Dispatcher) -> subprocess.Popen[str]:
    """The one that is to take over, once it is up."""
    second = replicas.start("second")
    give_up_at = time.monotonic() + 30
    while len(hosts(dispatcher.registry)) < 2:
        assert time.monotonic() < give_up_at, replicas.logs()
        time.sleep(0.1)
    return second


@pytest.mark.slow
@pytest.mark.parametrize("lived", [1.5, 7.3])
def test_a_killed_hosts_run_goes_on_when_its_lease_has_ended(
    tmp_path: Path, settings: Settings, azure: Stores, lived: float
) -> None:
    """Real processes, a lease of 15 s, recovery ticks an hour apart: soon after the lease it goes on."""
    config, dispatcher = asked_for(settings, tmp_path, pause=0.1)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        began = replicas.wait_for("item")["at"]
        second = start_second(replicas, dispatcher)
        time.sleep(max(0.0, began + lived - elapsed()))
        first.kill()

        def starts() -> list[int]:
            return [e["attempt"] for e in replicas.diary() if e["what"] == "start" and e["pid"] == second.pid]

        assert waited_after(azure, settings, lambda: bool(starts())) < SOON, replicas.logs()
        assert starts() == [2]
    found = read_run(dispatcher.registry, "nightly", START)
    assert found is not None
    assert (found[0].outcome, found[0].abandoned) == (Outcome.RUNNING, 1)


def test_a_killed_hosts_run_goes_on_at_once_where_its_lease_is_postgresqls(
    tmp_path: Path, settings: Settings, postgresql_address: str
) -> None:
    """As if on two machines, recovery ticks an hour apart: the lost connection tells, and no lease is waited out."""
    config, dispatcher = asked_for(settings, tmp_path, leases=postgresql_address)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("item")
        second = start_second(replicas, dispatcher)
        renewed_until = elapsed() + 15
        first.kill()
        while not (
            starts := [e for e in replicas.diary() if e["what"] == "start" and e["pid"] == second.pid]
        ):
            assert elapsed() < renewed_until - 5, replicas.logs()
            time.sleep(0.02)
    assert [e["attempt"] for e in starts] == [2]


@pytest.mark.slow
def test_a_killed_functions_hosts_run_goes_on_when_its_lease_has_ended(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """The same of an app on Functions whose host and worker are killed: another instance's queue function wakes."""
    app = make_app(tmp_path / "app", {"nightly.py": LONG})
    first, second = (
        LiveHost(app, environment(settings) | {"AzureFunctionsWebHost__hostid": name}) for name in "ab"
    )
    with ExitStack() as stack:
        with first:
            azure.requests.send('{"job": "nightly", "fire_time": "2026-01-01T00:00:00Z", "why": "asked"}')
            first.console.wait_for("attempt 1 of", timeout=30)
            stack.enter_context(second)
            second.console.wait_for("Host started")
            time.sleep(2)
            first.worker.kill()

        def goes_on() -> bool:
            return any("attempt 2 of" in line for line in second.console.lines)

        assert waited_after(azure, settings, goes_on) < SOON


def test_a_host_has_a_row_while_it_serves(tmp_path: Path, settings: Settings) -> None:
    """It is there when the host has started, says how often it is written, and goes when the host ends by itself."""
    config = Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(tmp_path / "diary"),
        began=elapsed(),
        jobs=["nightly"],
        schedule="0 0 3 * * *",
    )
    registry = config.dispatcher("operator").registry
    with Replicas(config, tmp_path) as replicas:
        host = replicas.start("only")
        give_up_at = time.monotonic() + 30
        while not (seen := hosts(registry)):
            assert time.monotonic() < give_up_at, replicas.logs()
            time.sleep(0.1)
        assert [(one.name, one.is_alive) for one in seen] == [("only", True)]
        host.terminate()
        assert host.wait(20) == 0, replicas.logs()
    assert hosts(registry) == []


def test_what_a_check_in_costs(settings: Settings, azure: Stores, calls: Calls) -> None:
    """One call; one more where somebody took the row away."""
    registry = Registry(azure.runs, settings.namespace, SystemClock(), "theirs: host/1 #2")
    presence = Presence(registry, ["nightly"], START)
    presence.say()  # makes the table
    calls.made.clear()
    for _ in range(3):
        presence.say()
    assert len(calls.made) == 3
    assert [one.name for one in hosts(registry)] == ["theirs: host/1 #2"]
    Presence(registry, ["nightly"], START).leave()  # of another life of the same host, which wrote nothing
    assert len(hosts(registry)) == 1
    presence.leave()
    presence.leave()
    assert hosts(registry) == []
