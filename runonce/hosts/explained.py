"""What storage's and the broker's errors mean for a person: where it was, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.errors import StoreUnavailableError, TransportError
from runonce.hosts.runtime import START_EMULATOR

if TYPE_CHECKING:
    from runonce.errors import RunonceError
    from runonce.settings import Settings, StorageConnection


def explain(error: RunonceError, settings: Settings) -> str:
    """An error's message, with where storage was looked for and what to do about it."""
    from runonce.hosts.facts import account  # noqa: PLC0415 - with the rest of what looks
    from runonce.stores.azure.refusals import explained  # noqa: PLC0415 - only where there is something to explain

    storage = settings.storage
    if isinstance(error, TransportError) and settings.transport != "storage":
        return str(error)  # of another broker, and with its own remedy
    if settings.leases and str(error).startswith("lease "):
        return f"{error} Check RUNONCE_LEASES, the network, and the server's firewall."
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


def where(storage: StorageConnection) -> str:
    """Where storage is, without anything secret: "account shop (RUNONCE_STORAGE)"."""
    from runonce.hosts.facts import account  # noqa: PLC0415 - with the rest of what looks

    return f"{account(storage)} ({storage.setting})"
