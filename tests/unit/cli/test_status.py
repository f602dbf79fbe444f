"""status, history and audit as they are typed: what is wrong comes first, fits 80 columns and has an exit code."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import CommandLine
from support.flows import die

from runonce.cli.times import to_utc
from runonce.messages.deliver import Deliverer
from runonce.runs.dispatch import Started
from runonce.runs.presence import Presence
from runonce.runs.recovery import recover
from runonce.runs.rows import JobRow, Pending, job_key
from runonce.runs.trail import actions
from runonce.stores.columns import encode
from runonce.stores.protocols import Insert

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

JOBS = """
    from runonce import Message, PermanentError, Run, handler, scheduled

    @scheduled("0 0 * * * *", retries=2, max_runtime=900)
    def hourly(run: Run) -> None:
        if run.fire_time.hour == 9:
            raise PermanentError("the account is closed")

    @scheduled("0 0 3 * * *", on_abandoned="hold")
    def nightly(run: Run) -> None:
        for batch in run.batches(range(10), size=5):
            pass

    @handler(queue="orders", key="id", retries=1, retry_delay=60)
    def order_placed(message: Message) -> None:
        if message.json.get("mail") is None:
            raise PermanentError(f"order {message.json['id']}: no e-mail address")
        if message.json["mail"] == "later":
            raise ValueError("the mail server is away")
