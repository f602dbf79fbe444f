"""docs/cli.md against the command line: every command, option and exit code, and the JSON really printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from runonce.cli import app
from runonce.cli.exits import HELP, Exit
from tests.support.pages import ROOT, blocks, read
from tests.support.warm import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "docs/cli.md"
COMMAND: Any = typer.main.get_command(app)
COMPLETION = {"--install-completion", "--show-completion"}
GLOBAL = {"--jobs", "--verbose", "-v", "--version", "--help", "-h"} | COMPLETION
JOBS = '''
import time
from pathlib import Path

from runonce import Message, PermanentError, Run, every, handler, scheduled


@scheduled("0 0 3 * * *", time_zone="Europe/Istanbul", retries=3, retry_delay=0.01)
def nightly_report(run: Run) -> None:
    """One sales report a night."""
    for batch in run.batches(range(100), size=50):
        if run.attempt == 1 and batch[0] == 50:
            raise ConnectionError("the database is away")
        while Path("hold").exists():
            Path("began").touch()
            time.sleep(0.05)


@scheduled("0 * * * * *")
def exchange_rates(run: Run) -> None:
    """Is due each minute."""


@every("30s")
def refresh_prices() -> None:
    """Fetch the prices."""


@handler(queue="QUEUE", key="invoice_id")
def send_invoice(message: Message) -> None:
    """Send one invoice to its customer."""
    if not message.json["customer"]:
        raise PermanentError("an invoice needs a customer")
'''


def every_command(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command with the words that name it."""
    if (inner := getattr(command, "commands", None)) is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        if not one.hidden:
            yield from every_command(one, (*path, name))


COMMANDS = dict(every_command())


def sections() -> dict[str, tuple[str, str]]:
    """For each command of the page, by its name: the arguments in its heading, and its text."""
    found = {}
    for part in re.split(r"^### ", read(PAGE), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        words = heading.strip("`").split(" ")
        name = [word for word in words if word == word.lower()]
        found[" ".join(name)] = (" ".join(words[len(name) :]), re.split(r"^## ", text, flags=re.MULTILINE)[0])
    return found


SECTIONS = sections()


def options_shown(text: str) -> set[str]:
    """The options in the first column of a section's table."""
    cells = re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE)
    return {option for cell in cells for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cell)}


def options_taken(command: Any) -> set[str]:
    """The options a command has of its own."""
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {name for name in names if name.startswith("-")} - {"--help", "-h"}


# -- commands, options, exit codes ------------------------------------------------------------------------------


def test_every_command_has_a_section_and_no_other() -> None:
    """The page's sections are the commands there are."""
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_its_options_are_the_commands_options(name: str) -> None:
    """A section's table has each option of its command, and none besides."""
    assert options_shown(SECTIONS[name][1]) == options_taken(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_its_heading_has_the_commands_arguments(name: str) -> None:
    """A section's heading names the arguments, in order, in brackets where they may be left out."""
    arguments = [one for one in COMMANDS[name].params if one.param_type_name == "argument"]
    shown = [(one.metavar or one.name).strip("[]") for one in arguments]
    written = [word if one.required else f"[{word}]" for one, word in zip(arguments, shown, strict=True)]
    assert SECTIONS[name][0].split() == written


def test_the_global_options_are_explained() -> None:
    """The options that go with every command stand at the top."""
    top = read(PAGE).partition("\n## ")[0]
    assert options_shown(top) == GLOBAL == options_taken(COMMAND) | {"--help", "-h"}


def test_every_exit_code_is_explained() -> None:
    """The table has each exit code, those of a defect and of serve too, which the help leaves out."""
    table = read(PAGE).partition("## Exit codes")[2].partition("\n## ")[0]
    explained = {
        int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in cell.split(",")
    }
    assert explained == {*map(int, Exit), 75, 130, 143}
    assert {
        int(code) for code in re.findall(r"^ *(\d+)  |by Ctrl-C, (\d+)", HELP, re.MULTILINE)[0] if code
    } <= explained


# -- JSON -------------------------------------------------------------------------------------------------------


def shape(value: Any) -> Any:
    """The keys of a value, and of what is in it; a list is as all of its items together, null is as nothing."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [merged([shape(item) for item in value])]
    return None


def merged(shapes: list[Any]) -> Any:
    """The shape that has the keys of all of them."""
    known = [one for one in shapes if one is not None]
    if known and all(isinstance(one, dict) for one in known):
        keys = dict.fromkeys(key for one in known for key in one)
        return {key: merged([one[key] for one in known if key in one]) for key in keys}
    if known and all(isinstance(one, list) for one in known):
        return [merged([item for one in known for item in one])]
    return known[0] if known else None


@pytest.fixture(scope="module")
def printed(azurite: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each command prints with --json, in the order of the page, in a namespace where much has happened."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "all.py").write_text(
        JOBS.replace("QUEUE", f"q-{uuid.uuid4().hex[:8]}"), encoding="utf-8"
    )
    return scenario(Line(folder, azurite))


class Line:
    """Types commands, each a process of its own."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.folder = folder
        namespace = f"cli-{uuid.uuid4().hex[:8]}"
        self.environ = {
            **os.environ,
            "RUNONCE_STORAGE": storage,
            "RUNONCE_NAMESPACE": namespace,
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *arguments: str) -> str:
        """What a command prints; whatever its exit code, it has to print something."""
        done = run_python(["-m", "runonce", *arguments], self.folder, self.environ)
        assert done.stdout, f"{arguments}: {done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What a command prints with --json."""
        return json.loads(self.run(*arguments, "--json"))

    def while_running(self, *arguments: str) -> Any:
        """What `status` prints while a run waits in the middle of its work."""
        hold, began = self.folder / "hold", self.folder / "began"
        hold.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "runonce", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.DEVNULL,
        )
        try:
            while not began.exists():
                assert process.poll() is None
                time.sleep(0.05)
            return self.json("status")
        finally:
            hold.unlink()
            assert process.wait(60) == 0


