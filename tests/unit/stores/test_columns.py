from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runonce.errors import StoreUnavailableError, UnreadableRowError
from runonce.messages.rows import MessageRow, State
from runonce.runs.rows import JobRow, RunRow
from runonce.stores.columns import FORMAT, _columns, _reader, decode, encode, instant
from runonce.stores.protocols import Row

FIXTURES = sorted((Path(__file__).parent / "rows").glob("format_*.json"))
"""Rows with every column filled, as each format wrote them. Never changed; a new format adds a file."""
KINDS: dict[str, Any] = {"job": JobRow, "run": RunRow, "message": MessageRow}
GONE: dict[str, Any] = {"job": {}, "run": {}, "message": {"result": "null"}}
"""Columns that there are no more, and that are kept where they are."""
LATER = {
    "job": {
        *("since", "marks", "more", "last_params", "history_from", "last_reason", "last_success"),
        *("failed_in_a_row", "failures", "took", "attempt", "progress", "troubles", "joins"),
    },
    "run": {
        *("survived", "decisions", "params", "follow_ups", "outbox", "why", "asked_by", "asked_at", "skips"),
        *("steps", "fanned_out"),
    },
    "message": {"survived", "superseded", "dead_as", "attempts", "steps", "returned"},
}
"""Columns that came after the latest format, which needs no new one for them."""
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def unknown_rows() -> None:
    """Each test is the first that reads a row of its kind."""
    _columns.cache_clear()


def stored(values: Any) -> Row:
    return Row("key", values, "etag", NOW, NOW)


def test_each_format_has_its_rows() -> None:
    """There is a fixture for every format that was ever written."""
    assert [file.stem for file in FIXTURES] == [f"format_{number}" for number in range(FORMAT + 1)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_rows_of_every_format_are_read(file: Path, name: str) -> None:
    """A row of any earlier format says what it said then, and nothing of it is lost when it is written again."""
    values = json.loads(file.read_text(encoding="utf-8"))[name]
    row = decode(KINDS[name], stored(values))
    assert row.unknown == GONE[name]
    own = [field.name for field in fields(row) if field.name != "unknown"]
    empty = [column for column in own if getattr(row, column) in (None, "", 0, (), {})]
    assert set(empty) == LATER[name]
    assert decode(KINDS[name], stored(encode(row))) == row


@pytest.mark.parametrize(
    "row",
    [JobRow("nightly", token=7), RunRow("nightly", NOW, token=7), MessageRow("h", "q", "k", token=7)],
    ids=["job", "run", "message"],
)
def test_a_row_without_a_column_has_its_default(row: Any) -> None:
    """Each column but those that say whose row it is may be missing, as in a row of a release that lacked it."""
    for column in encode(row):
        if column not in ("name", "job", "fire_time", "handler", "entity", "key"):
            values = {name: value for name, value in encode(row).items() if name != column}
            read = decode(type(row), stored(values))
            assert read == (replace(row, token=0) if column == "token" else row)


@pytest.mark.parametrize(
    ("hint", "column", "value"),
    [
        (str, "a", "a"),
        (int, "7", 7),
        (State, "done", State.DONE),
        (datetime, "2026-11-30T00:00:00Z", NOW),
        (datetime | None, "2026-11-30T00:00:00Z", NOW),
        (datetime | None, "", None),
        (Mapping[str, int], '{"a":1}', {"a": 1}),
        (tuple[str, ...], '["ab"]', ("ab",)),
        (tuple[Mapping[str, str], ...], '[{"a":"b"}]', ({"a": "b"},)),
        (tuple[tuple[str, str], ...], '[["a","b"]]', (("a", "b"),)),
    ],
)
def test_a_column_is_read_by_its_fields_type(hint: Any, column: str, value: object) -> None:
    """What a table keeps as text or a number comes back as what the field is."""
    read = _reader(hint)(column)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(("hint", "column"), [(Mapping[str, int], "[]"), (tuple[str, ...], "{}")])
def test_nothing_of_another_kind_is_no_nothing(hint: Any, column: str) -> None:
    """An empty list in a column of names and values, or the other way round, is told as any other value is."""
    with pytest.raises(TypeError):
        _reader(hint)(column)


@pytest.mark.parametrize("text", ["2026-11-30T00:00:00Z", "2026-11-30T02:00:00+02:00"])
def test_an_instant_is_in_utc_whatever_it_was_written_in(text: str) -> None:
    """Not in the machine's own zone, which is another on another host."""
    read = instant(text)
    assert read == NOW
    assert read.tzinfo is UTC


def test_a_column_of_a_newer_release_is_kept() -> None:
    """What this version does not know goes back to the table as it came."""
    row = decode(JobRow, stored({**encode(JobRow("nightly")), "colour": "red"}))
    assert encode(replace(row, token=9))["colour"] == "red"


def test_a_newer_format_is_refused_by_name() -> None:
    """A row that this version would misunderstand is left to those that know it, and says so."""
    with pytest.raises(
        UnreadableRowError, match=rf"Row key has format {FORMAT + 1}.*newer version"
    ) as caught:
        decode(JobRow, stored({**encode(JobRow("nightly")), "format": FORMAT + 1}))
    assert not isinstance(caught.value, StoreUnavailableError)


@pytest.mark.parametrize(
    "change", [{"format": "x"}, {"token": "x"}, {"pending": "[1]"}, {"watermark": "soon"}]
)
def test_a_row_edited_by_hand_is_told(change: dict[str, str]) -> None:
    """A column of another type is an error that names the row, whatever is in it."""
    with pytest.raises(UnreadableRowError, match="Row key cannot be read"):
        decode(JobRow, stored({**encode(JobRow("nightly")), **change}))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("job", {"watermark": "2026-11-29T03:00:00"}),
        ("job", {"watermark": "0001-01-01T00:00:00+14:00"}),
        ("job", {"token": float("inf")}),
        ("job", {"format": float("inf")}),
        ("job", {"took": '["long"]'}),
        ("job", {"took": "{}"}),
        ("job", {"troubles": "[" * 100_000}),
        ("job", {"troubles": '{"failed": 7}'}),
        ("job", {"marks": '{"0 0 3 * * * UTC": ["2026-11-29", "2026-11-29"]}'}),
        ("job", {"failures": '[["2026-11-29T03:00:00Z", 7, "failed", "2026-11-29T03:00:00Z"]]'}),
        ("job", {"pending": '{"2026-11-29T03:00:00Z": {"why": [], "not_before": "2026-11-29T03:00:00Z"}}'}),
        ("run", {"skips": '[["2026-11-29T03:00:00Z"]]'}),
        ("run", {"attempts": '["first"]'}),
        ("message", {"outbox": '["x"]'}),
        ("message", {"progress": '{"items": "many"}'}),
        ("message", {"replays": '"2026"'}),
    ],
)
def test_a_column_of_another_kind_is_told_when_it_is_read(kind: str, change: dict[str, Any]) -> None:
    """What a column holds is of its field's type down to its parts, or the error names the row: never later trouble."""
    values = json.loads(FIXTURES[-1].read_text(encoding="utf-8"))[kind]
    with pytest.raises(UnreadableRowError, match="Row key cannot be read"):
        decode(KINDS[kind], stored(values | change))
