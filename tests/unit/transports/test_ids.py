from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runonce.transports.ids import (
    LONGEST_ID,
    copy_id,
    fingerprint,
    follow_up_id,
    known_id,
    replay_id,
    root,
    sent_id,
)

quick = settings(derandomize=True, deadline=None, database=None, max_examples=100)
SENDER = ("orders", "import_orders", "file-1", 0)


# -- fingerprints ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "same",
    [
        '{"b": [1, 2], "a": "é"}',
        '\ufeff{"a":"é","b":[1,2]}',
        ' {"a" : "\\u00e9" ,\n\t"b":[1.0, 2e0]}\n',
        '{"a": "x", "a": "é", "b": [1, 2]}',
    ],
    ids=["order", "mark", "spelling", "field-twice"],
)
def test_the_same_json_in_other_bytes_has_the_same_fingerprint(same: str) -> None:
    """Order, white space, escapes, a byte order mark and the spelling of numbers do not count."""
    assert fingerprint(same.encode()) == fingerprint('{"a":"é","b":[1,2]}'.encode())


def test_a_number_that_no_float_keeps_is_the_same_in_any_spelling() -> None:
    """A decimal of another client's, of more digits than a float has, does not make a body's spelling count."""
    spelt = ["1.12345678901234567890", "112345678901234567.8900e-17", "1.1234567890123456789"]
    of = {fingerprint(f'{{"n":{number}, "a": 1}}'.encode()) for number in spelt}
    assert len(of) == 1
    assert fingerprint(b'{"a":1,"n":1.1234567890123456788}') not in of
    assert fingerprint(b'{"a": 1, "n": 1.1234567890123456789}') in of


def test_what_says_something_else_has_another_fingerprint() -> None:
    """A number and its text, two large numbers a float would make one, a list's order, and plain bytes differ."""
    bodies = [
        b"1",
        b'"1"',
        b"1.5",
        b'"1.5"',
        b"[1,2]",
        b"[2,1]",
        b"0.1",
        b"0.10000000000000000001",
        b"123456789012345678",
        b"123456789012345679",
        b"1e400",
        b"1e401",
        b"true",
        b"null",
        b"",
        b" ",
        b"{",
        b"{ ",
        b"\xff",
        b"[" * 100_000,
        b"9" * 5_000,
        b'{"a":"\\ud800"}',
        b'{"a":"\\ud801"}',
        b'{"a":{}}',
        b'{"a":[]}',
    ]
    assert len({fingerprint(body) for body in bodies}) == len(bodies)
    assert fingerprint(b"-0") == fingerprint(b"0.0") == fingerprint(b"0")
    assert fingerprint(b"1e2") == fingerprint(b"100") == fingerprint(b"100.00")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@quick
@given(JSON, JSON)
def test_bodies_are_one_exactly_when_their_json_is(one: object, other: object) -> None:
    """Two JSON values have one fingerprint when and only when they are equal, however they are written."""
    first, second = fingerprint(json.dumps(one).encode()), fingerprint(json.dumps(other).encode())
    assert (first == second) == (_plain(one) == _plain(other))
    assert first == fingerprint(json.dumps(one, ensure_ascii=False, indent=2, sort_keys=True).encode())


def _plain(value: object) -> str:
    """The value with its whole numbers as such, as a text: Python takes True for 1."""

    def whole(inner: object) -> object:
        if isinstance(inner, float) and inner.is_integer():
            return int(inner)
        if isinstance(inner, list):
            return [whole(one) for one in inner]
        return {k: whole(v) for k, v in inner.items()} if isinstance(inner, dict) else inner

    return json.dumps(whole(value), sort_keys=True)


# -- ids ---------------------------------------------------------------------------------------------------------

PARTS = st.sampled_from(["", "a", "b", "a:b", "x" * 127 + "1", "x" * 127 + "2", "ü\x00", "a~r1"])
BODIES = st.sampled_from([b"", b"1", b"2", b'{"a":1,"b":2}', b"\xff"])


