"""The Dockerfile's steps carried out without Docker, and what a Container Apps job would start in the image.

The variables and the arguments are those of infra/jobs.bicep, worked out for job files of this test's own; only
where storage is and how long a lease lasts differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.runs.rows import Outcome, decode_job, job_key
from runonce.runs.table import read_run
from runonce.stores.azure.stores import azure_stores
from runonce.stores.azure.wire import services
from runonce.transports.protocols import Outgoing
from runonce.transports.storage import StorageTransport
from tests.support.functions_worker.environment import find_python
from tests.support.image import Image, ignored
from tests.support.infrastructure import ROOT, Infrastructure, environment_of, with_jobs
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runonce.runs.rows import RunRow
    from runonce.settings import Settings

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="the image is a Linux one"),
    pytest.mark.timeout(600),  # the first builds it
]

JOBS = """
import os, time
from pathlib import Path
from runonce import Message, PermanentError, Run, handler, scheduled

MARKS = Path(os.environ.get("MARKS", "."))

def mark(name):
    with (MARKS / name).open("a") as file:
        file.write("x")

@scheduled("0 * * * * *")
def good(run: Run) -> None:
    mark("good")

@scheduled("0 * * * * *", retries=2, retry_delay=900)
def shaky(run: Run) -> None:
    raise ValueError("no answer")

@scheduled("0 * * * * *")
def hopeless(run: Run) -> None:
    raise PermanentError("the account is closed")

@scheduled("0 * * * * *")
def long(run: Run) -> None:
    for batch in run.batches(range(40), size=1):
        mark("long")
        time.sleep(0 if run.attempt > 1 else 0.25)

@scheduled("0 * * * * *")
def deaf(run: Run) -> None:
    mark("deaf")
    time.sleep(60)

@scheduled("0 0 0 29 2 *")
def leap_day(run: Run) -> None:
    raise AssertionError("it is not due")

@handler(queue="invoices-UNIQUE", key="id", concurrency=2)
def send_invoice(message: Message) -> None:
    mark(f"sent-{message.json['id']}")

@handler(queue="slow-UNIQUE", key="id")
def slow(message: Message) -> None:
    mark("slow")
    for _ in range(400):
        message.check()
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image, built once for the module, in a folder that another user may read."""
    python = find_python()
    if python is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("the image runs Python 3.13: install it, or name one in RUNONCE_PYTHON313")
    root = Path(tempfile.mkdtemp(prefix="runonce-image-"))
    root.chmod(0o755)
    made = Image(root, ROOT)
    try:
        made.build(str(python))
        yield made
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass
class Platform:
    """Starts executions as Container Apps would."""

    image: Image
    infra: Infrastructure
    settings: Settings
    jobs_folder: Path
    marks: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, name: str, *, begin_with: Sequence[str] = (), **environ: str) -> subprocess.Popen[str]:
        """Start the execution of a job, a handler, or recovery; as process 1 where it begins with ALONE."""
        jobs = self.infra.jobs().of("Microsoft.App/jobs")
        arguments = {self._args(job)[1]: (self._args(job), environment_of(job)) for job in jobs}
        args, variables = arguments["--work" if name == "recovery" else name]
        connections = re.compile(r"RUNONCE_(STORAGE|SERVICEBUS)__.*|AZURE_CLIENT_ID")
        env = {name: value for name, value in variables.items() if not connections.fullmatch(name)}
        process = subprocess.Popen(
            [*begin_with, *self.image.entry(), *args] if begin_with else self.image.command(args),
            cwd=self.image.workdir,
            env={
                "PATH": os.environ["PATH"],
                **self.image.environ,
                **env,
                "CONTAINER_APP_JOB_NAME": f"caj-{name}",
                "RUNONCE_STORAGE": self.settings.storage.connection_string or "",
                "RUNONCE_NAMESPACE": self.settings.namespace,
                "RUNONCE_TRANSPORT": "storage",
                "RUNONCE_JOBS": str(self.jobs_folder),
                "RUNONCE_LEASE_DURATION": "15",
                "RUNONCE_LEASE_RENEWAL": "5",
                "RUNONCE_LEASE_MARGIN": "2",
                "MARKS": str(self.marks),
                **environ,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, name: str, **environ: str) -> tuple[int, str]:
        """The exit code and the output of an execution."""
        process = self.start(name, **environ)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def count(self, mark: str) -> int:
        """How often the code of a job got somewhere."""
        file = self.marks / mark
        return len(file.read_text()) if file.exists() else 0

    def send(self, queue: str, *ids: int) -> None:
        """Send messages to a handler."""
        sender = StorageTransport(services(self.settings.storage, "queue")[0], 60).sender()
        messages = [Outgoing(f'{{"id": {n}}}'.encode(), f"m-{n}") for n in ids]
        sender.send(f"{queue}-{self.settings.namespace}", messages)
        sender.close()

    def last(self, job: str) -> RunRow:
        """The run that ended last."""
        stores = azure_stores(self.settings)
        row = stores.runs.get(self.settings.namespace, job_key(job))
        assert row is not None
        fire_time = decode_job(row).last_fire_time
        assert fire_time is not None
        found = read_run(
            Registry(stores.runs, self.settings.namespace, SystemClock(), "test"), job, fire_time
        )
        assert found is not None
        return found[0]

    @staticmethod
    def _args(job: object) -> list[str]:
        (container,) = job.properties["template"]["containers"]  # type: ignore[attr-defined]
        return container["args"]


@pytest.fixture
def platform(image: Image, azurite: str) -> Iterator[Platform]:
    """Executions of the image, with job files of the test's own in a namespace of its own."""
    settings = fresh_settings(azurite)
    folder = Path(tempfile.mkdtemp(prefix="runonce-jobs-"))
    folder.chmod(0o755)
    infra = with_jobs(folder, JOBS.replace("UNIQUE", settings.namespace))
    marks = folder / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    made = Platform(image, infra, settings, folder / "jobs", marks)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    shutil.rmtree(folder, ignore_errors=True)


