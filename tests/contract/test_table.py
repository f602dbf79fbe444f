from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.kit import Kit, fresh_settings

from runonce.errors import ConflictError, StoreError
from runonce.stores.azure.stores import azure_stores
from runonce.stores.protocols import MAX_TRANSACTION, Delete, Insert, Replace

if TYPE_CHECKING:
    from runonce.stores.protocols import Stores, Value

VALUES: dict[str, Value] = {
    "empty": "",
    "text": "plain",
    "unicode": "şğıİçöü 日本語 𐍈 \N{PILE OF POO}",
    "markup": "a<b>&amp;'\"\\ \t\r\n #?%/ end ",
    "date_like": "2026-11-29T03:00:00Z",
    "json": '{"a":[1,2],"b":null}',
    "large": "x" * 32_000,
    "large_unicode": "ğ" * 32_000,
    "zero": 0,
    "negative": -7,
    "largest_32_bits": 2**31 - 1,
    "smallest_32_bits": -(2**31),
    "over_32_bits": 2**31,
    "largest_64_bits": 2**63 - 1,
    "smallest_64_bits": -(2**63),
    "yes": True,
    "no": False,
    "half": 0.5,
    "whole_float": 3.0,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "third": 1 / 3,
}


def fill(kit: Kit, *keys: str) -> dict[str, str]:
    """Rows with these keys; their ETags."""
    etags = kit.stores.runs.commit(kit.name, [Insert(key, {"n": n}) for n, key in enumerate(keys)])
    return dict(zip(keys, etags, strict=True))


def keys_of(kit: Kit, first: str = "", last: str = "~", **options: Any) -> list[str]:
    return [row.key for row in kit.stores.runs.scan(kit.name, first, last, **options)]


# -- reading -------------------------------------------------------------------------------------------------------


def test_a_row_that_is_not_there_is_none(kit: Kit) -> None:
    """Reading a row that was never written is None, whether or not the table exists."""
    assert kit.stores.runs.get(kit.name, "nothing") is None


def test_a_range_with_no_rows_is_empty(kit: Kit) -> None:
    """Scanning where nothing was written gives nothing, whether or not the table exists."""
    assert keys_of(kit) == []


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(kit: Kit, name: str) -> None:
    """Every kind of value comes back equal and of the same type, from a read and from a scan."""
    kit.stores.runs.commit(kit.name, [Insert("row", {name: VALUES[name]})])
    row = kit.stores.runs.get(kit.name, "row")
    (scanned,) = kit.stores.runs.scan(kit.name, "row", "row~")
    assert row is not None
    for read in (row, scanned):
        assert dict(read.values) == {name: VALUES[name]}
        assert type(read.values[name]) is type(VALUES[name])


def test_infinity_comes_back(kit: Kit) -> None:
    """A float that JSON has no number for comes back too."""
    kit.stores.runs.commit(kit.name, [Insert("row", {"up": float("inf"), "down": float("-inf")})])
    row = kit.stores.runs.get(kit.name, "row")
    assert row is not None
    assert dict(row.values) == {"up": float("inf"), "down": float("-inf")}


@pytest.mark.parametrize(
    "key",
    [
        "job:nightly-report",
        "run:a:0008003600000",
        "entry:j:a=2Fb",
        "entry:j:with space",
        "it's",
        'say "x"',
        "ş",
    ],
)
def test_a_key_may_hold_what_keys_of_ours_hold(kit: Kit, key: str) -> None:
    """Colons, spaces, quotes, percent-like escapes and letters beyond ASCII work in a key everywhere."""
    (etag,) = kit.stores.runs.commit(kit.name, [Insert(key, {"n": 1})])
    row = kit.stores.runs.get(kit.name, key)
    assert row is not None
    assert (row.key, row.etag) == (key, etag)
    assert [found.key for found in kit.stores.runs.scan(kit.name, key, key + "~")] == [key]
    kit.stores.runs.commit(kit.name, [Delete(key, etag)])
    assert kit.stores.runs.get(kit.name, key) is None


def test_a_range_has_its_first_key_and_not_its_last(kit: Kit) -> None:
    """A scan gives first <= key < last, in the order of keys, whatever order they were written in."""
    fill(kit, "run:b", "run:a", "run:c", "run;", "job:z", "run:")
    assert keys_of(kit, "run:", "run;") == ["run:", "run:a", "run:b", "run:c"]
    assert keys_of(kit, "run:a", "run:c") == ["run:a", "run:b"]