@pytest.mark.slow
@quick
@given(
    st.lists(st.tuples(PARTS, PARTS, PARTS, BODIES, st.integers(0, 12)), min_size=2, max_size=6, unique=True)
)
def test_messages_that_differ_have_ids_that_differ(told: list[tuple[str, str, str, bytes, int]]) -> None:
    """Entity, handler, key, body, and ordinal, generation or copy: what differs in one of them has another id."""
    ids: list[str] = []
    for entity, handler, key, body, number in told:
        ids += [
            follow_up_id(entity, handler, body, sender=SENDER, ordinal=number, key=key),
            follow_up_id(entity, handler, body, sender=(*SENDER[:3], number + 1), ordinal=0, key=key),
            copy_id(entity, handler, key, body, number + 1),
            replay_id(entity, handler, key, body, number, "17"),
            replay_id(entity, handler, key, body, number, "18"),
        ]
        if number == 0:
            ids.append(sent_id(entity, handler, key, body))
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= LONGEST_ID


@quick
@given(PARTS, PARTS, PARTS, st.text(max_size=10), st.integers(0, 10**6))
def test_the_same_message_has_the_same_id(
    entity: str, handler: str, key: str, text: str, number: int
) -> None:
    """Made again, in another process too, an id is the same; and what is sent is known by what its JSON says."""
    body = json.dumps({"b": text, "a": 1}).encode()
    again = json.dumps({"a": 1.0, "b": text}, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    assert sent_id(entity, handler, key, body) == sent_id(entity, handler, key, again)
    for make in (
        lambda: follow_up_id(entity, handler, body, sender=SENDER, ordinal=number),
        lambda: copy_id(entity, handler, key, body, number + 1),
        lambda: replay_id(entity, handler, key, body, number, "17"),
    ):
        assert make() == make()


def test_follow_ups_differ_by_their_sender() -> None:
    """Two messages that each send the same follow-up send two: entity, handler, key and generation of the sender."""
    senders = [
        SENDER,
        ("orders2", *SENDER[1:]),
        ("orders", "h", "file-1", 0),
        ("orders", "import_orders", "f", 0),
    ]
    made = [follow_up_id("q", "h", b"1", sender=sender, ordinal=0) for sender in senders]
    assert len(set(made)) == len(made)


def test_an_id_says_what_it_is_of() -> None:
    """People recognise the message: queue and key first, then what tells it apart, then which copy it is."""
    sent = sent_id("invoices", "send_invoice", "A-17", b"{}")
    assert sent.startswith("invoices:A-17~")
    copy = copy_id("invoices", "send_invoice", sent, b"{}", 1)
    assert copy.startswith(sent)
    assert copy.endswith("~r1")


def test_a_copy_of_a_copy_does_not_grow_and_knows_its_root() -> None:
    """Each copy's id differs from all before it, is as long as the first, and leads back to the same message."""
    for first in (
        "m-1",
        sent_id("q" * 200, "h", "k", b""),
        replay_id("q", "h", "k" * 200, b"", 3, "1"),
        "m~r5",
    ):
        made = [first]
        for times in range(1, 200):
            made.append(copy_id("q", "h", made[-1], b"{}", times))
        assert len(set(made)) == len(made)
        assert {root(one) for one in made[1:]} == {first}
        assert max(map(len, made)) <= LONGEST_ID
        assert made[9].endswith("~r9")
        assert len(made[1]) == len(made[9])


def test_copies_of_long_ids_that_differ_at_their_end_stay_apart() -> None:
    """Copies of two messages never share an id, or duplicate detection would drop the second one."""
    made = [copy_id("q", "h", "x" * 127 + end, b"", 1) for end in "12"]
    again = [copy_id("q", "h", one, b"", 2) for one in made]
    assert len({*made, *again}) == 4
    assert all(len(one) <= LONGEST_ID for one in itertools.chain(made, again))


def test_what_people_know_a_message_by_is_one_short_line() -> None:
    """Queue and key, without what would break a line of a log or obey a terminal, and not longer than an id."""
    assert known_id("invoices", "A-17 ü") == "invoices:A-17 ü"
    assert known_id("invoices", "a\nb\x1b[2J") == "invoices:a_b_[2J"
    assert len(known_id("q", "x" * 512)) == LONGEST_ID
