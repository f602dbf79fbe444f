"""What Azure's failures become: unknown outcomes, each after one request and in time, and refusals."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from runonce.errors import ConflictError, StoreError, StoreUnavailableError
from runonce.settings import CALL_TIMEOUT, Settings, StorageConnection
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import Delete, Insert, QueueItem, Replace
from runonce.testing.proxy import (
    BUSY,
    CUT_REPLY,
    DROP_REPLY,
    DROP_REQUEST,
    FAILED_AFTER_APPLY,
    HANG,
    Fault,
    StorageProxy,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.stores.protocols import Stores

SLACK = 3.0
"""Seconds a loaded machine may add to a time-out."""


class _Made:
    """What is there for the operations to work on."""

    def __init__(self, connection_string: str) -> None:
        self.settings = Settings(f"t-{uuid.uuid4().hex[:12]}", StorageConnection(connection_string))
        self.name = self.settings.namespace
        self.holder = str(uuid.uuid4())
        self.stores = stores = azure_stores(self.settings)
        assert stores.leases.acquire(self.name, self.holder, 60)
        (self.etag,) = stores.runs.commit(self.name, [Insert("row", {"n": 1})])
        stores.requests.send("first")
        item = stores.requests.receive(visibility=60)
        assert item is not None
        self.item: QueueItem = item
        stores.requests.send("second")
        self.blob_etag = stores.blobs.write(f"{self.name}/b", b"x" * 5000, {}, etag=None, content_type="a/b")

    def settings_through(self, connection_string: str) -> Settings:
        return Settings(self.name, StorageConnection(connection_string))


OPERATIONS: dict[str, Callable[[Stores, _Made], Any]] = {
    "acquire": lambda s, m: s.leases.acquire(m.name, m.holder, 60),
    "renew": lambda s, m: s.leases.renew(m.name, m.holder),
    "release": lambda s, m: s.leases.release(m.name, m.holder),
    "held": lambda s, m: s.leases.held(m.name),
    "break": lambda s, m: s.leases.break_lease(m.name),
    "break one": lambda s, m: s.leases.break_lease(m.name, m.holder),
    "get": lambda s, m: s.runs.get(m.name, "row"),
    "scan": lambda s, m: list(s.runs.scan(m.name, "", "~")),
    "insert": lambda s, m: s.runs.commit(m.name, [Insert(uuid.uuid4().hex, {"n": 1})]),
    "replace": lambda s, m: s.runs.commit(m.name, [Replace("row", {"n": 2}, m.etag)]),
    "delete row": lambda s, m: s.runs.commit(m.name, [Delete("row", m.etag)]),
    "send": lambda s, _: s.requests.send("x"),
    "receive": lambda s, _: s.requests.receive(visibility=1),
    "delete message": lambda s, m: s.requests.delete(m.item),
    "read": lambda s, m: s.blobs.read(f"{m.name}/b"),
    "head": lambda s, m: s.blobs.head(f"{m.name}/b"),
    "names": lambda s, m: list(s.blobs.names(f"{m.name}/")),
    "delete blob": lambda s, m: s.blobs.delete(f"{m.name}/b", etag=m.blob_etag),
    "write": lambda s, m: s.blobs.write(f"{m.name}/b", b"y", {}, etag=m.blob_etag, content_type="a/b"),
}
HAVE_A_BODY = ("get", "scan", "insert", "replace", "delete row", "send", "receive", "names")


@pytest.fixture(scope="module")
def made(azurite: str) -> _Made:
    """A lease, a row, messages and a blob, made without a proxy between."""
    return _Made(azurite)


@pytest.fixture(scope="module")
def through(proxies: StorageProxy, made: _Made) -> Stores:
    """Stores that reach Azurite through the proxies, as they are made for production."""
    return azure_stores(made.settings_through(proxies.connection_string))


@pytest.fixture
def lock(made: _Made) -> str:
    """A lock the lease of which `made.holder` holds."""
    lock = f"{made.name}/{uuid.uuid4().hex}"
    assert made.stores.leases.acquire(lock, made.holder, 60)
    return lock


def fails_as_unknown(call: Callable[[], Any]) -> str:
    with pytest.raises(StoreUnavailableError) as unknown:
        call()
    assert unknown.value.__cause__ is not None
    return str(unknown.value)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "fault",
    [DROP_REQUEST, DROP_REPLY, BUSY, FAILED_AFTER_APPLY, Fault(apply=False, status=429)],
    ids=["request lost", "reply lost", "503", "500 after it was carried out", "429"],
)
def test_no_answer_is_unknown_after_one_request(
    proxy: StorageProxy, through: Stores, made: _Made, operation: str, fault: Fault
) -> None:
    """Whatever goes wrong on the way or in the service is an unknown outcome, and was asked for exactly once."""
    proxy.inject(fault, times=9)
    fails_as_unknown(lambda: OPERATIONS[operation](through, made))
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("operation", HAVE_A_BODY)
def test_a_reply_that_breaks_off_is_unknown(
    proxy: StorageProxy, through: Stores, made: _Made, operation: str
) -> None:
    """A reply whose second half never comes is an unknown outcome, never a refusal or an error of the SDK's."""
    proxy.inject(CUT_REPLY, times=9)
    fails_as_unknown(lambda: OPERATIONS[operation](through, made))
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_refused_connection_is_unknown_at_once(
    proxy: StorageProxy, through: Stores, made: _Made, operation: str
) -> None:
    """With nobody listening every operation fails as unknown, without a pause and a second try."""
    proxy.refuse()
    began = time.monotonic()
    fails_as_unknown(lambda: OPERATIONS[operation](through, made))
    assert time.monotonic() - began < 5


