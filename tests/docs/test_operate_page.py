"""docs/operate.md: each of its symptoms is brought about on a real Azurite, and its commands print what it shows."""

from __future__ import annotations

import re
import shlex
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support.command_line import invoke
from support.job_files import job_files
from support.namespaces import fresh_settings
from support.proxy import proxies, proxy  # noqa: F401 - fixtures

from runonce.cli.context import Context
from runonce.clock import SystemClock
from runonce.hosts.runtime import Runtime
from runonce.runs.dispatch import Started
from runonce.stores.columns import to_text
from runonce.stores.protocols import Replace
from runonce.testing import ManualClock
from tests.support.pages import blocks, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.clock import Clock
    from runonce.testing.proxy import StorageProxy

PAGE = "docs/operate.md"
HOST = "worker-7:4711"
JOBS = '''
import time
from pathlib import Path

from runonce import Message, PermanentError, Run, handler, scheduled

HERE = Path(__file__).parent


@scheduled("0 0 3 * * *", retries=3, retry_delay=0.01, max_runtime=1800)
def nightly_report(run: Run) -> None:
    """One sales report a night."""
    for batch in run.batches(range(100), size=50):
        while (HERE / "hold").exists() and run.attempt == 1:
            (HERE / "began").touch()
            time.sleep(0.05)


@handler(queue="send-invoice", key="invoice_id", retries=0)
def send_invoice(message: Message) -> None:
    """Send one invoice to its customer."""
    if (HERE / "closed").exists():
        raise PermanentError("the ledger is closed")
'''
INVOICES = '''
from runonce import Run, scheduled


@scheduled("0 0 3 * * *")
def invoices(run: Run) -> None:
    """The day's invoices."""
'''
YESTERDAY = (datetime.now(UTC) - timedelta(hours=26)).replace(minute=0, second=0, microsecond=0)
"""A fire time of yesterday; that of today is two hours past, and both jobs are due at its hour and not at 3."""
WRITTEN = "2026-11-29T03:00:00Z"
"""The same on the page."""
SAME = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?", "<instant>"),
    (r"\b\d+(\.\d+)? (s|min|h|days?)\b( \d+ (s|min|h|days?)\b)?( ago)?|\bnow\b", "<span>"),
    (r"\d{8}T\d{6}Z|\d+:\d\d:\d\d\.\d+", "<instant>"),
    (r"\b[0-9a-f]{20,}\b", "<hash>"),
    (r"t-[0-9a-f]{12}|shop-production", "<namespace>"),
    (r"the emulator, [\d.:]+|account shop", "<account>"),
    (r"(Start the emulator with|Check RUNONCE_STORAGE, the network).*", "<remedy>"),
)


def alike(text: str) -> str:
    """The text without what differs each time: instants, spans, hashes, names of a test's own; blanks are one."""
    for pattern, name in SAME:
        text = re.sub(pattern, name, text)
    return " ".join(text.split())


