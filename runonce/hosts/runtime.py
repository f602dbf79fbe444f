"""One process's parts, put together from its settings; each is made when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from runonce.clock import SystemClock
from runonce.errors import SettingsError
from runonce.execution.log import host_name
from runonce.execution.registry import Registry
from runonce.execution.stop import StopSignal
from runonce.hosts.discover import discover
from runonce.runs.dispatch import Dispatcher
from runonce.stores.azure.stores import azure_stores

if TYPE_CHECKING:
    from runonce.clock import Clock
    from runonce.hosts.discover import Discovered
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from runonce.transports.protocols import Sender, Transport


class Runtime:
    """What a host or a command works with; tests hand in their own parts."""

    def __init__(
        self,
        settings: Settings,
        *,
        found: Discovered | None = None,
        stores: Stores | None = None,
        clock: Clock | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.stop = StopSignal()
        self.host = host_name()
        self.found = found or discover(settings.jobs_folder)
        self.stores = stores or _stores(settings)
        self._transport = transport

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """What runs scheduled jobs; with handlers there is one more, which removes their old claims."""
        jobs = dict(self.found.jobs)
        if self.found.handlers:
            from runonce.messages.purge import purge_job  # noqa: PLC0415 - only where there are handlers

            claims = Registry(self.stores.claims, self.settings.namespace, self.clock, self.host)
            purge = purge_job(claims, self.found.handlers)
            jobs[purge.name] = purge
        return Dispatcher(jobs, self.stores, self.settings, self.clock, host=self.host, stop=self.stop)

    @cached_property
    def transport(self) -> Transport:
        """What carries the handlers' messages."""
        return self._transport or make_transport(self.settings)

    @cached_property
    def sender(self) -> Sender:
        """The sender that everything in this process shares."""
        return self.transport.sender()

    @cached_property
    def deliverer(self) -> Deliverer:
        """What handles messages."""
        from runonce.messages.deliver import Deliverer  # noqa: PLC0415

        return Deliverer(self.stores, self.sender, self.settings, self.clock, host=self.host, stop=self.stop)

    def handler(self, name: str) -> Handler:
        """The handler of that name; raises UnknownJobError."""
        return self.found.handler(name)


def make_transport(settings: Settings) -> Transport:
    """The transport the settings choose; its SDK is imported here, when it is used."""
    if settings.transport == "servicebus" and settings.servicebus is not None:
        from runonce.transports.servicebus import ServiceBusTransport  # noqa: PLC0415

        return ServiceBusTransport(settings.servicebus)
    from runonce.transports.storage import StorageTransport  # noqa: PLC0415

    return StorageTransport(settings.storage, settings.claim_lease)


def check_transport(settings: Settings, handler: Handler) -> None:
    """SettingsError when the chosen transport cannot carry a handler's messages."""
    if settings.transport == "storage" and handler.subscription is not None:
        raise SettingsError(
            f"Handler {handler.name!r} reads topic {handler.queue!r}, subscription {handler.subscription!r}, which "
            f"only Service Bus has: set RUNONCE_SERVICEBUS (and RUNONCE_TRANSPORT=servicebus), or use a queue."
        )
    if settings.transport == "storage" and not _is_storage_queue(handler.queue):
        raise SettingsError(
            f"Handler {handler.name!r}: {handler.queue!r} is not a Storage queue's name; use 3 to 55 lower-case "
            f"letters, digits and single hyphens, beginning and ending with a letter or digit."
        )


def _is_storage_queue(name: str) -> bool:
    plain = name.replace("-", "")
    return (
        3 <= len(name) <= 55  # noqa: PLR2004 - Azure's 63, less "-poison"
        and plain.isalnum()
        and plain.isascii()
        and name == name.lower()
        and "--" not in name
        and not name.startswith("-")
        and not name.endswith("-")
    )


def _stores(settings: Settings) -> Stores:
    try:
        return azure_stores(settings)
    except ValueError as error:  # the SDK's word for a connection string it cannot read
        raise SettingsError(
            f"{settings.storage.setting} is not a usable connection string ({error}); copy it whole from the portal."
        ) from error
