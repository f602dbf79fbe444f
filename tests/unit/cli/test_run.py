from __future__ import annotations

import json
import os
import signal
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from support.command_line import NOW, CommandLine

from runonce.cli import run as execute
from runonce.errors import StoreError, StoreUnavailableError
from runonce.execution.log import user_name
from runonce.hosts import local
from runonce.messages.rows import SHARDS, partition
from runonce.runs.operate import ask
from runonce.runs.requests import send_request
from runonce.transports.protocols import Delivery
from runonce.transports.settlement import Complete

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.stores.protocols import Row

JOBS = """
    from runonce import PermanentError, Run, scheduled

    @scheduled("0 0 3 * * *", time_zone="Europe/Istanbul")
    def good(run: Run) -> None:
        print("hello from the job")

    @scheduled("0 0 * * * *", retries=1)
    def flaky(run: Run) -> None:
        raise ValueError("no such order")

    @scheduled("0 0 * * * *")
    def bad(run: Run) -> None:
        raise PermanentError("the account is closed")

    @scheduled("0 0 * * * *")
    async def concurrent(run: Run) -> None:
        pass
"""
HANDLER = """
    from runonce import Message, handler

    @handler(queue="orders", key="id")
    def take(message: Message) -> None:
        pass
"""
AT = "2026-11-29T00:00:00Z"


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("jobs.py", JOBS)
    return made


class Unreachable:
    """Storage that does not answer."""

    def __init__(self, error: StoreError | None = None) -> None:
        self.error = error or StoreUnavailableError("table runonce: storage did not answer (refused).")

    def get(self, *_: object) -> Row | None:
        raise self.error

    def scan(self, *_: object, **__: object) -> list[Row]:
        raise self.error

    def commit(self, *_: object) -> list[str]:
        raise self.error


# -- run --------------------------------------------------------------------------------------------------------


def test_run_succeeds_with_0_and_says_so_on_stdout(cli: CommandLine) -> None:
    """The result stands on stdout, the log on stderr."""
    result = cli("run", "good", "--at", AT)
    assert result.exit_code == 0
    assert f"good {AT}: succeeded (attempt 1" in result.stdout
    assert "INFO    [good" in result.stderr
    assert "started" not in result.stdout


def test_run_without_at_takes_this_second(cli: CommandLine) -> None:
    """The fire time is now, cut to the second."""
    cli.clock.advance(0.75)
    assert "good 2026-11-29T12:00:00Z: succeeded" in cli("run", "good").stdout


def test_run_of_an_async_job(cli: CommandLine) -> None:
    """An async job runs to its end as well."""
    assert cli("run", "concurrent").exit_code == 0


def test_the_same_fire_time_does_not_run_twice(cli: CommandLine) -> None:
    """A fire time that is done ends with 3 and says how to run it again."""
    cli("run", "good", "--at", AT)
    result = cli("run", "good", "--at", AT)
    assert result.exit_code == 3
    assert "nothing ran: already succeeded" in result.stdout
    assert f"`runonce replay good --at {AT}`" in result.stdout


def test_replay_runs_it_again(cli: CommandLine) -> None:
    """`replay` runs a fire time that is done, as its second attempt."""
    cli("run", "good", "--at", AT)
    result = cli("replay", "good", "--at", AT)
    assert (result.exit_code, "attempt 2" in result.stdout) == (0, True)


@pytest.mark.parametrize(("job", "code"), [("bad", 1), ("flaky", 4)])
def test_a_run_that_fails_has_an_exit_code(cli: CommandLine, job: str, code: int) -> None:
    """For good it is 1; to be tried again it is 4, with a note on what does that."""
    result = cli("run", job)
    assert result.exit_code == code
    assert ("goes on with it" in result.stderr) == (code == 4)


def test_held_elsewhere_is_3_and_names_the_host(cli: CommandLine) -> None:
    """A job that runs on another host does not run here; the note says where it runs."""
    dispatcher = cli.context().runtime.dispatcher
    started = dispatcher.begin(dispatcher.jobs["good"], NOW, by="timer")
    result = cli("run", "good", "--at", AT)
    assert result.exit_code == 3
    assert "nothing ran: held elsewhere" in result.stdout
    assert f"{dispatcher.registry.host} is running it" in result.stderr
    dispatcher.finish(started, None)  # type: ignore[arg-type]


