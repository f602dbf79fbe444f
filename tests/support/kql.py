"""Works out KQL queries over rows of a test's own, as strictly as Kusto does where it is easy to be wrong.

It knows what the alerts use. A text is never taken for a time or a number: comparing them is an error here. `parse`
is `kind=simple`, as without a word it is: where the pattern does not fit, or one column does not have its type, all
of its columns are empty. What it does not know is an error, so that no query outgrows its tests unseen.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = dict[str, Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>@?"(?:[^"\\]|\\.|(?<=@")\\)*")|(?P<number>\d+[smhd]?)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>==|!=|>=|<=|[()\[\],|=<>*:.-]))"""
)
_SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EMPTY = {"string": "", "long": None, "datetime": None}


def run(query: str, tables: Mapping[str, Sequence[Row]], now: datetime) -> list[Row]:
    """The rows that a query finds.

    Args:
        query: One tabular expression.
        tables: Rows by the name of their table; every row of a table has the same columns.
        now: Aware datetime; what `now()` is, and `ago()` counts from.
    """
    reader = _Reader(query, tables, now)
    rows = reader.pipeline()
    reader.end()
    return rows


def _convert(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "long":
        return int(text)
    if kind == "datetime":
        return _time(text)
    raise AssertionError(f"type {kind} is not known here")


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        raise ValueError(text)
    return found


class _Reader:
    def __init__(self, query: str, tables: Mapping[str, Sequence[Row]], now: datetime) -> None:
        self.tables = tables
        self.now = now
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while query[at:].strip():
            found = _TOKEN.match(query, at)
            assert found is not None, f"not readable here: {query[at : at + 40]!r}"
            self.tokens.append((str(found.lastgroup), found[0].strip()))
            at = found.end()
        self.at = 0

    # -- tokens ---------------------------------------------------------------------------------------------

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        found = self.peek()
        assert found, "the query ends too early"
        assert not wanted or found == wanted, f"{found!r} where {wanted!r} was expected"
        self.at += 1
        return found

    def accept(self, wanted: str) -> bool:
        if self.peek() == wanted:
            self.at += 1
            return True
        return False

    def end(self) -> None:
        assert not self.peek(), f"what is {self.peek()!r} here?"

    def string(self) -> str:
        token = self.take()
        assert token.endswith('"'), f"{token!r} is no text"
        if token.startswith("@"):
            return token[2:-1]
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    # -- tables ---------------------------------------------------------------------------------------------

    def pipeline(self) -> list[Row]:
        rows = self.source()
        while self.accept("|"):
            operator = self.take()
            method = getattr(self, f"_{operator}", None)
            assert method is not None, f"operator {operator} is not known here"
            rows = method(rows)
        return rows

    def source(self) -> list[Row]:
        name = self.take()
        if name == "union":
            return self.union()
        if name == "datatable":
            return self.datatable()
        assert name in self.tables, f"no table {name}"
        return [dict(row) for row in self.tables[name]]

    def union(self) -> list[Row]:
        if self.accept("isfuzzy"):
            self.take("=")
            self.take("true")
        rows = self.parenthesised()
        while self.accept(","):
            rows += self.parenthesised()
        return rows

    def parenthesised(self) -> list[Row]:
        self.take("(")
        rows = self.pipeline()
        self.take(")")
        return rows

    def datatable(self) -> list[Row]:
        self.take("(")
        column = self.take()
        self.take(":")
        self.take("string")
        self.take(")")
        self.take("[")
        rows = [{column: self.string()}]
        while self.accept(","):
            rows.append({column: self.string()})
        self.take("]")
        return rows

    # -- operators ------------------------------------------------------------------------------------------

    def _where(self, rows: list[Row]) -> list[Row]:
        condition = self.conjunction()
        return [row for row in rows if condition(row)]

    def _project(self, rows: list[Row]) -> list[Row]:
        columns = self.columns()
        return [{name: value(row) for name, value in columns} for row in rows]

    def _extend(self, rows: list[Row]) -> list[Row]:
        columns = self.columns()
        return [{**row, **{name: value(row) for name, value in columns}} for row in rows]

    def _distinct(self, rows: list[Row]) -> list[Row]:
        column = self.take()
        return [{column: value} for value in dict.fromkeys(row[column] for row in rows)]

    def _summarize(self, rows: list[Row]) -> list[Row]:
        column = self.take()
        for wanted in ("=", "count", "(", ")"):
            self.take(wanted)
        return [{column: len(rows)}]

    def _join(self, rows: list[Row]) -> list[Row]:
        for wanted in ("kind", "=", "leftanti"):
            self.take(wanted)
        others = self.parenthesised()
        self.take("on")
        column = self.take()
        known = {row[column] for row in others}
        return [row for row in rows if row[column] not in known]

    def _parse(self, rows: list[Row]) -> list[Row]:
        source = self.take()
        self.take("with")
        pattern, kinds = "", {}
        while self.peek() not in ("|", ")", ""):
            if self.accept("*"):
                pattern += ".*?"
            elif self.peek().endswith('"'):
                pattern += re.escape(self.string())
            else:
                name = self.take()
                self.take(":")
                kinds[name] = self.take()
                pattern += f"(?P<{name}>.*?)"
        return [{**row, **self.parsed(row[source], pattern, kinds)} for row in rows]

    @staticmethod
    def parsed(text: str, pattern: str, kinds: dict[str, str]) -> Row:
        found = re.fullmatch(pattern, text, re.DOTALL)
        try:
            return {name: _convert(kind, found[name] if found else "") for name, kind in kinds.items()}
        except ValueError:
            return {name: _EMPTY[kind] for name, kind in kinds.items()}

    # -- expressions ----------------------------------------------------------------------------------------

    def columns(self) -> list[tuple[str, Callable[[Row], Any]]]:
        found = [self.column()]
        while self.accept(","):
            found.append(self.column())
        return found

    def column(self) -> tuple[str, Callable[[Row], Any]]:
        name = self.take()
        if self.accept("="):
            return name, self.value()
        return name, lambda row: row[name]

    def conjunction(self) -> Callable[[Row], bool]:
        parts = [self.comparison()]
        while self.accept("and"):
            parts.append(self.comparison())
        return lambda row: all(part(row) for part in parts)

    def comparison(self) -> Callable[[Row], bool]:
        left, sign = self.value(), self.take()
        if sign == "matches":
            self.take("regex")
            pattern = re.compile(self.string())
            return lambda row: pattern.search(left(row)) is not None
        if sign == "in":
            self.take("(")
            wanted = [self.string()]
            while self.accept(","):
                wanted.append(self.string())
            self.take(")")
            return lambda row: left(row) in wanted
        right = self.value()
        compare: dict[str, Callable[[Any, Any], bool]] = {
            "contains": lambda a, b: b.lower() in a.lower(),
            "endswith": lambda a, b: a.lower().endswith(b.lower()),
            "==": lambda a, b: type(a) is type(b) and a == b,
            ">": lambda a, b: a > b,
            "<": lambda a, b: a < b,
        }
        assert sign in compare, f"{sign} is not known here"

        def compared(row: Row) -> bool:
            first, second = left(row), right(row)
            return first is not None and second is not None and compare[sign](first, second)

        return compared

    def value(self) -> Callable[[Row], Any]:
        kind, token = self.tokens[self.at]
        if kind == "text":
            text = self.string()
            return lambda _: text
        self.take()
        if kind == "number":
            number = timedelta(**{_SPANS[token[-1]]: int(token[:-1])}) if token[-1] in _SPANS else int(token)
            return lambda _: number
        if not self.accept("("):
            return lambda row: row[token]
        given = None if self.peek() == ")" else self.value()
        self.take(")")
        match token:
            case "now" if given is None:
                return lambda _: self.now
            case "ago" if given is not None:
                return lambda row: self.now - given(row)
            case "todatetime" if given is not None:
                return lambda row: _or_nothing(given(row))
        raise AssertionError(f"function {token} is not known here")


def _or_nothing(text: str) -> datetime | None:
    try:
        return _time(text)
    except ValueError:
        return None
