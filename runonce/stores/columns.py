"""Rows as columns: values to a table's types and back, and what a row can hold."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runonce.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import DataclassInstance

    from runonce.stores.protocols import Row, Value
LONGEST_TEXT = 4000
"""Characters of an error kept on a row."""
LONGEST_COLUMN = 32_000
"""UTF-16 units of a text in one column; the limit is 64 KiB (Azure Tables)."""
LONGEST_KEY = 500
"""Characters of a row's key; the limit is 1 KiB (Azure Tables)."""

compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def column_problem(name: str, value: object) -> str | None:
    """Why a table cannot hold this value under this name, with the remedy; None when it can."""
    if name in ("PartitionKey", "RowKey", "Timestamp"):
        return "tables keep that name for themselves; use another"
    if not isinstance(value, str | int | float | bool):
        return f"it is a {type(value).__name__}; a column is text, a number or a boolean"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number has at most 64 bits; keep it as text"
    if isinstance(value, str) and len(value.encode("utf-16-le", "surrogatepass")) > 2 * LONGEST_COLUMN:
        return f"a text has at most {LONGEST_COLUMN} characters; keep it in a blob"
    return None


def to_text(instant: datetime | None) -> str:
    """An instant as it is kept: ISO 8601 in UTC with Z, whole seconds for fire times, or empty."""
    return "" if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def from_text(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def encode(row: DataclassInstance) -> dict[str, Value]:
    """The columns of a row."""
    return {f.name: f.metadata.get("write", _to_value)(getattr(row, f.name)) for f in fields(row)}


def _to_value(value: Any) -> Value:
    if value is None or isinstance(value, datetime):
        return to_text(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return value
    return compact(value)


@contextmanager
def readable(row: Row) -> Iterator[None]:
    """StoreError when reading the row's columns fails."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            f"Row {row.key} cannot be read ({type(error).__name__}: {error}): it was edited by hand, or written by "
            f"another version. Correct it, or delete it, and its job starts from nothing."
        ) from error
