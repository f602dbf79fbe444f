from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.storage.blob import BlobServiceClient
from support.kit import Kit, fresh_settings

from runonce.errors import ConflictError
from runonce.stores.azure.stores import azure_stores

BINARY = "application/octet-stream"
CONTENTS = {
    "empty": b"",
    "text": b"a,b\r\n1,2\r\n",
    "bytes": bytes(range(256)),
    "large": b"\x00\xff" * 2_000_000,
}


def put(kit: Kit, name: str, data: bytes = b"x", *, etag: str | None = None, **metadata: str) -> str:
    return kit.stores.blobs.write(f"{kit.name}/{name}", data, metadata, etag=etag, content_type=BINARY)


@pytest.mark.parametrize("name", CONTENTS)
def test_content_comes_back_as_it_was(kit: Kit, name: str) -> None:
    """Any bytes, none of them or millions, are read as they were written, under the ETag of the write."""
    etag = put(kit, "data", CONTENTS[name])
    item = kit.stores.blobs.read(f"{kit.name}/data")
    assert item is not None
    assert item.data == CONTENTS[name]
    assert item.etag == etag


def test_a_blob_that_is_not_there_is_none(kit: Kit) -> None:
    """Reading or looking at a blob that does not exist is None, whether or not the container exists."""
    assert kit.stores.blobs.read(f"{kit.name}/nothing") is None
    assert kit.stores.blobs.head(f"{kit.name}/nothing") is None
    put(kit, "other")
    assert kit.stores.blobs.read(f"{kit.name}/nothing") is None
    assert kit.stores.blobs.head(f"{kit.name}/nothing") is None


def test_head_has_everything_but_the_content(kit: Kit) -> None:
    """A look gives the ETag and the metadata that a read gives, and no content."""
    etag = put(kit, "data", b"content", runonce_job="nightly", runonce_token="7")
    head, read = kit.stores.blobs.head(f"{kit.name}/data"), kit.stores.blobs.read(f"{kit.name}/data")
    assert head is not None
    assert read is not None
    assert (head.data, head.etag, head.metadata) == (
        b"",
        etag,
        {"runonce_job": "nightly", "runonce_token": "7"},
    )
    assert (read.etag, read.metadata) == (head.etag, head.metadata)


def test_a_new_blob_must_not_exist(kit: Kit) -> None:
    """A write without an ETag makes a blob; when there is one it is a conflict that says so, and changes nothing."""
    put(kit, "data", b"first")
    with pytest.raises(ConflictError) as refused:
        put(kit, "data", b"second")
    assert refused.value.exists
    item = kit.stores.blobs.read(f"{kit.name}/data")
    assert item is not None
    assert item.data == b"first"


def test_a_write_needs_the_etag_to_be_current(kit: Kit) -> None:
    """A write with the current ETag replaces content and metadata; with a stale one it is a conflict."""
    stale = put(kit, "data", b"first", kept="no")
    fresh = put(kit, "data", b"second", etag=stale, other="yes")
    with pytest.raises(ConflictError) as refused:
        put(kit, "data", b"third", etag=stale)
    assert not refused.value.exists
    item = kit.stores.blobs.read(f"{kit.name}/data")
    assert item is not None
    assert (item.data, item.etag, item.metadata) == (b"second", fresh, {"other": "yes"})


def test_a_write_over_what_never_was_is_refused(kit: Kit) -> None:
    """A write with an ETag where there is no blob is a conflict and makes none."""
    etag = put(kit, "elsewhere")
    with pytest.raises(ConflictError) as refused:
        put(kit, "data", etag=etag)
    assert not refused.value.exists
    assert kit.stores.blobs.head(f"{kit.name}/data") is None


def test_a_delete_needs_the_etag_to_be_current(kit: Kit) -> None:
    """Deleting with a stale ETag, or what is gone, is a conflict; with the current one the blob is gone."""
    stale = put(kit, "data", b"first")
    fresh = put(kit, "data", b"second", etag=stale)
    with pytest.raises(ConflictError):
        kit.stores.blobs.delete(f"{kit.name}/data", etag=stale)
    assert kit.stores.blobs.head(f"{kit.name}/data") is not None
    kit.stores.blobs.delete(f"{kit.name}/data", etag=fresh)
    assert kit.stores.blobs.read(f"{kit.name}/data") is None
    with pytest.raises(ConflictError):
        kit.stores.blobs.delete(f"{kit.name}/data", etag=fresh)
    put(kit, "data", b"third")


