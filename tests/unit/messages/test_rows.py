from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runonce.errors import NotKeptError, StoreError
from runonce.execution.registry import Registry
from runonce.messages.rows import (
    KEPT,
    LARGEST_OUTBOX,
    SHARDS,
    MessageRow,
    State,
    anew,
    check_outbox,
    closed,
    decode_message,
    effect_key,
    of_calls,
    partition,
    place,
)
from runonce.stores.columns import encode, to_text
from runonce.stores.memory import memory_stores
from runonce.stores.protocols import Row
from runonce.testing import ManualClock
from runonce.transports.ids import digest

NOW = datetime(2026, 1, 1, 3, 0, 0, 123456, tzinfo=UTC)

FULL = MessageRow(
    handler="send_invoice",
    entity="orders/billing",
    key="a/b#ü\n",
    state=State.UNKNOWN,
    reason="why",
    dead_as="InvalidBody",
    error="trace",
    holder="o-1",
    write_id="w-1",
    token=2**40,
    attempt=3,
    failures=2,
    abandoned=1,
    survived=1,
    generation=4,
    fingerprint="f",
    message_id="m-1",
    host="h",
    lease=60,
    started_at=NOW,
    finished_at=NOW,
    retry_at=NOW,
    expires_at=NOW,
    checkpoint='{"at":1}',
    progress={"lines": 7},
    steps={"charge": 0},
    follow_ups=5,
    outbox=({"to": "q", "id": "x", "body": "{}"},),
    replays=("2026-01-01T00:00:00Z",),
    attempts=({"attempt": "1", "outcome": "released", "error": "Traceback"},),
    superseded=("json-1",),
    returned="null",
)


def read(row: MessageRow) -> Row:
    return Row("claim:1", encode(row), "etag", NOW, NOW)


def test_a_row_survives_the_table() -> None:
    """Every column comes back as it was, and the sample fills every one of them."""
    assert decode_message(read(FULL)) == FULL
    empty = MessageRow("h", "e", "k")
    assert decode_message(read(empty)) == empty
    own = [f.name for f in fields(FULL) if f.name != "unknown"]
    unfilled = [name for name in own if getattr(FULL, name) == getattr(empty, name)]
    assert unfilled == []


@pytest.mark.parametrize(
    "change", [{"state": "lost"}, {"token": "x"}, {"outbox": "{"}, {"started_at": "soon"}, {"progress": 3}]
)
def test_a_row_edited_by_hand_is_told(change: dict[str, str | int]) -> None:
    """A row that cannot be read is an error that names the row and the remedy."""
    row = read(FULL)
    with pytest.raises(StoreError, match="claim:1 cannot be read"):
        decode_message(replace(row, values={**row.values, **change}))


def test_a_row_without_its_key_is_told() -> None:
    """A row that lacks what it cannot do without is an error that names the row and the column."""
    row = read(FULL)
    with pytest.raises(StoreError, match=r"claim:1 cannot be read.*'key'"):
        decode_message(replace(row, values={k: v for k, v in row.values.items() if k != "key"}))


def test_a_digest_knows_its_parts_apart() -> None:
    """Parts are told apart by their lengths, so moving a character from one to the next changes the hash."""
    assert digest("a", "bc") != digest("ab", "c")
    assert digest("a", "") != digest("", "a") != digest("a")
    assert digest("1:a") != digest("1", "a")


@settings(derandomize=True, deadline=None, database=None, max_examples=50)
@given(st.text(max_size=600), st.text(max_size=60))
def test_any_key_has_a_place(key: str, entity: str) -> None:
    """Any key has a place that tables allow, always the same one."""
    where, row_key = place("shop", entity, "send_invoice", key)
    assert (where, row_key) == place("shop", entity, "send_invoice", key)
    assert len(where) < 120
    assert len(row_key) < 120
    assert not set("/\\#?") & set(where + row_key)
    assert (where + row_key).isprintable()


def test_places_differ_by_each_of_their_parts() -> None:
    """Namespace, entity, handler and key each make another row: a second subscriber is no duplicate of the first."""
    ways = [
        ("shop", "orders/a", "h", "k"),
        ("shop2", "orders/a", "h", "k"),
        ("shop", "orders/b", "h", "k"),
        ("shop", "orders/a", "h2", "k"),
        ("shop", "orders/a", "h", "k2"),
    ]
    assert len({place(*way) for way in ways}) == len(ways)


