from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.command_line import CommandLine

from runonce.execution.log import user_name
from runonce.runs.rows import JobRow, job_key
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert

if TYPE_CHECKING:
    from pathlib import Path

NIGHTLY = """
    from runonce import PermanentError, Run, scheduled

    @scheduled("0 30 2 * * *", time_zone="America/New_York", retries=1)
    def nightly(run: Run) -> None:
        \"\"\"Load the night's orders.\"\"\"

    @scheduled("0 */5 * * * *")
    def often(run: Run) -> None:
        raise PermanentError("the account is closed")
"""


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("nightly.py", NIGHTLY)
    return made


# -- help and usage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "next",
        "status",
        "history",
        "run",
        "serve",
        "recover",
        "pause",
        "resume",
        "break-lease",
        "upload",
    ],
)
def test_every_command_teaches_by_example(cli: CommandLine, command: str) -> None:
    """The help of a command ends with an example that names it."""
    result = cli(command, "--help")
    assert result.exit_code == 0
    assert f"$ runonce {command}" in result.stdout


def test_the_help_says_what_the_exit_codes_mean(cli: CommandLine) -> None:
    """The main help lists the exit codes."""
    assert "3  nothing ran" in cli("--help").stdout


def test_a_command_that_does_not_exist_is_wrong_usage(cli: CommandLine) -> None:
    """A misspelt command ends with 2 and the one that was probably meant."""
    result = cli("histroy", "nightly")
    assert result.exit_code == 2
    assert "'history'" in result.stderr


def test_global_options_may_follow_the_command(cli: CommandLine, tmp_path: Path) -> None:
    """--jobs and --verbose work wherever they stand."""
    (tmp_path / "other").mkdir()
    before = cli("--jobs", str(tmp_path / "other"), "list")
    after = cli("list", f"--jobs={tmp_path / 'other'}", "-v")
    assert before.exit_code == after.exit_code == 0
    assert "no file of the jobs folder defines a job" in before.stderr
    assert "no file of the jobs folder defines a job" in after.stderr


