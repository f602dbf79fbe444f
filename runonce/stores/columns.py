"""The one codec of rows: a dataclass to a table's columns and back, and what a row can hold.

Made so that rows outlive a release. A column that is missing gets its field's default, one that is not known is
kept when the row is written again, and a row of a newer format is refused by name and left alone. A new column
needs nothing but a field with a default. `FORMAT` rises only when older code would misunderstand a row.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from runonce.errors import UnreadableRowError
from runonce.stores.protocols import Value  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from runonce.stores.protocols import Row

FORMAT = 1
"""Of the rows this version writes, and the newest it reads; rows of before there was one count as 0."""
LONGEST_TEXT = 4000
"""Characters of an error kept on a row."""
KEPT_ATTEMPTS = 10
"""Earlier attempts kept on a row, operators' decisions, and ranges of what was skipped."""
LARGEST_ATTEMPTS = 28_000
"""UTF-16 units that the attempts take together."""
LONGEST_COLUMN = 32_000
"""UTF-16 units of a text in one column; the limit is 64 KiB (Azure Tables)."""
LONGEST_COLUMN_NAME = 255
"""Characters of a column's name (Azure Tables' limit)."""
MOST_COLUMNS = 252
"""Columns of a row, beside its keys and time stamp (Azure Tables' limit)."""
LARGEST_ROW = 2**20
"""Bytes of a row (Azure Tables' limit)."""
KEYS_SIZE = 4 + 4 * 500 + 100
"""Bytes of a row's keys and time stamp, at most."""
LARGEST_TRANSACTION = 4 * 2**20
"""Bytes of a transaction's request (Azure Tables' limit)."""
OVERHEAD = 3000
"""Bytes of a row's request around its values: headers, address, types."""
LETTERS = {"Lu", "Ll", "Lt", "Lm", "Lo", "Nl"}
REST_OF_NAME = {"Mn", "Mc", "Nd", "Pc"}
LONGEST_KEY = 500
"""Characters of a row's key; the limit is 1 KiB (Azure Tables)."""

UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a column raises that is not what it should be."""

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
strict = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What every kind of row has; its subclasses' fields are the columns.

    A field's metadata may have `write` and `read` (value to column and back, where the type does not say it) and
    `was` (the column's name before it was renamed).
    """

    unknown: Mapping[str, Value] = field(default_factory=dict, repr=False)
    """Columns of a version that knows more than this one; kept when the row is written again."""


R = TypeVar("R", bound=Columns)


def encode(row: Columns) -> dict[str, Value]:
    """The columns of a row."""
    known = {column.name: column.write(getattr(row, column.name)) for column in _columns(type(row))}  # type: ignore[arg-type]
    return {**row.unknown, **known, "format": FORMAT}


def decode(kind: type[R], row: Row) -> R:
    """The row that was read.

    Raises:
        UnreadableRowError: It is of a newer format, or was edited by hand.
    """
    left = dict(row.values)
    try:
        if int(left.pop("format", 0)) > FORMAT:
            raise UnreadableRowError(
                f"Row {row.key} has format {row.values['format']}, and this version of runonce knows up to {FORMAT}: a "
                f"newer version wrote it. It is left to the hosts that have that version; update this one."
            )
        known = {}
        for column in _columns(kind):  # type: ignore[arg-type]
            name = column.name if column.name in left else column.was
            if name in left:
                known[column.name] = column.read(left.pop(name))
        return kind(**known, unknown=left)
    except UNREADABLE as error:
        raise unreadable(row, error) from error


def unreadable(row: Row, error: Exception) -> UnreadableRowError:
    """What is said of a row that is none, for the error that reading it has raised."""
    return UnreadableRowError(
        f"Row {row.key} cannot be read ({type(error).__name__}: {error}): it was edited by hand, or written by "
        f"something else. Correct the column; what is due stays due until it can be read."
    )


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    was: str
    write: Callable[[Any], Value]
    read: Callable[[Any], Any]


@cache
def _columns(kind: Hashable) -> tuple[_Column, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Column(
            name=one.name,
            was=one.metadata.get("was", one.name),
            write=one.metadata.get("write", _to_value),
            read=one.metadata.get("read") or _reader(hints[one.name]),
        )
        for one in fields(cast("type[Columns]", kind))
        if one.name != "unknown"
    )


