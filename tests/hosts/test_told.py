"""Hooks, the webhook and pings of real processes, on real storage and a real HTTP server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest
from support.listener import HANG, Listener, listening

from tests.support.functions_app import environment, make_app
from tests.support.functions_worker import FunctionsHost, queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runonce.settings import Settings

AT = "2026-01-05T03:00:00Z"
SECRET = "T0K3N-s3cr3t"
JOBS = """
    from pathlib import Path

    from runonce import PermanentError, Run, hooks, scheduled

    HERE = Path(__file__).parent

    class Notes(hooks.Hooks):
        def before_run(self, run: hooks.RunBegun) -> None:
            self.note(f"before {run.job}")

        def after_run(self, ended: hooks.RunEnded) -> None:
            self.note(f"after {ended.run.job}: {ended.outcome}")
            raise SystemExit("a broken hook")

        def note(self, text: str) -> None:
            print(text)
            with (HERE / "notes").open("a") as file:
                file.write(text + "\\n")

    hooks.add(Notes())

    @scheduled("0 0 3 * * *", ping_url="%PING%")
    async def bad(run: Run) -> None:
        raise PermanentError("the account is closed")

    @scheduled("0 0 3 * * *", ping_url="%PING%")
    def good(run: Run) -> None:
        "Do it."

    @scheduled("* * * * * *", misfire="skip")
    def every_second(run: Run) -> None:
        (HERE / "ran").touch()
        raise PermanentError("again and again")
"""


@pytest.fixture
def server() -> Iterator[Listener]:
    with listening() as one:
        yield one


@pytest.fixture
def environ(settings: Settings, tmp_path: Path, server: Listener) -> dict[str, str]:
    """The environment of a process whose webhook and pings go to the server."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "told.py").write_text(textwrap.dedent(JOBS))
    return {
        **os.environ,
        "RUNONCE_STORAGE": settings.storage.connection_string or "",
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_JOBS": str(tmp_path / "jobs"),
        "RUNONCE_NOTIFY_URL": f"{server.url}/hook/{SECRET}",
        "PING": f"{server.url}/ping/{SECRET}",
    }


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runonce", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_command_tells_before_it_ends(environ: dict[str, str], server: Listener, tmp_path: Path) -> None:
    """`run` of a job that fails has told webhook, check and hooks by the time it ends, with its usual exit code."""
    done = run(environ, "--verbose", "run", "bad", "--at", AT)
    assert done.returncode == 1, done.stderr
    wanted = {f"/ping/{SECRET}/start", f"/ping/{SECRET}/fail", f"/hook/{SECRET}"}
    assert sorted(server.paths) == sorted(wanted)
    (told,) = [request.json for request in server.requests if request.path.startswith("/hook")]
    assert (told["event"], told["name"], told["fire_time"]) == ("failed", "bad", AT)
    assert (tmp_path / "jobs" / "notes").read_text() == "before bad\nafter bad: failed\n"
    assert done.stderr.count("its after_run failed") == 1
    assert SECRET not in done.stdout + done.stderr
    run(environ, "run", "bad", "--at", "2026-01-04T03:00:00Z")
    assert [path for path in server.paths if path.startswith("/hook")] == [f"/hook/{SECRET}"], "one incident"


def test_what_a_hook_prints_is_no_part_of_the_answer(environ: dict[str, str]) -> None:
    """With --json standard output has one document, and what hooks print goes where the job's own prints go."""
    done = run(environ, "run", "good", "--at", AT, "--json")
    assert json.loads(done.stdout)["outcome"] == "succeeded"
    assert "after good: succeeded" in done.stderr


@pytest.mark.slow
def test_a_server_that_hangs_changes_no_exit_code(environ: dict[str, str], server: Listener) -> None:
    """A job that succeeds has succeeded, a few seconds later, and the log has no URL."""
    server.always = HANG
    done = run(environ, "--verbose", "run", "good", "--at", AT)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a signal ends it")
def test_a_host_tells_a_job_that_fails_each_second_once(
    environ: dict[str, str], server: Listener, tmp_path: Path
) -> None:
    """Two hosts run a job that fails every second: one message, however often it fails; a stop takes no longer."""
    hosts = [
        subprocess.Popen(
            [sys.executable, "-m", "runonce", "serve"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    try:
        server.wait(1, 60)
        failures = tmp_path / "jobs" / "notes"
        for _ in range(300):
            if failures.read_text().count("after every_second: failed") >= 4:
                break
            time.sleep(0.1)
        assert failures.read_text().count("after every_second: failed") >= 4
        began = time.monotonic()
        for host in hosts:
            host.send_signal(signal.SIGTERM)
        assert [host.wait(30) for host in hosts] == [0, 0]
        assert time.monotonic() - began < 15
        assert [(one.json["event"], one.json["name"]) for one in server.requests] == [
            ("failed", "every_second")
        ]
    finally:
        for host in hosts:
            host.kill()


ON_FUNCTIONS = """
    from runonce import PermanentError, Run, hooks, scheduled

    class Says(hooks.Hooks):
        def before_run(self, run: hooks.RunBegun) -> None:
            import logging
            logging.getLogger("mine").warning("heard of %s", run.job)

    hooks.add(Says())

    @scheduled("0 0 0 1 1 *", misfire="skip", ping_url="%PING%")
    def bad(run: Run) -> None:
        raise PermanentError("the account is closed")
"""
REQUEST = '{"job": "bad", "fire_time": "2026-01-01T00:00:00Z", "why": "asked"}'


def test_a_functions_worker_tells(settings: Settings, tmp_path: Path, server: Listener) -> None:
    """On the real worker: a hook's line belongs to the invocation, and webhook and check are told."""
    app = make_app(tmp_path / "app", {"bad.py": textwrap.dedent(ON_FUNCTIONS)})
    environ = {
        **environment(settings),
        "RUNONCE_NOTIFY_URL": f"{server.url}/hook/{SECRET}",
        "PING": f"{server.url}/ping/{SECRET}",
    }
    with FunctionsHost(app, env=environ) as host:
        call = host.invoke("runonce_requests", queue(REQUEST))
        assert not call.success
        assert call.said("heard of bad")
        server.wait(3, 20)
        host.terminate()
        assert host.wait(timeout=20) == 143
    assert set(server.paths) == {f"/ping/{SECRET}/start", f"/ping/{SECRET}/fail", f"/hook/{SECRET}"}
    assert len(server.paths) == 3