def test_a_scan_stays_in_its_partition(kit: Kit) -> None:
    """Rows of another partition are never seen, not even with the same keys."""
    fill(kit, "a")
    kit.stores.runs.commit(kit.name + "-other", [Insert("a", {"n": 7}), Insert("b", {"n": 8})])
    assert keys_of(kit) == ["a"]
    row = kit.stores.runs.get(kit.name, "a")
    assert row is not None
    assert row.values["n"] == 0


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (3, 3), (9, 3), (None, 3)])
def test_a_scan_stops_at_its_limit(kit: Kit, limit: int | None, expected: int) -> None:
    """A limit gives the first so many rows of the range, and all of them when there are fewer."""
    fill(kit, "a", "b", "c")
    assert keys_of(kit, limit=limit) == ["a", "b", "c"][:expected]


def test_a_scan_goes_on_over_pages(many: Stores) -> None:
    """A range of more rows than one page holds (1,000) comes whole, in order, each row with its server's time."""
    rows = list(many.runs.scan("many", "row-", "row."))
    assert [row.key for row in rows] == [f"row-{n:05d}" for n in range(1_050)]
    assert all(row.read_at >= row.timestamp.replace(microsecond=0) for row in rows)
    assert len(list(many.runs.scan("many", "row-", "row.", limit=1_020))) == 1_020


def test_the_times_of_a_row_are_the_servers(kit: Kit) -> None:
    """A row says when the server wrote it and when the server answered, in UTC, and both move on."""
    etag = fill(kit, "a")["a"]
    first = kit.stores.runs.get(kit.name, "a")
    assert first is not None
    now = kit.clock.now() if kit.clock else datetime.now(UTC)
    assert abs(now - first.timestamp) < timedelta(seconds=10)
    assert timedelta(seconds=-2) < first.read_at - first.timestamp < timedelta(seconds=10)
    assert first.timestamp.utcoffset() == first.read_at.utcoffset() == timedelta()

    def a_second_later() -> bool | None:
        row = kit.stores.runs.get(kit.name, "a")
        assert row is not None
        assert row.timestamp == first.timestamp
        return True if row.read_at > first.read_at else None

    kit.until(a_second_later)
    kit.stores.runs.commit(kit.name, [Replace("a", {"n": 1}, etag)])
    later = kit.stores.runs.get(kit.name, "a")
    assert later is not None
    assert later.timestamp > first.timestamp


# -- conditions ----------------------------------------------------------------------------------------------------


def test_an_insert_needs_the_row_not_to_exist(kit: Kit) -> None:
    """Inserting over a row is a conflict that says so, and leaves the row as it is."""
    etag = fill(kit, "a")["a"]
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [Insert("a", {"n": 9})])
    assert (refused.value.index, refused.value.exists) == (0, True)
    row = kit.stores.runs.get(kit.name, "a")
    assert row is not None
    assert (row.etag, row.values["n"]) == (etag, 0)


def test_a_replace_takes_all_columns(kit: Kit) -> None:
    """Replacing writes exactly the given columns: a column left out is gone, and the ETag is new."""
    (etag,) = kit.stores.runs.commit(kit.name, [Insert("a", {"n": 1, "old": "x"})])
    (changed,) = kit.stores.runs.commit(kit.name, [Replace("a", {"n": 2, "new": "y"}, etag)])
    row = kit.stores.runs.get(kit.name, "a")
    assert row is not None
    assert dict(row.values) == {"n": 2, "new": "y"}
    assert row.etag == changed != etag


def test_a_replace_needs_the_etag_to_be_current(kit: Kit) -> None:
    """Replacing with an ETag that was read before somebody else's write is a conflict and changes nothing."""
    stale = fill(kit, "a")["a"]
    kit.stores.runs.commit(kit.name, [Replace("a", {"n": 1}, stale)])
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [Replace("a", {"n": 2}, stale)])
    assert (refused.value.index, refused.value.exists) == (0, False)
    row = kit.stores.runs.get(kit.name, "a")
    assert row is not None
    assert row.values["n"] == 1


def test_an_etag_read_is_the_etag_written(kit: Kit) -> None:
    """The ETag of a commit, of a read and of a scan are the same text, so any of them serves as condition."""
    written = fill(kit, "a")["a"]
    read = kit.stores.runs.get(kit.name, "a")
    (scanned,) = kit.stores.runs.scan(kit.name, "a", "b")
    assert read is not None
    assert written == read.etag == scanned.etag


def test_equal_content_is_still_a_change(kit: Kit) -> None:
    """Writing the same values again makes the old ETag stale: what counts is the write, not the content."""
    etag = fill(kit, "a")["a"]
    kit.stores.runs.commit(kit.name, [Replace("a", {"n": 0}, etag)])
    with pytest.raises(ConflictError):
        kit.stores.runs.commit(kit.name, [Replace("a", {"n": 0}, etag)])