def test_names_come_in_order_and_by_prefix(kit: Kit) -> None:
    """Names are those that start so, in order, with slashes as mere characters; none where nothing is."""
    assert list(kit.stores.blobs.names(f"{kit.name}/")) == []
    for name in ("b", "a/2", "a/10", "ab", "c d", "ş"):
        put(kit, name)
    prefix = f"{kit.name}/"
    names = [name.removeprefix(prefix) for name in kit.stores.blobs.names(prefix)]
    assert names == ["a/10", "a/2", "ab", "b", "c d", "ş"]
    assert list(kit.stores.blobs.names(f"{kit.name}/a/")) == [f"{kit.name}/a/10", f"{kit.name}/a/2"]
    assert list(kit.stores.blobs.names(f"{kit.name}/x")) == []


@pytest.mark.parametrize("name", ["with space.csv", "100%.txt", "a+b&c=d", "ş/İ.txt", "q?r#s", "it's"])
def test_a_name_may_hold_awkward_characters(kit: Kit, name: str) -> None:
    """A blob is found again under exactly the name it was written under."""
    put(kit, name, b"here")
    item = kit.stores.blobs.read(f"{kit.name}/{name}")
    assert item is not None
    assert item.data == b"here"
    assert list(kit.stores.blobs.names(f"{kit.name}/")) == [f"{kit.name}/{name}"]


def test_of_many_who_write_at_once_one_wins(kit: Kit) -> None:
    """Eight writers of a new blob at the same instant: one makes it, seven are told that it exists."""
    start = threading.Barrier(8)
    put(kit, "so that the container is there")

    def attempt(n: int) -> bytes | None:
        start.wait()
        try:
            put(kit, "data", b"%d" % n)
        except ConflictError:
            return None
        return b"%d" % n

    with ThreadPoolExecutor(8) as pool:
        winners = [data for data in pool.map(attempt, range(8)) if data is not None]
    item = kit.stores.blobs.read(f"{kit.name}/data")
    assert item is not None
    assert [item.data] == winners


def test_the_content_type_is_kept(azurite: str) -> None:
    """A browser that opens a report is told what it is."""
    settings = fresh_settings(azurite)
    azure_stores(settings).blobs.write("r.csv", b"a", {}, etag=None, content_type="text/csv; charset=utf-8")
    with BlobServiceClient.from_connection_string(azurite) as client:
        properties = client.get_blob_client(settings.data_container, "r.csv").get_blob_properties()
        assert properties.content_settings.content_type == "text/csv; charset=utf-8"


def test_the_first_use_makes_the_container(azurite: str) -> None:
    """Every operation works in an account that holds no container yet; only a write makes it."""
    assert azure_stores(fresh_settings(azurite)).blobs.read("x") is None
    assert azure_stores(fresh_settings(azurite)).blobs.head("x") is None
    assert list(azure_stores(fresh_settings(azurite)).blobs.names("")) == []
    blobs = azure_stores(fresh_settings(azurite)).blobs
    blobs.write("x", b"1", {}, etag=None, content_type=BINARY)
    assert list(blobs.names("")) == ["x"]


def test_each_operation_is_one_request(azurite: str, calls) -> None:  # noqa: ANN001 - conftest's
    """Once the container exists, each operation costs one storage call."""
    blobs = azure_stores(fresh_settings(azurite), transport=calls).blobs
    blobs.write("made", b"1", {}, etag=None, content_type=BINARY)
    calls.made.clear()
    blobs.read("made")
    blobs.head("made")
    list(blobs.names(""))
    blobs.write("other", b"1", {}, etag=None, content_type=BINARY)
    assert [made.partition(" ")[0] for made in calls.made] == ["GET", "HEAD", "GET", "PUT"]