def test_at_without_an_offset_is_in_the_jobs_zone_and_said_so(cli: CommandLine) -> None:
    """A naive --at is read in the job's time zone, and stderr says how."""
    result = cli("run", "good", "--at", "2026-11-29T03:00")
    assert result.exit_code == 0
    assert f"good {AT}" in result.stdout
    assert f"read as the time in Europe/Istanbul, {AT}" in result.stderr


@pytest.mark.parametrize(
    ("at", "said"),
    [("2026-11-30T00:00:00Z", "is still to come (in 12 h)"), ("noon", "is not an ISO 8601 instant")],
)
def test_at_that_cannot_be_is_wrong_usage(cli: CommandLine, at: str, said: str) -> None:
    """A future instant, or none at all, ends with 2 before anything is asked of storage."""
    result = cli("run", "good", "--at", at, columns=200)
    assert result.exit_code == 2
    assert said in result.stderr


def test_at_beside_the_schedule_is_run_anyway_or_not_at_all(cli: CommandLine) -> None:
    """An instant the schedule does not name is refused with the nearest ones, and runs with --anyway."""
    result = cli("run", "good", "--at", "2026-11-29T00:00:01Z")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "does not name 2026-11-29T00:00:01Z" in result.stderr
    assert "the nearest are 2026-11-29T00:00:00Z and 2026-11-30T00:00:00Z. Add --anyway" in result.stderr
    assert cli("run", "good", "--at", "2026-11-29T00:00:01Z", "--anyway").exit_code == 0
    assert cli("run", "good", "--at", AT).exit_code == 0


def test_a_date_is_that_local_days_fire_time(cli: CommandLine) -> None:
    """--at with a date alone is the night's own fire time, under its own key, and no run of its own at midnight."""
    assert cli.json("run", "good", "--at", "2026-11-29")["fire_time"] == AT
    assert cli("run", "good", "--at", AT).exit_code == 3
    several = cli("run", "bad", "--at", "2026-11-29")
    assert (several.exit_code, several.stdout) == (5, "")
    assert "several fire times: 2026-11-29T00:00:00Z, 2026-11-29T01:00:00Z" in several.stderr
    assert "runonce backfill bad --from 2026-11-29 --to 2026-11-29" in several.stderr
    assert "is still to come" in cli("run", "good", "--at", "2026-11-30").stderr


def test_a_day_without_a_fire_time_is_refused(cli: CommandLine) -> None:
    """The error says on which day nothing is named, and what shows the next ones."""
    cli.file(
        "monthly.py",
        """
        from runonce import Run, scheduled

        @scheduled("0 0 3 1 * *")
        def monthly(run: Run) -> None: ...
        """,
    )
    result = cli("run", "monthly", "--at", "2026-11-29")
    assert result.exit_code == 5
    assert "names no fire time on 2026-11-29" in result.stderr
    assert "`runonce next monthly --after 2026-11-29`" in result.stderr


def test_run_goes_ahead_on_a_paused_job(cli: CommandLine) -> None:
    """A person may run what is paused; the note reminds of it."""
    cli("pause", "good")
    result = cli("run", "good")
    assert (result.exit_code, "good is paused" in result.stderr) == (0, True)


def test_run_as_json_keeps_the_jobs_output_apart(cli: CommandLine) -> None:
    """With --json stdout is JSON alone, whatever the job prints."""
    result = cli("run", "good", "--at", AT, "--json")
    shown = json.loads(result.stdout)
    assert "hello from the job" in result.stderr
    assert shown == {
        "job": "good",
        "fire_time": AT,
        "outcome": "succeeded",
        "reason": "",
        "attempt": 1,
        "ran": True,
        "seconds": 0.0,
        "exit_code": 0,
    }


def test_ask_puts_the_fire_time_in_the_list_for_the_hosts(cli: CommandLine) -> None:
    """--ask runs nothing here; `recover --work` then finds it and runs it."""
    result = cli("run", "good", "--at", AT, "--ask")
    assert (result.exit_code, f"good {AT}: asked" in result.stdout) == (0, True)
    assert cli.json("status", "good")["jobs"][0]["pending"] == [
        {
            "fire_time": AT,
            "why": "asked",
            "not_before": "2026-11-29T12:00:00Z",
            "parameters": {},
            "by": user_name(),
        }
    ]
    worked = cli.json("recover", "--work")["worked"]
    assert [(run["fire_time"], run["outcome"]) for run in worked] == [(AT, "succeeded")]


