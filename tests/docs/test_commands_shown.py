"""Every command that a page shows is one that exists, with the options it shows."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

import dev
from runonce.cli import app
from tests.support.pages import PAGES, ROOT, commands

if TYPE_CHECKING:
    from pathlib import Path

COMMAND: Any = typer.main.get_command(app)
PLACEHOLDER = "COMMAND"
SOURCES = [
    path.relative_to(ROOT) for folder in ("runonce", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))
]


def problem(program: str, arguments: str) -> str | None:
    """What is wrong with a command line, or None; "[" and "]" around what may be left out are passed over."""
    words = [word for word in shlex.split(re.sub(r"[\[\]…]", " ", arguments)) if word not in ("|", "<", ">")]
    if program == "dev.py" and words[0] in (*dev.COMMANDS, PLACEHOLDER):
        return None  # anything else it passes on to runonce
    command = COMMAND
    known = set(_options(command))
    while (inner := getattr(command, "commands", None)) is not None and words:
        if words[0].startswith("-") or words[0] == PLACEHOLDER:
            break
        if words[0] not in inner:
            return f"there is no command {words[0]}"
        command = inner[words.pop(0)]
        known |= set(_options(command))
    wrong = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    if wrong:
        return f"{command.name} has no option {', '.join(wrong)}"
    needed = [one.opts[0] for one in command.params if one.required and one.opts[0].startswith("-")]
    missing = [option for option in needed if words and option not in words and "--help" not in words]
    return f"{command.name} needs {', '.join(missing)}" if missing else None


def _options(command: Any) -> list[str]:
    names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    return [name for name in names if name.startswith("-")] + ["--help", "-h"]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_shown_exists(page: str) -> None:
    """The commands of a page, in its blocks and its sentences, are commands with options that exist."""
    wrong = [f"{shown}: {why}" for shown in commands(page) if (why := problem(*shown)) is not None]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_every_command_that_the_code_mentions_exists(path: Path) -> None:
    """The commands in docstrings, in examples of the help and in messages to people are right ones."""
    text = re.sub(r'"\s+f?"', "", (ROOT / path).read_text(encoding="utf-8"))  # a message over several lines
    shown = [
        *re.findall(r"`(?:python -m )?runonce ([^`\n]+)`", text),
        *re.findall(r"""["']runonce ([a-z].*?)["'],\n""", text.replace("\\'", '"')),
    ]
    shown = [re.sub(r"\{[^}]*\}", "X", line) for line in shown]
    assert [f"{line}: {why}" for line in shown if (why := problem("runonce", line)) is not None] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("histroy nightly", "there is no command histroy"),
        ("run nightly --att T", "run has no option --att"),
        ("dead-letters lists x", "there is no command lists"),
        ("dead-letters list x --lines", "list has no option --lines"),
        ("dead-letters show x", "show needs --id"),
        ("run nightly [--at T] [--ask] --jobs x -v", None),
        ("enqueue send --body '{\"a\": -1}'", None),
    ],
)
def test_a_command_that_does_not_exist_is_seen(arguments: str, said: str | None) -> None:
    """A misspelt command or option of a page is named; a right one is not."""
    assert problem("runonce", arguments) == said


def test_pages_that_show_commands_are_read() -> None:
    """The commands of the main pages are found, in fenced and in indented blocks."""
    assert ("runonce", "list") in set(commands("README.md"))
    assert ("dev.py", 'test tests/unit -m "not slow" -n 2') in set(commands("CONTRIBUTING.md"))