@pytest.mark.parametrize(
    "write", [Replace("gone", {"n": 1}, ""), Delete("gone", "")], ids=["replace", "delete"]
)
def test_what_is_gone_cannot_be_written(kit: Kit, write: Replace | Delete) -> None:
    """Replacing or deleting a row that was deleted meanwhile is a conflict, and does not bring it back."""
    etag = fill(kit, "gone")["gone"]
    kit.stores.runs.commit(kit.name, [Delete("gone", etag)])
    again = Delete("gone", etag) if isinstance(write, Delete) else Replace("gone", {"n": 1}, etag)
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [again])
    assert not refused.value.exists
    assert kit.stores.runs.get(kit.name, "gone") is None


def test_a_delete_needs_the_etag_to_be_current(kit: Kit) -> None:
    """Deleting with a stale ETag is a conflict; with the current one the row is gone and can be inserted again."""
    stale = fill(kit, "a")["a"]
    (etag,) = kit.stores.runs.commit(kit.name, [Replace("a", {"n": 1}, stale)])
    with pytest.raises(ConflictError):
        kit.stores.runs.commit(kit.name, [Delete("a", stale)])
    assert kit.stores.runs.commit(kit.name, [Delete("a", etag)]) == [""]
    assert kit.stores.runs.get(kit.name, "a") is None
    fill(kit, "a")


# -- transactions --------------------------------------------------------------------------------------------------


def test_a_transaction_carries_out_all_its_writes(kit: Kit) -> None:
    """An insert, a replace and a delete in one transaction all happen, and the ETags come in their order."""
    etags = fill(kit, "a", "b")
    made = kit.stores.runs.commit(
        kit.name, [Insert("c", {"n": 1}), Replace("a", {"n": 2}, etags["a"]), Delete("b", etags["b"])]
    )
    found = {row.key: row.etag for row in kit.stores.runs.scan(kit.name, "", "~")}
    assert found == {"a": made[1], "c": made[0]}
    assert made[2] == ""


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_a_refused_write_undoes_the_transaction(kit: Kit, position: int) -> None:
    """One stale ETag among four writes refuses all of them, and the conflict names its position."""
    etags = fill(kit, "a", "b", "c", "d")
    (fresh,) = kit.stores.runs.commit(
        kit.name, [Replace("abcd"[position], {"n": 50}, etags["abcd"[position]])]
    )
    before = {row.key: dict(row.values) for row in kit.stores.runs.scan(kit.name, "", "~")}
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [Replace(key, {"n": 99}, etags[key]) for key in "abcd"])
    assert (refused.value.index, refused.value.exists) == (position, False)
    assert {row.key: dict(row.values) for row in kit.stores.runs.scan(kit.name, "", "~")} == before
    etags["abcd"[position]] = fresh
    kit.stores.runs.commit(kit.name, [Replace(key, {"n": 99}, etags[key]) for key in "abcd"])


@pytest.mark.parametrize("position", [1, 2])
def test_an_insert_that_exists_undoes_the_transaction(kit: Kit, position: int) -> None:
    """An insert of a row that exists refuses its whole transaction, and the conflict names its position."""
    etags = fill(kit, "a", "taken")
    writes: list[Any] = [Replace("a", {"n": 99}, etags["a"]), Insert("new", {"n": 99})]
    writes.insert(position, Insert("taken", {"n": 99}))
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, writes)
    assert (refused.value.index, refused.value.exists) == (position, True)
    assert {row.key: row.values["n"] for row in kit.stores.runs.scan(kit.name, "", "~")} == {
        "a": 0,
        "taken": 1,
    }


def test_a_deletion_is_undone_with_its_transaction(kit: Kit) -> None:
    """A row whose deletion shared a transaction with a refused write is still there."""
    etags = fill(kit, "a", "taken")
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [Delete("a", etags["a"]), Insert("taken", {"n": 1})])
    assert refused.value.index == 1
    assert keys_of(kit) == ["a", "taken"]