"""


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("all.py", JOBS)
    return made


def text(result: Result) -> str:
    """What it printed, as one line; every line of it fits the terminal."""
    assert max(map(len, result.stdout.splitlines())) <= 80
    return " ".join(result.stdout.split())


def of(cli: CommandLine, name: str) -> dict[str, Any]:
    """The job in `status --json`."""
    found: dict[str, Any] = next(job for job in cli.json("status")["jobs"] if job["name"] == name)
    return found


def begun(cli: CommandLine, name: str) -> Started:
    """A run of the job that has just begun."""
    dispatcher = cli.context().runtime.dispatcher
    job = cli.context().runtime.found.jobs[name]
    started = dispatcher.begin(job, cli.clock.now(), by="hand")
    assert isinstance(started, Started)
    return started


def handle(cli: CommandLine, *bodies: str) -> None:
    """Send these to order_placed, and handle what there is."""
    for body in bodies:
        assert cli("enqueue", "order_placed", "--body", body).exit_code == 0
    found = cli.context().handler("order_placed")
    inbox = cli.transport.inbox(found)
    settings = cli.context().runtime.settings
    deliverer = Deliverer(cli.stores, cli.transport.sender(), settings, cli.clock, host="replica-1")
    while received := inbox.receive(1, 0.0):
        inbox.settle(received[0], deliverer.deliver(found, received[0].delivery))


# -- hosts ------------------------------------------------------------------------------------------------------


def test_status_says_which_hosts_live(cli: CommandLine) -> None:
    """Each host by name, kind, jobs and when it was seen; those that are gone too, and with none left the code is 1."""
    assert "no host is alive" in text(cli("status"))
    context = cli.context()
    registry, jobs = context.runtime.runs, context.runtime.jobs
    Presence(registry, jobs, cli.clock.now(), every=10, name="worker-7:1").check_in()
    Presence(registry, jobs, cli.clock.now(), kind="functions", name="shop/01").check_in()
    said = text(cli("status"))
    assert "2 hosts alive" in said
    assert "worker-7:1 local" in said
    cli.clock.advance(30)  # that worker says every ten seconds that it lives
    result = cli("status")
    assert result.exit_code == 0
    assert "1 host alive shop/01 functions" in text(result)
    assert "worker-7:1 local" in text(result)
    assert "gone, seen 30 s ago" in text(result)
    cli.clock.advance(300)
    result = cli("status")
    assert (result.exit_code, "no host is alive" in text(result)) == (1, True)
    hosts = cli.json("status")["hosts"]
    assert [(host["name"], host["is_alive"]) for host in hosts] == [("shop/01", False), ("worker-7:1", False)]
    assert hosts[0]["jobs"] == ["hourly", "nightly", "runonce_purge"]


def test_status_says_who_leads(cli: CommandLine) -> None:
    """The host that leads is shown as such while it is alive."""
    runtime = cli.context().runtime
    Presence(runtime.runs, ["nightly"], cli.clock.now(), every=10, name="one", leads=True).check_in()
    Presence(runtime.runs, ["nightly"], cli.clock.now(), every=60, name="two").check_in()
    assert "leads, 1 job, seen" in text(cli("status"))
    assert [host["leads"] for host in cli.json("status")["hosts"]] == [True, False]
    cli.clock.advance(60)
    assert "leads, 1 job" not in text(cli("status"))


# -- jobs -------------------------------------------------------------------------------------------------------


def test_a_run_under_way_has_its_progress_limit_and_usual_duration(cli: CommandLine) -> None:
    """Attempt n of m, items done, what it usually takes and may take; over its limit it comes first, with 1."""
    for day in ("27", "28", "29"):
        assert cli("run", "hourly", "--at", f"2026-11-{day}T07:00:00Z").exit_code == 0
    started = begun(cli, "hourly")
    started.run.checkpoint.save({"page": 7})
    cli.clock.advance(20)
    result = cli("status", "hourly")
    assert result.exit_code == 0
    for part in ("running for 20 s, attempt", "1 of 3", "usually 0.01 s, limit 15 min"):
        assert part in text(result)
    assert of(cli, "hourly")["running"]["limit_seconds"] == 900
    row = cli.context().row("hourly")
    for _ in range(60):
        cli.clock.advance(20)
        assert cli.stores.leases.renew("local/hourly", row.holder)
    result = cli("status")
    assert result.exit_code == 1
    assert "over its limit of 15 min" in text(result)
    assert cli.json("status")["jobs"][0]["trouble"] == "over its limit"
    die(started)
    cli.clock.advance(61)
    assert of(cli, "hourly")["trouble"] == "abandoned"
    assert "abandoned, began" in text(cli("status", "hourly"))


def test_no_instant_is_folded_at_80_columns(cli: CommandLine) -> None:
    """A run taken over and a failure of a job with a long reason stand with instants that can be copied."""
    assert cli("run", "hourly", "--at", "2026-11-29T09:00:00Z").exit_code == 1
    started = begun(cli, "nightly")
    result = cli("status")
    assert max(map(len, result.stdout.splitlines())) <= 80
    for fire_time in ("2026-11-29T09:00:00Z", to_utc(started.run.fire_time)):
        assert fire_time in result.stdout


def test_a_failure_is_seen_after_the_next_success(cli: CommandLine) -> None:
    """Two in a row are counted, stay for a day whatever succeeds, and leave when somebody decides or it succeeds."""
    for day in ("28", "29"):
        assert cli("run", "hourly", "--at", f"2026-11-{day}T09:00:00Z").exit_code == 1
    said = text(cli("status", "hourly"))
    assert "2 failed in a row" in said
    assert "last success: never" in said
    assert cli("run", "hourly", "--at", "2026-11-29T08:00:00Z").exit_code == 0
    result = cli("status", "hourly")
    assert result.exit_code == 1
    assert "2 failed since 2026-11-29T12:00:00Z" in text(result)
    assert of(cli, "hourly")["failed_in_a_row"] == 0
    assert cli("mark", "hourly", "done", "--at", "2026-11-28T09:00:00Z", "--why", "by hand").exit_code == 0
    assert "1 failed since" in text(cli("status", "hourly"))
    cli.clock.advance(25 * 3600)
    assert of(cli, "hourly")["failures"] == []


def test_an_unknown_run_stays_until_it_is_decided(cli: CommandLine) -> None:
    """A run that may have taken effect is shown for longer than a day, until a person says what became of it."""
    die(begun(cli, "nightly"))
    cli.clock.advance(61)
    dispatcher = cli.context().runtime.dispatcher
    recover(dispatcher)
    item = cli.stores.requests.receive(visibility=30)
    assert item is not None
    dispatcher.handle_request(item.body)
    cli.clock.advance(50 * 3600)
    assert [one["outcome"] for one in of(cli, "nightly")["failures"]] == ["unknown"]
    assert cli("mark", "nightly", "done", "--at", "2026-11-29T12:00:00Z", "--why", "seen").exit_code == 0
    assert of(cli, "nightly")["failures"] == []


def test_what_overflows_is_counted(cli: CommandLine) -> None:
    """Of many unfinished fire times three are shown, and how many more there are, with those in rows of their own."""
    now = cli.clock.now()
    pending = {now - timedelta(hours=n): Pending("retrying", now + timedelta(hours=1)) for n in range(1, 6)}
    row = JobRow("hourly", pending=pending, more=40)
    cli.stores.runs.commit("local", [Insert(job_key("hourly"), encode(row))])
    assert "and 42 more" in text(cli("status"))
    assert of(cli, "hourly")["more_pending"] == 40


# -- handlers ---------------------------------------------------------------------------------------------------


def test_status_shows_what_waits_for_a_handler(cli: CommandLine) -> None:
    """Waiting, retried and dead messages are counted; a name alone shows that handler, and dead letters end with 1."""
    assert cli("enqueue", "order_placed", "--body", '{"id": 1, "mail": "a@b"}').exit_code == 0
    status = cli.json("status", "order_placed")
    assert (status["jobs"], status["handlers"][0]["waiting"]) == ([], 1)
    handle(cli, '{"id": 2}', '{"id": 3, "mail": "later"}')
    (one,) = cli.json("status")["handlers"]
    assert {name: one[name] for name in ("waiting", "running", "retrying", "dead", "failed", "held")} == {
        "waiting": 0,
        "running": 0,
        "retrying": 1,
        "dead": 1,
        "failed": 1,
        "held": 0,
    }
    result = cli("status", "order_placed")
    assert result.exit_code == 1
    assert "order_placed 0 0 1 1" in text(result)


def test_the_history_of_a_handler_and_of_one_key(cli: CommandLine) -> None:
    """The latest messages with their state; of one key each attempt with its traceback, whatever came of it since."""
    handle(cli, '{"id": 1, "mail": "a@b"}', '{"id": 2}', '{"id": 3, "mail": "later"}')
    said = text(cli("history", "order_placed"))
    assert "3 retrying 1 now replica-1 ValueError: the mail server is away; due again at" in said
    cli.clock.advance(3 * 86400)
    handle(cli)
    page = cli("history", "order_placed", "--key", "3").stdout
    assert page.startswith("order_placed 3: failed, attempt 2")
    assert page.count("ValueError: the mail server is away") >= 4  # reason and traceback of both attempts
    assert "attempt 1: released on replica-1" in page
    (message,) = cli.json("history", "order_placed", "--key", "3")["messages"]
    assert [one["outcome"] for one in message["attempts"]] == ["released"]
    missing = cli("history", "order_placed", "--key", "nope")
    assert (missing.exit_code, "no claim of key 'nope'" in missing.stderr) == (5, True)


@pytest.mark.slow
def test_looking_needs_no_code(cli: CommandLine) -> None:
    """Where the handler's file does not load, its status, history, keys and dead letters are there all the same."""
    handle(cli, '{"id": 2}', '{"id": 3, "mail": "later"}')
    cli.file("all.py", "import a_package_that_is_not_here\n")
    status = cli.json("status", "order_placed")["handlers"][0]
    assert (status["in_code"], status["failed"], status["dead"]) == (False, 1, 1)
    assert cli("status").exit_code == 5
    assert {one["key"] for one in cli.json("history", "order_placed")["messages"]} == {"2", "3"}
    assert cli.json("history", "order_placed", "--key", "2")["messages"][0]["state"] == "failed"
    (letter,) = cli.json("dead-letters", "list", "order_placed")["dead_letters"]
    assert (letter["key"], letter["state"]) == ("2", "failed")
    assert cli("dead-letters", "show", "order_placed", "--id", letter["id"], "--body").exit_code == 0
    assert cli.json("dead-letters", "list")["handlers"][0]["count"] == 1
    assert cli("dead-letters", "replay", "order_placed", "--all").exit_code == 5