def test_a_claims_address_does_not_change() -> None:
    """An address of today is that of every later version: elsewhere a claim would not be found."""
    assert place("shop", "q", "h", "k") == (
        "shop|h|01",
        "claim:d12d6208968ff15e832ca96501842a97cbc1fedf3d8ae6290a8e109481632ed5",
    )
    assert place("shop", "q", "h", "a") == (
        "shop|h|02",
        "claim:b39a7af551f8dbb4edeea5c5838db0dc534fb08a2e100aa4aa0368a711d73f98",
    )


def test_rows_spread_over_all_shards() -> None:
    """A handler's claims lie in all of its shards, so that one busy handler is not one hot partition."""
    used = {place("shop", "q", "h", str(n))[0] for n in range(500)}
    assert used == {partition("shop", "h", shard) for shard in range(SHARDS)}


def test_an_effect_lies_with_its_claim() -> None:
    """A row's effects have keys made of the claim's own, apart from the claims' range, and differ by name."""
    _, claim_key = place("shop", "q", "h", "k")
    first, second = effect_key(claim_key, "a/b"), effect_key(claim_key, "a#b")
    assert first != second
    assert first == f"effect:{claim_key.removeprefix('claim:')}:{digest('a/b')[:32]}"
    assert not "claim:" <= first < "claim;"


def test_the_idempotency_key_changes_with_a_replay_only() -> None:
    """It is the same for every attempt and token, and another one after an operator's replay."""
    row = MessageRow("h", "q", "k")
    assert row.idempotency_key == replace(row, attempt=3, token=9).idempotency_key
    assert row.idempotency_key != replace(row, generation=1).idempotency_key
    assert row.idempotency_key != replace(row, key="k2").idempotency_key
    assert row.idempotency_key != replace(row, entity="q2").idempotency_key


ENDED = replace(FULL, state=State.FAILED, dead_as="Failed", replays=(), superseded=("json-1", "json-2"))


def test_a_replay_keeps_what_was_done_of_the_same_body() -> None:
    """As a new generation, with the deaths and failures of the last one forgotten; its progress stays."""
    assert anew(ENDED, "f", NOW) == replace(
        ENDED,
        state=State.RELEASED,
        generation=5,
        dead_as="",
        failures=0,
        abandoned=0,
        survived=0,
        retry_at=None,
        expires_at=None,
        replays=(to_text(NOW),),
    )


def test_another_body_begins_from_nought() -> None:
    """What was done of the one before says nothing about it; that one is remembered, and a body that is back is not."""
    again = anew(ENDED, "f", NOW)
    fresh = {"checkpoint": "", "progress": {}, "steps": {}, "follow_ups": 0}
    assert anew(ENDED, "g", NOW) == replace(
        again, fingerprint="g", superseded=("json-1", "json-2", "f"), **fresh
    )
    assert anew(ENDED, "json-1", NOW).superseded == ("json-2", "f")
    many = replace(ENDED, superseded=tuple(map(str, range(KEPT))), replays=tuple(map(str, range(KEPT))))
    assert anew(many, "g", NOW).superseded == (*map(str, range(1, KEPT)), "f")
    assert anew(many, "g", NOW).replays == (*map(str, range(1, KEPT)), to_text(NOW))


def test_a_claim_that_was_never_ended_is_an_abandoned_attempt() -> None:
    """The record of an earlier attempt says how it ended, and as much of its reason as a list shows."""
    [one] = closed(replace(FULL, state=State.CLAIMED, attempts=(), reason="r" * 201))
    assert (one["outcome"], one["reason"]) == ("abandoned", "r" * 200)


def test_follow_ups_fit_to_the_character() -> None:
    """Up to the limit they are kept, half characters and all; one more is refused with the remedy."""
    check_outbox("h", [{"body": "x" * (LARGEST_OUTBOX - len('[{"body": ""}]'))}])
    check_outbox("h", [{"body": "\ud83d"}])
    over = [{"body": "🎉" + "x" * (LARGEST_OUTBOX - len('[{"body": ""}]') - 1)}]
    with pytest.raises(NotKeptError) as caught:
        check_outbox("h", over)
    assert str(caught.value) == (
        f"Handler h: its follow-up messages take {LARGEST_OUTBOX + 1} characters together, over {LARGEST_OUTBOX}; put "
        f"the data in a blob and send its name."
    )


def test_claims_of_calls_lie_beside_those_of_messages() -> None:
    """In a namespace of their own, and nothing else of where they are differs."""
    claims = Registry(memory_stores(ManualClock()).claims, "shop", ManualClock(), "host-1")
    assert of_calls(claims) == replace(claims, namespace="shop:once")
