"""Reads the invoices that two jobs work on. A file whose name begins with "_" is shared code, not a job file.

Every row is checked before anything is done with any of them: half an invoice run because of a typing error in
line 300 would be worse than none. Amounts are whole cents; a float never touches money.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from runonce import PermanentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

COLUMNS = ("InvoiceId", "CustomerId", "InvoiceDate", "BillingCountry", "Total")
SHOWN = 10
"""Bad rows that are told one by one; the rest are counted."""
LONGEST_COUNTRY = 60
LONGEST_VALUE = 40
"""Characters of a bad value that are shown."""

NUMBER = re.compile(r"(?!(?:.*/)?\.{0,2}(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
AMOUNT = re.compile(r"\d{1,9}(\.\d{1,2})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Invoice:
    """One row of the file."""

    number: str
    customer: str
    date: date
    country: str
    cents: int


class BadValueError(Exception):
    """A value is not what its column holds; the text says what is wrong and what to write instead."""


def read_invoices(text: str, source: str) -> list[Invoice]:
    """The invoices of a CSV file, in its order; further columns are ignored.

    Args:
        text: The file's content.
        source: What the file is called in errors, such as "Job invoice_run, blob 'invoices.csv'".

    Raises:
        PermanentError: The file is not as it must be; one line for each bad row, with its line number, column,
            value and remedy. Trying again cannot help.
    """
    rows = _rows(text, source)
    header = next(rows, (1, []))[1]
    places = _places(header, source)
    invoices: list[Invoice] = []
    bad: list[str] = []
    first_line: dict[str, int] = {}
    for line, row in rows:
        if len(row) != len(header):
            bad.append(
                f"{source}, line {line}: {len(row)} values where the header has {len(header)} columns; "
                f"put text that holds a comma in double quotes."
            )
            continue
        try:
            invoice = _invoice([row[place] for place in places])
        except BadValueError as error:
            bad.append(f"{source}, line {line}, {error}.")
            continue
        first = first_line.setdefault(invoice.number, line)
        if first != line:
            bad.append(
                f"{source}, line {line}, column InvoiceId: {invoice.number!r} is on line {first} already; give each "
                f"invoice a number of its own, or remove one of the two lines."
            )
        invoices.append(invoice)
    if bad:
        more = [f"… and {len(bad) - SHOWN} more bad rows."] if len(bad) > SHOWN else []
        raise PermanentError("\n".join([*bad[:SHOWN], *more]))
    if not invoices:
        raise PermanentError(
            f"{source}: a header and no invoices, so the export probably broke off; upload the whole file."
        )
    return invoices


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line, and the values, of each row that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise PermanentError(
            f"{source}, line {line}: the CSV cannot be read from here on ({error}); look for a double "
            f"quote that is not closed or not doubled."
        ) from error


def _places(header: list[str], source: str) -> list[int]:
    names = [name.strip() for name in header]
    for name in COLUMNS:
        if names.count(name) == 1:
            continue
        what = "twice" if name in names else "missing"
        found = f"{header!r:.120}" if header else "nothing, the file is empty"
        raise PermanentError(
            f"{source}, line 1, column {name}: {what}; the first line must name {','.join(COLUMNS)} once each, "
            f"separated by commas, and it holds {found}."
        )
    return [names.index(name) for name in COLUMNS]


def _invoice(values: list[str]) -> Invoice:
    number, customer, when, country, total = (value.strip() for value in values)
    return Invoice(
        number=_checked("InvoiceId", number, _number),
        customer=_checked("CustomerId", customer, _number),
        date=_checked("InvoiceDate", when, _date),
        country=_checked("BillingCountry", country, _country),
        cents=_checked("Total", total, _cents),
    )


def _checked(column: str, value: str, check: Callable[[str], T]) -> T:
    try:
        return check(value)
    except ValueError as error:
        shown = value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + "…"
        raise BadValueError(f"column {column}: {shown!r} {error}") from None


def _number(value: str) -> str:
    if not NUMBER.fullmatch(value):
        raise ValueError(
            "is not a number; write 1 to 64 letters, digits, and . _ / - after the first; no part empty or of dots"
        )
    return value


def _date(value: str) -> date:
    if not DATE.fullmatch(value):
        raise ValueError("is not a date; write year-month-day, such as 2026-11-29")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError("is not a day of the calendar; write year-month-day, such as 2026-11-29") from None


def _country(value: str) -> str:
    if (
        not value
        or len(value) > LONGEST_COUNTRY
        or any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in value)
    ):
        raise ValueError(
            f"is not a country; write its name, at most {LONGEST_COUNTRY} characters on one line"
        )
    return value


def _cents(value: str) -> int:
    if not AMOUNT.fullmatch(value):
        raise ValueError(
            "is not an amount; write digits, at most two after a decimal point, without sign, currency or "
            "thousands separator, such as 1234.50"
        )
    return int(Decimal(value) * 100)


def amount(cents: int) -> str:
    """Cents as people read them, such as 2,328.60."""
    return f"{cents // 100:,}.{cents % 100:02d}"
