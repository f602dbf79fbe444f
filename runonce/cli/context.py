"""What commands work with: the global options and a Runtime; tests hand in their own."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runonce.errors import SettingsError, StoreError, StoreUnavailableError, TransportError, UnknownJobError
from runonce.hosts.hosts_json import read_json
from runonce.hosts.runtime import START_EMULATOR, Runtime
from runonce.runs.table import read_job, read_jobs

if TYPE_CHECKING:
    import typer

    from runonce.errors import RunonceError
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.rows import JobRow
    from runonce.settings import StorageConnection


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
        from runonce.hosts.facts import account  # noqa: PLC0415 - with the rest of what looks
        from runonce.stores.azure.refusals import explained  # noqa: PLC0415 - only where there is something to explain

        storage = self.runtime.settings.storage
        if isinstance(error, TransportError) and self.runtime.settings.transport != "storage":
            return str(error)  # of another broker, and with its own remedy
        if said := explained(error, storage, account(storage)):
            return said
        if not isinstance(error, StoreUnavailableError):
            return str(error)
        remedy = (
            f"Start the emulator with `{START_EMULATOR}`, or let RUNONCE_STORAGE name another storage account."
            if storage.is_local
            else f"Check {storage.setting}, the network, and the account's firewall."
        )
        return f"Storage does not answer at {where(storage)}. {remedy}"


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


def where(storage: StorageConnection) -> str:
    """Where storage is, without anything secret: "account shop (RUNONCE_STORAGE)"."""
    from runonce.hosts.facts import account  # noqa: PLC0415 - with the rest of what looks

    return f"{account(storage)} ({storage.setting})"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
