"""What subscription filters mean: nothing here needs Proton or a running broker."""

from __future__ import annotations

from typing import Any

import pytest

from servicebus import filters, values
from servicebus.message import Message


def message(properties: dict[str, Any], **system: str) -> Message:
    """A message as it is read off the wire."""
    places = {
        "message_id": 0,
        "to": 2,
        "subject": 3,
        "correlation_id": 5,
        "content_type": 6,
        "session_id": 10,
    }
    fields = [values.NULL] * 13
    for name, text in system.items():
        fields[places[name]] = values.string(text)
    flat = b"".join(fields)
    listed = b"\xd0" + (len(flat) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + flat
    encoded = {values.string(name): _encoded(value) for name, value in properties.items()}
    return Message.parse(
        b"\x00\x53\x73" + listed + b"\x00\x53\x74" + values.encode_map(encoded) + b"\x00\x53\x75\xa0\x02hi"
    )


def _encoded(value: Any) -> bytes:
    if value is None:
        return values.NULL
    if isinstance(value, bool):
        return b"\x41" if value else b"\x56\x00"
    return values.long(value) if isinstance(value, int) else values.string(value)


ORDER = message(
    {
        "total": 7,
        "Country": "NO",
        "urgent": True,
        "late": False,
        "note": None,
        "my-name": "a_b",
        "odd": "it's 5%",
    },
    message_id="m-1",
    subject="paid",
    correlation_id="c-1",
)


@pytest.mark.parametrize(
    "text",
    [
        "1 = 1",
        "total = 7",
        "total > 6.5 AND total <= 7 AND total <> 8 AND total != 8",
        "user.total = 7 and USER.TOTAL < 1e1",
        "country = 'NO'",
        "sys.Label = 'paid' AND sys.CorrelationId = 'c-1' AND sys.MessageId LIKE 'm-%'",
        "total = 1 OR country = 'NO' AND urgent = TRUE",
        "(total = 1 OR country = 'NO') AND NOT late",
        "urgent",
        "NOT total = 1",
        "total IN (1, 2, 7)",
        "total NOT IN (1, 2)",
        "country LIKE 'N_' AND country NOT LIKE '_'",
        "[my-name] LIKE 'a!_b' ESCAPE '!' AND NOT [my-name] LIKE 'a!_' ESCAPE '!'",
        "country LIKE '%N%O%' AND 'abcabd' LIKE 'a%b%bd' AND 'ab' LIKE '%%a%_' AND '' LIKE '%'",
        f"total < {'9' * 5000}",
        "\"my-name\" = 'a_b'",
        "odd = 'it''s 5%'",
        "note IS NULL AND missing IS NULL AND total IS NOT NULL",
        "EXISTS(note) AND NOT EXISTS(missing)",
        "total + 1 = 8 AND total * 2 - 4 = 10 AND -total = -7 AND total % 4 = 3 AND total / 2 = 3.5",
        "2 * (total + 1) = 16 AND country + '!' = 'NO!'",
        "property('my-name') = 'a_b' AND p(total) = 7",
    ],
)
def test_a_filter_lets_its_message_pass(text: str) -> None:
    """Comparisons, logic, sets, patterns, nulls and sums hold for a message they describe."""
    assert filters.compiled(text)(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "total = 8",
        "country = 'no'",
        "total = '7'",
        "urgent = 1",
        "missing = 1",
        "missing <> 1",
        "NOT missing = 1",
        "missing IN (1)",
        "missing NOT IN (1)",
        "total NOT IN (1, missing)",
        "missing LIKE '%'",
        "missing NOT LIKE 'x'",
        "total LIKE '7'",
        "note = NULL",
        "missing = 1 AND total = 7",
        "total / 0 = 1",
        "country * 2 = 'NONO'",
        "odd % 5 IS NOT NULL OR 'n%m' % 1 IS NOT NULL",
        "urgent + 1 = 2",
        "sys.To IS NOT NULL",
        "total",
    ],
)
def test_what_is_false_or_unknown_does_not_pass(text: str) -> None:
    """A property that is not there makes a condition unknown, negated or not, as a comparison of kinds does."""
    assert not filters.compiled(text)(ORDER)


@pytest.mark.timeout(20)
def test_a_pattern_takes_no_longer_with_more_wildcards() -> None:
    """Whatever somebody's filter and message are, the broker goes on."""
    assert not filters.compiled(f"'{'a' * 2000}' LIKE '{'%_%a' * 40}b'")(ORDER)
    assert not filters.compiled("'aba' LIKE '%a%a%a%'")(ORDER)


@pytest.mark.parametrize(
    ("declared", "passes"),
    [
        ({"subject": "paid"}, True),
        ({"label": "paid", "correlationId": "c-1", "properties": {"country": "NO", "total": 7}}, True),
        ({"correlation_id": "c-1", "message_id": "m-1"}, True),
        ({"subject": "Paid"}, False),
        ({"subject": "paid", "properties": {"total": "7"}}, False),
        ({"properties": {"missing": "x"}}, False),
        ({"to": "x"}, False),
    ],
)
def test_a_correlation_filter_needs_every_property_equal(declared: dict[str, Any], passes: bool) -> None:
    """Each property it names must be there with the same value and kind; those it does not name do not count."""
    assert filters.compiled(declared)(ORDER) is passes


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("total =", "character 8: a property or a value was expected, not the end"),
        ("total = 1 2", "the end was expected, not 2"),
        ("(total = 1", r"\) was expected"),
        ("total ~ 1", "character 7: '~' starts nothing"),
        ("name = 'open", '"\'" starts nothing'),
        ("sys.Colour = 'red'", "no system property Colour; there are contenttype, correlationid, label"),
        ("order.total = 1", r"order is no scope; there are sys and user, and \[order.total\] is one name"),
        ("newid() = 1", "the function newid is not known"),
        ("total NOT 7", "IN or LIKE was expected"),
        ("total IS 7", "NULL was expected"),
        ({"colour": "red"}, "no property 'colour'; there are messageid, to, label"),
    ],
)
def test_a_wrong_filter_is_named_with_its_place(declared: Any, problem: str) -> None:
    """What is no filter is refused when it is declared, not when a message comes."""
    with pytest.raises(ValueError, match=problem):
        filters.compiled(declared)
