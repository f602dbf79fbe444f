"""What only a process of its own shows: what it imports, how it ends, and what its children are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.listener import listening
from support.pages import ROOT
from support.warm import run_python

from runonce.hosts.local import EXIT_STUCK

if TYPE_CHECKING:
    from pathlib import Path


NEXT = """
from datetime import UTC, datetime
from runonce.schedules.schedule import Schedule
print(Schedule.parse("0 0 3 * * *", "Europe/Istanbul").next(datetime(2026, 11, 29, tzinfo=UTC)).isoformat())
"""


JOBS = """
from runonce import Run, scheduled

@scheduled("0 30 2 * * *")
def nightly(run: Run) -> None: ...

@scheduled("0 */5 * * * *")
def often(run: Run) -> None: ...
"""


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a fresh Python makes of the code, with no other environment."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# -- what is imported --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_imported_where_it_is_off() -> None:
    """A host without telemetry and notification has no module of theirs, nor of OpenTelemetry."""
    code = """
import sys
from runonce.testing import Workbench
from runonce import Run, scheduled, handler, hooks

@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None: ...

assert Workbench(nightly).run(nightly, at="2026-01-01T00:00:00Z").outcome == "succeeded"
print([name for name in sys.modules if name.startswith(("opentelemetry", "runonce.telemetry", "runonce.notify."))])
"""
    ended = python(code)
    assert ended.stdout.strip() == "[]", ended.stderr


@pytest.mark.slow
def test_help_imports_nothing_of_azure() -> None:
    """The help of the command line costs no import of an Azure package."""
    code = (
        "import sys, runonce.cli\n"
        "try: runonce.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('azure', 'croniter')])"
    )
    ended = python(code)
    assert ended.stdout.splitlines()[-1:] == ["[]"], ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["another", "none"])
def test_the_machines_own_zone_data_changes_no_fire_time(tmp_path: Path, machine: str) -> None:
    """Whatever data a machine has for a zone, the pinned data decides, so that all hosts name one instant."""
    if machine == "another":
        (tmp_path / "Europe").mkdir()
        wrong = files("tzdata").joinpath("zoneinfo/Asia/Tokyo").read_bytes()
        (tmp_path / "Europe" / "Istanbul").write_bytes(wrong)
    ended = python(NEXT, PYTHONTZPATH=str(tmp_path))
    assert ended.stdout.strip() == "2026-11-30T00:00:00+00:00", ended.stderr


@pytest.mark.slow
def test_without_tzdata_utc_works_and_others_say_what_to_install() -> None:
    """Where the package tzdata is missing, UTC needs none, and any other zone names it as the remedy."""
    hidden = "import sys\nsys.modules['tzdata'] = None\n"
    in_utc = python(hidden + NEXT.replace(', "Europe/Istanbul"', ""))
    assert in_utc.stdout.strip() == "2026-11-29T03:00:00+00:00", in_utc.stderr
    elsewhere = python(hidden + NEXT)
    assert "ScheduleError: time zone 'Europe/Istanbul'" in elsewhere.stderr
    assert "pip install tzdata" in elsewhere.stderr


# -- what is asked from outside ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("runonce his", "history"),
        ("runonce history ni", "nightly"),
        ("runonce status o", "often"),
        ("runonce audit n", "nightly"),
    ],
)
def test_a_shell_completes_commands_and_names(tmp_path: Path, typed: str, offered: str) -> None:
    """Bash asks the program what may follow: a command, or a job of the jobs folder."""
    (tmp_path / "nightly.py").write_text(JOBS, encoding="utf-8")
    words = typed.split()
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RUNONCE_JOBS": str(tmp_path),
        "_RUNONCE_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = run_python(["-m", "runonce"], tmp_path, environ)
    assert done.stdout.split() == [offered], done.stderr


# -- how it ends ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_that_only_sends_is_traced_to_its_end(azurite: str, tmp_path: Path) -> None:
    """`enqueue` alone: the producer's span is below the program's own, and is exported before the process ends."""
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from runonce import enqueue

tracer = trace.get_tracer("mine", tracer_provider=TracerProvider())
with tracer.start_as_current_span("order") as span:
    enqueue("send_invoice", {"id": 1}, queue="invoices", key="1")
    print(f"{span.get_span_context().trace_id:032x}")
"""
    environ = {
        **os.environ,
        "RUNONCE_STORAGE": azurite,
        "RUNONCE_NAMESPACE": f"t-{uuid.uuid4().hex[:8]}",
        "RUNONCE_TELEMETRY": "otlp",
        "PYTHONPATH": str(ROOT),
    }
    with listening() as server:
        done = run_python(["-c", code], tmp_path, {**environ, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url})
    assert done.returncode == 0, done.stderr
    (body,) = [request.body for request in server.requests if request.path == "/v1/traces"]
    (span,) = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("send invoices", done.stdout.strip())


