"""The words of what is no schedule: the expression, the field, what is wrong with it, and what to write."""

from __future__ import annotations

import pytest

from runonce.schedules.ncrontab import KINDS, compact, read
from runonce.schedules.schedule import ScheduleError

SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY = KINDS


@pytest.mark.parametrize(
    ("expression", "problem", "remedy"),
    [
        (None, " is not text", 'Write six fields in one string, such as "0 0 3 * * *" for 03:00 every day.'),
        (" ", " is empty", 'Write six fields, such as "0 0 3 * * *" for 03:00 every day.'),
        (
            "0 0 3 * * ü",
            " contains a line break or a character that is not plain ASCII",
            "Type it again by hand, on one line.",
        ),
        (" @Daily", " is a shorthand the hosts do not know", 'Write "0 0 0 * * *" instead.'),
        (
            "3",
            " has 1 field",
            "Write six: second minute hour day-of-month month day-of-week (or five, without the second).",
        ),
        (
            "0 0 3 *",
            " has 4 fields",
            "Write six: second minute hour day-of-month month day-of-week (or five, without the second).",
        ),
        ("0 0 3 1,,2 * *", ": its day-of-month '' has an empty place in its list", "Remove the extra comma."),
        (
            "0 0 20-4 * * *",
            ": its hour '20-4' is a range that runs backwards",
            'Write "20-23,0-4" if it is to wrap around, or swap its ends.',
        ),
        (
            "0 */60 * * * *",
            ": its minute '*/60' has a step that is not a number from 1 to 59",
            "Use a step within that, or name the values one by one.",
        ),
        ("0 0 3 * * 7", ": its day-of-week '7' counts the days from 0 to 6", "Use 0 for Sunday."),
        ("0 0 3 1-40 * *", ": its day-of-month '1-40' is out of range", "Use a number from 1 to 31."),
        (
            "0 0 3 */31 * *",
            ": its day-of-month '*/31' has a step that is not a number from 1 to 30",
            "Use a step within that, or name the values one by one.",
        ),
        ("0 0 3 0 * *", ": its day-of-month '0' is out of range", "Use a number from 1 to 31."),
        (
            "0 0 3 ? * *",
            ": its day-of-month '?' is not one the hosts can read",
            "Use `*` or a number from 1 to 31.",
        ),
        (
            "0 0 3 * x *",
            ": its month 'x' is not one the hosts can read",
            'Use `*` or a number from 1 to 12 or an English name such as "Feb".',
        ),
        (
            "0 0 3 31 2,4 *",
            " never fires: no month it names has a day '31'",
            "Choose a day that the month has.",
        ),
    ],
)
def test_a_refusal_names_the_field_and_the_remedy(expression: object, problem: str, remedy: str) -> None:
    """Whatever is wrong, it is one sentence about the expression as it was written, and one with what to write."""
    with pytest.raises(ScheduleError) as caught:
        read(expression)
    assert str(caught.value) == f"schedule {expression!r}{problem}. {remedy}"


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("*/1", range(24)),
        ("*/23", (0, 23)),
        ("5/9", (5, 14, 23)),
        ("5-20/9", (5, 14)),
        ("23-23", (23,)),
        ("7,5,5-6", (5, 6, 7)),
    ],
)
def test_a_field_is_read_to_its_last_value(text: str, hours: object) -> None:
    """Steps from the first to the widest, ranges of one, lists in any order."""
    assert sorted(read(f"0 0 {text} * * *").hour) == sorted(hours)  # type: ignore[call-overload]


def test_names_are_read_by_their_beginning_in_any_case() -> None:
    """As many letters as a person writes; the first of two names that begin so."""
    fields = read("0 0 3 * ju,DECEMBER mon-Wed")
    assert (fields.month, fields.weekday) == ({6, 12}, {1, 2, 3})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (range(24), "*"),
        (range(0, 24, 5), "*/5"),
        ((1, 6, 11), "1-11/5"),
        ((0, 5), "0,5"),
        ((0, 2, 4), "0-4/2"),
        ((0, 12), "0,12"),
        ((1, 2), "1,2"),
        ((1, 2, 3), "1-3"),
        ((3, 2, 1, 7, 9, 10), "1-3,7,9,10"),
        ((0, 8, 16), "*/8"),
        ((0, 8), "0,8"),
        ((0, 6, 12), "0-12/6"),
        ((4,), "4"),
    ],
)
def test_a_field_is_written_as_shortly_as_it_can_be(values: tuple[int, ...], text: str) -> None:
    """A step over all of it, a step within it, ranges of three and more, single values; it is read back the same."""
    assert compact(values, HOUR) == text
    assert sorted(read(f"0 0 {text} * * *").hour) == sorted(values)


def test_a_step_that_goes_on_at_the_end_of_a_field_is_the_whole_of_it() -> None:
    """`*/15` is one that begins at the field's first value and leaves no room for another."""
    assert compact((1, 16, 31), DAY) == "*/15"
    assert compact((0, 15, 30, 45), MINUTE) == "*/15"
    assert compact((1, 11, 21), DAY) == "1-21/10"
    assert compact((1, 7), MONTH) == "1,7"