@pytest.mark.slow
def test_dead_letters_are_grouped_by_what_happened(cli: CommandLine) -> None:
    """Forty orders that lack the same thing are one line, whatever their ids and figures."""
    handle(cli, *(f'{{"id": {n}}}' for n in range(40)))
    groups = cli.json("dead-letters", "list")["handlers"][0]["groups"]
    told = [(one["count"], one["what"]) for one in groups]
    assert told == [(40, "PermanentError: order …: no e-mail address")]
    result = cli("dead-letters", "list")
    assert "order_placed (orders): 40 dead letters" in text(result)


# -- audit, actions, JSON ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_audit_has_an_exit_code_for_what_is_owed(cli: CommandLine) -> None:
    """1 for a failed run, for dead letters, for a fire time that nobody ran; 5 for a broken file; else 0."""
    assert cli("audit").exit_code == 0
    assert cli("run", "hourly", "--at", "2026-11-29T09:00:00Z").exit_code == 1
    result = cli("audit", "--since", "24h")
    assert result.exit_code == 1
    assert "PermanentError: the account is closed" in text(result)
    assert cli("audit", "--since", "1h").exit_code == 0
    assert cli("audit", "nightly").exit_code == 0
    assert cli("mark", "hourly", "failed", "--at", "2026-11-29T09:00:00Z", "--why", "known").exit_code == 0
    assert cli("audit").exit_code == 0
    handle(cli, '{"id": 2}')
    assert (cli("audit").exit_code, cli("audit", "hourly").exit_code) == (1, 0)
    audited = cli.json("audit")
    assert (audited["owed"], audited["handlers"][0]["dead_lettered"]) == (True, 1)
    cli.file("broken.py", "1 / 0")
    assert cli("audit").exit_code == 5
    assert cli("audit", "--since", "soon").exit_code == 2


