"""Whatever is put in, one clear error comes out: it names the job, file or setting, the value, and the remedy.

And nothing else suffers: the other jobs are there, the host goes on, what was kept is still kept.
"""

from __future__ import annotations

import logging
import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runonce import scheduled
from runonce.errors import InputError, PermanentError, RunonceError, SettingsError
from runonce.hosts.discover import discover
from runonce.runs.decide import Which, resume_run
from runonce.runs.rows import Outcome
from runonce.settings import Settings
from runonce.testing import Workbench
from tests.support.job_files import job_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.runs.run import Run

NIGHTLY = "0 0 3 * * *"
THREE = datetime(2026, 11, 29, 3, tzinfo=UTC)
CLOUD = "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=c2VjcmV0LWtleQ=="


@dataclass(frozen=True)
class Case:
    """What is put in, and what the error must hold."""

    id: str
    given: Any
    subject: str
    """The job, file or setting."""
    value: str
    remedy: str


def table(*cases: Case) -> Any:
    """A parameter `case`, one test for each."""
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


def holds(case: Case, error: str) -> None:
    """Assert the three fragments, on one short message."""
    missing = [part for part in (case.subject, case.value, case.remedy) if part not in error]
    assert missing == [], error
    assert len(error) < 700


# -- job files -----------------------------------------------------------------------------------------------------

HEAD = "from datetime import timedelta\nfrom runonce import scheduled, handler\n"


def job_source(arguments: str, signature: str = "def report(run):") -> str:
    """A job file with one job, the third line of which is the decorator."""
    return f"{HEAD}@scheduled({arguments})\n{signature}\n    ...\n"


def option(id_: str, arguments: str, value: str, remedy: str) -> Case:
    """A decorator option that cannot work."""
    return Case(id_, job_source(f'"{NIGHTLY}", {arguments}'), "Job 'report'", value, remedy)


def schedule(id_: str, arguments: str, value: str, remedy: str) -> Case:
    """A schedule that cannot work."""
    return Case(id_, job_source(arguments), "Job 'report'", value, remedy)


