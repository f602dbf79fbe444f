"""What one execution on Container Apps does, and the exit code that tells the platform to start it again or not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import NOW, CommandLine

from runonce.errors import StoreUnavailableError, TransportError
from runonce.execution.registry import Registry
from runonce.hosts.container_apps import LATE, start_again
from runonce.runs.result import Result
from runonce.runs.rows import Outcome
from runonce.runs.table import read_run
from runonce.transports.protocols import Outgoing

if TYPE_CHECKING:
    import threading
    from pathlib import Path

JOBS = """
    from runonce import Message, PermanentError, Run, handler, scheduled

    @scheduled("0 0 * * * *", misfire="skip")
    def hourly(run: Run) -> None:
        "Works."

    @scheduled("0 0 * * * *", retries=1, retry_delay=600)
    def shaky(run: Run) -> None:
        raise ValueError("no answer")

    @scheduled("0 0 * * * *")
    def hopeless(run: Run) -> None:
        raise PermanentError("the account is closed")

    @scheduled("0 0 3 * * *", time_zone="America/New_York")
    def zoned(run: Run) -> None:
        raise AssertionError("it is not due")

    @handler(queue="invoices", key="id")
    def send_invoice(message: Message) -> None:
        if message.json.get("fail"):
            raise PermanentError("no such address")
"""


class Down:
    """Storage that does not answer, whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError

        return call


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("jobs.py", JOBS)
    return made


def take_down(cli: CommandLine) -> None:
    down: Any = Down()
    cli.stores = replace(cli.stores, leases=down, runs=down, claims=down, requests=down, blobs=down)


def runs(cli: CommandLine, job: str) -> int:
    """How often the fire time at noon has been started."""
    registry = Registry(cli.stores.runs, "local", cli.clock, "test")
    found = read_run(registry, job, cli.clock.now().replace(minute=0, second=0, microsecond=0))
    return 0 if found is None else found[0].attempt


# -- run --scheduled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 45, 599])
def test_an_execution_runs_the_fire_time_it_was_started_for(cli: CommandLine, late: int) -> None:
    """However long the image took, within ten minutes, the execution runs the fire time of its cron's tick."""
    cli.clock.advance(late)
    done = cli("run", "hourly", "--scheduled")
    assert done.exit_code == 0, done.output
    assert "hourly 2026-11-29T12:00:00Z: succeeded" in done.stdout
    assert runs(cli, "hourly") == 1


def test_a_tick_that_is_not_due_costs_nothing(cli: CommandLine) -> None:
    """A tick of a superset that no fire time belongs to ends with 0, and touches no storage."""
    take_down(cli)
    for job, seconds in (("zoned", 0), ("hourly", LATE.total_seconds() + 1)):
        cli.clock.advance(seconds)
        done = cli("run", job, "--scheduled")
        assert done.exit_code == 0
        assert "no fire time is due" in done.stdout


def test_a_fire_time_that_is_done_is_not_run_again(cli: CommandLine) -> None:
    """A second execution for the same fire time ends with 0 and runs nothing."""
    assert [cli("run", "hourly", "--scheduled").exit_code for _ in range(3)] == [0, 0, 0]
    assert runs(cli, "hourly") == 1


def test_held_elsewhere_is_well(cli: CommandLine) -> None:
    """While another host runs the job the execution ends with 0 and leaves it alone."""
    assert cli.stores.leases.acquire("local/hourly", "somebody", 30)
    done = cli("run", "hourly", "--scheduled")
    assert done.exit_code == 0
    assert "held elsewhere" in done.stdout


def test_a_failed_run_with_retries_left_is_not_the_platforms_to_retry(cli: CommandLine) -> None:
    """The toolkit keeps the retry with its delay, so the platform is told that all is well, also when asked again."""
    for _ in range(2):
        assert cli("run", "shaky", "--scheduled").exit_code == 0
    assert runs(cli, "shaky") == 1


def test_a_run_that_failed_for_good_shows_as_failed_and_runs_once(cli: CommandLine) -> None:
    """The execution ends with 1 so that it is seen; the platform starts it again, to the same end, without the job."""
    assert [cli("run", "hopeless", "--scheduled").exit_code for _ in range(3)] == [1, 1, 1]
    assert runs(cli, "hopeless") == 1


def test_storage_out_of_reach_is_the_platforms_to_retry(cli: CommandLine) -> None:
    """When storage does not answer nothing is recorded anywhere, so the platform is told to start it again."""
    take_down(cli)
    assert cli("run", "hourly", "--scheduled").exit_code == 6


def test_it_can_say_it_as_json(cli: CommandLine) -> None:
    """With --json the outcome and the exit code are one object."""
    said = json.loads(cli("run", "shaky", "--scheduled", "--json").stdout)
    assert (said["outcome"], said["exit_code"], said["fire_time"]) == ("retrying", 0, "2026-11-29T12:00:00Z")


def test_it_takes_no_other_fire_time(cli: CommandLine) -> None:
    """A scheduler has no say in which fire time it is, so --scheduled goes with none of the options for that."""
    assert cli("run", "hourly", "--scheduled", "--replay").exit_code == 2


@pytest.mark.parametrize(
    ("outcome", "attempt", "error", "again"),
    [
        (Outcome.SUCCEEDED, 1, None, False),
        (Outcome.FAILED, 1, ValueError(), False),
        (Outcome.RETRYING, 1, ValueError(), False),
        (Outcome.SKIPPED, 0, None, False),
        (Outcome.SKIPPED, 0, StoreUnavailableError(), True),
        (Outcome.STOPPED, 1, None, True),
        (Outcome.ABANDONED, 1, None, True),
        (Outcome.UNKNOWN, 1, StoreUnavailableError(), True),
        (Outcome.UNKNOWN, 0, None, False),
    ],
)
def test_what_the_platform_starts_again(
    outcome: Outcome, attempt: int, error: BaseException | None, again: bool
) -> None:
    """Started again is what is not recorded or can go on at once; never what the toolkit retries itself."""
    assert start_again(Result("job", NOW, outcome, attempt=attempt, error=error)) is again


