"""Functions under `@once` on Azurite: callers in many threads, and a process that is killed while it runs one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from support.namespaces import fresh_settings
from support.pages import ROOT

from runonce.hosts.calls import calling_by
from runonce.hosts.runtime import Runtime
from runonce.messages.calls import Calls
from runonce.once import Call, once

if TYPE_CHECKING:
    from runonce.settings import Settings

LEASE = 3
PROCESS = """
import sys, time
from runonce.once import Call, once

@once(key="order", fingerprint=None)
def charge(order, hang):
    call = Call.current()
    print("attempt", call.attempt, call.idempotency_key, flush=True)
    if hang:
        time.sleep(600)
    return {"receipt": None, "attempt": call.attempt}

print("got", charge("A-1", sys.argv[1] == "hang"), flush=True)
"""


def process(settings: Settings, how: str) -> subprocess.Popen[str]:
    """A process that calls the function."""
    environ = {
        **os.environ,
        "RUNONCE_STORAGE": str(settings.storage.connection_string),
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_CLAIM_LEASE": str(LEASE),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, how], env=environ, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_many_callers_at_once_run_it_once(azurite: str) -> None:
    """Twelve threads with four claimants of their own call it together: one runs it, all get its result."""
    settings = fresh_settings(azurite)
    ran = []

    @once(key="order")
    def charge(order: str) -> dict[str, Any]:
        ran.append(Call.current().attempt)
        return {"order": order, "receipt": "", "cents": 0}

    processes = [Calls(Runtime(settings).claims, LEASE) for _ in range(4)]
    with ThreadPoolExecutor(12) as pool:
        for claimant in processes:
            with calling_by(claimant):
                answers = [pool.submit(charge, "A-1") for _ in range(3)]
                assert [answer.result(60) for answer in answers] == [
                    {"order": "A-1", "receipt": "", "cents": 0}
                ] * 3
    assert ran == [1]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_caller_is_taken_over_by_another_process(azurite: str) -> None:
    """A process killed -9 in the call is followed by one that waited for it, with the same idempotency key."""
    settings = fresh_settings(azurite)
    with process(settings, "hang") as first:
        assert first.stdout is not None
        begun = first.stdout.readline().split()
        assert begun[:2] == ["attempt", "1"]
        with process(settings, "answer") as second:
            first.send_signal(signal.SIGKILL)
            said, _ = second.communicate(timeout=50)
    assert said.split("\n")[:2] == [f"attempt 2 {begun[2]}", "got {'receipt': None, 'attempt': 2}"]
    with process(settings, "answer") as third:
        assert third.communicate(timeout=50)[0] == "got {'receipt': None, 'attempt': 2}\n"
