"""Blobs in a container of Azure Storage, which is made on the first write.

One call is one request, but for a read whose connection breaks in the middle: the SDK asks for the rest.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from runonce.errors import ConflictError
from runonce.stores.azure.errors import CONFLICT, code_of, ignoring, translated
from runonce.stores.protocols import BlobItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from azure.storage.blob import BlobClient, BlobServiceClient


class AzureBlobs:
    """Blobs in one container."""

    def __init__(self, client: Callable[[], BlobServiceClient], container: str) -> None:
        self._client = client
        self._container = container
        self._made: BlobServiceClient | None = None
        self._lock = threading.Lock()

    @property
    def _service(self) -> BlobServiceClient:
        with self._lock:
            self._made = self._made or self._client()
            return self._made

    def close(self) -> None:
        """Close the client, if there was need of one."""
        if self._made is not None:
            self._made.close()

    def _blob(self, name: str) -> BlobClient:
        return self._service.get_blob_client(self._container, name)

    def read(self, name: str) -> BlobItem | None:
        with translated(f"blob {name}"):
            try:
                download = self._blob(name).download_blob()
                properties = download.properties
                return BlobItem(download.readall(), str(properties.etag), dict(properties.metadata or {}))
            except ResourceNotFoundError:
                return None

    def head(self, name: str) -> BlobItem | None:
        with translated(f"blob {name}"):
            try:
                properties = self._blob(name).get_blob_properties()
            except ResourceNotFoundError:
                return None
            return BlobItem(b"", str(properties.etag), dict(properties.metadata or {}))

    def write(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, etag: str | None, content_type: str
    ) -> str:
        from azure.storage.blob import ContentSettings  # noqa: PLC0415 - see the client

        options: dict[str, Any] = {
            "metadata": dict(metadata),
            "content_settings": ContentSettings(content_type=content_type),
        }
        if etag is None:
            options |= {"overwrite": False}
        else:
            options |= {"overwrite": True, "etag": etag, "match_condition": MatchConditions.IfNotModified}
        with translated(f"blob {name}"):
            try:
                return self._upload(name, data, options)
            except HttpResponseError as error:
                if error.status_code not in (409, 412):
                    raise
                raise ConflictError(f"Blob {name} changed or exists.", exists=etag is None) from error

    def _upload(self, name: str, data: bytes, options: dict[str, Any]) -> str:
        try:
            return str(self._blob(name).upload_blob(data, **options)["etag"])
        except ResourceNotFoundError as error:
            if code_of(error) != "ContainerNotFound":
                raise
            ignoring(ResourceExistsError, self._service.create_container, self._container)
            return str(self._blob(name).upload_blob(data, **options)["etag"])

    def delete(self, name: str, *, etag: str) -> None:
        condition: dict[str, Any] = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
        with translated(f"blob {name}"):
            try:
                self._blob(name).delete_blob(**condition)
            except HttpResponseError as error:
                if error.status_code not in CONFLICT:
                    raise
                raise ConflictError(f"Blob {name} changed or is gone.") from error

    def names(self, prefix: str) -> Iterator[str]:
        with translated(f"blobs {prefix}*"):
            container = self._service.get_container_client(self._container)
            try:
                yield from (str(blob.name) for blob in container.list_blobs(name_starts_with=prefix))
            except ResourceNotFoundError:
                return