def test_what_operators_did_is_on_record(cli: CommandLine) -> None:
    """Pause, resume, a run that is asked for, marks, cancellations, replays and purges: who, what and why."""
    handle(cli, '{"id": 2}', '{"id": 4}')
    for command in (
        ("pause", "hourly", "--why", "moving", "--by", "ada"),
        ("resume", "hourly", "--by", "bob"),
        ("cancel", "hourly", "--at", "2026-11-29T15:00:00Z", "--why", "holiday", "--by", "ada"),
        ("mark", "nightly", "done", "--at", "2026-11-29T03:00:00Z", "--why", "by hand", "--by", "ada"),
        ("dead-letters", "replay", "order_placed", "--id", "orders:2", "--by", "ada", "--why", "corrected"),
        ("dead-letters", "purge", "order_placed", "--id", "orders:4", "--yes", "--by", "ada"),
    ):
        cli.clock.advance(1)
        assert cli(*command).exit_code == 0, command
    listed = actions(cli.context().runtime.runs, 10)
    assert [(one.by, one.did, one.about, one.why) for one in listed] == [
        ("ada", "purged dead letters", "order_placed", ""),
        ("ada", "replayed dead letters", "order_placed", "corrected"),
        ("ada", "marked done", "nightly", "by hand"),
        ("ada", "cancelled", "hourly", "holiday"),
        ("bob", "resumed", "hourly", ""),
        ("ada", "paused", "hourly", "moving"),
    ]
    assert [one.what for one in listed[:4]] == [
        "1: orders:4",
        "1: orders:2",
        "2026-11-29T03:00:00Z",
        "2026-11-29T15:00:00Z",
    ]
    assert [one.did for one in actions(cli.context().runtime.runs, 1, "hourly")] == ["cancelled"]


def test_a_page_says_who_took_a_run_over_and_when(cli: CommandLine) -> None:
    """An attempt whose host died, and the next one: that it was taken over, whose tick asked for it and when."""
    die(begun(cli, "hourly"))
    cli.clock.advance(61)
    dispatcher = cli.context().runtime.dispatcher
    recover(dispatcher)
    item = cli.stores.requests.receive(visibility=30)
    assert item is not None
    dispatcher.handle_request(item.body)
    page = cli("history", "hourly", "--at", "2026-11-29T12:00:00Z").stdout
    assert "attempt 1: abandoned on" in page
    assert "attempt 2: succeeded on" in page
    host = dispatcher.registry.host
    assert f"taken over, its host was gone; asked for by {host} at 2026-11-29T12:01:01Z" in page
    (run,) = cli.json("history", "hourly", "--at", "2026-11-29T12:00:00Z")["runs"]
    assert (run["by"], run["why"], run["asked_by"]) == ("request", "abandoned", host)
    assert [one["token"] for one in run["attempts"]] == [1]


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        (("pause", "hourly", "--why", "moving"), "job", "hourly"),
        (("resume", "hourly"), "was_paused_at", None),
        (("break-lease", "hourly"), "broken", False),
    ],
)
def test_commands_that_change_something_say_it_as_json(
    cli: CommandLine, command: tuple[str, ...], key: str, value: Any
) -> None:
    """--json gives one document on stdout and nothing else."""
    assert cli.json(*command)[key] == value


@pytest.mark.slow
def test_a_page_keeps_every_attempts_traceback_within_a_cell(cli: CommandLine) -> None:
    """Twelve attempts with long tracebacks: the newest are whole, older ones lose theirs, and all fit in the row."""
    cli.file(
        "long.py",
        """
        from runonce import Run, scheduled

        @scheduled("0 0 * * * *", retries=50, retry_delay=0.01)
        def long(run: Run) -> None:
            raise ValueError(f"attempt {run.attempt}: " + "x" * 5000)
        """,
    )
    for _ in range(13):
        assert cli("run", "long", "--at", "2026-11-29T11:00:00Z").exit_code == 4
        cli.clock.advance(10)
    (run,) = cli.json("history", "long", "--at", "2026-11-29T11:00:00Z")["runs"]
    assert [one["attempt"] for one in run["attempts"]] == list(range(3, 13))
    kept = [bool(one["error"]) for one in run["attempts"]]
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (False, True)
    assert sum(kept) >= 5
