"""The commands that decide about one run, and the one that runs a range of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import NOW, CommandLine

if TYPE_CHECKING:
    from pathlib import Path

JOBS = """
    import os
    from runonce import Run, scheduled

    @scheduled("0 0 3 * * *", time_zone="Europe/Istanbul")
    def charge(run: Run, *, region: str = "eu", pages: int = 1) -> None:
        for (number,) in run.batches(range(3), size=1):
            if number == 2 and os.path.exists("BROKEN"):
                raise ValueError("row 2")
            print(run.idempotency_key, number, region, pages)

    @scheduled("0 0 * * * *", retries=3, retry_delay=3600)
    def hourly(run: Run) -> None:
        if os.path.exists("BROKEN"):
            raise OSError
"""
AT = "2026-11-29T00:00:00Z"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """While this file is there, the jobs fail."""
    path = tmp_path / "broken"
    path.touch()
    return path


@pytest.fixture
def cli(tmp_path: Path, broken: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("jobs.py", JOBS.replace("BROKEN", str(broken)))
    return made


def run_of(cli: CommandLine, job: str = "charge") -> dict[str, Any]:
    """The newest run in the history."""
    return dict(cli.json("history", job)["runs"][0])


def test_resume_run_goes_on_here(cli: CommandLine, broken: Path) -> None:
    """What failed and was corrected goes on from its checkpoint, under its key, and the record says who let it."""
    assert cli("run", "charge", "--at", "2026-11-29").exit_code == 1
    broken.unlink()
    result = cli("resume-run", "charge", "--at", "2026-11-29", "--why", "row 2 is corrected", "--by", "ada")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "charge:20261129T000000Z 2 eu 1"
    run = run_of(cli)
    assert (run["outcome"], run["attempt"], run["replays"]) == ("succeeded", 2, 0)
    assert run["decisions"] == ["2026-11-29T12:00:00Z resumed by ada: row 2 is corrected"]
    assert "resumed by ada" in cli("history", "charge", columns=200).stdout


def test_replay_starts_it_over_here(cli: CommandLine, broken: Path) -> None:
    """A replay runs all of it, under another key."""
    cli("run", "charge", "--at", AT)
    broken.unlink()
    lines = cli("replay", "charge", "--at", AT).stdout.splitlines()
    assert lines[:3] == [f"charge:20261129T000000Z:1 {n} eu 1" for n in range(3)]


@pytest.mark.parametrize("verb", ["resume-run", "replay"])
def test_a_verb_can_be_left_to_the_hosts(cli: CommandLine, broken: Path, verb: str) -> None:
    """--ask runs nothing here; a host that takes the request carries it out."""
    cli("run", "charge", "--at", AT)
    broken.unlink()
    assert cli.json(verb, "charge", "--at", AT, "--ask") == {"job": "charge", "fire_time": AT, "asked": True}
    cli.clock.advance(121)
    assert cli.json("recover", "--work")["worked"][0]["outcome"] == "succeeded"


def test_mark_says_how_it_ended(cli: CommandLine) -> None:
    """Nothing runs; the record has the outcome, who said so, and why."""
    cli("run", "charge", "--at", AT)
    result = cli("mark", "charge", "done", "--at", AT, "--why", "charged by hand", "--by", "ada")
    assert (result.exit_code, result.stdout) == (0, f"charge {AT}: marked done by ada: charged by hand\n")
    assert (run_of(cli)["outcome"], run_of(cli)["attempt"]) == ("succeeded", 1)
    assert cli("mark", "charge", "perhaps", "--at", AT, "--why", "x").exit_code == 2
    assert cli("mark", "charge", "done", "--at", AT).exit_code == 2  # without a reason


def test_cancel_ends_what_waits(cli: CommandLine, broken: Path) -> None:
    """Without --at it is the only one that is unfinished; nothing takes it up again."""
    assert cli("run", "hourly", "--at", AT).exit_code == 4
    result = cli("cancel", "hourly", "--why", "wrong prices", "--by", "ada")
    assert (result.exit_code, result.stdout) == (0, f"hourly {AT}: cancelled by ada: wrong prices\n")
    broken.unlink()
    assert cli("run", "hourly", "--at", AT).exit_code == 3
    assert run_of(cli, "hourly")["outcome"] == "cancelled"
    again = cli("cancel", "hourly", "--why", "x")
    assert (again.exit_code, "unfinished are: none" in again.stderr) == (5, True)


def test_cancel_names_what_it_could_mean(cli: CommandLine) -> None:
    """With several unfinished ones it asks which."""
    cli("run", "hourly", "--at", AT)
    cli("run", "hourly", "--at", "2026-11-29T01:00Z")
    result = cli("cancel", "hourly", "--why", "x")
    assert result.exit_code == 5
    assert (
        "say which fire time with --at; unfinished are: 2026-11-29T00:00:00Z, 2026-11-29T01:00:00Z"
        in result.stderr
    )


def test_who_decides_is_the_systems_user_by_default(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --by the record has the name of the user who typed the command."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "grace")
    cli("mark", "charge", "failed", "--at", AT, "--why", "x")
    assert "by grace: x" in run_of(cli)["decisions"][0]


def test_parameters_make_a_run_of_its_own(cli: CommandLine, broken: Path) -> None:
    """--param is part of which run it is, kept on its record, and shown."""
    broken.unlink()
    assert cli("run", "charge", "--at", AT).exit_code == 0
    result = cli("run", "charge", "--at", AT, "--param", "region=us", "--param", "pages=2")
    assert result.exit_code == 0, result.stderr
    assert "us 2" in result.stdout
    assert cli("run", "charge", "--at", AT, "--param", "pages=2", "--param", "region=us").exit_code == 3
    shown = [run["parameters"] for run in cli.json("history", "charge")["runs"]]
    assert sorted(shown, key=len) == [{}, {"region": "us", "pages": 2}]
    assert '{"pages":2,"region":"us"}' in cli("history", "charge", columns=200).stdout


@pytest.mark.parametrize(
    ("param", "code", "text"),
    [
        ("regoin=us", 5, "no parameter 'regoin'. Its parameters are: region: str = 'eu'; pages: int = 1"),
        ("pages=many", 5, "pages='many' does not fit `pages: int = 1`"),
        ("region", 2, "name=value"),
    ],
)
def test_a_wrong_parameter_is_refused(cli: CommandLine, param: str, code: int, text: str) -> None:
    """The error has the names that exist, and nothing ran."""
    result = cli("run", "charge", "--at", AT, "--param", param, columns=300)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr
    assert cli.json("history", "charge")["runs"] == []


def test_backfill_runs_the_oldest_first_and_leaves_out_what_is_done(cli: CommandLine, broken: Path) -> None:
    """A week of nights in order, with progress on stderr; the same command again has nothing to do."""
    broken.unlink()
    cli("run", "charge", "--at", "2026-11-26")
    words = ("backfill", "charge", "--from", "2026-11-25", "--to", "2026-11-29")
    dry = cli(*words, "--dry-run")
    assert dry.stdout.splitlines() == [f"2026-11-{day}T00:00:00Z" for day in (25, 27, 28, 29)]
    assert cli.json("history", "charge")["runs"][0]["fire_time"] == "2026-11-26T00:00:00Z"
    result = cli(*words)
    assert result.exit_code == 0
    started = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("charge:2")]
    assert list(dict.fromkeys(started)) == [f"charge:202611{day}T000000Z" for day in (25, 27, 28, 29)]
    assert "1 of 4: charge 2026-11-25T00:00:00Z: succeeded" in result.stderr
    assert result.stdout.splitlines()[-1] == "charge: 4 of 4 run"
    assert cli(*words).stdout == "charge: 0 of 0 run\n"


def test_backfill_goes_on_after_one_that_fails(cli: CommandLine) -> None:
    """One that fails does not keep the later ones back, and the exit code says that one did."""
    shown = cli.json(
        "backfill", "charge", "--from", "2026-11-27", "--to", "2026-11-29", "--param", "region=us"
    )
    assert [run["outcome"] for run in shown["runs"]] == ["failed"] * 3
    assert (shown["done"], shown["exit_code"]) == (0, 1)


@pytest.mark.parametrize(
    ("since", "until"),
    [("2026-11-29", "2026-11-28"), ("2026-11-28", "2026-12-02"), ("2026-11-28", "someday")],
)
def test_a_range_that_cannot_be_is_refused(cli: CommandLine, since: str, until: str) -> None:
    """Backwards, into the future, or no instant: nothing runs."""
    result = cli("backfill", "charge", "--from", since, "--to", until)
    assert result.exit_code in (2, 5)
    assert result.stdout == ""


def test_today_is_filled_as_far_as_it_has_come(cli: CommandLine, broken: Path) -> None:
    """--to with today's date ends at the newest fire time that has passed."""
    broken.unlink()
    shown = cli.json("backfill", "hourly", "--from", "2026-11-29", "--to", "2026-11-29", "--dry-run")
    assert (len(shown["to_run"]), shown["to_run"][-1]) == (13, f"{NOW:%Y-%m-%dT%H:%M:%SZ}")
