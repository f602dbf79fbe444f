"""JSON as the Functions host reads its files: with comments, trailing commas, single quotes and bare names. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_STRING = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_OWN = re.compile(rf"({_STRING})|,(?=\s*[}}\]])|([A-Za-z_$][\w$]*)(?=\s*:)", re.DOTALL)


def read_json(text: str) -> Any:
    """The value; raises ValueError with line and column where it is not one for the host either."""

    def blank(match: re.Match[str]) -> str:
        return match[1] or re.sub(r"[^\n]", " ", match[0])

    def plain(match: re.Match[str]) -> str:
        if match[2]:
            return f'"{match[2]}"'
        string = match[1]
        if string is None:
            return " "  # a comma with nothing after it
        if string.startswith('"'):
            return string
        inner = re.sub(r"\\'|\"", lambda one: "'" if one[0] == "\\'" else '\\"', string[1:-1])
        return f'"{inner}"'

    try:
        return json.loads(_OWN.sub(plain, _COMMENT.sub(blank, text.removeprefix("\ufeff"))))
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