def wait_until(true: Callable[[], object], seconds: float = 30) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, "it did not come true in time"
        time.sleep(0.02)


# -- the image --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_image_is_slim_and_unprivileged(image: Image) -> None:
    """It is built on a slim Python 3.13, runs as a user that is not root, and Python itself gets the signals."""
    name, _, digest = image.base.partition("@")
    assert name == "python:3.13-slim"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest), "the same image for two builds of one commit"
    assert int(image.user) > 0
    assert image.entrypoint == ["env", "--block-signal=TERM", "python", "-m", "runonce"]
    assert len(image.not_carried_out) == 1, "making the user is the only step that is not carried out here"


def test_the_image_holds_the_application_and_nothing_else(image: Image) -> None:
    """Only what the jobs need is copied: no tests, no infrastructure, nothing of the machine it was built on."""
    assert {path.name for path in image.workdir.iterdir()} == {
        "constraints.txt",
        "jobs",
        "requirements.txt",
        "runonce",
    }
    for path in (
        ".git/config",
        "local.settings.json",
        "infra/main.bicep",
        "tests/conftest.py",
        ".azure/x/.env",
    ):
        assert ignored(ROOT / ".dockerignore", path)
    assert ignored(ROOT / ".dockerignore", "runonce/__pycache__/job.cpython-313.pyc")
    assert not ignored(ROOT / ".dockerignore", "jobs/data/rates.json")


def test_what_is_installed_is_what_is_pinned(image: Image) -> None:
    """Every installed package has the version that the requirements or the constraints name."""
    listed = subprocess.run(
        [image.python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins: dict[str, set[str]] = {}
    for file in ("requirements.txt", "constraints.txt"):
        for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE):
            pins.setdefault(normal(name), set()).add(version)
    for entry in listed:
        name, _, version = entry.partition("==")
        if normal(name) != "pip":
            assert version in pins[normal(name)], entry


def test_everything_is_compiled(image: Image) -> None:
    """Each module of the application and of its packages has its bytecode, which the user could not write."""
    packages = [*image.root.glob("venv/lib/python3.13/site-packages/azure/**/*.py")]
    assert len(packages) > 100
    for file in (*image.modules(), *packages):
        assert list(file.parent.glob(f"__pycache__/{file.stem}.*.pyc")), file


def test_the_user_may_write_nothing(image: Image) -> None:
    """The image's user cannot change the application, and `list` finds every shipped job all the same."""
    code = "import os; print(os.geteuid(), os.access('runonce', os.W_OK))"
    said = subprocess.run(
        [*image.as_user(), image.python, "-c", code],
        cwd=image.workdir,
        capture_output=True,
        text=True,
        check=True,
    )
    if os.geteuid() != 0:
        pytest.skip("only root can become the image's user; everything here runs unprivileged anyway")
    assert said.stdout.split() == [image.user, "False"]
    listed = subprocess.run(
        image.command(["list"]),
        cwd=image.workdir,
        capture_output=True,
        text=True,
        check=True,
        env=image.environ,
    )
    assert "purge_sessions" in listed.stdout


# -- Schedule ---------------------------------------------------------------------------------------------------


def test_a_schedule_execution_runs_its_job_once(platform: Platform) -> None:
    """Several executions for one fire time run the job once; a tick that is not due runs nothing; all end with 0."""
    wait_until(lambda: time.time() % 60 < 40)  # so that all of them are for the same minute
    codes = [platform.start("good") for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in codes]
    assert [process.returncode for process in codes] == [0, 0, 0], outputs
    assert platform.count("good") == 1
    code, output = platform.run("leap_day")
    assert (code, "no fire time is due" in output) == (0, True)


def test_the_exit_codes_tell_the_platform_what_to_do(platform: Platform) -> None:
    """A retry that waits ends with 0, a failure for good with 1 each time, storage out of reach with 6."""
    assert platform.run("shaky")[0] == 0
    assert platform.last("shaky").outcome is Outcome.RETRYING
    wait_until(lambda: time.time() % 60 < 40)
    assert [platform.run("hopeless")[0] for _ in range(2)] == [1, 1]
    nowhere = "http://127.0.0.1:9/devstoreaccount1"
    unreachable = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=AAAA;BlobEndpoint={nowhere};"
        f"QueueEndpoint={nowhere};TableEndpoint={nowhere};"
    )
    assert platform.run("good", RUNONCE_STORAGE=unreachable)[0] == 6


