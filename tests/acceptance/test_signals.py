"""A holder that is paused past its lease, and one that is told to stop: real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from support.replica import START, Config, Replicas, elapsed

from runonce.errors import StoreUnavailableError
from runonce.runs.operate import ask
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither SIGSTOP nor SIGTERM")


def config_of(settings: Settings, folder: Path, **values: object) -> Config:
    return Config(
        connection_string=settings.storage.connection_string or "",
        namespace=settings.namespace,
        diary=str(folder / "diary"),
        began=elapsed(),
        jobs=["nightly"],
        schedule="0 0 3 * * *",
        **values,  # type: ignore[arg-type]
    )


def run_is(outcome: Outcome, replicas: Replicas, timeout: float) -> None:
    """Wait until the run's record says so."""
    registry, found = replicas.config.dispatcher("judge").registry, None
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        with contextlib.suppress(StoreUnavailableError):  # a busy machine's storage may be slow to answer
            found = read_run(registry, "nightly", START)
            if found is not None and found[0].outcome is outcome:
                return
        time.sleep(0.05)
    pytest.fail(f"not {outcome}: {found}\n{replicas.logs()}")


@pytest.mark.slow
def test_a_holder_that_sleeps_past_its_lease_writes_nothing_more(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """Stopped for longer than its lease, replaced, and woken: checkpoint, ledger, blob and record are refused, first
    by its own look at the lease and then, when it believes in it all the same, by storage."""
    config = config_of(settings, tmp_path, body="writes", stubborn=True)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        old = replicas.start("old")
        replicas.wait_for("holding")
        old.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        replicas.start("new")
        run_is(Outcome.SUCCEEDED, replicas, 40)
        assert time.monotonic() - stopped_at > 8  # the lease was 15 s, renewed every 5 s
        old.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + 20
        while len(refusals := [e for e in replicas.diary() if e["pid"] == old.pid and e["attempt"] == 1]) < 6:
            assert time.monotonic() < deadline, replicas.logs()
            time.sleep(0.05)
        said = [(e["what"], e["detail"]) for e in refusals]
        # A blob is looked at before the lease, and says that somebody newer has written it. Where that look has no
        # answer at first, for the connection did not outlive the sleep, the lease is looked at before it is made again.
        before_the_blob = said.pop(3)
        assert before_the_blob in [("blob refused", "Fenced"), ("blob refused", "LeaseLost")]
        assert said == [
            ("start", "None"),
            ("holding", ""),
            ("checkpoint refused", "LeaseLost"),
            ("checkpoint refused", "Fenced"),
            ("blob refused", "Fenced"),
        ]
        assert ("start", "older") in [(e["what"], e["detail"]) for e in replicas.diary()]
        old.send_signal(signal.SIGTERM)
        assert old.wait(15) == 0
    found = read_run(dispatcher.registry, "nightly", START)
    assert found is not None
    run = found[0]
    assert (run.outcome, run.attempt, run.abandoned, run.checkpoint) == (Outcome.SUCCEEDED, 2, 1, '"newer"')
    blob = azure.blobs.read(f"{settings.namespace}/report")
    assert blob is not None
    assert blob.data == b"attempt 2"
    assert list(azure.runs.scan(settings.namespace, "entry:", "entry;")) == []


@pytest.mark.slow
def test_a_holder_told_to_stop_hands_over_within_a_second(
    tmp_path: Path, settings: Settings, azure: Stores
) -> None:
    """SIGTERM frees the lease in about a second, and another replica goes on with the next item at once."""
    config = config_of(settings, tmp_path, items=60, pause=0.1)
    dispatcher = config.dispatcher("operator")
    ask(dispatcher, dispatcher.jobs["nightly"], START)
    with Replicas(config, tmp_path) as replicas:
        first = replicas.start("first")
        replicas.wait_for("item")
        second = replicas.start("second")
        while sum(e["what"] == "item" for e in replicas.diary()) < 30:  # by then the second one is up
            time.sleep(0.02)
        told_at = elapsed()
        first.send_signal(signal.SIGTERM)
        while azure.leases.held(f"{settings.namespace}/nightly"):
            assert elapsed() - told_at < 5
            time.sleep(0.02)
        freed_after = elapsed() - told_at
        assert first.wait(10) == 0, replicas.logs()
        run_is(Outcome.SUCCEEDED, replicas, 30)
        diary = replicas.diary()
    assert freed_after < 1.5
    starts = [e for e in diary if e["what"] == "start"]
    assert [(e["pid"], e["attempt"]) for e in starts] == [(first.pid, 1), (second.pid, 2)]
    assert starts[1]["at"] - told_at < 5
    # Not one item was left out, and none was done twice.
    assert [int(e["detail"]) for e in diary if e["what"] == "item"] == list(range(60))
    found = read_run(dispatcher.registry, "nightly", START)
    assert found is not None
    assert (found[0].attempt, found[0].abandoned, found[0].failures) == (2, 0, 0)
