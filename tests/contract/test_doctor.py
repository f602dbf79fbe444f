"""`runonce doctor` on projects with one thing wrong: on a real Azurite, and proxies that refuse as Azure does."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import invoke
from support.job_files import job_files
from support.memory_transport import MemoryTransport
from support.namespaces import fresh_settings
from support.proxy import proxies, proxy  # noqa: F401 - fixtures
from support.service_bus import require_broker, sdk_forgets_sockets

from runonce.cli.context import Context
from runonce.clock import SystemClock
from runonce.hosts.discover import discover
from runonce.hosts.doctor import examine
from runonce.hosts.doctor.project import SETTINGS
from runonce.hosts.manifest import make_manifest, to_text
from runonce.hosts.runtime import Runtime
from runonce.runs.presence import Presence
from runonce.settings import StorageConnection
from runonce.stores.azure import refusals
from runonce.stores.azure.errors import translated
from runonce.stores.azure.refusals import SignedIn
from runonce.stores.azure.tables import AzureTable
from runonce.stores.azure.wire import refusal, services
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock
from runonce.testing.proxy import Fault, StorageProxy
from servicebus import launcher
from tests.support.pages import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typer.testing import Result

EMULATOR = StorageConnection("UseDevelopmentStorage=true")
pytestmark = [sdk_forgets_sockets]
JOBS = '''
from runonce import Message, Run, handler, scheduled

@scheduled("0 0 3 * * *", time_zone="Europe/Istanbul")
def nightly_report(run: Run) -> None:
    """One sales report a night."""

@scheduled("0 15 * * * *")
def sweep(run: Run) -> None:
    """Clean up."""

@handler(queue="invoices", key="invoice_id")
def send_invoice(message: Message) -> None:
    """Send one invoice to its customer."""
'''
BUS = {
    "RUNONCE_SERVICEBUS": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=Yg==;"
    "UseDevelopmentEmulator=true"
}


@dataclass
class Project:
    """A project's folder and environment, which a test spoils."""

    root: Path
    environ: dict[str, str]
    storage: StorageProxy
    clock: Any = field(default_factory=SystemClock)

    def write(self, file: str, text: str) -> None:
        (self.root / file).write_text(text, encoding="utf-8")

    def host(self, path: str, value: object) -> None:
        """Set a value of host.json."""
        content = json.loads((self.root / "host.json").read_text())
        *folders, last = path.split(".")
        place = content
        for folder in folders:
            place = place[folder]
        place[last] = value
        self.write("host.json", json.dumps(content))

    def bus(self, name: str, value: object) -> None:
        """Set a value of host.json that is of Service Bus, and use that."""
        self.environ.update(BUS)
        self.host(f"extensions.serviceBus.{name}", value)

    def manifest(self) -> None:
        """Write infra/jobs.json from the code as it is."""
        made = make_manifest(discover(self.root / "jobs"), self.clock.now())
        self.write("infra/jobs.json", to_text(made))

    def deployed(self, kind: str, whose: str, **values: object) -> None:
        """Set values of an entry of infra/jobs.json."""
        content = json.loads((self.root / "infra" / "jobs.json").read_text())
        for one in content[kind]:
            if one["name"] == whose:
                one.update(values)
        self.write("infra/jobs.json", json.dumps(content))

    def code(self, old: str, new: str) -> None:
        """Change the job file, and take the manifest along."""
        assert old in JOBS
        self.write("jobs/all.py", JOBS.replace(old, new))
        # Bytecode counts as the file's own while second and size are the same, which a person's change does not leave.
        later = (self.root / "jobs" / "all.py").stat().st_mtime + 10
        os.utime(self.root / "jobs" / "all.py", (later, later))
        self.manifest()

    def refused(self, service: str, matching: str, code: str = "AuthorizationFailure") -> None:
        """Let storage refuse such requests as Azure does."""
        fault = Fault(apply=False, status=403, code=code)
        getattr(self.storage, service).inject(fault, matching, times=99)

    def doctor(self, *options: str) -> Result:
        """Run the command in the folder."""
        return invoke(Context(Runtime(environ=self.environ, clock=self.clock)), "doctor", *options)


