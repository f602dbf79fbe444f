from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import pytest

from runonce.errors import ConflictError, Fenced, InputError, LeaseLost, StoreUnavailableError
from runonce.execution.blobs import WRITE, Blobs
from runonce.execution.patience import LONGEST_PAUSE, PATIENCE
from runonce.stores.memory import MemoryBlobs
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.stores.protocols import BlobItem

PATH = "shop/report.csv"


class FaultyBlobs(MemoryBlobs):
    """Blobs in memory whose next calls can be planned to go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.plan: dict[str, deque[Callable[[Callable[[], Any]], Any]]] = defaultdict(deque)

    def _do(self, operation: str, call: Callable[[], Any]) -> Any:
        self.calls.append(operation)
        planned = self.plan[operation]
        return planned.popleft()(call) if planned else call()

    def read(self, name: str) -> BlobItem | None:
        return self._do("read", lambda: super(FaultyBlobs, self).read(name))

    def head(self, name: str) -> BlobItem | None:
        return self._do("head", lambda: super(FaultyBlobs, self).head(name))

    def write(
        self, name: str, data: bytes, metadata: Mapping[str, str], *, etag: str | None, content_type: str
    ) -> str:
        self.content_type = content_type
        return self._do(
            "write",
            lambda: super(FaultyBlobs, self).write(
                name, data, metadata, etag=etag, content_type=content_type
            ),
        )


def unreachable(_: Callable[[], Any]) -> Any:
    """The request is lost."""
    raise StoreUnavailableError


def lost_reply(call: Callable[[], Any]) -> Any:
    """The request is carried out and its reply is lost."""
    call()
    raise StoreUnavailableError


class Shop:
    """A store and the blobs of runs with some fencing token."""

    def __init__(self) -> None:
        self.store = FaultyBlobs()
        self.lost = False
        self.clock = PassingClock()

    def run(self, token: int, job: str = "nightly") -> Blobs:
        return Blobs(self.store, "shop", job, token, self.check, self.clock)

    def check(self) -> None:
        if self.lost:
            raise LeaseLost

    def content(self) -> bytes | None:
        item = MemoryBlobs.read(self.store, PATH)
        return None if item is None else item.data


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_write_costs_two_calls(shop: Shop) -> None:
    """A write looks at the blob and writes it, under the namespace, and can be made again and again."""
    run = shop.run(1)
    run.write("report.csv", b"first")
    assert shop.store.calls == ["head", "write"]
    run.write("report.csv", "şecond")
    assert shop.content() == "şecond".encode()
    assert run.read("report.csv") == shop.content()
    assert run.read_text("report.csv") == "şecond"


def test_a_newer_run_writes_over_an_older_one(shop: Shop) -> None:
    """A restarted run may replace what an earlier attempt wrote."""
    shop.run(1).write("report.csv", b"old")
    shop.run(2).write("report.csv", b"new")
    assert shop.content() == b"new"


def test_an_older_run_is_refused(shop: Shop) -> None:
    """Once a newer run of the job has written, an older one is refused by its token and changes nothing."""
    shop.run(2).write("report.csv", b"new")
    with pytest.raises(Fenced) as refused:
        shop.run(1).write("report.csv", b"old")
    assert shop.content() == b"new"
    assert all(part in str(refused.value) for part in ("nightly", "report.csv", "token 2", "newer than 1"))


def test_tokens_are_numbers(shop: Shop) -> None:
    """Token 10 is newer than token 9."""
    shop.run(9).write("report.csv", b"nine")
    shop.run(10).write("report.csv", b"ten")
    with pytest.raises(Fenced):
        shop.run(9).write("report.csv", b"nine again")


def test_another_jobs_token_is_no_fence(shop: Shop) -> None:
    """Tokens of two jobs say nothing about each other, nor does a blob that a person put there."""
    shop.run(7, "other").write("report.csv", b"theirs")
    shop.run(1).write("report.csv", b"ours")
    etag = MemoryBlobs.write(shop.store, "shop/hand.csv", b"x", {}, etag=None, content_type="")
    shop.run(1).write("hand.csv", b"y")
    item = MemoryBlobs.read(shop.store, "shop/hand.csv")
    assert item is not None
    assert item.data == b"y"
    assert item.etag != etag


def test_a_run_without_its_lease_writes_nothing(shop: Shop) -> None:
    """The lease is looked at before every write, and a lost one lets nothing through."""
    shop.lost = True
    with pytest.raises(LeaseLost):
        shop.run(1).write("report.csv", b"x")
    assert shop.content() is None
    assert "write" not in shop.store.calls


def test_a_newer_run_that_wins_the_race_fences(shop: Shop) -> None:
    """A newer run that writes between the look and the write is found by the ETag, and then its token refuses us."""
    shop.run(1).write("report.csv", b"first")

    def overtaken(call: Callable[[], Any]) -> Any:
        shop.run(2).write("report.csv", b"newer")
        return call()

    shop.store.plan["write"].append(overtaken)
    with pytest.raises(Fenced):
        shop.run(1).write("report.csv", b"older")
    assert shop.content() == b"newer"


def test_a_newer_run_that_makes_the_blob_first_fences(shop: Shop) -> None:
    """The same for a blob that neither had written before."""

    def overtaken(call: Callable[[], Any]) -> Any:
        shop.run(2).write("report.csv", b"newer")
        return call()

    shop.store.plan["write"].append(overtaken)
    with pytest.raises(Fenced):
        shop.run(1).write("report.csv", b"older")
    assert shop.content() == b"newer"


def test_a_stranger_that_wins_the_race_is_overwritten(shop: Shop) -> None:
    """A write by hand in between is a conflict that is looked at again, and then ours is made."""
    shop.run(1).write("report.csv", b"first")

    def meddled(call: Callable[[], Any]) -> Any:
        item = MemoryBlobs.head(shop.store, PATH)
        assert item is not None
        MemoryBlobs.write(shop.store, PATH, b"by hand", {}, etag=item.etag, content_type="")
        return call()

    shop.store.plan["write"].append(meddled)
    shop.run(1).write("report.csv", b"second")
    assert shop.content() == b"second"


def test_a_lost_request_is_made_again(shop: Shop) -> None:
    """A write that never arrived is made again."""
    shop.store.plan["write"].append(unreachable)
    shop.run(1).write("report.csv", b"x")
    assert shop.content() == b"x"
    assert shop.store.calls == ["head", "write", "head", "write"]


def test_a_lost_reply_is_recognised(shop: Shop) -> None:
    """A write that was carried out is recognised by its id, and not made a second time."""
    shop.store.plan["write"].append(lost_reply)
    shop.run(1).write("report.csv", b"x")
    assert shop.store.calls == ["head", "write", "head"]


def test_a_lost_reply_after_which_somebody_newer_wrote_is_fenced(shop: Shop) -> None:
    """A write that was carried out and then replaced by a newer run is not put back."""

    def applied_then_replaced(call: Callable[[], Any]) -> Any:
        call()
        shop.run(2).write("report.csv", b"newer")
        raise StoreUnavailableError

    shop.store.plan["write"].append(applied_then_replaced)
    with pytest.raises(Fenced):
        shop.run(1).write("report.csv", b"x")
    assert shop.content() == b"newer"


def test_a_lease_lost_between_two_tries_ends_them(shop: Shop) -> None:
    """The lease is looked at before each try, not only before the first."""

    def lose(_: Callable[[], Any]) -> Any:
        shop.lost = True
        raise StoreUnavailableError

    shop.store.plan["write"].append(lose)
    with pytest.raises(LeaseLost):
        shop.run(1).write("report.csv", b"x")
    assert shop.content() is None


def test_every_write_has_an_id_of_its_own(shop: Shop) -> None:
    """Two writes of the same content are two writes."""
    ids = set()
    for _ in range(2):
        shop.run(1).write("report.csv", b"same")
        item = MemoryBlobs.head(shop.store, PATH)
        assert item is not None
        ids.add(item.metadata[WRITE])
    assert len(ids) == 2


@pytest.mark.parametrize("operation", ["write", "head"])
def test_an_outage_ends_in_an_error(shop: Shop, operation: str) -> None:
    """A store that never answers is given up after a minute, with an error that says it is unknown."""
    shop.store.plan[operation].extend([unreachable] * 100)
    with pytest.raises(StoreUnavailableError):
        shop.run(1).write("report.csv", b"x")
    assert PATIENCE < shop.clock.elapsed() < PATIENCE + 2 * LONGEST_PAUSE
    assert shop.store.calls.count(operation) > 5


def test_endless_conflicts_end_in_an_error(shop: Shop) -> None:
    """Somebody who changes the blob before every write of ours is not fought for ever."""

    def conflict(_: Callable[[], Any]) -> Any:
        raise ConflictError

    shop.store.plan["write"].extend([conflict] * 100)
    with pytest.raises(ConflictError):
        shop.run(1).write("report.csv", b"x")
    assert PATIENCE < shop.clock.elapsed() < PATIENCE + 2 * LONGEST_PAUSE
    assert shop.store.calls.count("write") > 5


def test_reading_is_tried_again(shop: Shop) -> None:
    """Reading outlives an outage of less than a minute; a longer one names job and blob."""
    shop.run(1).write("report.csv", b"x")
    shop.store.plan["read"].extend([unreachable] * 20)
    assert shop.run(1).read("report.csv") == b"x"
    shop.store.plan["read"].extend([unreachable] * 100)
    with pytest.raises(StoreUnavailableError) as unknown:
        shop.run(1).read("report.csv")
    assert "nightly" in str(unknown.value)
    assert "report.csv" in str(unknown.value)


def test_a_missing_blob_says_where_to_put_it(shop: Shop) -> None:
    """Reading what is not there is an input error that names the job, the blob and its full name."""
    with pytest.raises(InputError) as missing:
        shop.run(1).read("orders/today.csv")
    assert all(
        part in str(missing.value) for part in ("nightly", "'orders/today.csv'", "shop/orders/today.csv")
    )


def test_text_is_utf8(shop: Shop) -> None:
    """A byte order mark is dropped, and bytes that are no UTF-8 are an input error that names the blob."""
    run = shop.run(1)
    run.write("marked.csv", b"\xef\xbb\xbfa,b")
    assert run.read_text("marked.csv") == "a,b"
    run.write("latin.csv", b"\xfe\xff")
    with pytest.raises(InputError, match=r"'latin\.csv' is not UTF-8 text .* save it as UTF-8"):
        run.read_text("latin.csv")


@pytest.mark.parametrize(
    ("data", "given", "expected"),
    [
        ("text", None, "text/plain; charset=utf-8"),
        (b"bytes", None, "application/octet-stream"),
        ("a,b", "text/csv", "text/csv"),
    ],
)
def test_the_content_type_is_told(shop: Shop, data: str | bytes, given: str | None, expected: str) -> None:
    """Text and bytes have a content type of their own unless one is given."""
    shop.run(1).write("report.csv", data, content_type=given)
    assert shop.store.content_type == expected


def test_names_are_the_namespaces(shop: Shop) -> None:
    """Names are told without the namespace, and another namespace's blobs are neither seen nor read."""
    run = shop.run(1)
    run.write("b/2", b"")
    run.write("b/1", b"")
    run.write("a", b"")
    stranger = Blobs(shop.store, "shop2", "nightly", 9, shop.check, PassingClock())
    stranger.write("b/3", b"")
    assert run.names() == ["a", "b/1", "b/2"]
    assert run.names("b/") == ["b/1", "b/2"]
    assert run.exists("a")
    assert not stranger.exists("a")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "../prod/x",
        "x/../../prod/x",
        "a/./b",
        "a\\b",
        "a\nb",
        "a\x00",
        "a\x7f",
        "a\u0085",
        "a\ud800",
        "report.",
        "x" * 901,
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_by_every_method(name: str) -> None:
    """No call reaches storage: a path would be normalised on its way and name another namespace's blob."""
    store = FaultyBlobs()
    blobs = Blobs(store, "shop", "report", 1, lambda: None, PassingClock())
    for call in (
        lambda: blobs.read(name),
        lambda: blobs.read_text(name),
        lambda: blobs.exists(name),
        lambda: blobs.write(name, b""),
        lambda: blobs.delete(name),
    ):
        with pytest.raises(InputError, match=r"Job report: .* is not a name for a blob"):
            call()
    assert store.calls == []


@pytest.mark.parametrize("kind", ["text/plain\r\nx-ms-meta-a: b", "text/ü", "\ud83d"])
def test_what_is_no_content_type_is_refused(kind: str) -> None:
    """It travels in a header, so anything but plain characters is an error at once, and nothing is written."""
    store = FaultyBlobs()
    blobs = Blobs(store, "shop", "report", 1, lambda: None, PassingClock())
    with pytest.raises(InputError, match=r"blob 'a': content_type=.* is not a content type"):
        blobs.write("a", b"", content_type=kind)
    assert store.calls == []


@pytest.mark.parametrize("name", ["a", "in/orders.csv", "a..b", "..a", "%2e%2e/x", "ü 🔑", "x" * 900])
def test_a_name_that_stays_where_it_is_passes(name: str) -> None:
    """Dots within a part, percent signs and any printable text are names."""
    blobs = Blobs(MemoryBlobs(), "shop", "report", 1, lambda: None, PassingClock())
    blobs.write(name, b"1")
    assert (blobs.read(name), blobs.names()) == (b"1", [name])
