"""What commands work with, each part made when it is first asked for; tests hand in their own."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from runonce.clock import Clock, SystemClock
from runonce.errors import SettingsError, StoreUnavailableError, UnknownJobError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import typer

    from runonce.errors import RunonceError
    from runonce.execution.registry import Registry
    from runonce.hosts.discover import Discovered
    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.rows import JobRow
    from runonce.settings import Settings, StorageConnection
    from runonce.stores.protocols import Stores
    from runonce.transports.protocols import Transport


class Context:
    """The settings, the jobs and the dispatcher of one command."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        stores: Stores | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.clock = clock or SystemClock()
        self.verbose = False
        self.jobs_folder: str | None = None
        """Of `--jobs`, which goes before RUNONCE_JOBS."""
        self._stores = stores
        self._transport = transport

    @classmethod
    def of(cls, ctx: typer.Context) -> Context:
        """The one of this invocation."""
        made = ctx.find_object(cls)
        if made is None:
            made = ctx.find_root().obj = cls()
        return made

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment."""
        from runonce.hosts.container_apps import fitted  # noqa: PLC0415
        from runonce.settings import Settings  # noqa: PLC0415 - `list` and `next` do without

        settings = fitted(Settings.from_env(self.environ), self.environ)
        return replace(settings, jobs_folder=self.jobs_folder) if self.jobs_folder else settings

    @cached_property
    def found(self) -> Discovered:
        """The jobs of the folder; what a job file prints while it is imported goes to stderr."""
        from runonce.hosts.discover import discover  # noqa: PLC0415 - `--help` does without

        with contextlib.redirect_stdout(sys.stderr):
            return discover(self.jobs_folder or self.environ.get("RUNONCE_JOBS") or "jobs")

    @cached_property
    def stores(self) -> Stores:
        """The storage of the settings."""
        if self._stores is not None:
            return self._stores
        from runonce.stores.azure.stores import azure_stores  # noqa: PLC0415

        try:
            return azure_stores(self.settings)
        except ValueError as error:  # the SDK's word for a connection string it cannot read
            setting = self.settings.storage.setting
            raise SettingsError(
                f"{setting} is not a usable connection string ({error}); copy it whole from the portal."
            ) from error

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """What runs jobs, and all else that reads and writes their rows."""
        from runonce.execution.log import host_name  # noqa: PLC0415
        from runonce.runs.dispatch import Dispatcher  # noqa: PLC0415 - as above

        return Dispatcher(self.found.jobs, self.stores, self.settings, self.clock, host=host_name())

    @cached_property
    def runtime(self) -> Runtime:
        """A host's parts, made of this command's."""
        from runonce.hosts.runtime import Runtime  # noqa: PLC0415 - as above

        return Runtime(
            self.settings,
            found=self.found,
            stores=self.stores,
            clock=self.clock,
            transport=self.transport if self.found.handlers else None,
        )

    def job(self, name: str) -> ScheduledJob:
        """The job of that name in the code.

        Raises:
            UnknownJobError: There is none; the message has the nearest names.
        """
        try:
            return self.found.job(name)
        except UnknownJobError as error:
            raise self._unknown(name, list(self.found.jobs), str(error)) from None

    @cached_property
    def transport(self) -> Transport:
        """What carries the handlers' messages."""
        if self._transport is not None:
            return self._transport
        from runonce.hosts.runtime import make_transport  # noqa: PLC0415 - takes most of a second

        return make_transport(self.settings)

    @cached_property
    def claims(self) -> Registry:
        """What reads and writes the claims of messages."""
        from runonce.execution.log import host_name  # noqa: PLC0415
        from runonce.execution.registry import Registry  # noqa: PLC0415 - as above

        return Registry(self.stores.claims, self.settings.namespace, self.clock, host_name())

    def handler(self, name: str) -> Handler:
        """The handler of that name in the code; raises as `job`."""
        try:
            return self.found.handler(name)
        except UnknownJobError as error:
            raise self._unknown(name, list(self.found.handlers), str(error)) from None

    def row(self, name: str) -> JobRow:
        """What storage knows of a job, which may have left the code.

        Raises:
            UnknownJobError: There is no such job, in the code or in storage.
        """
        from runonce.runs.table import (  # noqa: PLC0415
            read_job,
            read_jobs,
        )

        row, etag = read_job(self.dispatcher.registry, name)
        if etag is None and name not in self.found.jobs:
            known = {*self.found.jobs, *read_jobs(self.dispatcher.registry).rows}
            message = f"There is no job {name!r}, in the code or in storage; the jobs are: {_listed(known)}."
            raise self._unknown(name, sorted(known), message)
        return row

    def _unknown(self, name: str, known: list[str], message: str) -> UnknownJobError:
        close = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
        first, *hints = message.split("\n")
        return UnknownJobError("\n".join([f"{first} Did you mean {close[0]!r}?" if close else first, *hints]))

    def explain(self, error: RunonceError) -> str:
        """An error's message, with where storage was looked for and what to do about it."""
        if not isinstance(error, StoreUnavailableError):
            return str(error)
        storage = self.settings.storage
        remedy = (
            "Start the emulator with `python dev.py azurite`, or let RUNONCE_STORAGE name another storage account."
            if storage.is_local
            else f"Check {storage.setting}, the network, and the account's firewall."
        )
        return f"Storage does not answer at {where(storage)}. {remedy}"


def where(storage: StorageConnection) -> str:
    """Where storage is, without anything secret: "account shop (RUNONCE_STORAGE)"."""
    parts = dict(
        part.strip().partition("=")[::2]
        for part in (storage.connection_string or "").split(";")
        if "=" in part
    )
    parts = {name.lower(): value for name, value in parts.items()}
    urls = storage.endpoints.get("table") or parts.get("tableendpoint") or parts.get("blobendpoint") or ""
    host = urlsplit(urls).netloc.rpartition("@")[2]
    if storage.is_local:
        place = f"the emulator, {host or '127.0.0.1:10002'}"
    elif "accountname" in parts:
        place = f"account {parts['accountname']}"
    else:
        place = host + (" with a managed identity" if storage.endpoints else "")
    return f"{place} ({storage.setting})"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
