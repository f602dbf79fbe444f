"""Reads fields of a message's body, with an error that says which field, what is in it, and what to write instead.

A message that fails a check can never be handled, so it goes to the dead letters with that reason at once. With
pydantic installed a handler can take a model of the body instead; these jobs get by without.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runonce import Message

NAME = re.compile(r"(?!(?:.*/)?\.{0,2}(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
"""No part of it is empty, "." or "..": it may become part of a blob's name, and must not lead anywhere else."""
AMOUNT = re.compile(r"\d{1,9}(\.\d{1,2})?", re.ASCII)
LONGEST_VALUE = 40
"""Characters of a bad value that are shown."""


def name(message: Message, field: str) -> str:
    """A number or name: what ids look like."""
    return _checked(
        message, field, NAME, "1 to 64 letters, digits, and . _ / - after the first; no part empty or of dots"
    )


def amount(message: Message, field: str) -> str:
    """An amount of money as text, such as "148.18": a float never touches money."""
    return _checked(
        message, field, AMOUNT, 'text of digits, at most two after a decimal point, such as "148.18"'
    )


def _checked(message: Message, field: str, form: re.Pattern[str], remedy: str) -> str:
    value = message.field(field)
    if isinstance(value, str) and form.fullmatch(value):
        return value
    shown = repr(value) if len(repr(value)) <= LONGEST_VALUE else f"{value!r:.{LONGEST_VALUE}}…"
    raise message.bad("InvalidBody", f"its field {field!r} is {shown}; write {remedy}")