def scenario(line: Line) -> dict[str, list[Any]]:
    """Fail, retry, pause, ask, recover; send, dead-letter, replay, purge; look at all of it."""
    job, handler = "nightly_report", "send_invoice"
    line.run("recover", "--work")  # which says that it is there
    made: dict[str, list[Any]] = {
        "list": [line.json("list")],
        "next": [line.json("next", job, "-n", "1"), line.json("next", job, "--host", "both")],
        "run": [line.json("run", job, "--at", "2026-01-02T03:00")],
    }
    line.json("run", job, "--at", "2026-01-03T03:00")
    made["status"] = [line.while_running("run", job, "--at", "2026-01-03T03:00")]
    made["history"] = [line.json("history", job)]
    made["run"].append(line.json("run", job, "--at", "2026-01-04T03:00", "--ask"))
    made["run"].append(line.json("run", "exchange_rates", "--scheduled"))
    made["recover"] = [line.json("recover", "--work")]
    week = ("backfill", job, "--from", "2026-01-01", "--to", "2026-01-06")
    made["backfill"] = [line.json(*week), line.json(*week, "--dry-run")]
    line.json("run", job, "--at", "2026-01-10")
    made["resume-run"] = [line.json("resume-run", job, "--at", "2026-01-10")]
    made["replay"] = [line.json("replay", job, "--at", "2026-01-10")]
    made["mark"] = [line.json("mark", job, "done", "--at", "2026-01-11", "--why", "sent by hand")]
    line.json("run", job, "--at", "2026-01-12")
    made["cancel"] = [line.json("cancel", job, "--at", "2026-01-12", "--why", "wrong prices")]
    made["pause"] = [line.json("pause", job, "--why", "the ledger is being moved")]
    made["resume"] = [line.json("resume", job)]
    made["break-lease"] = [line.json("break-lease", job)]
    (line.folder / "orders.csv").write_text("1;2\n")
    made["upload"] = [line.json("upload", "orders.csv")]
    for number, customer in enumerate(["ada", "", ""]):
        body = json.dumps({"invoice_id": number, "customer": customer})
        made["enqueue"] = [line.json("enqueue", handler, "--body", body)]
    made["work"] = [line.json("work", handler, "--max-messages", "3")]
    (line.folder / "host.json").write_text('{"extensions": {"queues": {"maxDequeueCount": 1}}}')
    made["doctor"] = [line.json("doctor")]
    made["audit"] = [line.json("audit", "--since", "52w")]
    made["history"].append(line.json("history", handler, "--key", "0"))
    made["dead-letters list"] = [
        line.json("dead-letters", "list", handler),
        line.json("dead-letters", "list"),
    ]
    first, second = (one["id"] for one in made["dead-letters list"][0]["dead_letters"])
    made["dead-letters show"] = [line.json("dead-letters", "show", handler, "--id", first, "--body")]
    made["dead-letters replay"] = [line.json("dead-letters", "replay", handler, "--id", first)]
    made["dead-letters purge"] = [line.json("dead-letters", "purge", handler, "--id", second, "--yes")]
    return made


def json_shown(name: str) -> list[Any]:
    """The documents in a command's section."""
    text = SECTIONS[name][1]
    return [
        json.loads(block.text) for block in blocks(PAGE) if block.language == "json" and block.text in text
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if json_shown(name)])
def test_the_json_shown_has_the_keys_that_are_printed(name: str, printed: dict[str, list[Any]]) -> None:
    """The documents in a command's section have the keys of those that it prints, all the way down."""
    assert [shape(one) for one in json_shown(name)] == [shape(one) for one in printed[name]]


def test_every_command_with_json_shows_it() -> None:
    """A command that takes --json has a document in its section; no other has."""
    flags = {
        name for name in COMMANDS for one in COMMANDS[name].params if "--json" in one.opts and one.is_flag
    }
    assert {name for name in COMMANDS if json_shown(name)} == flags


def test_a_key_that_is_not_printed_is_seen() -> None:
    """Shapes differ when a key is missing at any depth, and do not when only values do."""
    assert shape({"a": [{"b": 1}, {"c": None}]}) == shape({"a": [{"b": 2, "c": 3}]})
    assert shape({"a": [{"b": 1}]}) != shape({"a": [{"b": 1, "c": 1}]})
    assert shape({"a": None}) != shape({"a": {"b": 1}})
