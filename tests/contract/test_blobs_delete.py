from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runonce.clock import SystemClock
from runonce.errors import ConflictError, Fenced, LeaseLost, StoreUnavailableError
from runonce.execution.blobs import Blobs
from runonce.stores.memory import MemoryBlobs
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.stores.protocols import BlobStore, Stores

CLOCK = SystemClock()


def trusted() -> None:
    return None


def lost() -> None:
    raise LeaseLost


@pytest.fixture(params=["memory", "azure"])
def store(request: pytest.FixtureRequest) -> BlobStore:
    if request.param == "memory":
        return MemoryBlobs()
    stores: Stores = request.getfixturevalue("azure")
    return stores.blobs


def blobs(store: BlobStore, token: int = 5, check: Callable[[], None] = trusted) -> Blobs:
    return Blobs(store, "ns", "job", token, check, PassingClock())


@pytest.fixture(autouse=True)
def clean(store: BlobStore) -> None:
    for name in list(store.names("ns/")):
        item = store.head(name)
        assert item is not None
        store.delete(name, etag=item.etag)


def test_a_deleted_blob_is_gone(store: BlobStore) -> None:
    """A blob is there until it is deleted, and deleting says whether it did anything."""
    b = blobs(store)
    b.write("x", "1")
    assert b.delete("x") is True
    assert b.exists("x") is False
    assert b.delete("x") is False


def test_a_store_deletes_only_what_was_read(store: BlobStore) -> None:
    """An ETag that is no longer true is a conflict, and so is a blob that is gone."""
    first = store.write("ns/x", b"1", {}, etag=None, content_type="text/plain")
    second = store.write("ns/x", b"2", {}, etag=first, content_type="text/plain")
    with pytest.raises(ConflictError):
        store.delete("ns/x", etag=first)
    store.delete("ns/x", etag=second)
    with pytest.raises(ConflictError):
        store.delete("ns/x", etag=second)
    assert store.head("ns/x") is None


def test_an_older_run_deletes_nothing(store: BlobStore) -> None:
    """A blob written under a newer fencing token stays."""
    blobs(store, token=6).write("x", "newer")
    with pytest.raises(Fenced):
        blobs(store, token=5).delete("x")
    assert blobs(store).read("x") == b"newer"


def test_a_run_without_its_lease_deletes_nothing(store: BlobStore) -> None:
    """A lost lease is noticed before anything is deleted."""
    blobs(store).write("x", "1")
    with pytest.raises(LeaseLost):
        blobs(store, check=lost).delete("x")
    assert blobs(store).exists("x")


def test_a_blob_that_changes_while_it_is_judged_is_judged_again(store: BlobStore) -> None:
    """What `when` approved is what is deleted: a newer content is put to it and may stay."""
    b = blobs(store)
    b.write("x", "old")
    seen: list[bytes] = []

    def old(data: bytes) -> bool:
        seen.append(data)
        if len(seen) == 1:
            b.write("x", "renewed")
        return data == b"old"

    assert b.delete("x", when=old) is False
    assert seen == [b"old", b"renewed"]
    assert b.read("x") == b"renewed"


class LosesReplies(MemoryBlobs):
    """Carries the first delete out, and says nothing."""

    lost = 0

    def delete(self, name: str, *, etag: str) -> None:
        super().delete(name, etag=etag)
        self.lost += 1
        if self.lost == 1:
            raise StoreUnavailableError


def test_a_lost_reply_is_no_refusal() -> None:
    """A delete that was carried out without an answer counts as done."""
    store = LosesReplies()
    b = blobs(store)
    b.write("x", "1")
    assert b.delete("x") is True
    assert b.exists("x") is False


class Never(MemoryBlobs):
    """Answers no delete."""

    def delete(self, *_a: Any, **_k: Any) -> None:
        raise StoreUnavailableError


def test_a_store_that_never_answers_is_given_up() -> None:
    """After a few tries the caller hears that storage is out of reach."""
    b = blobs(Never())
    b.write("x", "1")
    with pytest.raises(StoreUnavailableError):
        b.delete("x")