def _to_value(value: Any) -> Value:
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, datetime):
        return to_text(value)
    if isinstance(value, int):
        return value
    if not value and isinstance(value, tuple | Mapping):  # which most columns of JSON hold
        return "[]" if isinstance(value, tuple) else "{}"
    return compact(value)


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value of that type is read from its column."""
    if hint in (str, int) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return hint  # type: ignore[no-any-return]
    if hint is datetime:
        return instant
    if datetime in get_args(hint):
        return from_text
    if _parts(hint)[0] is Mapping:
        return lambda text: typed(json.loads(text), hint) if text != "{}" else {}
    return lambda text: typed(json.loads(text), hint) if text != "[]" else ()  # a tuple of any length


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


def typed(value: Any, hint: Any) -> Any:
    """A JSON value as a type says it; TypeError where it, or something in it, is of another."""
    kind, inner = _parts(hint)
    if kind is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(typed(one, of) for one, of in zip(value, kinds, strict=True))
    if kind is Mapping and isinstance(value, dict):
        return {name: typed(one, inner[1]) for name, one in value.items()}
    if kind is Any or (isinstance(value, (int, float) if kind is float else kind) and kind is not tuple):
        return value
    raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")


def valid(text: str) -> str:
    """The text where no table or broker need refuse it: an error's may hold half an emoji."""
    return text.encode("utf-8", "backslashreplace").decode()


def json_text(value: Any) -> str:
    """A value of the user's as JSON that a column can hold; raises what `json` raises where it is none."""
    text = strict(value)
    # Half an emoji is taken as an escape alone.
    return text if valid(text) == text else json.dumps(value, separators=(",", ":"))


def units(text: str) -> int:
    """What it takes of a column, which counts UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def shortened(text: str) -> str:
    """As much of an error as a row keeps; where it is cut it ends with "…"."""
    text = valid(text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def fitting(attempts: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """As many of the newest attempts as one column keeps: where they are long, the older ones lose their `error`."""
    kept = list(attempts)[-KEPT_ATTEMPTS:]
    for place, attempt in enumerate(kept):
        if units(compact(kept)) <= LARGEST_ATTEMPTS:
            break
        kept[place] = {**attempt, "error": ""}
    return tuple(kept)


def column_problem(name: str, value: object) -> str | None:  # noqa: PLR0911 - one answer for each problem
    """Why a table cannot hold this value under this name, with the remedy; None when it can."""
    if name in ("PartitionKey", "RowKey", "Timestamp"):
        return "tables keep that name for themselves; use another"
    if not _is_identifier(name):
        return f"a column's name is 1 to {LONGEST_COLUMN_NAME} letters, digits and _, not a digit first; use another"
    if not isinstance(value, str | int | float | bool):
        return f"it is a {type(value).__name__}; a column is text, a number or a boolean"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number has at most 64 bits; keep it as text"
    if isinstance(value, str) and units(value) > LONGEST_COLUMN:
        return f"a text has at most {LONGEST_COLUMN} characters; keep it in a blob"
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return "it is not valid Unicode: it holds half a surrogate pair, as of an emoji cut in two"
    return None


def _is_identifier(name: object) -> bool:
    """Whether Azure Tables take it: a C# identifier (Understanding the Table service data model, REST reference)."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_COLUMN_NAME
        and (name[0] == "_" or unicodedata.category(name[0]) in LETTERS)
        and all(unicodedata.category(character) in LETTERS | REST_OF_NAME for character in name)
    )


def row_problem(values: Mapping[str, Value]) -> str | None:
    """Why a table cannot hold these columns in one row, with the remedy; None when it can. See `column_problem` too."""
    if len(values) > MOST_COLUMNS:
        return (
            f"it has {len(values)} columns with the toolkit's own, over {MOST_COLUMNS}; keep some in a blob"
        )
    size = sum(2 * len(name) + 8 + _size(value) for name, value in values.items()) + KEYS_SIZE
    if size > LARGEST_ROW:
        return f"it takes {size:,} bytes, over {LARGEST_ROW:,}; keep the data in a blob"
    return None


def _size(value: Value) -> int:
    """Bytes of a value in a row."""
    return 4 + 2 * units(value) if isinstance(value, str) else 8


def payload(values: Mapping[str, Value]) -> int:
    """Bytes that a row takes on its way to the table, at most."""
    return len(json.dumps(dict(values))) + OVERHEAD


def to_text(instant: datetime | None) -> str:
    """An instant as it is kept: ISO 8601 in UTC with Z, whole seconds for fire times, or empty."""
    if instant is None:
        return ""
    utc = instant if instant.tzinfo is UTC else instant.astimezone(UTC)
    return utc.isoformat().replace("+00:00", "Z")


def from_text(text: str) -> datetime | None:
    """An instant that `to_text` wrote."""
    return instant(text) if text else None


def instant(text: str) -> datetime:
    """The instant in a text, in UTC; ValueError where that has no offset, OverflowError at the calendar's ends."""
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        raise ValueError(f"{text!r} has no offset")
    return read if read.tzinfo is UTC else read.astimezone(UTC)