# -- list -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
def test_list_fits_the_terminal_and_loses_nothing(cli: CommandLine, columns: int) -> None:
    """Every job stands with its schedule, zone and next fire time in its own zone, within the width."""
    result = cli("list", columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    for part in (
        "nightly",
        "Load the night's orders.",
        "America/New_York",
        "Mon 2026-11-30 02:30 -05",
        "in 20 h",
    ):
        assert part in result.stdout


def test_list_needs_neither_storage_nor_settings(cli: CommandLine) -> None:
    """A checkout without any setting can list its jobs."""
    assert cli("list", environ={"RUNONCE_JOBS": str(cli.folder)}).exit_code == 0


def test_list_as_json_has_instants_in_utc(cli: CommandLine) -> None:
    """The JSON of `list` has stable keys and instants with Z."""
    listed = cli.json("list")
    assert [job["name"] for job in listed["jobs"]] == ["nightly", "often"]
    assert listed["broken_files"] == []
    assert listed["jobs"][0] == {
        "name": "nightly",
        "summary": "Load the night's orders.",
        "file": "nightly.py",
        "schedule": "0 30 2 * * *",
        "time_zone": "America/New_York",
        "kind": "fixed-time",
        "next_fire_time": "2026-11-30T07:30:00Z",
        "misfire": "latest",
        "retries": 1,
        "max_runtime_seconds": 1800.0,
        "on_abandoned": "rerun",
    }


def test_list_ends_with_5_when_a_job_file_is_broken(cli: CommandLine) -> None:
    """A broken file is named on stderr, hides no other job, and makes `list` a check."""
    cli.file("broken.py", "import nothing_of_that_name\n")
    result = cli("list")
    assert result.exit_code == 5
    assert "nightly" in result.stdout
    assert "warning: broken.py, line 1 could not be imported" in result.stderr
    assert len(cli.json("list")["broken_files"]) == 1


def test_what_a_job_file_prints_does_not_reach_stdout(cli: CommandLine) -> None:
    """A job file that prints while it is imported does not spoil the JSON."""
    cli.file("chatty.py", "print('hello')\n")
    assert len(cli.json("list")["jobs"]) == 2


def test_no_jobs_folder_is_a_configuration_error(cli: CommandLine) -> None:
    """A folder that does not exist gives one line with the remedy, and 5."""
    result = cli("--jobs", "nowhere", "list")
    assert result.exit_code == 5
    assert result.stderr.count("\n") == 1
    assert "'nowhere' does not exist" in result.stderr


# -- next -------------------------------------------------------------------------------------------------------


def test_next_marks_what_clocks_do_to_a_fire_time(cli: CommandLine) -> None:
    """The night clocks go forward is marked, in local time and in UTC."""
    result = cli("next", "nightly", "-n", "2", "--after", "2027-03-13T12:00:00Z", columns=120)
    assert result.exit_code == 0
    assert "fixed-time schedule" in result.stdout
    assert "Sun 2027-03-14 03:00 -04" in result.stdout
    assert "2027-03-14T07:00:00Z" in result.stdout
    assert "clocks went forward: moved from 02:30" in result.stdout


def test_next_says_that_an_interval_is_one(cli: CommandLine) -> None:
    """A schedule that admits every hour is called an interval."""
    assert "an interval schedule" in cli("next", "often", "-n", "1").stdout


def test_next_as_json(cli: CommandLine) -> None:
    """The JSON of `next` has each fire time in UTC and local, and the oddity or null."""
    shown = cli.json("next", "nightly", "-n", "2", "--after", "2027-03-13T00:00:00Z")
    assert shown["kind"] == "fixed-time"
    assert shown["fire_times"] == [
        {"utc": "2027-03-13T07:30:00Z", "local": "2027-03-13T02:30:00-05:00", "oddity": None},
        {
            "utc": "2027-03-14T07:00:00Z",
            "local": "2027-03-14T03:00:00-04:00",
            "oddity": "clocks went forward: moved from 02:30",
        },
    ]


@pytest.mark.parametrize(
    ("value", "schedule", "origin"),
    [
        ("", "0 0 3 * * *", "the default of NIGHTLY_SCHEDULE"),
        ("0 0 4 * * *", "0 0 4 * * *", "from NIGHTLY_SCHEDULE"),
    ],
)
def test_a_schedule_says_which_setting_it_comes_from(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, value: str, schedule: str, origin: str
) -> None:
    """`list` and `next`, with --host and without, show the schedule in force and where it comes from."""
    monkeypatch.setenv("NIGHTLY_SCHEDULE", value)
    cli.file(
        "set.py",
        """
        from runonce import Run, scheduled

        @scheduled("%NIGHTLY_SCHEDULE%", default="0 0 3 * * *")
        def from_setting(run: Run) -> None: ...
        """,
    )
    for command in (["list"], ["next", "from_setting"], ["next", "from_setting", "--host", "both"]):
        shown = cli(*command, columns=120).stdout
        assert schedule in shown
        assert origin in shown
    (listed,) = (job for job in cli.json("list")["jobs"] if job["name"] == "from_setting")
    for entry in (
        listed,
        cli.json("next", "from_setting"),
        cli.json("next", "from_setting", "--host", "both"),
    ):
        assert (entry["schedule"], entry["schedule_setting"]) == (schedule, "NIGHTLY_SCHEDULE")
    assert "schedule_setting" not in cli.json("next", "nightly")


def test_an_unknown_job_is_named_with_the_nearest(cli: CommandLine) -> None:
    """A misspelt job ends with 5 and one line that says which was probably meant."""
    result = cli("next", "nigthly")
    assert result.exit_code == 5
    assert "There is no job 'nigthly'" in result.stderr
    assert "Did you mean 'nightly'?" in result.stderr


def test_an_unknown_job_may_be_in_a_broken_file(cli: CommandLine) -> None:
    """The message on an unknown job names the files that did not load."""
    cli.file("broken.py", "def")
    assert "It may be in a file that did not load: broken.py, line 1" in cli("next", "other").stderr


# -- status -----------------------------------------------------------------------------------------------------


def test_status_of_jobs_that_never_ran(cli: CommandLine) -> None:
    """Before anything ran, every job is idle, never ran, and has a next fire time."""
    result = cli("status")
    assert result.exit_code == 0
    assert result.stdout.count("never ran") == result.stdout.count("idle") == 2
    assert "2026-11-30 07:30:00" in result.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_status_tells_the_last_outcome_and_why(cli: CommandLine, columns: int) -> None:
    """A run that failed stands with its fire time and its reason, within the width."""
    assert cli("run", "often").exit_code == 1
    result = cli("status", columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "failed now" in result.stdout
    assert "2026-11-29T12:00:00Z" in result.stdout
    assert "account is closed" in result.stdout


def test_status_shows_a_job_that_left_the_code(cli: CommandLine) -> None:
    """A row of a job that no file defines is shown, and said to be such."""
    context = cli.context()
    row = JobRow("bygone", last_fire_time=cli.clock.now(), last_outcome="succeeded")
    context.runtime.stores.runs.commit("local", [Insert(job_key("bygone"), encode(row))])
    result = cli("status")
    assert "bygone" in result.stdout
    assert "not in the code" in result.stdout
    assert [job["name"] for job in cli.json("status")["jobs"] if not job["in_code"]] == ["bygone"]
    assert cli("history", "bygone").exit_code == 0


def test_status_of_one_job(cli: CommandLine) -> None:
    """A job's name narrows the status to it; an unknown one is an error."""
    assert [job["name"] for job in cli.json("status", "often")["jobs"]] == ["often"]
    assert cli("status", "oftne").exit_code == 5


def test_status_as_json_after_a_pause(cli: CommandLine) -> None:
    """The JSON of `status` has when and why a job was paused."""
    cli("pause", "nightly", "--why", "the ledger is being moved", "--by", "ada")
    shown = cli.json("status")
    assert shown["namespace"] == "local"
    paused = shown["jobs"][0]
    assert (paused["paused_at"], paused["paused_why"]) == (
        "2026-11-29T12:00:00Z",
        "the ledger is being moved, by ada",
    )
    assert "paused now: the ledger" in cli("status").stdout


def test_status_lists_broken_files(cli: CommandLine) -> None:
    """A job file that did not load is named beside the table, which is printed all the same."""
    cli.file("broken.py", "1 / 0")
    result = cli("status")
    assert result.exit_code == 5
    assert "warning: broken.py, line 1" in result.stderr
    assert "nightly" in result.stdout


def test_status_begins_with_where_it_looked(cli: CommandLine) -> None:
    """The first line has the namespace and the account, so that a look at the wrong place is seen."""
    first = cli("status").stdout.splitlines()[0]
    assert first == "namespace 'local' on the emulator, 127.0.0.1:10002 (RUNONCE_STORAGE)"


def test_status_has_troubled_jobs_first_and_an_exit_code_for_them(cli: CommandLine) -> None:
    """A job whose last run failed stands before those that are well, and a script sees it by the code 1."""
    cli.file("a_good.py", NIGHTLY.replace("def nightly", "def a_good").partition('@scheduled("0 */5')[0])
    assert cli("status").exit_code == 0
    assert cli("run", "often").exit_code == 1
    result = cli("status")
    assert result.exit_code == 1
    assert result.stdout.index("often") < result.stdout.index("a_good") < result.stdout.index("nightly")
    assert cli("status", "nightly").exit_code == 0


def test_status_says_what_is_overdue(cli: CommandLine) -> None:
    """A fire time that nobody ran for long is told with its lateness, and ends with 1."""
    assert cli("run", "nightly", "--at", "2026-11-29T07:30:00Z").exit_code == 0
    assert cli("status", "nightly").exit_code == 0
    cli.clock.advance(25 * 3600)
    result = cli("status", "nightly")
    assert result.exit_code == 1
    assert "overdue for" in " ".join(result.stdout.split())


# -- history ----------------------------------------------------------------------------------------------------


def test_history_is_newest_first(cli: CommandLine) -> None:
    """Fire times come newest first, in the form that --at takes, at most as many as asked for."""
    for day in ("27", "28", "29"):
        assert cli("run", "nightly", "--at", f"2026-11-{day}T07:30:00Z").exit_code == 0
    lines = [
        line for line in cli("history", "nightly", "-n", "2").stdout.splitlines() if line.startswith("2026")
    ]
    assert [line.split()[:2] for line in lines] == [
        ["2026-11-29T07:30:00Z", "succeeded"],
        ["2026-11-28T07:30:00Z", "succeeded"],
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_history_shows_earlier_attempts_when_asked(cli: CommandLine, columns: int) -> None:
    """With --attempts the attempts before the last one stand below it, with their reasons."""
    cli.file(
        "flaky.py",
        """
        from runonce import Run, scheduled

        @scheduled("0 0 3 * * *", retries=5)
        def flaky(run: Run) -> None:
            if run.attempt < 3:
                raise ValueError(f"attempt {run.attempt} went wrong")
        """,
    )
    codes = [cli("run", "flaky", "--at", "2026-11-29T03:00:00Z").exit_code for _ in range(3)]
    assert codes == [4, 4, 0]
    result = cli("history", "flaky", "--attempts", columns=columns)
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "attempt 2 went wrong" in " ".join(result.stdout.split())
    assert "went wrong" not in cli("history", "flaky").stdout


def test_history_as_json(cli: CommandLine) -> None:
    """The JSON of `history` has what a program needs, and no checkpoint or holder."""
    cli("run", "often")
    run = cli.json("history", "often")["runs"][0]
    assert run["error"].endswith("PermanentError: the account is closed\n")
    assert {key: value for key, value in run.items() if key not in ("error", "host")} == {
        "fire_time": "2026-11-29T12:00:00Z",
        "outcome": "failed",
        "reason": "PermanentError: the account is closed",
        "attempt": 1,
        "by": "hand",
        "why": "",
        "asked_by": user_name(),
        "asked_at": None,
        "started_at": "2026-11-29T12:00:00Z",
        "finished_at": "2026-11-29T12:00:00Z",
        "seconds": 0.0,
        "retry_at": None,
        "fencing_token": 1,
        "failures": 1,
        "abandoned": 0,
        "replays": 0,
        "progress": {},
        "parameters": {},
        "decisions": [],
        "attempts": [],
    }


def test_history_of_a_job_that_never_ran(cli: CommandLine) -> None:
    """A job without a run is no error; the note says how to run it."""
    result = cli("history", "often")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`runonce run often`" in result.stderr


def test_history_of_one_fire_time_has_all_of_it(cli: CommandLine) -> None:
    """--at shows one run: its outcome, its earlier attempts and the traceback; without such a run it ends with 5."""
    cli.file(
        "shaky.py",
        """
        from runonce import Run, scheduled

        @scheduled("0 0 * * * *", retries=1, retry_delay=1)
        def shaky(run: Run) -> None:
            raise ValueError(f"no answer {run.attempt}")
        """,
    )
    assert cli("run", "shaky", "--at", "2026-11-29T11:00:00Z").exit_code == 4
    cli.clock.advance(10)
    assert cli("run", "shaky", "--at", "2026-11-29T11:00:00Z").exit_code == 1
    page = cli("history", "shaky", "--at", "2026-11-29T11:00:00Z").stdout
    assert page.startswith("shaky 2026-11-29T11:00:00Z: failed, attempt 2")
    assert "attempt 1: retrying on" in page
    assert "ValueError: no answer 1" in page
    assert page.rstrip().endswith("ValueError: no answer 2")
    assert "Traceback (most recent call last)" in page
    (only,) = cli.json("history", "shaky", "--at", "2026-11-29T11:00:00Z")["runs"]
    assert only["attempt"] == 2
    missing = cli("history", "shaky", "--at", "2026-11-29T10:00:00Z")
    assert missing.exit_code == 5
    assert "no run at 2026-11-29T10:00:00Z" in missing.stderr
