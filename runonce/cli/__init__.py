"""The command line: `runonce …`, or `python -m runonce …`.

A command is a function under `@command` (see `app`) in one of the modules below; a new module is added to the
list. Nothing here imports the Azure packages before a command needs storage.

Imported by nothing but `runonce.__main__`; imports everything below it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper

from runonce.cli.app import app

MODULES = (
    *("look", "status", "history", "audit", "doctor", "run", "backfill", "serve", "dev", "enqueue"),
    *("operate", "decide", "letters", "dead_letters", "manifest", "project"),
)
"""Modules with commands, in the order of `--help`."""

for _module in MODULES:
    import_module(f"runonce.cli.{_module}")

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; the exit codes are in `exits`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old Windows code page has not every character
    app(prog_name="runonce")
