from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import NOW, CommandLine
from support.messages import begun, delivery, handling

from runonce.cli import operate
from runonce.errors import LeaseLost
from runonce.hosts.explained import where
from runonce.settings import StorageConnection

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
    from runonce import Run, scheduled

    @scheduled("0 0 3 * * *", time_zone="Europe/Istanbul")
    def nightly(run: Run) -> None:
        if run.blobs.exists("in/orders.csv"):
            run.log.info("read %s", run.blobs.read_text("in/orders.csv"))
"""


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.file("nightly.py", JOB)
    return made


def test_pause_and_resume(cli: CommandLine) -> None:
    """A pause is recorded with its reason; resume takes it back and says when the job fires next."""
    assert "nightly is paused" in cli("pause", "nightly", "--why", "moving", "--by", "ada").stdout
    assert cli.context().row("nightly").paused_why == "moving, by ada"
    assert cli("resume", "nightly").stdout == "nightly is resumed; it fires next at 2026-11-30T00:00:00Z\n"
    assert cli("resume", "nightly").stdout == "nightly was not paused\n"


@pytest.mark.parametrize("command", ["pause", "resume", "break-lease", "history"])
def test_an_unknown_job_is_5_with_a_suggestion(cli: CommandLine, command: str) -> None:
    """A name that neither the code nor storage knows changes nothing."""
    result = cli(command, "nightyl")
    assert result.exit_code == 5
    assert "There is no job 'nightyl', in the code or in storage" in result.stderr
    assert "Did you mean 'nightly'?" in result.stderr


def test_break_lease_that_nobody_holds(cli: CommandLine) -> None:
    """It says that there was nothing to break."""
    result = cli("break-lease", "nightly")
    assert (result.exit_code, result.stdout) == (0, "nobody holds the lease of nightly; nothing was broken\n")


def test_break_lease_names_the_holder_and_frees_the_job(cli: CommandLine) -> None:
    """With --yes the lease is broken, and it is said who held it."""
    dispatcher = cli.context().runtime.dispatcher
    started: Any = dispatcher.begin(dispatcher.jobs["nightly"], NOW, by="timer")
    result = cli("break-lease", "nightly", "--yes")
    assert (
        f"broken; it was held by {dispatcher.registry.host}, which runs 2026-11-29T12:00:00Z" in result.stdout
    )
    assert not cli.stores.leases.held("local/nightly")
    shown = cli.json("status", "nightly")["jobs"][0]["running"]
    assert (shown["fire_time"], shown["lease_held"]) == ("2026-11-29T12:00:00Z", False)
    assert cli.json("history", "nightly")["runs"][0]["outcome"] == "abandoned"
    dispatcher.finish(started, None)


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 3)])
def test_break_lease_asks_a_person(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int
) -> None:
    """At a terminal it asks first, and no leaves the lease as it is."""
    dispatcher = cli.context().runtime.dispatcher
    started: Any = dispatcher.begin(dispatcher.jobs["nightly"], NOW, by="timer")
    monkeypatch.setattr(
        operate, "sys", types.SimpleNamespace(stdin=types.SimpleNamespace(isatty=lambda: True))
    )
    monkeypatch.setattr(operate.typer, "confirm", lambda *_, **__: answer)
    assert cli("break-lease", "nightly").exit_code == code
    assert cli.stores.leases.held("local/nightly") is not answer
    dispatcher.finish(started, None)


def test_break_lease_without_a_terminal_wants_yes(cli: CommandLine) -> None:
    """A script has to say --yes; it is not asked a question nobody answers."""
    dispatcher = cli.context().runtime.dispatcher
    started: Any = dispatcher.begin(dispatcher.jobs["nightly"], NOW, by="timer")
    assert cli("break-lease", "nightly").exit_code == 2
    assert cli.stores.leases.held("local/nightly")
    dispatcher.finish(started, None)


def test_break_lease_frees_a_handlers_lock_by_name(cli: CommandLine) -> None:
    """A handler's lock is broken by the name it has with its fields filled in, and its message can write no more."""
    one = handling(lock="tenant:{id}")
    runtime = cli.context().runtime
    working = begun(runtime.deliverer, one, delivery({"id": "acme"}))
    assert working.lock is not None
    assert (
        "nobody holds the lease of lock tenant:other" in cli("break-lease", "--lock", "tenant:other").stdout
    )
    result = cli("break-lease", "--lock", "tenant:acme", "--yes")
    assert result.stdout == "the lease of lock tenant:acme is broken; it was held by a handler's message\n"
    assert not cli.stores.leases.held(working.lock.name)
    working.lock._renewal_round()
    with pytest.raises(LeaseLost):
        working.message.check()
    runtime.deliverer.finish(working, None, None)


@pytest.mark.parametrize("arguments", [(), ("nightly", "--lock", "tenant:acme")])
def test_break_lease_wants_a_job_or_a_lock(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    """Neither, or both, is wrong usage."""
    assert cli("break-lease", *arguments).exit_code == 2


def test_upload_puts_a_file_where_jobs_read(cli: CommandLine, tmp_path: Path) -> None:
    """A job reads what was uploaded, under the name that was given; a second upload replaces it."""
    (tmp_path / "orders.csv").write_text("id,amount", encoding="utf-8")
    result = cli("upload", str(tmp_path / "orders.csv"), "in/orders.csv")
    assert result.stdout == "in/orders.csv: 9 bytes in runonce-data/local/in/orders.csv\n"
    assert "read id,amount" in cli("run", "nightly").stderr
    assert "replacing what was there" in cli("upload", str(tmp_path / "orders.csv"), "in/orders.csv").stdout


def test_upload_names_a_file_by_itself(cli: CommandLine, tmp_path: Path) -> None:
    """Without a name the file's own is taken."""
    (tmp_path / "orders.csv").touch()
    assert cli("upload", str(tmp_path / "orders.csv")).stdout.startswith("orders.csv: 0 bytes")


@pytest.mark.parametrize(
    "name", ["/orders.csv", "in//orders.csv", "../orders.csv", "in\\orders.csv", "x" * 901]
)
def test_upload_refuses_names_that_would_leave_the_namespace(
    cli: CommandLine, tmp_path: Path, name: str
) -> None:
    """A name that is empty in a part, climbs, or has a backslash is an input error."""
    (tmp_path / "orders.csv").touch()
    assert cli("upload", str(tmp_path / "orders.csv"), name).exit_code == 5


def test_upload_of_a_file_that_is_not_there(cli: CommandLine) -> None:
    """A missing file is wrong usage."""
    assert cli("upload", "nothing.csv").exit_code == 2


SECRET = "c2VjcmV0"


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        (StorageConnection("UseDevelopmentStorage=true"), "the emulator, 127.0.0.1:10002 (RUNONCE_STORAGE)"),
        (
            StorageConnection(
                f"DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={SECRET}==", setting="X"
            ),
            "account shop (X)",
        ),
        (
            StorageConnection(
                f"BlobEndpoint=https://shop.blob.example/?sv={SECRET};SharedAccessSignature=sig={SECRET}"
            ),
            "shop.blob.example (RUNONCE_STORAGE)",
        ),
        (
            StorageConnection(endpoints={"table": "https://shop.table.core.windows.net"}),
            "shop.table.core.windows.net with a managed identity (RUNONCE_STORAGE)",
        ),
    ],
)
def test_where_storage_is_holds_no_secret(storage: StorageConnection, said: str) -> None:
    """What is printed of a connection is the place and the setting's name."""
    assert where(storage) == said
