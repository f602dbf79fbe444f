"""The command line: `runonce …`, or `python -m runonce …`.

A command is a function under `@command` (see `app`) in one of the modules below; a new module is added to the
list. Nothing here imports the Azure packages before a command needs storage.

Imported by nothing but `runonce.__main__`; imports everything below it.
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from io import TextIOWrapper

from runonce.cli.app import app
from runonce.hosts.signals import end_process

MODULES = (
    *("look", "status", "history", "audit", "doctor", "run", "backfill", "serve", "dev", "enqueue"),
    *("operate", "decide", "letters", "dead_letters", "manifest", "project"),
)
"""Modules with commands, in the order of `--help`."""

for _module in MODULES:
    import_module(f"runonce.cli.{_module}")

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line, and end the process; the exit codes are in `exits`.

    It ends without the interpreter's taking itself apart, in which a thread that goes on is ended in the middle of what
    it does. At times that aborts the process ("FATAL: exception not rethrown", SIGABRT instead of 0, seen once in some
    hundred stops on a busy machine). What was to be done at exit is done.
    """
    code = 1  # of what is raised
    # The first that is registered is called last.
    atexit.register(lambda: end_process(code))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old Windows code page has not every character
    try:
        app(prog_name="runonce")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
