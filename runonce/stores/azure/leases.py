"""Leases on blobs."""

from __future__ import annotations

import uuid
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from azure.core.exceptions import HttpResponseError

from runonce.stores.azure.errors import CONFLICT, code_of, translated
from runonce.stores.azure.wire import xml_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from runonce.stores.azure.wire import Reply, Service

NOT_FOUND, TAKEN = 404, 409
HELD = ("leased", "breaking")
ACTION = "x-ms-lease-action"
HEADERS = {
    "id": "x-ms-lease-id",
    "proposed": "x-ms-proposed-lease-id",
    "duration": "x-ms-lease-duration",
    "period": "x-ms-lease-break-period",
}


class AzureLeases:
    """Leases on zero-byte blobs.

    Azure's facts used here (Lease Blob, REST reference): acquiring with a proposed id that already holds the
    lease succeeds, so a repeated acquire is safe; an expired lease can be renewed until somebody takes it.
    """

    def __init__(self, service: Service, container: str) -> None:
        self._service = service
        self._container = container

    def acquire(self, name: str, holder: str, duration: int) -> datetime | None:
        with translated(f"lease {name}"):
            try:
                return self._acquired(name, holder, duration)
            except HttpResponseError as error:
                if error.status_code != NOT_FOUND:
                    raise
                self._make(name, container_missing=code_of(error) == "ContainerNotFound")
            return self._acquired(name, holder, duration)

    def _acquired(self, name: str, holder: str, duration: int) -> datetime | None:
        """When the server granted the lease, by its own `Date`; None when somebody else holds it."""
        try:
            reply = self._lease(name, "acquire", duration=str(duration), proposed=holder)
        except HttpResponseError as error:
            if error.status_code == TAKEN:  # LeaseAlreadyPresent, or it is being broken
                return None
            raise
        return parsedate_to_datetime(reply.headers.get("Date", ""))

    def _make(self, name: str, *, container_missing: bool) -> None:
        if container_missing:
            self._unless((TAKEN,), "PUT", self._container, "restype=container")
        new = {
            "x-ms-blob-type": "BlockBlob",
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
        }
        # Somebody else may make it at the same instant, and may have leased it already (412).
        self._unless(CONFLICT[1:], "PUT", self._path(name), "", new, b"")

    def renew(self, name: str, holder: str) -> bool:
        return self._done(name, "renew", id=holder)

    def release(self, name: str, holder: str) -> None:
        self._done(name, "release", id=holder)

    def break_lease(self, name: str, holder: str | None = None) -> bool:
        if holder is not None:  # to an id that nobody has; its term goes on as it is
            return self._done(name, "change", id=holder, proposed=str(uuid.uuid4()))
        if not self.held(name):  # Azure breaks an expired or broken lease too, as if it had been one
            return False
        return self._done(name, "break", period="0")

    def held(self, name: str) -> bool:
        with translated(f"lease {name}"):
            try:
                reply = self._service.ask("HEAD", self._path(name))
            except HttpResponseError as error:
                if error.status_code == NOT_FOUND:
                    return False
                raise
            return reply.headers.get("x-ms-lease-state") in HELD

    def held_in(self, folder: str) -> set[str]:
        query = f"restype=container&comp=list&prefix={quote(folder, safe='')}&delimiter=/"
        held, marker = set[str](), ""
        with translated(f"leases of {folder}"):
            while True:
                try:
                    reply = self._service.ask("GET", self._container, query + marker)
                except HttpResponseError as error:
                    if error.status_code == NOT_FOUND:  # no lease was ever taken
                        return held
                    raise
                listed = xml_of(reply)
                for blob in listed.iterfind("Blobs/Blob"):
                    if blob.findtext("Properties/LeaseState") in HELD:
                        held.add(blob.findtext("Name", ""))
                if not (following := listed.findtext("NextMarker")):
                    return held
                marker = f"&marker={quote(following, safe='')}"

    def _done(self, name: str, action: str, **options: str) -> bool:
        """False when the lease is not what the call needs it to be: 409, 412, or no such blob."""
        with translated(f"lease {name}"):
            try:
                self._lease(name, action, **options)
            except HttpResponseError as error:
                if error.status_code in CONFLICT:
                    return False
                raise
        return True

    def _lease(self, name: str, action: str, **options: str) -> Reply:
        headers = {HEADERS[option]: value for option, value in options.items()}
        return self._service.ask("PUT", self._path(name), "comp=lease", {ACTION: action, **headers})

    def _unless(
        self,
        expected: tuple[int, ...],
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        """Ask, and take those refusals for success."""
        try:
            self._service.ask(method, path, query, headers, body)
        except HttpResponseError as error:
            if error.status_code not in expected:
                raise

    def _path(self, name: str) -> str:
        return f"{self._container}/{quote(name, safe='~/')}"
