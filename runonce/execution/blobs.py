"""Blobs for jobs: plain reads, and writes that an older run of the job can no longer make.

A blob written here carries the fencing token of its writer. A writer with an older one is refused, and one
that read the blob before somebody newer wrote it is refused by the ETag. What that cannot stop: a first write
of a blob that the newer run has not touched yet, or has deleted, by a process that was paused between
checking its lease and writing. The newer run overwrites it. Entries of the ledger have no such gap.
"""

from __future__ import annotations

import unicodedata
import uuid
from typing import TYPE_CHECKING, TypeVar

from runonce.errors import ConflictError, Fenced, InputError, NotKeptError, StoreUnavailableError
from runonce.execution.patience import Patience, patiently

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.clock import Clock
    from runonce.stores.protocols import BlobItem, BlobStore

T = TypeVar("T")

OWNER, TOKEN, WRITE = "runonce_job", "runonce_token", "runonce_write"
LONGEST_NAME = 900
"""Characters of a blob's name; with the namespace before it Azure Storage takes 1,024."""


def blob_path(namespace: str, name: str) -> str:
    """A blob's name in its container, which no name of a caller's can lead out of the namespace.

    On its way to storage a name is normalised as a path is, so that with `..` in it it would be another blob.

    Raises:
        InputError: It cannot be a blob's name.
    """
    odd = any(c == "\\" or unicodedata.category(c) in ("Cc", "Cs") for c in name)
    if odd or name.endswith(".") or len(name) > LONGEST_NAME or {"", ".", ".."} & {*name.split("/")}:
        raise NotKeptError(
            f"{name!r:.80} is not a name for a blob: use 1 to {LONGEST_NAME} characters such as "
            f'input/orders.csv, with single "/" between its parts, no part "." or "..", no dot at its end, and no '
            f"backslash or control character."
        )
    return f"{namespace}/{name}"


class Blobs:
    """The blobs of one namespace, as one run may write them; `run.blobs`.

    Every call is tried for a minute while storage does not answer, as long as the run owns its job.

    Args:
        store: Where they are.
        namespace: Goes before every name.
        job: Who to say it is.
        token: Fences what is written; or gives the token, once it is written.
        check: Raises once nothing may be written any more.
        owner: Whose tokens are compared with this one; the job's, if it is empty.
    """

    def __init__(
        self,
        store: BlobStore,
        namespace: str,
        job: str,
        token: int | Callable[[], int],
        check: Callable[[], None],
        clock: Clock,
        *,
        owner: str = "",
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._job = job
        self._owner = owner or job
        self._given_token = token
        self._check = check
        self._clock = clock

    def read(self, name: str) -> bytes:
        """The content of a blob.

        Raises:
            InputError: There is no such blob, or there can be none of that name.
        """
        path = self._path(name)
        item = self._patiently(name, lambda: self._store.read(path))
        if item is None:
            raise InputError(
                f"Job {self._job}: there is no blob {name!r}; put it in the data container as {path}, "
                f"for instance with `runonce upload FILE {name}`."
            )
        return item.data

    def read_text(self, name: str) -> str:
        """The content of a blob as UTF-8 text; a byte order mark is dropped.

        Raises:
            InputError: There is no such blob, or it is not UTF-8.
        """
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(
                f"Job {self._job}: blob {name!r} is not UTF-8 text ({error}); save it as UTF-8."
            ) from error

    def exists(self, name: str) -> bool:
        """Whether there is such a blob."""
        path = self._path(name)
        return self._patiently(name, lambda: self._store.head(path)) is not None

    def names(self, prefix: str = "") -> list[str]:
        """The names that start so, in order."""
        root = f"{self._namespace}/"
        found = self._patiently(f"{prefix}*", lambda: list(self._store.names(root + prefix)))
        return [name.removeprefix(root) for name in found]

    def write(self, name: str, data: bytes | str, *, content_type: str | None = None) -> None:
        """Write a whole blob, as often as you like while the run owns its job.

        Raises:
            InputError: No blob can have that name, or that content type.
            LeaseLost, Fenced: It does not any more; nothing was written.
            StoreUnavailableError: Storage did not answer for a minute.
        """
        content = data.encode() if isinstance(data, str) else data
        kind = content_type or (
            "text/plain; charset=utf-8" if isinstance(data, str) else "application/octet-stream"
        )
        if not (kind.isascii() and kind.isprintable()):
            raise NotKeptError(
                f"Job {self._job}: blob {name!r}: content_type={kind!r:.80} is not a content type."
            )
        path = self._path(name)
        metadata = {OWNER: self._owner, TOKEN: str(self._token), WRITE: uuid.uuid4().hex}
        patience = Patience(self._clock)
        while True:
            current = self._patiently(name, lambda: self._store.head(path))
            if current is not None and current.metadata.get(WRITE) == metadata[WRITE]:
                return  # an earlier try was carried out, its reply was lost
            self._refuse_if_newer(name, current)
            self._check()
            try:
                self._store.write(
                    path, content, metadata, etag=current.etag if current else None, content_type=kind
                )
            except (ConflictError, StoreUnavailableError) as error:
                patience.spend(error)
            else:
                return

    def delete(self, name: str, *, when: Callable[[bytes], bool] | None = None) -> bool:
        """Delete a blob; False when there is none, or when `when` says no to its content.

        What `when` saw is what is deleted: a blob that changes meanwhile is put to it again.

        Raises:
            LeaseLost, Fenced: The run no longer owns its job; nothing was deleted.
            StoreUnavailableError: Storage did not answer for a minute.
        """
        path = self._path(name)
        look = self._store.head if when is None else self._store.read
        patience = Patience(self._clock)
        unknown = False
        while True:
            current = self._patiently(name, lambda: look(path))
            if current is None:
                return unknown  # after a try without an answer it was probably us
            self._refuse_if_newer(name, current)
            if when is not None and not when(current.data):
                return False
            self._check()
            try:
                self._store.delete(path, etag=current.etag)
            except (ConflictError, StoreUnavailableError) as error:
                unknown = unknown or isinstance(error, StoreUnavailableError)
                patience.spend(error)
            else:
                return True

    @property
    def _token(self) -> int:
        given = self._given_token
        return given if isinstance(given, int) else given()

    def _path(self, name: str) -> str:
        try:
            return blob_path(self._namespace, name)
        except InputError as error:
            raise NotKeptError(f"Job {self._job}: {error}") from None

    def _refuse_if_newer(self, name: str, current: BlobItem | None) -> None:
        if current is None or current.metadata.get(OWNER) != self._owner:
            return
        token = int(current.metadata.get(TOKEN, "0"))
        if token > self._token:
            raise Fenced(
                f"Job {self._job}: blob {name!r} was written with fencing token {token}, newer than {self._token}; "
                f"the write was refused."
            )

    def _patiently(self, name: str, call: Callable[[], T]) -> T:
        """Reading changes nothing, so it is simply tried again."""
        try:
            return patiently(self._clock, call, check=self._check)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(f"Job {self._job}, blob {name!r}: {error}") from error
