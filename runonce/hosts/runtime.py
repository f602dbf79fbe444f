"""One process's parts, put together from its settings; each is made when it is first asked for.

Every host, command, experiment and test bench gets its jobs, stores, transport and clock here and nowhere else, so
that what one of them has the others have too.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runonce.clock import SystemClock
from runonce.errors import MissingExtraError, SettingsError
from runonce.execution import hooks
from runonce.execution.log import host_name
from runonce.execution.registry import Registry
from runonce.execution.stop import StopSignal
from runonce.hosts.discover import discover
from runonce.hosts.part import part
from runonce.hosts.purge import purge_job
from runonce.messages.definition import LONGEST_ENTITY
from runonce.runs.dispatch import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runonce.clock import Clock
    from runonce.execution.keeper import Keeper
    from runonce.execution.lease import Lease
    from runonce.hosts.discover import Discovered
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.runs.definition import ScheduledJob
    from runonce.settings import Settings
    from runonce.stores.azure.wire import Service
    from runonce.stores.protocols import Stores
    from runonce.transports.protocols import Sender, Transport

START_EMULATOR = (
    "python dev.py azurite" if Path(__file__).parents[2].joinpath("dev.py").is_file() else "runonce dev"
)
"""What a person types to start it, in a checkout and elsewhere."""
LONGEST = {"storage": 55, "servicebus": LONGEST_ENTITY}
"""Characters of a queue's name; a Storage queue's are Azure's 63, less "-poison"."""
LAST_WORDS = 5.0
"""Seconds that a process which ends waits for its hooks to hear of everything."""


class Runtime:
    """What a host or a command works with; a context manager that closes what it made itself.

    Args:
        settings: Default: of the environment, read when they are first needed; `list` and `next` do without.
        environ: The environment; default is this process's.
        found: The jobs and handlers; default is what the jobs folder defines.
        stores, sender, transport, clock: A test's own, which stay open; default is what the settings name.
        host: What this process is called in rows and logs.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        found: Discovered | None = None,
        stores: Stores | None = None,
        clock: Clock | None = None,
        sender: Sender | None = None,
        transport: Transport | None = None,
        host: str = "",
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.clock: Clock = clock or SystemClock()
        self.stop = StopSignal()
        self.host = host or host_name()
        self.jobs_folder = "" if settings is None else settings.jobs_folder
        """Goes before RUNONCE_JOBS."""
        self._settings = settings
        self._found = found
        self._stores = stores
        self._sender = sender
        self._transport = transport
        self._made = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let hooks hear of everything, and close what was made here."""
        hooks.drain(LAST_WORDS)
        self._made.close()

    @part
    def settings(self) -> Settings:
        """The settings, with the grace time that the host we run on leaves; raises SettingsError."""
        if self._settings is not None:
            return self._settings
        from runonce.hosts.container_apps import fitted  # noqa: PLC0415 - `list` and `next` do without
        from runonce.settings import Settings  # noqa: PLC0415

        settings = fitted(Settings.from_env(self.environ), self.environ)
        return replace(settings, jobs_folder=self.jobs_folder) if self.jobs_folder else settings

    @part
    def found(self) -> Discovered:
        """The jobs and handlers of the folder; raises SettingsError."""
        if self._found is not None:
            return self._found
        with contextlib.redirect_stdout(sys.stderr):  # what a job file prints is no command's answer
            return discover(self.jobs_folder or self.environ.get("RUNONCE_JOBS") or "jobs")

    @part
    def jobs(self) -> dict[str, ScheduledJob]:
        """The jobs of the folder and the toolkit's own."""
        purge = purge_job(self.runs, self.claims, self.found, self.settings.history_days)
        return {**self.found.jobs, purge.name: purge}

    @part
    def stores(self) -> Stores:
        """The storage of the settings; nothing is sent before its first use."""
        if self._stores is not None:
            return self._stores
        from runonce.stores.azure.stores import azure_stores  # noqa: PLC0415 - `list` and `next` do without

        return azure_stores(self.settings, self._account, closing=self._made)

    @part
    def _account(self) -> list[Service]:
        """The storage account's services, which all parts of this process ask on the same connections."""
        from runonce.stores.azure.wire import services  # noqa: PLC0415 - as above

        try:
            account = services(self.settings.storage, "blob", "queue", "table")
        except ValueError as error:  # the SDK's word for a connection string it cannot read
            setting = self.settings.storage.setting
            raise SettingsError(
                f"{setting} is not a usable connection string ({error}); copy it whole from the portal."
            ) from error
        self._made.callback(account[0].close)  # which are those of all three
        return account

    @part
    def runs(self) -> Registry:
        """Where the rows of jobs and runs are."""
        return Registry(self.stores.runs, self.settings.namespace, self.clock, self.host)

    @part
    def claims(self) -> Registry:
        """Where the claims of messages are."""
        return Registry(self.stores.claims, self.settings.namespace, self.clock, self.host)

    @part
    def _told(self) -> bool:
        """Whether people are told, as settings and jobs say, from now until this is closed; not by a test bench."""
        if self._stores is not None:
            return False
        from runonce.notify.set_up import listen  # noqa: PLC0415 - only where something runs

        settings = self.settings
        if settings.watched.telemetry:
            from runonce.telemetry.set_up import listen as trace  # noqa: PLC0415 - as above

            trace(settings.watched, settings.namespace, self.host, settings.transport, self._made)
        listen(settings.watched.notify_url, self.found.jobs, self.found.handlers, self._made)
        return True

    @part
    def dispatcher(self) -> Dispatcher:
        """What runs scheduled jobs."""
        _ = self._told
        from runonce.messages.of_jobs import JobsMessages  # noqa: PLC0415

        return Dispatcher(
            self.jobs,
            self.stores,
            self.settings,
            self.clock,
            host=self.host,
            stop=self.stop,
            follow_ups=JobsMessages(lambda: self.sender, self.claims, self.found.handlers),
            keeper=self._keeper if self._stores is None else None,
        )

    def _keeper(self, lease: Lease, stall_after: float | None, let_go: float) -> Keeper | None:
        if stall_after is None:
            return None
        from runonce.hosts.keeper import start  # noqa: PLC0415 - for few jobs

        return start(self.settings, lease, stall_after, let_go)

    @part
    def transport(self) -> Transport:
        """What carries the handlers' messages; its SDK is imported here, when it is used."""
        if self._transport is not None:
            return self._transport
        settings = self.settings
        if settings.transport == "servicebus" and settings.servicebus is not None:
            try:
                from runonce.transports.servicebus import ServiceBusTransport  # noqa: PLC0415
            except ModuleNotFoundError as error:
                if error.name != "azure.servicebus":
                    raise
                raise MissingExtraError("Service Bus", "servicebus") from error

            return ServiceBusTransport(settings.servicebus, settings.queue_prefix)
        from runonce.transports.storage import StorageTransport  # noqa: PLC0415

        _, queues, _ = self._account
        return StorageTransport(queues, settings.claim_lease, settings.queue_prefix)

    @part
    def sender(self) -> Sender:
        """The sender that everything in this process shares."""
        if self._sender is not None:
            return self._sender
        sender = self.transport.sender()
        self._made.callback(sender.close)
        return sender

    @part
    def deliverer(self) -> Deliverer:
        """What handles messages."""
        from runonce.messages.deliver import Deliverer  # noqa: PLC0415 - only where there are handlers

        _ = self._told
        return Deliverer(self.stores, self.sender, self.settings, self.clock, host=self.host, stop=self.stop)