JOB_FILES = table(
    schedule("hour out of range", '"0 0 25 * * *"', "hour '25'", "Use a number from 0 to 23"),
    schedule("too few fields", '"0 3 *"', "'0 3 *' has 3 fields", "Write six"),
    schedule("empty schedule", '""', "schedule ''", "Write six fields"),
    schedule("shorthand", '"@daily"', "'@daily'", 'Write "0 0 0 * * *" instead'),
    schedule("Sunday as 7", '"0 0 3 * * 7"', "day-of-week '7'", "Use 0 for Sunday"),
    schedule("step too large", '"0 */70 * * * *"', "'*/70'", "name the values one by one"),
    schedule("30 February", '"0 0 3 30 2 *"', "'30'", "Choose a day that the month has"),
    schedule("backwards range", '"0 0 22-4 * * *"', "'22-4'", 'Write "22-23,0-4"'),
    schedule("Quartz sign", '"0 0 3 L * ?"', "'L'", "Use `*` or a number from 1 to 31"),
    schedule("schedule is no text", "None", "schedule None", "Write six fields in one string"),
    schedule("line break", r'"0 0 3\n* * *"', r"0 0 3\n*", "Type it again by hand"),
    schedule(
        "misspelt zone",
        f'"{NIGHTLY}", time_zone="Europe/Istambul"',
        "'Europe/Istambul'",
        'mean "Europe/Istanbul"',
    ),
    schedule("no such zone", f'"{NIGHTLY}", time_zone="Mars/Phobos"', "'Mars/Phobos'", "Use an IANA name"),
    option("misfire unknown", 'misfire="weekly"', "misfire='weekly'", '"skip", "latest", "all"'),
    option("misfire cap", "misfire_cap=0", "misfire_cap=0", "whole number from 1 to 100"),
    option("negative retries", "retries=-1", "retries=-1", "whole number from 0 to 100"),
    option("retries yes", "retries=True", "retries=True", "whole number from 0 to 100"),
    option("retry delay as text", 'retry_delay="5m"', "retry_delay='5m'", "must be seconds or a timedelta"),
    option("no time to run", "max_runtime=timedelta()", "max_runtime=datetime.timedelta(0)", "more than 0"),
    option("a month to run", "max_runtime=2592000", "max_runtime=2592000", "at most 7 days"),
    option("on_abandoned unknown", 'on_abandoned="retry"', "on_abandoned='retry'", '"rerun", "hold"'),
    Case(
        "bad name",
        job_source(f'"{NIGHTLY}", name="Nightly Report"'),
        "bad.py",
        "'Nightly Report'",
        'name="…"',
    ),
    Case("reserved name", job_source(f'"{NIGHTLY}", name="host"'), "bad.py", "Job 'host'", "give another"),
    Case(
        "toolkit's name",
        job_source(f'"{NIGHTLY}", name="runonce_x"'),
        "bad.py",
        "'runonce_x'",
        "give another",
    ),
    Case("name is no text", job_source(f'"{NIGHTLY}", name=7'), "bad.py", "Job 7", 'give one with name="…"'),
    Case(
        "no parameter",
        job_source(f'"{NIGHTLY}"', "def report():"),
        "Job 'report'",
        "takes ()",
        "report(run)`",
    ),
    Case(
        "two parameters",
        job_source(f'"{NIGHTLY}"', "def report(run, db):"),
        "Job 'report'",
        "takes (run, db)",
        "write `def report(run)`",
    ),
    Case(
        "generator",
        job_source(f'"{NIGHTLY}"', "def report(run):\n    yield"),
        "Job 'report'",
        "`yield`",
        "take the",
    ),
    Case(
        "no function", f'{HEAD}x = scheduled("{NIGHTLY}")(7)', "bad.py, line 3", "not on 7", "decorate a def"
    ),
    Case(
        "a class", f'{HEAD}@scheduled("{NIGHTLY}")\nclass X: ...', "bad.py, line 3", "bad.X", "decorate a def"
    ),
    Case(
        "no schedule",
        f"{HEAD}@scheduled\ndef report(run): ...",
        "Job 'report'",
        "@scheduled has no schedule",
        f'write `@scheduled("{NIGHTLY}")`',
    ),
    Case(
        "a handler without options",
        "from runonce import handler\n@handler\ndef take(message): ...",
        "bad.py, line 2",
        "'take'",
        'write `@handler(queue="orders", key="id")`',
    ),
    Case(
        "a handler with its queue unnamed",
        'from runonce import handler\n@handler("bills")\ndef take(message): ...',
        "bad.py, line 2",
        "'bills'",
        'write `@handler(queue="bills", key="id")`',
    ),
    Case(
        "unknown option",
        job_source(f'"{NIGHTLY}", every=5'),
        "bad.py, line 3",
        "'every'",
        "until it is corrected",
    ),
    Case("syntax error", "x = 1\ndef (:\n", "bad.py, line 2", "SyntaxError", "until it is corrected"),
    Case("not Python", "\x00", "bad.py", "null bytes", "until it is corrected"),
    Case(
        "import error",
        "import no_such_module_x",
        "bad.py, line 1",
        "no_such_module_x",
        "until it is corrected",
    ),
    Case(
        "exits", "x = 1\nimport sys\nsys.exit(3)", "bad.py, line 3", "SystemExit: 3", "until it is corrected"
    ),
    Case(
        "fails deep down",
        "import json\njson.loads('{')",
        "bad.py, line 2",
        "JSONDecodeError",
        "until it is corrected",
    ),
    Case("endless", "def f(): f()\nf()", "bad.py, line 1", "RecursionError", "until it is corrected"),
    Case(
        "name taken by another file",
        f'{HEAD}@scheduled("{NIGHTLY}")\ndef good(run): ...\n@scheduled("{NIGHTLY}")\ndef lost(run): ...',
        "bad.py",
        "'good' is defined in a_good.py already",
        'another name with name="…"',
    ),
    Case(
        "name twice in one file",
        f'{HEAD}@scheduled("{NIGHTLY}", name="x")\ndef a(run): ...\n@scheduled("{NIGHTLY}", name="x")\ndef b(run): ...',
        "bad.py",
        "'x' is defined twice",
        'another name with name="…"',
    ),
    Case(
        "handler of nothing",
        f"{HEAD}@handler()\ndef send(message): ...",
        "Job 'send'",
        "queue=None",
        "give queue, or topic and subscription",
    ),
    Case(
        "handler that forgets too soon",
        f'{HEAD}@handler(queue="q", retention=60)\ndef send(message): ...',
        "Job 'send'",
        "retention=60",
        "under 21 days",
    ),
    Case(
        "handler's queue name",
        f'{HEAD}@handler(queue="in voices")\ndef send(message): ...',
        "Job 'send'",
        "'in voices'",
        "use 1 to 260 letters",
    ),
)