LOOP = """
import asyncio, os, sys, threading
from runonce import Run, scheduled
from runonce.testing import Workbench

async def numbers():
    try:
        while True:
            yield 1
    finally:
        print("generator closed", flush=True)

kept = numbers()

@scheduled("0 0 3 * * *")
async def nightly(run: Run) -> None:
    await anext(kept)
    hanging = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    await asyncio.sleep(0.05)

@scheduled("0 0 3 * * *")
async def threads(run: Run) -> None:
    await asyncio.to_thread(int)

def run(job):
    print(Workbench(job).run(job, "2026-01-01T03:00:00Z").outcome, flush=True)

run(nightly)
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        run(threads)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run(threads)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("plain", ["succeeded", "generator closed"]),
        pytest.param(
            "fork",
            ["succeeded", "succeeded", "succeeded", "generator closed"],
            marks=pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
        ),
    ],
)
def test_the_loop_ends_with_its_process_and_a_forked_child_has_its_own(how: str, said: list[str]) -> None:
    """A process ends in spite of a thread that hangs, after its async generators; a child runs async jobs as well."""
    command = ["-W", "error", "-c", LOOP, how]
    done = run_python(command, ROOT, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == said, done.stderr
    assert "Warning" not in done.stderr


HOST = """
import sys, threading
from runonce.clock import SystemClock  # noqa: E402
from runonce.runs.dispatch import Dispatcher, Started
from runonce.hosts.local import LocalHost  # noqa: E402
from runonce.runs.definition import scheduled
from runonce.runs.operate import ask
from runonce.settings import Settings, StorageConnection  # noqa: E402
from runonce.stores.memory import memory_stores  # noqa: E402

@scheduled("0 0 0 1 1 *")
def yearly(run):
    print("started", flush=True)
    while not (run.stopping and sys.argv[1] == "heeds"):
        threading.Event().wait(0.01)
    run.check()

clock = SystemClock()
stores = memory_stores(clock)
settings = Settings("test", StorageConnection("UseDevelopmentStorage=true"), shutdown_timeout=0.5)
dispatcher = Dispatcher({"yearly": yearly}, stores, settings, clock, host="a process")
ask(dispatcher, yearly, yearly.schedule.previous(clock.now()))
code = LocalHost(dispatcher).serve()
outcome = [row.values["outcome"] for row in stores.runs.scan("test", "run:", "run;")]
print(outcome, flush=True)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize(
    ("how", "code", "printed", "said"),
    [("heeds", 0, "['stopped']\n", ""), ("ignores", EXIT_STUCK, "", "still stopping")],
)
def test_sigterm_drains_the_host(how: str, code: int, printed: str, said: str) -> None:
    """SIGTERM stops runs and ends the process with 0; with runs that heed nothing it ends all the same, with 75."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST, how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        if how == "ignores":
            threading.Event().wait(0.2)  # for a second signal that finds the host stopping
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, printed)
    assert said in err


# -- its children -----------------------------------------------------------------------------------------------


POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from runonce import scheduled
from ._x import SCALE

@dataclass
class Order:
    n: int

def work(order):
    return Order(order.n * SCALE)

@scheduled("0 0 3 * * *")
def pooled(run):
    context = multiprocessing.get_context("{method}")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert list(pool.map(work, [Order(1), Order(2)])) == [Order(10), Order(20)]
"""
RUN_IT = """
import sys
from runonce.hosts.discover import discover
from runonce.testing import Workbench
if __name__ == "__main__":
    job = discover(sys.argv[1]).job("pooled")
    result = Workbench(job).run(job, "2026-01-01T03:00:00Z")
    assert result.outcome == "succeeded", result
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [("jobs", "fork"), ("jobs", "spawn"), ("jobs", "forkserver"), ("nightly-jobs", "spawn")],
)
def test_a_pool_of_processes_works_on_a_job_files_functions(tmp_path: Path, name: str, method: str) -> None:
    """A job's pool, however its processes start, gets functions and classes of the job's own file."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.py").write_text(POOL.replace("{method}", method))
    (tmp_path / name / "_x.py").write_text("SCALE = 10")
    (tmp_path / "go.py").write_text(RUN_IT)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", tmp_path / "go.py", tmp_path / name]
    ended = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
