"""Pure: reads an NCRONTAB expression into the values of its fields, and refuses what is not one.

croniter accepts more than Azure does (`@daily`, `L`, `?`, `*/70`, 7 for Sunday), so an expression that only
croniter had checked could run on a laptop and never fire on a host. This reader is the one that decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from runonce.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

SHORTHANDS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}


class Kind(NamedTuple):
    """What one field may hold."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def every(self) -> frozenset[int]:
        """All the values of the field."""
        return frozenset(range(self.low, self.high + 1))


KINDS = (
    Kind("second", 0, 59),
    Kind("minute", 0, 59),
    Kind("hour", 0, 23),
    Kind("day-of-month", 1, 31),
    Kind("month", 1, 12, MONTHS),
    Kind("day-of-week", 0, 6, WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Fields:
    """The values an expression admits, a set for each field, and the six texts they were read from."""

    texts: tuple[str, ...]
    second: frozenset[int]
    minute: frozenset[int]
    hour: frozenset[int]
    day: frozenset[int]
    month: frozenset[int]
    weekday: frozenset[int]

    @property
    def values(self) -> tuple[frozenset[int], ...]:
        """The six sets, in the order they are written."""
        return (self.second, self.minute, self.hour, self.day, self.month, self.weekday)


def read(expression: object) -> Fields:
    """Reads an expression of six fields, or of five (second 0 is meant).

    Args:
        expression: second, minute, hour, day of month, month, day of week. Anything that is not a string is
            refused by name, since it came from a person's file.

    Returns:
        The values of each field; `texts` has names as written and always six members.

    Raises:
        ScheduleError: The expression is not valid NCRONTAB, or names a day that never comes.
    """
    if not isinstance(expression, str):
        raise ScheduleError(
            f"schedule {expression!r} is not text. "
            'Write six fields in one string, such as "0 0 3 * * *" for 03:00 every day.'
        )
    return _read(expression)


def compact(values: Iterable[int], kind: Kind) -> str:
    """The shortest plain text for a field's values: `*`, `*/5`, `1-5`, `10-50/20` or a list of those.

    Args:
        values: At least one value, each within the range of the field.
        kind: Which field it is.
    """
    ordered = sorted(set(values))
    if len(ordered) == len(kind.every):
        return "*"
    steps = {later - earlier for earlier, later in pairwise(ordered)}
    if len(steps) == 1 and (step := steps.pop()) > 1 and len(ordered) > 2:  # noqa: PLR2004 - two are a list
        whole = ordered[0] == kind.low and ordered[-1] + step > kind.high
        return f"*/{step}" if whole else f"{ordered[0]}-{ordered[-1]}/{step}"
    runs: list[list[int]] = []
    for value in ordered:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)  # noqa: PLR2004 - two values side by side are a list, not a range


@lru_cache(maxsize=1024)
def _read(expression: str) -> Fields:
    texts = _split(expression)
    values = [_field(kind, text, expression) for kind, text in zip(KINDS, texts, strict=True)]
    days, months = values[3], values[4]
    # The day of week cannot rule out more: in 400 years every date, 29 February too, falls on all seven.
    if min(days) > max(LONGEST_MONTHS[month - 1] for month in months):
        raise ScheduleError(
            f"schedule {expression!r} never fires: no month it names has a day {texts[3]!r}. "
            "Choose a day that the month has."
        )
    return Fields(texts, *values)


def _split(expression: str) -> tuple[str, ...]:
    if not expression.strip():
        raise ScheduleError(
            f'schedule {expression!r} is empty. Write six fields, such as "0 0 3 * * *" for 03:00 every day.'
        )
    if not expression.isascii() or not expression.replace("\t", " ").isprintable():
        raise ScheduleError(
            f"schedule {expression!r} contains a line break or a character that is not plain ASCII. "
            "Type it again by hand, on one line."
        )
    if shorthand := SHORTHANDS.get(expression.strip().lower()):
        raise ScheduleError(
            f'schedule {expression!r} is a shorthand the hosts do not know. Write "{shorthand}" instead.'
        )
    texts = tuple(expression.split())
    if len(texts) == len(KINDS) - 1:
        return ("0", *texts)
    if len(texts) != len(KINDS):
        count = "1 field" if len(texts) == 1 else f"{len(texts)} fields"
        raise ScheduleError(
            f"schedule {expression!r} has {count}. "
            "Write six: second minute hour day-of-month month day-of-week (or five, without the second)."
        )
    return texts


def _field(kind: Kind, text: str, expression: str) -> frozenset[int]:
    return frozenset().union(*(_item(kind, item, expression) for item in text.split(",")))


def _item(kind: Kind, item: str, expression: str) -> range:
    """One member of a field's list: `*`, a value or a range, with or without a step."""
    if not item:
        raise _refusal(kind, item, expression, "has an empty place in its list", "Remove the extra comma")
    base, slash, step_text = item.partition("/")
    step = _step(kind, item, step_text, expression) if slash else 1
    if base == "*":
        return range(kind.low, kind.high + 1, step)
    first_text, dash, last_text = base.partition("-")
    first = _value(kind, item, first_text, expression)
    last = first
    if dash:
        last = _value(kind, item, last_text, expression)
    elif slash:
        last = kind.high  # `5/15` goes on to the end of the field, as the hosts read it
    if last < first:
        raise _refusal(
            kind,
            item,
            expression,
            "is a range that runs backwards",
            f'Write "{first}-{kind.high},{kind.low}-{last}" if it is to wrap around, or swap its ends',
        )
    return range(first, last + 1, step)


def _step(kind: Kind, item: str, text: str, expression: str) -> int:
    highest = kind.high - kind.low
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= highest:
        # `*/70` would be taken as "once" by some readers of cron and as an error by others.
        raise _refusal(
            kind,
            item,
            expression,
            f"has a step that is not a number from 1 to {highest}",
            "Use a step within that, or name the values one by one",
        )
    return int(text)


def _value(kind: Kind, item: str, text: str, expression: str) -> int:
    if re.fullmatch("[0-9]{1,4}", text):
        number = int(text)
        if kind.low <= number <= kind.high:
            return number
        if kind.names == WEEKDAYS and number == len(WEEKDAYS):
            raise _refusal(kind, item, expression, "counts the days from 0 to 6", "Use 0 for Sunday")
        remedy = f"Use a number from {kind.low} to {kind.high}"
        raise _refusal(kind, item, expression, "is out of range", remedy)
    for number, name in enumerate(kind.names, start=kind.low):
        if text and name.lower().startswith(text.lower()):  # the first of them: NCrontab reads "Ju" as June
            return number
    known = f"a number from {kind.low} to {kind.high}"
    if kind.names:
        known += f' or an English name such as "{kind.names[1][:3]}"'
    raise _refusal(kind, item, expression, "is not one the hosts can read", f"Use `*` or {known}")


def _refusal(kind: Kind, item: str, expression: str, reason: str, remedy: str) -> ScheduleError:
    return ScheduleError(f"schedule {expression!r}: its {kind.name} {item!r} {reason}. {remedy}.")