# -- work -------------------------------------------------------------------------------------------------------


def send(cli: CommandLine, *bodies: dict[str, Any]) -> None:
    messages = [Outgoing(json.dumps(body).encode(), f"m-{body['id']}") for body in bodies]
    cli.transport.sender().send("invoices", messages)


def test_an_execution_handles_what_is_there_and_ends(cli: CommandLine) -> None:
    """All messages are settled, also one that fails for good, and the execution ends with 0 when no more come."""
    send(cli, {"id": 1}, {"id": 2, "fail": True}, {"id": 3})
    done = cli("work", "send_invoice", "--max-messages", "80", "--max-wait", "0")
    assert done.exit_code == 0, done.output
    assert "3 messages settled" in done.stdout
    assert cli.transport.bodies("invoices") == []
    assert len(cli.transport.bodies("invoices/dead")) == 1


def test_an_execution_ends_after_so_many_messages(cli: CommandLine) -> None:
    """After --max-messages the rest is left for the next execution."""
    send(cli, *({"id": n} for n in range(5)))
    assert cli("work", "send_invoice", "--max-messages", "2", "--max-wait", "0").exit_code == 0
    assert len(cli.transport.bodies("invoices")) == 3


def test_a_broker_out_of_reach_is_no_empty_queue(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the broker does not answer to the end the execution fails, for nobody knows what is in the queue."""

    def wait(event: threading.Event, seconds: float) -> bool:
        cli.clock.advance(seconds)
        return event.is_set()

    monkeypatch.setattr(cli.clock, "wait", wait)
    cli.transport.fail["receive"] = [TransportError("no route") for _ in range(50)]
    done = cli("work", "send_invoice", "--max-messages", "1", "--max-wait", "0")
    assert done.exit_code == 6
    assert "no route" in done.output


def test_a_handler_that_is_a_job_is_named(cli: CommandLine) -> None:
    """Asking for the messages of a scheduled job says what it is."""
    done = cli("work", "hourly", "--max-wait", "0")
    assert done.exit_code == 5
    assert "a scheduled job" in done.output


# -- manifest and audit -----------------------------------------------------------------------------------------


def test_the_manifest_is_checked_against_the_code(cli: CommandLine, tmp_path: Path) -> None:
    """--check passes after writing, and fails with the remedy when a job has changed since."""
    file = str(tmp_path / "infra" / "jobs.json")
    assert cli("manifest", "--check", "--output", file).exit_code == 1
    assert "3 scheduled jobs" not in cli("manifest", "--output", file).output
    assert cli("manifest", "--check", "--output", file).exit_code == 0
    cli.file(
        "more.py", JOBS.replace("def hourly", "def daily").partition('@scheduled("0 0 * * * *", retries')[0]
    )
    stale = cli("manifest", "--check", "--output", file)
    assert stale.exit_code == 1
    assert "run `runonce manifest`" in stale.output


def test_no_manifest_without_all_job_files(cli: CommandLine, tmp_path: Path) -> None:
    """While a job file is broken no manifest is written: what runs its jobs would be removed."""
    cli.file("broken.py", "import no_such_module\n")
    done = cli("manifest", "--output", str(tmp_path / "jobs.json"))
    assert done.exit_code == 5
    assert "broken.py" in done.output
    assert not (tmp_path / "jobs.json").exists()


def test_the_audit_ends_with_1_when_something_is_owed(cli: CommandLine) -> None:
    """A job that ran is well; hours later, with nothing running, its fire times are owed, and the exit code says so."""
    assert cli("run", "hourly", "--scheduled").exit_code == 0
    assert cli("audit").exit_code == 0
    cli.clock.advance(timedelta(hours=3).total_seconds())
    done = cli("audit", columns=120)
    assert done.exit_code == 1
    assert "overdue for" in done.stdout
    said = {one["job"]: one for one in cli.json("audit")["jobs"]}
    assert said["hourly"]["state"] == "overdue"
    assert said["zoned"]["state"] == "new"


# -- next --host ------------------------------------------------------------------------------------------------


def test_both_hosts_side_by_side(cli: CommandLine) -> None:
    """`next --host` shows both expressions, and which ticks are not due, over the next change of clocks."""
    done = cli("next", "zoned", "--host", "both", columns=120)
    assert done.exit_code == 0
    assert "0 0 7,8 * * *" in done.stdout
    assert "0 7,8 * * *" in done.stdout
    assert "change next at 2027-03-14T07:00:00Z" in done.stdout
    assert "not due" in done.stdout
    said = cli.json("next", "zoned", "--host", "container-apps")
    assert all(tick["container_apps"] for tick in said["ticks"] if tick["due"])


def test_a_host_that_cannot_take_the_job_is_an_error(cli: CommandLine) -> None:
    """Asked for Container Apps, a schedule with seconds ends with 5, its name and the remedy."""
    cli.file(
        "odd.py", JOBS.partition("@scheduled")[0] + '@scheduled("30 0 3 * * *")\n    def odd(run: Run): ...\n'
    )
    done = cli("next", "odd", "--host", "container-apps")
    assert done.exit_code == 5
    assert "Job 'odd'" in done.output
    assert cli("next", "odd", "--host", "functions").exit_code == 0
