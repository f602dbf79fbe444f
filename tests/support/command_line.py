"""The command line on stores in memory and a clock that stands still, with job files of a test's own."""

from __future__ import annotations

import functools
import json
import logging
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer.testing
from support.memory_transport import MemoryTransport
from typer.testing import CliRunner

from runonce.cli import app
from runonce.cli.context import Context
from runonce.hosts.runtime import Runtime
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typer.testing import Result

    from runonce.stores.protocols import Stores

# The runner makes all commands anew for each invocation; the same ones serve, and a minute's tests take seconds.
typer.testing._get_command = functools.cache(typer.testing._get_command)

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
EMULATOR = "UseDevelopmentStorage=true"


def invoke(context: Context, *args: str, columns: int = 80, stdin: bytes | None = None) -> Result:
    """Run a command in this process, and leave its log set-up behind."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    loggers = [root, *(logging.getLogger(name) for name in ("runonce", "runonce.hosts.discover", "azure"))]
    levels = [logger.level for logger in loggers]
    try:
        return CliRunner().invoke(
            app, args, input=stdin, obj=context, env={"COLUMNS": str(columns)}, prog_name="runonce"
        )
    finally:
        root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class CommandLine:
    """Runs commands one after the other against the same storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobs"
        self.folder.mkdir()
        self.clock = ManualClock(NOW)
        self.stores: Stores = memory_stores(self.clock)
        self.transport = MemoryTransport(self.clock)
        self.environ = {
            "RUNONCE_STORAGE": EMULATOR,
            "RUNONCE_NAMESPACE": "local",
            "RUNONCE_JOBS": str(self.folder),
        }

    def file(self, name: str, text: str) -> None:
        """Write a job file."""
        (self.folder / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def context(self, environ: Mapping[str, str] | None = None) -> Context:
        """What the next command works with."""
        return Context(
            Runtime(
                environ=environ or self.environ,
                clock=self.clock,
                stores=self.stores,
                transport=self.transport,
            )
        )

    def __call__(
        self,
        *args: str,
        columns: int = 80,
        environ: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> Result:
        """Run a command to its end."""
        return invoke(self.context(environ), *args, columns=columns, stdin=stdin)

    def json(self, *args: str) -> Any:
        """What a command prints with --json."""
        return json.loads(self(*args, "--json").stdout)