@pytest.fixture
def healthy(proxy: StorageProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:  # noqa: F811
    """A project in which nothing is amiss."""
    with job_files(tmp_path / "jobs", all=JOBS):
        (tmp_path / "infra").mkdir()
        environ = {
            "RUNONCE_STORAGE": proxy.connection_string,
            "RUNONCE_NAMESPACE": fresh_settings("UseDevelopmentStorage=true").namespace,
        }
        made = Project(tmp_path, environ, proxy)
        made.write("host.json", read("host.json"))
        made.manifest()
        monkeypatch.chdir(tmp_path)
        yield made


def test_a_healthy_project_has_no_finding(healthy: Project) -> None:
    """Every check is well, the code is 0, and nothing that was written for it is left but the lease's empty blob."""
    result = healthy.doctor("--json")
    told = json.loads(result.stdout)
    assert [one for one in told["checks"] if one["findings"]] == []
    assert {one["state"] for one in told["checks"]} == {"well"}
    assert result.exit_code == told["exit_code"] == 0
    areas = {one["area"] for one in told["checks"]}
    assert areas == {
        "settings", "job files", "schedules", "host.json", "infra/jobs.json", "storage", "namespace", "queues",
    }  # fmt: skip
    with Runtime(environ=healthy.environ) as runtime:
        namespace = runtime.settings.namespace
        assert list(runtime.stores.runs.scan_partitions(namespace, namespace + "~")) == []
        assert list(runtime.stores.claims.scan_partitions(namespace, namespace + "~")) == []
        assert list(runtime.stores.blobs.names(f"{namespace}/")) == []
        assert runtime.stores.requests.receive(visibility=1) is None
        assert not runtime.stores.leases.held(f"{namespace}/runonce_doctor")


# -- each with one thing wrong ----------------------------------------------------------------------------------


def lives(environ: dict[str, str], jobs: list[str]) -> None:
    """A host with these jobs checks in."""
    with Runtime(environ=environ, host="their-host") as runtime:
        Presence(runtime.runs, jobs, runtime.clock.now()).check_in()


def handled(environ: dict[str, str]) -> None:
    """Somebody handles an invoice, and looks after jobs."""
    for command in (
        ("enqueue", "send_invoice", "--body", '{"invoice_id": 1}'),
        ("work", "send_invoice", "--max-messages", "1"),
        ("recover",),
    ):
        assert invoke(Context(Runtime(environ=environ)), *command).exit_code == 0


TWICE = JOBS.replace("def send_invoice", "def send_twice")
for name in ("nightly_report", "sweep"):
    TWICE = TWICE.replace(f"def {name}", f"def other_{name}")

OFFLINE, ONLINE = "--offline", ""
CASES: list[tuple[str, str, Callable[[Project], object], int, list[str]]] = [
    (
        "a setting's name is misspelt", OFFLINE,
        lambda at: at.environ.update(RUNONCE_LEASE_DURATON="30"), 5,
        ["RUNONCE_LEASE_DURATON is no setting", "write RUNONCE_LEASE_DURATION"],
    ),
    (
        "renewals do not fit into a lease", OFFLINE,
        lambda at: at.environ.update(RUNONCE_LEASE_RENEWAL="30"), 5,
        ["RUNONCE_LEASE_RENEWAL=30", "less than half of RUNONCE_LEASE_DURATION=45"],
    ),
    (
        "no storage is named", OFFLINE,
        lambda at: at.environ.pop("RUNONCE_STORAGE"), 5,
        ["RUNONCE_STORAGE is not set", "give a connection string"],
    ),
    (
        "a transport without its connection", OFFLINE,
        lambda at: at.environ.update(RUNONCE_TRANSPORT="servicebus"), 5,
        ["RUNONCE_TRANSPORT=servicebus needs RUNONCE_SERVICEBUS"],
    ),
    (
        "the host's time zone is set", OFFLINE,
        lambda at: at.environ.update(WEBSITE_TIME_ZONE="Turkey Standard Time"), 5,
        ["WEBSITE_TIME_ZONE='Turkey Standard Time' moves every timer", "remove it"],
    ),
    (
        "TZ is set", OFFLINE,
        lambda at: at.environ.update(TZ="Europe/Istanbul"), 1,
        ["TZ='Europe/Istanbul' moves every timer", "remove that setting"],
    ),
    (
        "a job file does not import", OFFLINE,
        lambda at: at.write("jobs/other.py", "import no_such_package\n"), 5,
        ["other.py", "no_such_package"],
    ),
    (
        "two handlers read one queue", OFFLINE,
        lambda at: at.write("jobs/other.py", TWICE), 5,
        ["'send_invoice' and 'send_twice' both read 'invoices'", "give each a queue of its own"],
    ),
    (
        "the jobs folder is not there", OFFLINE,
        lambda at: at.environ.update(RUNONCE_JOBS="no-such-folder"), 5,
        ["The jobs folder 'no-such-folder' does not exist", "make it"],
    ),
    (
        "a queue's name is none of Storage's", OFFLINE,
        lambda at: at.code('queue="invoices"', 'queue="Invoices"'), 1,
        ["'Invoices' is not a Storage queue's name", "use 3 to 55 lower-case"],
    ),
    (
        "a topic without Service Bus", OFFLINE,
        lambda at: at.code('queue="invoices"', 'topic="orders", subscription="mail"'), 1,
        ["reads topic 'orders'", "set RUNONCE_SERVICEBUS"],
    ),
    (
        "host.json is no JSON", OFFLINE,
        lambda at: at.write("host.json", "{"), 1,
        ["host.json is not valid JSON"],
    ),
    (
        "host.json is gone", OFFLINE,
        lambda at: (at.write("function_app.py", ""), (at.root / "host.json").unlink()), 1,
        ["host.json cannot be read", "write it anew, as `runonce init` does"],
    ),
    (
        "host.json is empty", OFFLINE,
        lambda at: at.write("host.json", ""), 1,
        ["host.json is not valid JSON"],
    ),
    (
        "messages in another encoding", OFFLINE,
        lambda at: at.host("extensions.queues.messageEncoding", "none"), 1,
        ['messageEncoding="none"', "set base64"],
    ),
    (
        "functionTimeout cuts a run short", OFFLINE,
        lambda at: at.host("functionTimeout", "00:05:00"), 1,
        ["Job 'nightly_report': max_runtime=1800 s", "functionTimeout=00:05:00", "raise functionTimeout"],
    ),
    (
        "one long run keeps the others waiting", OFFLINE,
        lambda at: at.host("extensions.queues.newBatchThreshold", 0), 1,
        ["newBatchThreshold=0", "set 2 or more"],
    ),
    (
        "a failed message comes again at once", OFFLINE,
        lambda at: at.host("extensions.queues.visibilityTimeout", "00:00:00"), 1,
        ["visibilityTimeout=00:00:00", "set 00:00:30", "send_invoice"],
    ),
    (
        "a message is dead after one delivery", OFFLINE,
        lambda at: at.host("extensions.queues.maxDequeueCount", 1), 1,
        ["maxDequeueCount=1", "set 5"],
    ),
    (
        "a lock that is not renewed for long enough", OFFLINE,
        lambda at: at.bus("maxAutoLockRenewalDuration", "00:01:00"), 1,
        ["'send_invoice': may run for 00:04:00", "maxAutoLockRenewalDuration=00:01:00", "raise that value to 00:04:00"],
    ),
    (
        "locks run down while messages wait", OFFLINE,
        lambda at: at.bus("prefetchCount", 20), 1,
        ["prefetchCount=20", "set 0"],
    ),
    (
        "nobody completes messages", OFFLINE,
        lambda at: at.bus("autoCompleteMessages", False), 1,
        ["autoCompleteMessages=false", "set true"],
    ),
    (
        "fewer threads than jobs", OFFLINE,
        lambda at: at.environ.update(PYTHON_THREADPOOL_THREAD_COUNT="2"), 1,
        ["PYTHON_THREADPOOL_THREAD_COUNT=2", "remove that setting"],
    ),
    (
        "recovery is switched off", OFFLINE,
        lambda at: at.environ.update({"AzureWebJobs.runonce_recovery.Disabled": "true"}), 1,
        ["'runonce_recovery' is switched off (AzureWebJobs.runonce_recovery.Disabled)", "Remove the setting"],
    ),
    (
        "what is deployed has another schedule", OFFLINE,
        lambda at: at.deployed("jobs", "nightly_report", schedule="0 0 4 * * *"), 1,
        ["schedule='0 0 4 * * *' of nightly_report", "run `runonce manifest`"],
    ),
    (
        "what is deployed lacks a handler", OFFLINE,
        lambda at: at.deployed("handlers", "send_invoice", name="send_letter"), 1,
        ["lacks the handlers send_invoice", "has the handlers send_letter", "run `runonce manifest`"],
    ),
    (
        "claims go before their messages do", OFFLINE,
        lambda at: at.deployed("handlers", "send_invoice", default_ttl="P60D"), 1,
        ["its claims are kept for 30 days (retention)", "live for 60 days", "Raise retention to 67 days"],
    ),
    (
        "retries beyond a message's life", OFFLINE,
        lambda at: at.code('key="invoice_id"', 'key="invoice_id", retries=20, retry_delay=86400'), 1,
        ["retries=20 with retry_delay=86400 s go on for 20 days", "Lower retries or retry_delay"],
    ),
    (
        "repeated ids after the broker's window", OFFLINE,
        lambda at: at.environ.update(RUNONCE_CLAIM_LEASE="900"), 1,
        ["knows a repeated id for 600 s", "RUNONCE_CLAIM_LEASE=900", "Lower RUNONCE_CLAIM_LEASE"],
    ),
    (
        "the key is another account's", ONLINE,
        lambda at: at.refused("table", "", "AuthenticationFailed"), 1,
        ["refused (AuthenticationFailed, table runonce", "Copy the connection string whole"],
    ),
    (
        "rows may be added and not replaced", ONLINE,
        lambda at: at.refused("table", "^PUT /devstoreaccount1/runonceclaims"), 1,
        ["refused (AuthorizationFailure, table runonceclaims)", "Let the network in"],
    ),
    (
        "leases may not be taken", ONLINE,
        lambda at: at.refused("blob", "comp=lease"), 1,
        ["refused (AuthorizationFailure, lease ", "Let the network in"],
    ),
    (
        "the account takes no keys", ONLINE,
        lambda at: at.refused("queue", "^POST .*-requests/messages", "KeyBasedAuthenticationNotPermitted"), 1,
        ["it takes no account keys", "Set RUNONCE_STORAGE__accountName"],
    ),
    (
        "blobs may not be deleted", ONLINE,
        lambda at: at.refused("blob", "^DELETE "), 1,
        ["refused (AuthorizationFailure, blob ", "Let the network in"],
    ),
    (
        "storage does not answer", ONLINE,
        lambda at: at.storage.table.refuse(), 1,
        ["Storage does not answer at the emulator", "Start the emulator with"],
    ),
    (
        "the lease server does not answer", ONLINE,
        lambda at: at.environ.update(RUNONCE_LEASES="redis://127.0.0.1:1/0"), 1,
        ["Redis did not answer", "Check RUNONCE_LEASES"],
    ),
    (
        "the clock is three minutes ahead", ONLINE,
        lambda at: setattr(at, "clock", ManualClock(datetime.now(UTC) + timedelta(seconds=180))), 1,
        ["This machine's clock is 1", "s ahead of storage's", "set it right (NTP)"],
    ),
    (
        "the clock is a minute behind", ONLINE,
        lambda at: setattr(at, "clock", ManualClock(datetime.now(UTC) - timedelta(seconds=60))), 1,
        ["s behind of storage's", "set it right (NTP)"],
    ),
    (
        "another project has this namespace", ONLINE,
        lambda at: lives(at.environ, ["mop", "other_report"]), 1,
        ["jobs that are not here: mop, other_report", "give each its own RUNONCE_NAMESPACE"],
    ),
    (
        "two namespaces with plain names share a queue", ONLINE,
        lambda at: (
            at.environ.update(RUNONCE_QUEUE_NAMES="plain"),
            handled({**at.environ, "RUNONCE_NAMESPACE": "000-" + at.environ["RUNONCE_NAMESPACE"]}),
        ), 1,
        ["'send_invoice' reads 'invoices', and so does 'send_invoice' of", "Remove RUNONCE_QUEUE_NAMES=plain"],
    ),
    (
        "a broker that does not answer", ONLINE,
        lambda at: at.environ.update(BUS), 1,
        ["'send_invoice' cannot read 'invoices'", "let RUNONCE_SERVICEBUS name the Service Bus that has it"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "spoil", "code", "said"), [pytest.param(*rest, id=name) for name, *rest in CASES]
)
def test_what_is_amiss_is_named_with_its_remedy(
    healthy: Project, option: str, spoil: Callable[[Project], object], code: int, said: list[str]
) -> None:
    """One thing is wrong: a finding has the value, whose it is and the remedy, and the exit code says so."""
    spoil(healthy)
    result = healthy.doctor("--json", *filter(None, [option]))
    checks = json.loads(result.stdout)["checks"]
    texts = "\n".join(found["text"] for one in checks for found in one["findings"])
    assert [one for one in said if one not in texts] == [], texts
    assert result.exit_code == code


def test_a_missing_role_is_named_with_who_lacks_it(healthy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed in by an identity: the one check whose right is missing has the role, and who is to get it."""

    class Refuses(AzureTable):
        def commit(self, *_: Any) -> list[str]:
            with translated("table runonceclaims"):
                raise refusal(
                    403,
                    '{"odata.error": {"code": "AuthorizationPermissionMismatch", "message": {"value": "no"}}}',
                )

    healthy.environ = {
        "RUNONCE_NAMESPACE": healthy.environ["RUNONCE_NAMESPACE"],
        "RUNONCE_STORAGE__accountName": "shop",
    }
    monkeypatch.setattr(refusals, "who_is_signed_in", lambda _: SignedIn("ada@example.com", "1111"))
    stores = replace(
        memory_stores(healthy.clock), claims=Refuses(services(EMULATOR, "table")[0], "runonceclaims")
    )
    runtime = Runtime(environ=healthy.environ, stores=stores, transport=MemoryTransport(healthy.clock))
    checks = examine(runtime, healthy.root)
    (found,) = [found for one in checks for found in one.findings]
    assert "ada@example.com is signed in and lacks the role 'Storage Table Data Contributor'" in found.text
    assert "az role assignment create --assignee 1111" in found.text
    assert [one.what for one in checks if one.must_mend] == [
        "table runonceclaims: insert, read, replace and delete a row"
    ]


def test_a_queue_that_was_not_deployed_is_named(healthy: Project) -> None:
    """A handler's queue that the Service Bus lacks is a finding, one that it has is well; nothing is sent to that."""
    require_broker()
    healthy.write("jobs/other.py", TWICE.replace('queue="invoices"', 'queue="letters"'))
    healthy.manifest()
    healthy.environ["RUNONCE_QUEUE_NAMES"] = "plain"
    with launcher.start([launcher.Queue("invoices")]) as broker:
        healthy.environ["RUNONCE_SERVICEBUS"] = broker.connection_string
        result = healthy.doctor("--json")
        with Runtime(environ=healthy.environ) as runtime:
            handler = runtime.found.handlers["send_invoice"]
            assert runtime.transport.backlog(handler).waiting == 0
    queues = {one["what"]: one for one in json.loads(result.stdout)["checks"] if one["area"] == "queues"}
    assert queues["send_invoice: invoices"]["state"] == "well"
    texts = [found["text"] for found in queues["send_twice: letters"]["findings"]]
    assert len(texts) == 2
    assert all("Deploy it from infra/jobs.json" in text for text in texts)
    assert result.exit_code == 1


def test_nights_on_which_clocks_change_are_notes(healthy: Project) -> None:
    """A fire time that changing clocks move or double is named with the night; the exit code stays 0."""
    healthy.code('"0 0 3 * * *", time_zone="Europe/Istanbul"', '"0 30 2 * * *", time_zone="Europe/Berlin"')
    healthy.clock = ManualClock(datetime(2026, 11, 30, tzinfo=UTC))
    result = healthy.doctor("--offline", "--json")
    (check,) = [one for one in json.loads(result.stdout)["checks"] if one["area"] == "schedules"]
    spring, autumn = (one["text"] for one in check["findings"])
    assert "Job 'nightly_report': On Sunday, 28 March 2027 the clocks of Europe/Berlin go forward" in spring
    assert "clocks went forward: moved from 02:30" in spring
    assert "choose another time" in spring
    assert "Sunday, 31 October 2027" in autumn
    assert check["state"] == "note"
    assert result.exit_code == 0


def test_the_table_fits_a_terminal_of_80_columns(healthy: Project) -> None:
    """Each check has its state, findings are in whole beside it, and the last line counts them."""
    healthy.host("extensions.queues.maxDequeueCount", 1)
    result = healthy.doctor("--offline")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "1 to mend"
    assert sum(line.startswith("well") for line in lines) == 6
    assert "set 5" in result.stdout
    assert result.exit_code == 1


def test_who_leads_is_said(healthy: Project) -> None:
    """With RUNONCE_LEADER=on: that nobody leads, or who; and which host has no such setting."""

    def leading() -> dict[str, Any]:
        checks = json.loads(healthy.doctor("--json").stdout)["checks"]
        return next(one for one in checks if one["what"].startswith("who leads"))

    healthy.environ["RUNONCE_LEADER"] = "on"
    assert leading()["what"] == "who leads: nobody"
    with Runtime(environ=healthy.environ) as runtime:
        for name, leads in (("one", True), ("two", False)):
            Presence(runtime.runs, [], runtime.clock.now(), name=name, leads=leads).check_in()
    said = leading()
    assert (said["what"], said["state"]) == ("who leads: one", "note")
    assert [one["text"] for one in said["findings"]] == [
        "The host two runs timers without leading: set RUNONCE_LEADER=on on every host."
    ]


def test_every_setting_is_known() -> None:
    """The names that a slip is held against are those of the page of settings."""
    shown = set(re.findall(r"`RUNONCE_([A-Z_]+?)(?:__\w+)?`", read("docs/settings.md")))
    assert set(SETTINGS) == shown