def test_ask_for_what_is_done_is_3(cli: CommandLine) -> None:
    """--ask does not pretend: a fire time that is done is not put in the list."""
    cli("run", "good", "--at", AT)
    result = cli("run", "good", "--at", AT, "--ask")
    assert (result.exit_code, "already succeeded" in result.stdout) == (3, True)


def test_a_signal_stops_the_run_and_is_the_exit_code(cli: CommandLine, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: it stops at a good place, its lease is free, and the code is 130."""
    cli.file(
        "long.py",
        f"""
        from pathlib import Path
        from runonce import Run, scheduled

        @scheduled("0 0 * * * *")
        def long(run: Run) -> None:
            Path({str(tmp_path / "began")!r}).touch()
            while True:
                run.check()
        """,
    )

    def interrupt() -> None:
        while not (tmp_path / "began").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    result = cli("run", "long")
    thread.join()
    assert result.exit_code == 130
    assert "long 2026-11-29T12:00:00Z: stopped" in result.stdout
    assert not cli.stores.leases.held("local/long")
    assert signal.getsignal(signal.SIGINT) is before


# -- storage and settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [("run", "good"), ("run", "good", "--ask"), ("serve",), ("recover",), ("status",), ("history", "good")],
)
def test_storage_out_of_reach_is_6_and_one_line(cli: CommandLine, command: tuple[str, ...]) -> None:
    """Each command that needs storage says where it looked and what to do, in one line."""
    object.__setattr__(cli.stores, "runs", Unreachable())
    result = cli(*command)
    assert result.exit_code == 6
    assert result.stdout == ""
    assert result.stderr == (
        "error: Storage does not answer at the emulator, 127.0.0.1:10002 (RUNONCE_STORAGE). Start the emulator with "
        "`python dev.py azurite`, or let RUNONCE_STORAGE name another storage account.\n"
    )


def test_storage_that_refuses_is_6_with_its_reason(cli: CommandLine) -> None:
    """A refusal is not a network's fault: its reason is what is printed."""
    object.__setattr__(
        cli.stores, "runs", Unreachable(StoreError("table runonce: storage refused with 403 (no)."))
    )
    result = cli("status")
    assert (result.exit_code, result.stderr) == (6, "error: table runonce: storage refused with 403 (no).\n")


def test_a_missing_setting_is_5(cli: CommandLine) -> None:
    """Without RUNONCE_STORAGE the error names it."""
    result = cli("status", environ={"RUNONCE_JOBS": str(cli.folder)})
    assert result.exit_code == 5
    assert result.stderr.startswith("error: RUNONCE_STORAGE is not set")


def test_a_connection_string_the_sdk_cannot_read_is_5(cli: CommandLine) -> None:
    """The SDK's complaint becomes one of a setting, without the setting's value."""
    cli.stores = None  # type: ignore[assignment]
    environ = {
        **cli.environ,
        "RUNONCE_STORAGE": "AccountName=secretive;AccountKey=c2VjcmV0;junk",
        "RUNONCE_NAMESPACE": "shop-test",
    }
    result = cli("status", environ=environ)
    assert result.exit_code == 5
    assert "RUNONCE_STORAGE is not a usable connection string" in result.stderr
    assert "secretive" not in result.stderr


def test_verbose_shows_the_traceback(cli: CommandLine) -> None:
    """--verbose adds the traceback that is left out otherwise."""
    assert "Traceback" not in cli("run", "other").stderr
    assert "Traceback" in cli("run", "other", "--verbose").stderr


def test_a_defect_is_70_and_not_a_failed_run(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception prints its traceback and has a code of its own."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(execute, "in_foreground", broken)
    result = cli("run", "good")
    assert result.exit_code == 70
    assert "ZeroDivisionError" in result.stderr


# -- recover ----------------------------------------------------------------------------------------------------


def test_recover_without_anything_to_do(cli: CommandLine) -> None:
    """An idle tick says so."""
    result = cli("recover")
    assert (result.exit_code, result.stdout) == (0, "nothing is unfinished and free\n")


def test_recover_shows_what_it_asked_for_and_runs_nothing(cli: CommandLine) -> None:
    """The default asks the running hosts and leaves the work to them."""
    cli("run", "flaky", "--at", AT)
    cli.clock.advance(300)
    assert cli("recover").stdout == f"flaky {AT}: asked for (retrying)\n"
    assert cli.json("history", "flaky")["runs"][0]["attempt"] == 1


def test_recover_work_runs_what_was_asked_for(cli: CommandLine) -> None:
    """With --work the requests are handled here; a run that fails for good makes it 1."""
    cli("run", "flaky", "--at", AT)
    cli.clock.advance(300)
    result = cli("recover", "--work")
    assert result.exit_code == 1
    assert f"flaky {AT}: failed: ValueError: no such order" in result.stdout
    assert cli.json("recover", "--work") == {"asked": [], "worked": [], "exit_code": 0}


def times_of(cli: CommandLine, job: str) -> list[str]:
    return [run["fire_time"] for run in cli.json("history", job)["runs"]]


def test_recover_work_purges_on_a_host_that_is_only_a_recovery_job(cli: CommandLine) -> None:
    """What a Container Apps recovery job runs each minute also removes old runs and claims, once a night."""
    cli.file("handlers.py", HANDLER)
    cli("recover", "--work")  # the first tick there is
    handler = cli.context().handler("take")
    assert cli.context().runtime.deliverer.deliver(handler, Delivery(b'{"id": 1}', "m1")) == Complete()
    cli("run", "good", "--at", AT)
    assert times_of(cli, "good") == [AT]
    cli.clock.advance(91 * 86_400)
    shown = cli("recover", "--work")
    assert "runonce_purge 2027-02-28T03:30:00Z: succeeded" in shown.stdout
    assert [t for t in times_of(cli, "good") if t < "2026-11-30"] == []
    claims = [
        row for n in range(SHARDS) for row in cli.stores.claims.scan(partition("local", "take", n), "", "~")
    ]
    assert claims == []


def test_the_toolkits_own_job_is_in_the_code_and_in_no_list_of_jobs(cli: CommandLine) -> None:
    """`status` and `pause` know it where it has run; `list` and the manifest are of the jobs folder alone."""
    assert "runonce_purge" not in [job["name"] for job in cli.json("status")["jobs"]]
    cli("recover", "--work")
    (own,) = (job for job in cli.json("status")["jobs"] if job["name"] == "runonce_purge")
    assert (own["in_code"], own["next_fire_time"]) == (True, "2026-11-30T03:30:00Z")
    assert "not in the code" not in cli("status").stdout
    assert cli("pause", "runonce_purge").exit_code == 0
    assert "runonce_purge" not in cli("list").stdout
    assert "runonce_purge" not in cli("manifest", "-o", "-").stdout


def test_a_request_for_the_toolkits_own_job_is_taken_by_every_host(cli: CommandLine) -> None:
    """Where two kinds of hosts share a queue, a recovery job runs the purge's request and does not drop it."""
    cli("recover", "--work")
    send_request(cli.stores.requests, "runonce_purge", datetime(2026, 11, 29, 3, 30, tzinfo=UTC), "asked")
    ask(cli.context().runtime.dispatcher, cli.context().runtime.jobs["runonce_purge"], NOW)
    worked = cli.json("recover", "--work")["worked"]
    assert ("runonce_purge", "succeeded") in [(run["job"], run["outcome"]) for run in worked]


# -- serve ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_serve_prints_what_it_serves_before_it_does(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The banner on stderr has the namespace, the storage, each job's next fire time, and broken files."""
    monkeypatch.setattr(local.LocalHost, "serve", lambda _, ready: ready() or 75)
    cli.file("broken.py", "1 / 0")
    cli("pause", "bad")
    result = cli("serve")
    assert (result.exit_code, result.stdout) == (75, "")
    assert "runonce serves 4 jobs of 'local'; storage: the emulator, 127.0.0.1:10002" in result.stderr
    assert "good        next Mon 2026-11-30 03:00 +03 (in 12 h)" in result.stderr
    assert "bad         paused" in result.stderr
    assert "warning: broken.py, line 1" in result.stderr
