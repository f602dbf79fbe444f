from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest

from runonce.errors import UnreadableRowError
from runonce.runs.rows import (
    Failure,
    JobRow,
    Outcome,
    Pending,
    RunRow,
    decode_job,
    decode_run,
    entry_key,
    job_key,
    key_range,
    run_key,
)
from runonce.stores.columns import LONGEST_COLUMN, column_problem, encode, from_text, to_text
from runonce.stores.protocols import Row

THREE = datetime(2026, 11, 29, 3, tzinfo=UTC)
FOUR = THREE + timedelta(hours=1)
SOON = datetime(2026, 11, 29, 3, 0, 1, 250_000, tzinfo=UTC)

FULL_JOB = JobRow(
    name="nightly",
    token=2**40,
    schedule="0 0 3 * * * Europe/Istanbul",
    watermark=THREE,
    paused_at=SOON,
    paused_why='maintenance "tonight", ş',
    running=THREE,
    holder="h",
    host="shop/01",
    pending={
        FOUR: Pending("missed", FOUR, by="shop/02"),
        THREE: Pending("running", SOON, asked_at=SOON),
    },
    last_fire_time=THREE,
    last_outcome="succeeded",
    last_finished_at=SOON,
    troubles={"failed": "2026-11-29T03:00:01Z", "missed": "2026-11-29T04:00:00Z"},
    last_reason="ValueError: ş",
    last_success=SOON,
    failed_in_a_row=2,
    failures=(Failure(THREE, '{"a":1}', Outcome.UNKNOWN, SOON),),
    took=(1.5, 2.0),
    attempt=2,
    progress={"items": 300},
    joins=(("2026-11-29T03:00:00Z", ""), ("2026-11-30T03:00:00Z", '{"a":1}')),
)
FULL_RUN = RunRow(
    job="nightly",
    fire_time=THREE,
    outcome=Outcome.RETRYING,
    reason="ValueError: ş",
    attempt=3,
    failures=2,
    abandoned=1,
    survived=1,
    generation=1,
    token=2**33,
    holder="h",
    write_id="w",
    host="shop/01",
    by="timer",
    why="abandoned",
    asked_by="shop/02",
    asked_at=SOON,
    skips=(("2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z", "paused"),),
    started_at=SOON,
    finished_at=SOON,
    retry_at=FOUR,
    error="Traceback\n …",
    checkpoint='{"page":7}',
    progress={"items": 300, "more": 0},
    fanned_out={"charge": 3},
    steps={"charge": {"id": "ç"}, "none": None},
    attempts=({"attempt": "1", "outcome": "abandoned"}, {"attempt": "2", "outcome": "retrying"}),
)


def stored(values: dict[str, Any]) -> Row:
    if "name" in values:
        return Row(job_key(values["name"]), values, "etag", SOON, SOON)
    key = run_key(values["job"], datetime.fromisoformat(values["fire_time"]), values["params"])
    return Row(key, values, "etag", SOON, SOON)


@pytest.mark.parametrize("row", [FULL_JOB, JobRow("fresh")], ids=["full", "fresh"])
def test_a_job_row_comes_back_as_it_was(row: JobRow) -> None:
    """Every field of a job's row, what is pending included, survives being written down."""
    assert decode_job(stored(encode(row))) == row


@pytest.mark.parametrize("row", [FULL_RUN, RunRow("nightly", THREE)], ids=["full", "fresh"])
def test_a_run_row_comes_back_as_it_was(row: RunRow) -> None:
    """Every field of a run's row, progress and earlier attempts included, survives being written down."""
    assert decode_run(stored(encode(row))) == row


@pytest.mark.parametrize(
    ("decode", "row", "change"),
    [
        (decode_job, FULL_JOB, {"name": "weekly"}),
        (decode_run, FULL_RUN, {"job": "weekly"}),
        (decode_run, FULL_RUN, {"fire_time": "2020-01-01T00:00:00Z"}),
        (decode_run, FULL_RUN, {"params": '{"region":"mars"}'}),
    ],
    ids=["job", "run's job", "fire time", "parameters"],
)
def test_a_row_that_says_it_is_another_one_is_told(decode: Any, row: Any, change: dict[str, str]) -> None:
    """A row whose columns were edited to be another row's is an error that names it, so that it overwrites none."""
    read = stored(encode(row))
    with pytest.raises(
        UnreadableRowError, match=f"Row {re.escape(read.key)} cannot be read.*those of (job|run):"
    ):
        decode(dataclasses.replace(read, values={**read.values, **change}))


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_comes_back(outcome: Outcome) -> None:
    """Each outcome is written as its word and read as itself."""
    values = encode(dataclasses.replace(FULL_RUN, outcome=outcome))
    assert values["outcome"] == str(outcome)
    assert type(values["outcome"]) is str
    assert decode_run(stored(values)).outcome is outcome


@pytest.mark.parametrize("row", [FULL_JOB, FULL_RUN], ids=["job", "run"])
def test_columns_are_plain_values(row: JobRow | RunRow) -> None:
    """A row is written as text, numbers and booleans only, which every table can hold."""
    assert {type(value) for value in encode(row).values()} <= {str, int, float, bool}
    assert [name for name, value in encode(row).items() if column_problem(name, value)] == []


@pytest.mark.parametrize("row", [FULL_JOB, FULL_RUN], ids=["job", "run"])
def test_every_field_is_a_column(row: JobRow | RunRow) -> None:
    """No field is forgotten when a row is written, so that none is lost when it is replaced whole."""
    own = {field.name for field in dataclasses.fields(row)} - {"unknown"}
    assert set(encode(row)) == {*own, "format"}


