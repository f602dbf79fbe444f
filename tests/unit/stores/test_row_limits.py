"""What fits into a row, to the byte, and the words for what does not."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from runonce.errors import UnreadableRowError
from runonce.runs.rows import JobRow
from runonce.stores.columns import (
    KEPT_ATTEMPTS,
    KEYS_SIZE,
    LARGEST_ATTEMPTS,
    LARGEST_ROW,
    LONGEST_TEXT,
    MOST_COLUMNS,
    OVERHEAD,
    column_problem,
    compact,
    decode,
    encode,
    fitting,
    instant,
    json_text,
    payload,
    row_problem,
    shortened,
    to_text,
    valid,
)
from runonce.stores.protocols import Row

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def units(value: Any) -> int:
    """UTF-16 units of a value's JSON."""
    return len(compact(value).encode("utf-16-le")) // 2


def test_half_a_character_is_written_out() -> None:
    """An error's text may hold half an emoji; what no table or broker takes is kept as what it is in code."""
    assert valid("a\ud83db") == "a\\ud83db"
    assert valid("🎉 ü") == "🎉 ü"


def test_a_long_error_is_cut_with_a_mark() -> None:
    """As long as fits stays whole; one character more, and the last that fits is the mark."""
    assert shortened("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert shortened("x" * (LONGEST_TEXT + 1)) == "x" * (LONGEST_TEXT - 1) + "…"
    assert shortened("\ud83d") == "\\ud83d"


def test_only_tracebacks_make_room_for_newer_attempts() -> None:
    """As long as they fit all stay whole; beyond that the oldest lose their error, and nothing but that."""
    empty = [{"attempt": str(n), "error": "", "reason": "no"} for n in range(3)]
    room = LARGEST_ATTEMPTS - units(empty)
    full = [{**empty[0], "error": "x" * (room - 2)}, {**empty[1], "error": "y"}, {**empty[2], "error": "z"}]
    assert units(full) == LARGEST_ATTEMPTS
    assert fitting(full) == tuple(full)
    over = [{**full[0], "error": "x" * (room - 1)}, *full[1:]]
    assert fitting(over) == (empty[0], *full[1:])


def test_the_newest_attempts_are_kept() -> None:
    """As many as a row keeps, however short."""
    many = [{"attempt": str(n)} for n in range(KEPT_ATTEMPTS + 2)]
    assert fitting(many) == tuple(many[2:])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("RowKey", 1, "tables keep that name for themselves; use another"),
        ("1st", 1, "a column's name is 1 to 255 letters, digits and _, not a digit first; use another"),
        ("at", NOW, "it is a datetime; a column is text, a number or a boolean"),
        ("n", 2**63, "a whole number has at most 64 bits; keep it as text"),
        ("t", "x" * 32_001, "a text has at most 32000 characters; keep it in a blob"),
        (
            "t",
            chr(0xD800),
            "it is not valid Unicode: it holds half a surrogate pair, as of an emoji cut in two",
        ),
        (
            "t",
            chr(0xDFFF),
            "it is not valid Unicode: it holds half a surrogate pair, as of an emoji cut in two",
        ),
    ],
    ids=["reserved", "a digit first", "no column's type", "whole", "long", "half", "the other half"],
)
def test_what_a_column_cannot_hold_is_said_with_the_remedy(name: str, value: Any, problem: str) -> None:
    """One sentence for each: what is wrong, and what to do instead."""
    assert column_problem(name, value) == problem


def test_a_row_has_so_many_columns() -> None:
    """The last one that fits is taken, the next is refused with the number."""
    values = {f"c{n}": n for n in range(MOST_COLUMNS)}
    assert row_problem(values) is None
    assert row_problem({**values, "d": 1}) == (
        f"it has {MOST_COLUMNS + 1} columns with the toolkit's own, over {MOST_COLUMNS}; keep some in a blob"
    )


@pytest.mark.parametrize(("value", "size"), [(7, 8), (True, 8), ("aé🎉", 4 + 2 * 4)])
def test_a_row_has_so_many_bytes(value: Any, size: int) -> None:
    """Each column takes its name, 8 bytes and its value, text in UTF-16: up to the limit it fits, and no further."""
    taken = 2 * len("name") + 8 + size
    rest = LARGEST_ROW - KEYS_SIZE - taken - (2 + 8 + 4)
    values = {"name": value, "t": "x" * (rest // 2)}
    assert row_problem(values) is None
    assert row_problem({"name": value, "t": "x" * (rest // 2 + 1)}) == (
        f"it takes {LARGEST_ROW + 2:,} bytes, over {LARGEST_ROW:,}; keep the data in a blob"
    )


def test_a_row_on_its_way_is_larger_than_its_values() -> None:
    """Its request's headers, address and types count, and every character as the JSON that is sent has it."""
    assert payload({"a": "é"}) == len('{"a": "\\u00e9"}') + OVERHEAD


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no zone of a process's own")
def test_an_instant_is_kept_in_utc(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Whatever zone it came in, and whatever zone the machine is in."""
    request.addfinalizer(
        time.tzset
    )  # after the zone is as it was, for a fixture that is asked for later ends before
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    kolkata = timezone(timedelta(hours=5, minutes=30))
    assert to_text(datetime(2026, 1, 1, 5, 30, tzinfo=kolkata)) == "2026-01-01T00:00:00Z"
    assert to_text(None) == ""


def test_what_cannot_be_read_says_why() -> None:
    """The error names the row, what went wrong, and the remedy."""
    row = Row("job:nightly", {**encode(JobRow("nightly")), "progress": "[1]"}, "etag", NOW, NOW)
    with pytest.raises(UnreadableRowError) as caught:
        decode(JobRow, row)
    assert str(caught.value) == (
        "Row job:nightly cannot be read (TypeError: list where Mapping belongs): it was edited by hand, or written "
        "by something else. Correct the column; what is due stays due until it can be read."
    )


def test_json_is_written_as_shortly_as_its_characters_allow() -> None:
    """Characters as they are, but for a text with half of one, which is escaped and reads back the same."""
    assert json_text({"a": ["é", 1]}) == '{"a":["é",1]}'
    half = {"a": ["é\ud83d", 1]}
    assert json_text(half) == '{"a":["\\u00e9\\ud83d",1]}'
    assert json.loads(json_text(half)) == half


def test_an_instant_without_an_offset_is_refused() -> None:
    """Nobody could say when it was; one with another offset is the same instant in UTC."""
    with pytest.raises(ValueError, match=r"^'2026-01-01T00:00:00' has no offset$"):
        instant("2026-01-01T00:00:00")
    assert instant("2026-01-01T05:30:00+05:30").isoformat() == "2026-01-01T00:00:00+00:00"