def test_a_server_that_hangs_is_unknown_within_the_call_timeout(
    proxy: StorageProxy, through: Stores, made: _Made
) -> None:
    """A call on which a lease's deadline hangs ends after its time-out and is not sent a second time."""
    proxy.inject(HANG, times=99)
    hung = (
        "acquire",
        "renew",
        "release",
        "held",
        "get",
        "scan",
        "insert",
        "send",
        "receive",
        "delete message",
    )

    def seconds(operation: str) -> float:
        began = time.monotonic()
        fails_as_unknown(lambda: OPERATIONS[operation](through, made))
        return time.monotonic() - began

    with ThreadPoolExecutor(len(hung)) as pool:  # all at once: each takes its 4 s
        took = dict(zip(hung, pool.map(seconds, hung), strict=True))
    assert {name: s for name, s in took.items() if not CALL_TIMEOUT - 0.1 <= s < CALL_TIMEOUT + SLACK} == {}
    assert len(proxy.requests) == len(hung)


@pytest.mark.parametrize("operation", ["read", "head", "names", "write", "delete blob"])
def test_a_hanging_blob_is_given_up_too(proxy: StorageProxy, made: _Made, operation: str) -> None:
    """Jobs' own blobs have a longer time-out, after which they fail as unknown after one request as well."""
    settings = made.settings_through(proxy.connection_string)
    stores = azure_stores(settings, read_timeout=0.3)
    proxy.inject(HANG, times=9)
    fails_as_unknown(lambda: OPERATIONS[operation](stores, made))
    assert len(proxy.requests) == 1


def test_a_late_answer_is_an_answer(proxy: StorageProxy, through: Stores, lock: str, made: _Made) -> None:
    """A reply that is slow but within the time-out counts."""
    proxy.inject(Fault(delay=0.2))
    assert through.leases.renew(lock, made.holder)