def check_transport(settings: Settings, handler: Handler) -> None:
    """SettingsError when the chosen transport cannot carry a handler's messages."""
    if settings.transport == "storage" and handler.topic is not None:
        raise SettingsError(
            f"Handler {handler.name!r} reads topic {handler.topic!r}, subscription {handler.subscription!r}, which "
            f"only Service Bus has: set RUNONCE_SERVICEBUS (and RUNONCE_TRANSPORT=servicebus), or use a queue."
        )
    if settings.transport == "storage" and not _is_storage_queue(handler.queue):
        raise SettingsError(
            f"Handler {handler.name!r}: {handler.queue!r} is not a Storage queue's name; use 3 to 55 lower-case "
            f"letters, digits and single hyphens, beginning and ending with a letter or digit."
        )
    name, most = settings.queue_prefix + handler.queue, LONGEST[settings.transport]
    if len(name) > most:
        raise SettingsError(
            f"Handler {handler.name!r}: in namespace {settings.namespace!r} its queue is called {name!r}, which is "
            f"over {most} characters; shorten either, or set RUNONCE_QUEUE_NAMES=plain where no other namespace has it."
        )
    if settings.transport == "storage" and name in (
        settings.request_queue,
        f"{settings.request_queue}-poison",
    ):
        raise SettingsError(
            f"Handler {handler.name!r}: {name!r} is the queue of what this namespace's jobs are asked for, or of its "
            f"dead letters; give it another queue."
        )


def _is_storage_queue(name: str) -> bool:
    plain = name.replace("-", "")
    return (
        3 <= len(name) <= LONGEST["storage"]  # noqa: PLR2004 - Azure's own bound
        and plain.isalnum()
        and plain.isascii()
        and name == name.lower()
        and "--" not in name
        and not name.startswith("-")
        and not name.endswith("-")
    )