GOOD_FILES = (("a_good", "good"), ("z_good", "also_good"))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Path]:
    """A jobs folder with a good file before and one after the bad one; what importing it leaves is put back."""
    good = {file: f'{HEAD}@scheduled("{NIGHTLY}")\ndef {name}(run): ...\n' for file, name in GOOD_FILES}
    with job_files(tmp_path / "jobs", **good) as folder:
        yield folder


@JOB_FILES
def test_a_bad_job_file(case: Case, jobs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be used is one error, also in the log, and the jobs of the other files are all there."""
    (jobs / "bad.py").write_text(textwrap.dedent(case.given), encoding="utf-8")
    found = discover(jobs)
    assert sorted(found.jobs) == ["also_good", "good"]
    assert found.handlers == {}
    assert found.files["good"].name == "a_good.py"
    (error,) = found.broken
    holds(case, str(error))
    assert str(error).startswith("bad.py")
    assert [record.getMessage() for record in caplog.records] == [str(error)]


def test_a_missing_jobs_folder(tmp_path: Path) -> None:
    """A folder that is not there is an error that says where it was looked for and how to name another."""
    with pytest.raises(SettingsError) as refused:
        discover(tmp_path / "job")
    holds(
        Case("", None, "jobs folder", str(tmp_path / "job"), "name another one in RUNONCE_JOBS"),
        str(refused.value),
    )


# -- settings ------------------------------------------------------------------------------------------------------


def setting(id_: str, given: dict[str, str], value: str, remedy: str, subject: str = "") -> Case:
    """One wrong variable beside an otherwise good environment; its name is the subject."""
    return Case(
        id_,
        {"RUNONCE_STORAGE": "UseDevelopmentStorage=true", **given},
        subject or next(iter(given)),
        value,
        remedy,
    )


@table(
    Case("no storage", {}, "RUNONCE_STORAGE is not set", "AzureWebJobsStorage", "give a connection string"),
    Case("no namespace", {"RUNONCE_STORAGE": CLOUD}, "RUNONCE_NAMESPACE", "is not set", '"shop-production"'),
    setting("namespace", {"RUNONCE_NAMESPACE": "Shop_Prod"}, "'Shop_Prod'", "lower-case letters and digits"),
    setting("long namespace", {"RUNONCE_NAMESPACE": "-".join("a" * 39)}, "'a-a-a", "3 to 40"),
    setting(
        "duration as text", {"RUNONCE_LEASE_DURATION": "45s"}, "'45s'", "must be a whole number of seconds"
    ),
    setting(
        "duration in parts", {"RUNONCE_LEASE_DURATION": "45.5"}, "'45.5'", "must be a whole number of seconds"
    ),
    setting("endless lease", {"RUNONCE_LEASE_DURATION": "inf"}, "'inf'", "must be a whole number of seconds"),
    setting("duration too short", {"RUNONCE_LEASE_DURATION": "5"}, "=5", "must be 15 to 60 seconds"),
    setting(
        "renewal too long",
        {"RUNONCE_LEASE_RENEWAL": "30"},
        "=30",
        "less than half of RUNONCE_LEASE_DURATION=45",
    ),
    setting("margin too long", {"RUNONCE_LEASE_MARGIN": "6"}, "=6", "at most 5"),
    setting("margin is no number", {"RUNONCE_LEASE_MARGIN": "nan"}, "'nan'", "must be a number of seconds"),
    setting("recovery never", {"RUNONCE_RECOVERY_INTERVAL": "0"}, "'0'", "from 1 to 3600"),
    setting("negative grace", {"RUNONCE_MISFIRE_GRACE": "-1"}, "'-1'", "from 1 to 86400"),
    setting("shutdown", {"RUNONCE_SHUTDOWN_TIMEOUT": "soon"}, "'soon'", "a number of seconds"),
    setting("claim lease", {"RUNONCE_CLAIM_LEASE": "1"}, "'1'", "from 3 to 3600"),
    setting("transport", {"RUNONCE_TRANSPORT": "kafka"}, "'kafka'", '"servicebus" or "storage"'),
    setting("no bus", {"RUNONCE_TRANSPORT": "servicebus"}, "servicebus", "needs RUNONCE_SERVICEBUS"),
    setting("bus", {"RUNONCE_SERVICEBUS": "shop"}, "4 characters", "__fullyQualifiedNamespace"),
    setting(
        "storage", {"RUNONCE_STORAGE": "shopaccount"}, "11 characters without AccountName", "copy it whole"
    ),
    setting("no key", {"RUNONCE_STORAGE": "AccountName=shop"}, "without AccountKey", "copy it whole"),
    setting("half a key", {"RUNONCE_STORAGE": CLOUD[:-2]}, "AccountKey is not Base64", "copy it whole"),
    setting(
        "one endpoint",
        {"RUNONCE_STORAGE": "", "RUNONCE_STORAGE__blobServiceUri": "https://a.blob.core.windows.net"},
        "is not set while another service's is",
        "or RUNONCE_STORAGE__accountName alone",
        "RUNONCE_STORAGE__queueServiceUri",
    ),
)
def test_a_bad_setting(case: Case) -> None:
    """A setting that cannot work stops the start with one error that names the variable and what to do."""
    with pytest.raises(SettingsError) as refused:
        Settings.from_env(case.given)
    holds(case, str(refused.value))
    assert "c2VjcmV0" not in str(refused.value), "part of a key is in the message"


# -- requests on the internal queue --------------------------------------------------------------------------------


@table(
    Case("no JSON", "run nightly please", "internal queue", "'run nightly please'", '{"job": "…"'),
    Case("no object", "[1, 2]", "internal queue", "'[1, 2]'", '{"job": "…"'),
    Case("no job", '{"fire_time": "2026-11-29T03:00:00Z"}', "internal queue", "'job'", '{"job": "…"'),
    Case("no fire time", '{"job": "nightly"}', "internal queue", "'fire_time'", '{"job": "…"'),
    Case(
        "not a time",
        '{"job": "nightly", "fire_time": "tonight"}',
        "internal queue",
        "'tonight'",
        "2026-11-29T03:00:00Z",
    ),
    Case(
        "no zone",
        '{"job": "nightly", "fire_time": "2026-11-29T03:00:00"}',
        "'nightly'",
        "03:00:00'",
        "with its offset",
    ),
    Case(
        "half a second",
        '{"job": "nightly", "fire_time": "2026-11-29T03:00:00.5Z"}',
        "'nightly'",
        "00.5Z",
        "whole second",
    ),
    Case(
        "job is a number",
        '{"job": 7, "fire_time": "2026-11-29T03:00:00Z"}',
        "internal queue",
        "job 7",
        "give a job's name",
    ),
    Case(
        "unknown job",
        '{"job": "gone", "fire_time": "2026-11-29T03:00:00Z"}',
        "'gone'",
        "2026-11-29",
        "deploy the file",
    ),
    Case(
        "too early",
        '{"job": "nightly", "fire_time": "2099-01-01T00:00:00Z"}',
        "nightly",
        "2099-01-01",
        "not due yet",
    ),
    Case("huge", "[" * 60_000, "internal queue", "[[[[", '{"job": "…"'),
)
def test_a_bad_request(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """A message that is no request is one line in the log, raises nothing into the host, and starts nothing."""
    ran = []

    @scheduled(NIGHTLY)
    def nightly(run: Run) -> None:
        ran.append(run.fire_time)

    bench = Workbench(nightly)
    bench.clock.advance((THREE - bench.clock.now()).total_seconds())
    with caplog.at_level(logging.WARNING):
        assert bench.dispatcher.handle_request(case.given) is None
    (record,) = caplog.records
    put_back = case.id in ("too early", "unknown job")  # another host, or this one later, can run it
    assert record.levelno == (logging.WARNING if put_back else logging.ERROR)
    holds(case, record.getMessage())
    assert ran == []
    result = bench.dispatcher.handle_request('{"job": "nightly", "fire_time": "2026-11-29T03:00:00Z"}')
    assert result is not None
    assert result.outcome is Outcome.SUCCEEDED
    assert ran == [THREE]


# -- what a job hands to the toolkit -------------------------------------------------------------------------------


def _circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def body(id_: str, given: Callable[[Run], Any], value: str, remedy: str) -> Case:
    """Something a job does wrongly."""
    return Case(id_, given, "Job nightly", value, remedy)


@table(
    body("checkpoint: a set", lambda run: run.checkpoint.save({1}), "set is not", "Save text, numbers"),
    body(
        "checkpoint: a datetime",
        lambda run: run.checkpoint.save([run.fire_time]),
        "datetime",
        "Save text, numbers",
    ),
    body(
        "checkpoint: not a number",
        lambda run: run.checkpoint.save(float("nan")),
        "float",
        "Save text, numbers",
    ),
    body(
        "checkpoint: a circle", lambda run: run.checkpoint.save(_circle()), "Circular", "Save text, numbers"
    ),
    body(
        "checkpoint: too large",
        lambda run: run.checkpoint.save("x" * 40_000),
        "40002 characters",
        "data in a blob",
    ),
    body("batches of none", lambda run: run.batches([1], size=0), "size=0", "must be 1 or more"),
    body(
        "two loops of one name",
        lambda run: [run.batches([1], size=1), run.batches([2], size=1)],
        "a second",
        'name="…"',
    ),
    body("ledger: no key", lambda run: run.ledger.record(""), "ledger key ''", "1 to 200 characters"),
    body("ledger: key is a number", lambda run: run.ledger.record(7), "ledger key 7", "must be a text"),  # type: ignore[arg-type]
    body("ledger: long key", lambda run: run.ledger.record("k" * 201), "'kkkk", "1 to 200 characters"),
    body("ledger: long once written", lambda run: run.ledger.record("ş" * 200), "'şşşş", "use a shorter one"),
    body(
        "ledger: None",
        lambda run: run.ledger.record("k", paid=None),
        "paid=None",
        "text, a number or a boolean",
    ),  # type: ignore[arg-type]
    body(
        "ledger: a list",
        lambda run: run.ledger.record("k", rows=[1]),
        "rows=[1]",
        "text, a number or a boolean",
    ),  # type: ignore[arg-type]
    body(
        "ledger: a time",
        lambda run: run.ledger.record("k", at=run.fire_time),
        "at=datetime",
        "text, a number",
    ),  # type: ignore[arg-type]
    body(
        "ledger: over 64 bits",
        lambda run: run.ledger.record("k", n=2**63),
        "n=9223372036854775808",
        "keep it as text",
    ),
    body(
        "ledger: long text",
        lambda run: run.ledger.record("k", t="x" * 40_000),
        "t='xxxx",
        "keep it in a blob",
    ),
    body(
        "ledger: the row's key",
        lambda run: run.ledger.record("k", RowKey="job:nightly"),
        "RowKey=",
        "use another",
    ),
    body(
        "ledger: twice in a batch",
        lambda run: [run.ledger.record("k"), run.ledger.record("k")],
        "'k' is recorded twice",
        "in one batch",
    ),
    body(
        "ledger: too many",
        lambda run: [run.ledger.record(str(n)) for n in range(200)],
        "more than 98",
        "use smaller batches",
    ),
    body(
        "blob: missing",
        lambda run: run.blobs.read("orders.csv"),
        "'orders.csv'",
        "put it in the data container",
    ),
    body("blob: no text", lambda run: run.blobs.read_text("latin.csv"), "'latin.csv'", "save it as UTF-8"),
)
def test_bad_input_in_a_job(case: Case) -> None:
    """What cannot be kept fails the run with one error, before anything is written, and what was kept stays kept."""
    attempts = []

    @scheduled(NIGHTLY, retries=1)
    def nightly(run: Run) -> None:
        attempts.append((run.checkpoint.load(), sorted(run.ledger.keys())))
        if len(attempts) == 1:
            run.ledger.record("kept", cents=7)
            run.checkpoint.save({"page": 1})
            case.given(run)

    bench = Workbench(nightly)
    bench.put("latin.csv", b"\xfe\xff")
    result = bench.run(nightly, THREE)
    assert isinstance(result.error, InputError)
    hopeless = isinstance(result.error, PermanentError)
    assert result.outcome is (Outcome.FAILED if hopeless else Outcome.RETRYING)
    holds(case, str(result.error))
    assert case.remedy in result.reason
    resume_run(bench.dispatcher, Which("nightly", THREE, why="corrected"))
    again = bench.dispatcher.execute(nightly, THREE, by="request")
    assert again.outcome is Outcome.SUCCEEDED
    assert attempts == [(None, []), ({"page": 1}, ["kept"])]


def test_every_error_has_a_message() -> None:
    """An error raised without a word says what its class is about: no error of the toolkit's is silent."""

    def all_kinds(kind: type[RunonceError]) -> list[type[RunonceError]]:
        return [kind, *(k for sub in kind.__subclasses__() for k in all_kinds(sub))]

    kinds = [kind for kind in all_kinds(RunonceError) if kind.__init__ is RunonceError.__init__]
    assert len(kinds) > 10
    assert [kind for kind in kinds if len(str(kind())) < 30] == []