def test_the_newest_run_comes_first() -> None:
    """In the order of keys, a job's runs go from the newest back, over decades and for each second."""
    times = [
        THREE - timedelta(days=9000),
        THREE - timedelta(seconds=1),
        THREE,
        THREE + timedelta(seconds=1),
        THREE + timedelta(days=365),
        datetime(2280, 1, 1, tzinfo=UTC),
    ]
    keys = [run_key("nightly", t) for t in times]
    assert sorted(keys) == keys[::-1]
    assert len({len(key) for key in keys}) == 1


def test_a_run_key_is_the_instants() -> None:
    """The same instant in another zone is the same key."""
    elsewhere = THREE.astimezone(timezone(timedelta(hours=3)))
    assert run_key("nightly", elsewhere) == run_key("nightly", THREE)


@pytest.mark.parametrize(
    ("kind", "name", "inside", "outside"),
    [
        ("job", "", [job_key("a"), job_key("z-9_")], [run_key("a", THREE), entry_key("a", "k")]),
        (
            "run",
            "a",
            [run_key("a", THREE)],
            [run_key("ab", THREE), run_key("a-b", THREE), run_key("b", THREE)],
        ),
        (
            "entry",
            "a",
            [entry_key("a", "k"), entry_key("a", "ş"), entry_key("a", "~")],
            [entry_key("a-b", "k")],
        ),
    ],
)
def test_a_range_holds_one_jobs_rows(kind: str, name: str, inside: list[str], outside: list[str]) -> None:
    """A range read of a job's rows meets all of them and none of a job whose name begins alike."""
    first, last = key_range(kind, name)
    assert [key for key in inside if not first <= key < last] == []
    assert [key for key in outside if first <= key < last] == []


AWKWARD = [
    "a/b",
    "a\\b",
    "a#b",
    "a?b",
    "a\tb",
    "a\nb",
    "a\x7fb",
    "a\x85b",
    "a=b",
    "a%b",
    "a%2Fb",
    "a=2Fb",
    "a_2Fb",
    "a-2Fb",
    "a.2Fb",
    "a~2Fb",
    "ş",
    "a:b",
]


@pytest.mark.parametrize(
    "key", [*AWKWARD, "a b", " a ", "it's", 'say "x"', "\N{PILE OF POO}", "+&;,"], ids=quote
)
def test_an_entrys_key_is_one_that_tables_take(key: str) -> None:
    """Whatever an entry's key holds, its row's key has nothing that tables or addresses refuse."""
    made = entry_key("nightly", key).removeprefix("entry:nightly:")
    assert made
    assert all(c.isascii() and c.isprintable() and c not in "/\\#?%+&'\"" for c in made)


def test_different_entries_have_different_keys() -> None:
    """No two keys are written alike, not even one that looks like another's escape."""
    assert len({entry_key("nightly", key) for key in AWKWARD}) == len(AWKWARD)
    assert entry_key("nightly", "a/b") != entry_key("nightly", "a=2Fb")


@pytest.mark.parametrize("instant", [THREE, SOON, FOUR.astimezone(timezone(timedelta(hours=-8))), None])
def test_an_instant_comes_back(instant: datetime | None) -> None:
    """An instant is kept in UTC with a Z, to the microsecond, and none as an empty text."""
    text = to_text(instant)
    assert from_text(text) == instant
    assert text == "" or text.endswith("Z")


def test_a_replay_is_another_effect() -> None:
    """The idempotency key is the same for every attempt and another one after an operator's replay."""
    run = RunRow("nightly", THREE)
    assert run.idempotency_key == "nightly:20261129T030000Z"
    assert dataclasses.replace(run, attempt=7, token=9, holder="x").idempotency_key == run.idempotency_key
    assert dataclasses.replace(run, generation=1).idempotency_key == "nightly:20261129T030000Z:1"


def test_final_outcomes_are_those_nothing_starts_again() -> None:
    """Succeeded, failed, skipped, unknown and cancelled are final; the others go on by themselves."""
    assert {outcome for outcome in Outcome if outcome.is_final} == {
        Outcome.SUCCEEDED,
        Outcome.FAILED,
        Outcome.SKIPPED,
        Outcome.UNKNOWN,
        Outcome.CANCELLED,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RowKey", "x"),
        ("PartitionKey", "x"),
        ("Timestamp", "x"),
        ("", "x"),
        ("invoice-id", "x"),
        ("first name", "x"),
        ("1st", "x"),
        ("a.b", "x"),
        ("a@odata.type", "x"),
        ("a" * 256, "x"),
        ("a\u00b7", "x"),
        ("a\u200d", "x"),
        ("a", "\udc00"),
        ("a", None),
        ("a", b"x"),
        ("a", [1]),
        ("a", THREE),
        ("a", 2**63),
        ("a", -(2**63) - 1),
        ("a", "x" * (LONGEST_COLUMN + 1)),
        ("a", "\N{PILE OF POO}" * (LONGEST_COLUMN // 2 + 1)),
    ],
    ids=lambda value: quote(repr(value)[:20]),
)
def test_what_no_table_holds_is_told(name: str, value: object) -> None:
    """A column that the table would refuse, or that would overwrite the row's key, is found before it is written."""
    assert column_problem(name, value)


@pytest.mark.parametrize(
    "value", [2**63 - 1, -(2**63), "x" * LONGEST_COLUMN, "", 0.5, True], ids=lambda value: repr(value)[:20]
)
def test_what_a_table_holds_is_fine(value: object) -> None:
    """The largest numbers and texts a table takes are taken."""
    assert column_problem("rowkey", value) is None


@pytest.mark.parametrize("name", ["a", "_", "_1", "Größe", "数量", "a" * 255, "x\u0301"], ids=quote)
def test_a_name_that_azure_takes_is_fine(name: str) -> None:
    """C# identifiers of any alphabet are names of columns."""
    assert column_problem(name, 1) is None
