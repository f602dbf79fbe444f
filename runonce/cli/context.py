"""What commands work with: the global options and a Runtime; tests hand in their own."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runonce.errors import SettingsError, StoreError, TransportError, UnknownJobError
from runonce.hosts.explained import explain
from runonce.hosts.hosts_json import read_json
from runonce.hosts.runtime import Runtime
from runonce.runs.table import read_job, read_jobs

if TYPE_CHECKING:
    import typer

    from runonce.errors import RunonceError
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.rows import JobRow


class Context:
    """The options and the parts of one command."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.runtime = runtime or Runtime(environ={**local_settings(Path.cwd()), **os.environ})
        self.verbose = False

    @classmethod
    def of(cls, ctx: typer.Context) -> Context:
        """The one of this invocation."""
        made = ctx.find_object(cls)
        if made is None:
            made = ctx.find_root().obj = cls()
        return made

    def job(self, name: str) -> ScheduledJob:
        """The job of that name in the code.

        Raises:
            UnknownJobError: There is none; the message has the nearest names.
        """
        try:
            return self.runtime.found.job(name)
        except UnknownJobError as error:
            raise self._unknown(name, list(self.runtime.found.jobs), str(error)) from None

    def handler(self, name: str) -> Handler:
        """The handler of that name in the code; raises as `job`."""
        try:
            return self.runtime.found.handler(name)
        except UnknownJobError as error:
            raise self._unknown(name, list(self.runtime.found.handlers), str(error)) from None

    def row(self, name: str) -> JobRow:
        """What storage knows of a job, which may have left the code.

        Raises:
            UnknownJobError: There is no such job, in the code or in storage.
        """
        row, etag = read_job(self.runtime.runs, name)
        if etag is None and name not in self.runtime.jobs:
            known = {*self.runtime.found.jobs, *read_jobs(self.runtime.runs).rows}
            message = f"There is no job {name!r}, in the code or in storage; the jobs are: {_listed(known)}."
            raise self._unknown(name, sorted(known), message)
        return row

    def unknown(self, name: str, known: list[str]) -> UnknownJobError:
        """What to say of a name that no job and no handler has: the names there are, and the nearest."""
        listed = f"There is no job {name!r}, in the code or in storage, and no handler; there are: {_listed(known)}."
        return self._unknown(name, sorted(known), listed)

    def _unknown(self, name: str, known: list[str], message: str) -> UnknownJobError:
        close = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
        first, *hints = message.split("\n")
        return UnknownJobError("\n".join([f"{first} Did you mean {close[0]!r}?" if close else first, *hints]))

    def explain(self, error: RunonceError) -> str:
        """An error's message, with where storage was looked for and what to do about it."""
        if not isinstance(error, StoreError | TransportError):
            return str(error)
        return explain(error, self.runtime.settings)


def local_settings(folder: Path) -> dict[str, str]:
    """What `func start` would set in that folder: the values of its local.settings.json, if there is one.

    Raises:
        SettingsError: It cannot be read.
    """
    file = folder / "local.settings.json"
    try:
        content = read_json(file.read_text(encoding="utf-8-sig"))
        values = {} if content.get("IsEncrypted") else content.get("Values", {})
        return {str(name): str(value) for name, value in values.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(
            f"{file} cannot be read ({error}); correct it after local.settings.sample.json, or remove it."
        ) from error


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