def test_a_transaction_takes_a_hundred_writes(kit: Kit) -> None:
    """A transaction of the largest size is carried out whole, or refused whole by its last write."""
    keys = [f"k{n:03d}" for n in range(MAX_TRANSACTION)]
    kit.stores.runs.commit(kit.name, [Insert(keys[-1], {"n": 1})])
    with pytest.raises(ConflictError) as refused:
        kit.stores.runs.commit(kit.name, [Insert(key, {"n": 2}) for key in keys])
    assert (refused.value.index, refused.value.exists) == (MAX_TRANSACTION - 1, True)
    assert keys_of(kit) == keys[-1:]
    assert (
        len(kit.stores.runs.commit(kit.name + "-2", [Insert(key, {"n": 2}) for key in keys]))
        == MAX_TRANSACTION
    )


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [Insert(f"k{n}", {"n": 1}) for n in range(MAX_TRANSACTION + 1)],
        [Insert("same", {"n": 1}), Insert("same", {"n": 2})],
    ],
    ids=["none", "too many", "one row twice"],
)
def test_a_transaction_that_cannot_be_is_an_error(kit: Kit, writes: list[Insert]) -> None:
    """No writes, too many, or two to one row are an error that is no conflict, and nothing is written."""
    with pytest.raises(StoreError) as refused:
        kit.stores.runs.commit(kit.name, writes)
    assert not isinstance(refused.value, ConflictError)
    assert keys_of(kit) == []


def test_of_many_who_write_at_once_one_wins(kit: Kit) -> None:
    """Eight writers with the same ETag, at the same instant: one succeeds, seven conflict, none is lost."""
    etag = fill(kit, "a")["a"]
    start = threading.Barrier(8)

    def attempt(n: int) -> int | None:
        start.wait()
        try:
            kit.stores.runs.commit(kit.name, [Replace("a", {"n": n}, etag)])
        except ConflictError:
            return None
        return n

    with ThreadPoolExecutor(8) as pool:
        winners = [n for n in pool.map(attempt, range(8)) if n is not None]
    row = kit.stores.runs.get(kit.name, "a")
    assert row is not None
    assert [row.values["n"]] == winners


def test_what_was_read_does_not_change(kit: Kit) -> None:
    """A row that was read is a value of its own: later writes do not reach into it."""
    etag = fill(kit, "a")["a"]
    row = kit.stores.runs.get(kit.name, "a")
    kit.stores.runs.commit(kit.name, [Replace("a", {"n": 5}, etag)])
    assert row is not None
    assert row.values["n"] == 0


def test_the_first_use_makes_the_table(azurite: str) -> None:
    """Reading, scanning and writing all work in an account that holds no table yet."""
    assert azure_stores(fresh_settings(azurite)).runs.get("p", "a") is None
    assert list(azure_stores(fresh_settings(azurite)).runs.scan("p", "", "~")) == []
    table = azure_stores(fresh_settings(azurite)).runs
    table.commit("p", [Insert("a", {"n": 1})])
    assert table.get("p", "a") is not None


def test_each_operation_is_one_request(azurite: str, calls) -> None:  # noqa: ANN001 - conftest's
    """Once the table exists, a read, a scan and a transaction of many writes cost one storage call each."""
    table = azure_stores(fresh_settings(azurite), transport=calls).runs
    table.commit("p", [Insert("a", {"n": 1})])
    calls.made.clear()
    table.get("p", "a")
    list(table.scan("p", "", "~"))
    table.commit("p", [Insert(f"b{n}", {"n": 1}) for n in range(50)])
    assert [made.partition(" ")[0] for made in calls.made] == ["GET", "GET", "POST"]


# -- several partitions ---------------------------------------------------------------------------------------------


def test_a_look_across_partitions(kit: Kit) -> None:
    """Partitions first <= name < last, keys in their range, in order; by a column, from a text on, at most n."""
    for shard, states in (("00", "ab"), ("01", "ba"), ("02", "cc")):
        rows = [Insert(f"k:{n}", {"state": state, "n": str(n)}) for n, state in enumerate(states)]
        kit.stores.runs.commit(f"{kit.name}|{shard}", [*rows, Insert("other", {"state": "a"})])
    kit.stores.runs.commit(f"{kit.name}~", [Insert("k:0", {"state": "a", "n": "0"})])

    def found(**options: Any) -> list[str]:
        pages = kit.stores.runs.scan_partitions(f"{kit.name}|", f"{kit.name}}}", keys=("k:", "k;"), **options)
        return [f"{partition.rpartition('|')[2]} {row.key} {row.values['state']}" for partition, row in pages]

    assert found() == ["00 k:0 a", "00 k:1 b", "01 k:0 b", "01 k:1 a", "02 k:0 c", "02 k:1 c"]
    assert found(one_of=("state", ["a"])) == ["00 k:0 a", "01 k:1 a"]
    assert found(one_of=("state", ["a", "it's"]), limit=1) == ["00 k:0 a"]
    assert found(since=("n", "1")) == ["00 k:1 b", "01 k:1 a", "02 k:1 c"]
    assert found(one_of=("state", ["b", "c"]), since=("n", "1")) == ["00 k:1 b", "02 k:1 c"]
    assert found(one_of=("no_such_column", ["a"])) == []