def test_a_lost_reply_had_its_effect(proxy: StorageProxy, through: Stores, made: _Made) -> None:
    """Unknown means unknown: the write whose reply was lost is there, and repeating it conflicts with itself."""
    proxy.table.inject(DROP_REPLY)
    fails_as_unknown(lambda: through.runs.commit(made.name, [Insert("mine", {"by": "me"})]))
    row = through.runs.get(made.name, "mine")
    assert row is not None
    assert row.values["by"] == "me"
    with pytest.raises(ConflictError) as itself:
        through.runs.commit(made.name, [Insert("mine", {"by": "me"})])
    assert itself.value.exists


def test_a_lost_request_had_none(proxy: StorageProxy, through: Stores, made: _Made) -> None:
    """The other half of unknown: nothing was written, and the same write can be made again."""
    proxy.table.inject(DROP_REQUEST)
    fails_as_unknown(lambda: through.runs.commit(made.name, [Insert("other", {"by": "me"})]))
    assert through.runs.get(made.name, "other") is None
    through.runs.commit(made.name, [Insert("other", {"by": "me"})])


def test_an_acquisition_whose_reply_was_lost_is_repeated(
    proxy: StorageProxy, through: Stores, lock: str, made: _Made
) -> None:
    """The lease was granted all the same: a stranger is refused, the same holder is granted it again."""
    through.leases.release(lock, made.holder)
    holder = str(uuid.uuid4())
    proxy.blob.inject(DROP_REPLY)
    fails_as_unknown(lambda: through.leases.acquire(lock, holder, 60))
    assert not through.leases.acquire(lock, made.holder, 60)
    assert through.leases.acquire(lock, holder, 60)


@pytest.mark.usefixtures("many_on_azurite")
def test_an_outage_in_the_middle_of_a_scan_is_unknown(proxy: StorageProxy, through: Stores) -> None:
    """A range whose second page cannot be had fails: half a range is never taken for the whole."""
    proxy.table.inject(BUSY, "NextRowKey")
    seen: list[str] = []
    with pytest.raises(StoreUnavailableError):
        seen.extend(row.key for row in through.runs.scan("many", "row-", "row."))
    assert len(list(through.runs.scan("many", "row-", "row."))) == 1_050


def test_the_connection_comes_back(proxy: StorageProxy, through: Stores, lock: str, made: _Made) -> None:
    """After an outage the same stores work again, with nothing to restart."""
    assert through.leases.renew(lock, made.holder)
    proxy.refuse()
    fails_as_unknown(lambda: through.leases.renew(lock, made.holder))
    proxy.reset()
    assert through.leases.renew(lock, made.holder)


def test_a_call_that_hangs_holds_up_no_other(
    proxy: StorageProxy, through: Stores, lock: str, made: _Made
) -> None:
    """While one call waits for an answer, others go through: stores are safe to use from many threads."""
    proxy.blob.inject(HANG)
    slow = threading.Thread(target=lambda: fails_as_unknown(lambda: through.leases.held(lock)))
    slow.start()
    proxy.blob.wait_for(1)
    assert through.leases.renew(lock, made.holder)
    assert slow.is_alive()
    proxy.blob.reset()
    slow.join()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_key_is_a_refusal(azurite: str, made: _Made, operation: str) -> None:
    """A 403 is an error that trying again will not change, and says what was refused; no key is in the message."""
    wrong = azurite.replace("AccountKey=Eby8", "AccountKey=AAAA")
    stores = azure_stores(made.settings_through(wrong))
    with pytest.raises(StoreError) as refused:
        OPERATIONS[operation](stores, made)
    assert not isinstance(refused.value, StoreUnavailableError | ConflictError)
    assert "403" in str(refused.value)
    assert "AAAA" not in str(refused.value)


def test_a_row_too_large_is_a_refusal(through: Stores, made: _Made) -> None:
    """A row that Azure cannot hold is an error of its own, neither a conflict nor an unknown outcome."""
    with pytest.raises(StoreError) as refused:
        through.runs.commit(made.name, [Insert("big", {"text": "x" * 40_000})])
    assert not isinstance(refused.value, StoreUnavailableError | ConflictError)
    assert through.runs.get(made.name, "big") is None
