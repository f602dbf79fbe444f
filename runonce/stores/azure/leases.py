"""Leases on blobs."""

from __future__ import annotations

import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import BlobClient, BlobLeaseClient, BlobProperties, BlobServiceClient

from runonce.stores.azure.errors import (
    code_of,
    ignoring,
    translated,
    unless_conflict,
)

if TYPE_CHECKING:
    from datetime import datetime


HELD = ("leased", "breaking")


class AzureLeases:
    """Leases on zero-byte blobs.

    Azure's facts used here (Lease Blob, REST reference): acquiring with a proposed id that already holds the
    lease succeeds, so a repeated acquire is safe; an expired lease can be renewed until somebody takes it.
    """

    def __init__(self, service: BlobServiceClient, container: str) -> None:
        self._service = service
        self._container = container

    def _blob(self, name: str) -> BlobClient:
        return self._service.get_blob_client(self._container, name)

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        blob = self._blob(name)
        with translated(f"lease {name}"):
            try:
                return _acquired(blob, holder, duration)
            except ResourceNotFoundError as error:
                self._make(blob, container_missing=code_of(error) == "ContainerNotFound")
            return _acquired(blob, holder, duration)

    def _make(self, blob: BlobClient, *, container_missing: bool) -> None:
        if container_missing:
            ignoring(ResourceExistsError, self._service.create_container, self._container)
        try:
            blob.upload_blob(b"", overwrite=False)
        except HttpResponseError as error:
            # Somebody else made it at the same instant, and may have leased it already (412).
            if error.status_code not in (409, 412):
                raise

    def renew(self, name: str, holder: str) -> bool:
        with translated(f"lease {name}"):
            return unless_conflict(BlobLeaseClient(self._blob(name), lease_id=holder).renew)

    def release(self, name: str, holder: str) -> None:
        with translated(f"lease {name}"):
            unless_conflict(BlobLeaseClient(self._blob(name), lease_id=holder).release)

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        if holder is not None:
            lease = BlobLeaseClient(self._blob(name), lease_id=holder)
            with translated(f"lease {name}"):  # to an id that nobody has; its term goes on as it is
                return unless_conflict(lambda: lease.change(str(uuid.uuid4())))
        if not self.held(name):  # Azure breaks an expired or broken lease too, as if it had been one
            return False
        lease = BlobLeaseClient(self._blob(name))
        with translated(f"lease {name}"):
            return unless_conflict(lambda: lease.break_lease(lease_break_period=0))

    def held(self, name: str) -> bool:
        with translated(f"lease {name}"):
            try:
                state = self._blob(name).get_blob_properties().lease.state
            except ResourceNotFoundError:
                return False
            return state in HELD

    def held_in(self, folder: str) -> set[str]:
        container = self._service.get_container_client(self._container)
        with translated(f"leases of {folder}"):
            try:
                return {
                    str(blob.name)
                    for blob in container.walk_blobs(name_starts_with=folder, delimiter="/")
                    if isinstance(blob, BlobProperties) and blob.lease.state in HELD
                }
            except ResourceNotFoundError:  # no lease was ever taken
                return set()


def _acquired(blob: BlobClient, holder: str, duration: int) -> datetime | None:
    """When the server granted the lease, by its own `Date`; None when somebody else holds it."""
    dates: list[str] = []
    try:
        blob.acquire_lease(
            lease_duration=duration,
            lease_id=holder,
            raw_response_hook=lambda answer: dates.append(answer.http_response.headers.get("Date", "")),
        )
    except HttpResponseError as error:
        if error.status_code == 409:  # noqa: PLR2004 - LeaseAlreadyPresent, or it is being broken
            return None
        raise
    return parsedate_to_datetime(dates[-1])