class Night:
    """A project in a namespace of its own, in which something has gone wrong."""

    def __init__(self, folder: Path, storage: StorageProxy) -> None:
        self.folder = folder
        self.storage = storage
        self.clock: Clock = SystemClock()
        self.environ = {
            "RUNONCE_STORAGE": storage.connection_string,
            "RUNONCE_NAMESPACE": fresh_settings("UseDevelopmentStorage=true").namespace,
        }
        self.threads: list[threading.Thread] = []

    def runtime(self, host: str = HOST) -> Runtime:
        return Runtime(environ=self.environ, host=host, clock=self.clock)

    def code(self, old: str, new: str) -> None:
        """Change the job file."""
        file = self.folder / "jobs" / "all.py"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def type(self, line: str) -> str:
        """What a command of the page prints, both streams."""
        words = shlex.split(line.replace(WRITTEN, to_text(YESTERDAY)))
        assert words.pop(0) == "runonce"
        result = invoke(Context(self.runtime()), *words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.output

    def known_since(self, at: datetime, job: str = "nightly_report") -> None:
        """As if the job had been known for so long, and every host been gone since."""
        self.type("runonce recover")
        with self.runtime() as runtime:
            table, namespace = runtime.stores.runs, self.environ["RUNONCE_NAMESPACE"]
            row = table.get(namespace, f"job:{job}")
            assert row is not None
            values = {**row.values, "since": to_text(at), "watermark": to_text(at)}
            table.commit(namespace, [Replace(row.key, values, row.etag)])

    def holds(self) -> None:
        """A run hangs on another host."""
        (self.folder / "jobs" / "hold").touch()

        def work() -> None:
            with self.runtime("worker-6:812") as runtime:
                runtime.dispatcher.execute(runtime.found.job("nightly_report"), YESTERDAY, by="timer")

        self.threads.append(threading.Thread(target=work))
        self.threads[0].start()
        while not (self.folder / "jobs" / "began").exists():
            self.threads[0].join(0.05)
            assert self.threads[0].is_alive()

    def over(self) -> None:
        """Whatever hangs goes on."""
        (self.folder / "jobs" / "hold").unlink(missing_ok=True)
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def night(proxy: StorageProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:  # noqa: F811
    """A night before anything has gone wrong."""
    with job_files(tmp_path / "jobs", all=JOBS):
        monkeypatch.chdir(tmp_path)
        made = Night(tmp_path, proxy)
        made.code(" 3 ", f" {YESTERDAY.hour} ")
        yield made
        made.over()


# -- the symptoms; each gives what happens before a command of its section is typed ------------------------------------

Before = dict[str, "Callable[[], object]"]


def did_not_run(night: Night) -> Before:
    """Nobody was there since the day before yesterday."""
    night.known_since(YESTERDAY - timedelta(hours=1))
    return {}


def ran_twice(night: Night) -> Before:
    """A host died in the middle, another one went on; an invoice was sent twice."""
    night.known_since(YESTERDAY - timedelta(hours=1))
    with night.runtime("worker-6:812") as runtime:
        started = runtime.dispatcher.begin(runtime.found.job("nightly_report"), YESTERDAY, by="timer")
        assert isinstance(started, Started)
        started.lease.release()  # as if its host had died
    night.type("runonce recover --work")
    for _ in range(2):
        night.type("""runonce enqueue send_invoice --body '{"invoice_id": "17"}'""")
    night.type("runonce work send_invoice --max-messages 2")
    return {}


def stuck(night: Night) -> Before:
    """A run is over its limit, on another host."""
    night.code("max_runtime=1800", "max_runtime=1")
    night.holds()
    while "over its limit" not in night.type("runonce status nightly_report"):
        assert night.threads[0].is_alive()
    return {"runonce history": night.over}


def hanging(night: Night) -> Before:
    """The same; it goes on when all is over."""
    night.holds()
    return {}


def dead_letters(night: Night) -> Before:
    """Three invoices have failed; what failed them is mended before they are replayed."""
    closed = night.folder / "jobs" / "closed"
    closed.touch()
    for number in (17, 18, 19):
        night.type(f"""runonce enqueue send_invoice --body '{{"invoice_id": "{number}"}}'""")
    night.type("runonce work send_invoice --max-messages 3")
    return {"runonce dead-letters replay": closed.unlink}


def bad_deploy(night: Night) -> Before:
    """A file that had a job imports what is not there, until it is mended."""
    file, good = night.folder / "jobs" / "invoices.py", INVOICES.replace(" 3 ", f" {YESTERDAY.hour} ")
    file.write_text(good)
    night.known_since(YESTERDAY + timedelta(hours=1), "invoices")
    file.write_text(f"\nimport ledger_client\n{good}")
    return {"runonce recover": lambda: file.write_text(good)}


def storage_away(night: Night) -> Before:
    """Storage does not answer, and then it does."""
    night.known_since(YESTERDAY - timedelta(hours=1))
    night.storage.refuse()
    return {"runonce recover": night.storage.reset}


def wrong_clock(night: Night) -> Before:
    """This machine's clock is three minutes ahead."""
    night.clock = ManualClock(datetime.now(UTC) + timedelta(seconds=180))
    return {}


SYMPTOMS = {
    "The job did not run": did_not_run,
    "It ran twice": ran_twice,
    "It is stuck": stuck,
    "The lease must be broken": hanging,
    "Dead letters pile up": dead_letters,
    "A bad deploy": bad_deploy,
    "Storage was away": storage_away,
    "A clock is wrong": wrong_clock,
}


def steps(symptom: str) -> list[tuple[str, list[str]]]:
    """The commands of a section, each with the lines that it is shown to print."""
    text = read(PAGE).partition(f"\n## {symptom}\n")[2].partition("\n## ")[0]
    shown = "".join(
        block.text for block in blocks(PAGE) if block.language == "console" and block.text in text
    )
    found: list[tuple[str, list[str]]] = []
    for line in shown.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif line.strip() not in ("", "…"):
            found[-1][1].append(line)
    return found


def test_every_section_is_a_symptom_that_is_tried() -> None:
    """The page's sections are those below, and each has a command with its output."""
    assert re.findall(r"^## (.+)$", read(PAGE), re.MULTILINE) == list(SYMPTOMS)
    assert all(lines for symptom in SYMPTOMS for _, lines in steps(symptom))


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_commands_print_what_is_shown(symptom: str, night: Night) -> None:
    """With the symptom brought about, each command of its section prints the lines that are shown, cell by cell."""
    before = SYMPTOMS[symptom](night)
    for command, lines in steps(symptom):
        for beginning in [one for one in before if command.startswith(one)]:
            before.pop(beginning)()
        printed = night.type(command)
        cells = [cell for line in lines for cell in re.split(r"\s{2,}", line.strip())]
        missing = [cell for cell in cells if alike(cell) not in alike(printed)]
        assert missing == [], f"{command}\n{printed}"
    assert before == {}