def test_sigterm_stops_a_run_at_its_checkpoint_and_recovery_goes_on(platform: Platform) -> None:
    """Told to stop, the execution ends with 143 well before the kill; recovery finishes it from the checkpoint."""
    process = platform.start("long")
    wait_until(lambda: platform.count("long") >= 3)
    process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, time.monotonic() - told < 10) == (143, True), output
    stopped = platform.last("long")
    assert stopped.outcome is Outcome.STOPPED
    done = platform.count("long")
    assert sum(stopped.progress.values()) >= done - 1
    code, output = platform.run("recovery")
    assert code == 0, output
    assert platform.last("long").outcome is Outcome.SUCCEEDED
    assert platform.last("long").attempt == 2
    assert platform.count("long") <= 41, "at most the batch that was interrupted is done again"


def test_a_job_that_does_not_listen_is_released_before_the_kill(platform: Platform) -> None:
    """A job deaf to the stop is given up within the grace time, so that its fire time goes on elsewhere."""
    process = platform.start("deaf", RUNONCE_SHUTDOWN_TIMEOUT="2")
    wait_until(lambda: platform.count("deaf"))
    process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, time.monotonic() - told < 10) == (143, True), output
    assert platform.last("deaf").outcome is Outcome.STOPPED
    assert not azure_stores(platform.settings).leases.held(f"{platform.settings.namespace}/deaf")


ALONE = [
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
]


def first_child(parent: int) -> int:
    """The process that a process has started, once `env` keeps the signal for it: the kernel drops it before.

    Nothing else could: until then nobody in a container has said anything about signals.
    """
    found: list[int] = []

    def began() -> bool:
        try:
            found[:] = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
            told = Path(f"/proc/{found[0]}/status").read_text() if found else ""
        except FileNotFoundError:
            return False
        name, blocked = (re.search(rf"^{what}:\t(\S+)", told, re.MULTILINE) for what in ("Name", "SigBlk"))
        if name is None or blocked is None or name[1] == "unshare":
            return False
        return name[1] != "env" or bool(int(blocked[1], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(began)
    return found[0]


@pytest.mark.parametrize(
    ("name", "after"),
    [("deaf", after) for after in (0.0, 0.05, 0.1, 0.3, 0.8, 1.5, 3.0)]
    + [("slow", after) for after in (0.0, 0.3, 3.0)]
    + [("recovery", after) for after in (0.0, 0.3)],
)
def test_a_stop_in_the_first_seconds_is_heard_by_process_1(
    platform: Platform, name: str, after: float
) -> None:
    """Told to stop at any moment after its start, process 1 of a container ends at once; what began was stopped."""
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("no process namespace can be made here (unshare --pid)")
    platform.send("slow", 1)
    process = platform.start(name, begin_with=ALONE, RUNONCE_SHUTDOWN_TIMEOUT="2")
    child = first_child(process.pid)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):  # an idle recovery has ended by then
        os.kill(child, signal.SIGTERM)
    told = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - told < 10, output
    assert process.returncode in ((0, 143) if name == "recovery" else (143,)), output
    if name == "deaf" and platform.count("deaf"):
        assert platform.last("deaf").outcome is Outcome.STOPPED
    assert not azure_stores(platform.settings).leases.held(f"{platform.settings.namespace}/deaf")


# -- recovery ---------------------------------------------------------------------------------------------------


def test_an_idle_recovery_execution_ends_well(platform: Platform) -> None:
    """With nothing unfinished the recovery execution ends with 0 and runs nothing."""
    code, output = platform.run("recovery")
    assert code == 0, output
    assert platform.count("good") == 0


# -- Event ------------------------------------------------------------------------------------------------------


def test_an_event_execution_handles_the_messages_that_are_there(platform: Platform) -> None:
    """One execution takes all messages, each has one effect, and it ends with 0 when no more come."""
    platform.send("invoices", 1, 2, 3, 2)
    code, output = platform.run("send_invoice")
    assert code == 0, output
    assert [platform.count(f"sent-{n}") for n in (1, 2, 3)] == [1, 1, 1]


def test_sigterm_gives_a_message_back(platform: Platform) -> None:
    """Told to stop in the middle of a message, the execution gives it back at once and ends before the kill."""
    platform.send("slow", 1)
    process = platform.start("slow")
    wait_until(lambda: platform.count("slow"))
    process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, time.monotonic() - told < 10) == (143, True), output
    again = platform.start("slow")
    wait_until(lambda: platform.count("slow") == 2)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=30)
