"""A killed host whose death another one on the same machine can see: its lease is free at once, and only then."""

from __future__ import annotations

import os
import signal
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.replica import START, Replicas

from runonce.hosts import same_machine
from runonce.runs.operate import ask
from runonce.runs.rows import Outcome
from tests.acceptance.test_signals import config_of, run_is

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")
SOON = 6.0
"""Seconds: two looks, a request and a claim on a busy machine; the lease has 15."""


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True], ids=["another host", "the same one started again"])
def test_a_dead_hosts_run_goes_on_at_once(restart: bool, tmp_path: Path, settings: Settings) -> None:
    """After kill -9 another host of this machine goes on long before the lease has ended; so does a new one."""
    config = config_of(settings, tmp_path, items=30, pause=0.2, same_machine=True)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("item")
        if not restart:
            replicas.start("second")
            time.sleep(2.0)  # it is up, and has looked
        time.sleep(same_machine.LOOK * 3)
        first.kill()
        first.wait()
        if restart:
            replicas.start("second")
        killed_at = time.monotonic()
        while sum(line["what"] == "start" for line in replicas.diary()) < 2:
            assert time.monotonic() - killed_at < SOON, replicas.logs()
            time.sleep(0.02)
        run_is(Outcome.SUCCEEDED, replicas, 30)
    items = [int(line["detail"]) for line in replicas.diary() if line["what"] == "item"]
    assert sorted(set(items)) == list(range(30))
    assert len(items) <= 31  # the one that was under way may come twice


@pytest.mark.slow
def test_a_paused_host_keeps_its_lease(tmp_path: Path, settings: Settings, azure: Stores) -> None:
    """A process that is stopped is not dead: the other host leaves its lease alone."""
    config = config_of(settings, tmp_path, items=60, pause=0.2, same_machine=True)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.start("second")
        replicas.wait_for("item")
        time.sleep(2.0)
        holder = replicas.wait_for("start")["pid"]
        stopped = next(one for one in replicas.started if one.pid == holder)
        stopped.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 4
        while time.monotonic() < until:
            assert azure.leases.held(f"{settings.namespace}/nightly")
            time.sleep(0.2)
        stopped.send_signal(signal.SIGCONT)
        run_is(Outcome.SUCCEEDED, replicas, 40)
    assert [line["pid"] for line in replicas.diary() if line["what"] == "start"] == [holder]
    assert first in replicas.started


def test_what_a_dead_host_left_behind_long_ago_does_no_harm(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """A file of a run that others have finished: nothing is released that somebody else holds, and the file goes."""
    config = config_of(settings, tmp_path)
    dispatcher = config.dispatcher("looks")
    folder = same_machine._folder(dispatcher)
    assert folder is not None
    lock, holder = dispatcher.registry.lock_name("nightly"), str(uuid.uuid4())
    assert azure.leases.acquire(lock, holder, 15)
    left = folder / f"{uuid.uuid4()}{same_machine.SUFFIX}"
    left.write_text(f'{{"job": "nightly", "fire_time": "{START.isoformat()}", "lock": "{lock}"}}')
    same_machine._Machine(dispatcher, folder).take_up()
    assert not left.exists()
    assert azure.leases.held(lock)


def test_hosts_of_other_namespaces_are_not_looked_at(
    tmp_path: Path, settings: Settings, monkeypatch: Any
) -> None:
    """The files of each namespace are apart, and a folder that is not this user's own is not used."""
    monkeypatch.setattr(same_machine.tempfile, "gettempdir", lambda: str(tmp_path))
    one = config_of(settings, tmp_path).dispatcher("one")
    other = config_of(replace(settings, namespace="another"), tmp_path).dispatcher("other")
    first, second = same_machine._folder(one), same_machine._folder(other)
    assert first is not None
    assert first != second
    assert first.stat().st_mode & 0o077 == 0
    root = first.parent
    root.rename(tmp_path / "elsewhere")
    root.symlink_to(tmp_path / "elsewhere")
    assert same_machine._folder(one) is None
