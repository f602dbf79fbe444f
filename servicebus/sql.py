"""The SQL of subscription filters: parsed once into a function of a message's properties.

An expression is True, False, a number or a text, or None: null or unknown, as of a property that is not there.
Only a filter that is True lets a message pass. Left out: functions other than `property`, and actions.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Expression = Callable[[Mapping[str, Any]], Any]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|\[(?:[^\]]|\]\])+\])
    | (?P<word>[^\W\d][\w@\#$]*)
    | (?P<sign><>|!=|>=|<=|[=<>()+\-*/%,.])
    )""",
    re.VERBOSE,
)
_RESERVED = frozenset(("AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "TRUE", "FALSE", "EXISTS", "ESCAPE"))
_COMPARISONS = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "/": operator.truediv, "%": operator.mod}
_MOST_DIGITS = 300
"""Of a whole number; one of more is as good as infinite."""


def parse(text: str, system: frozenset[str]) -> Expression:
    """The filter as a function of properties by `sys.name` and `user.name`; `system` are those there are.

    ValueError, with the place, when the text is no filter.
    """
    return _Parser(text, system).whole()


def equal(left: Any, right: Any) -> bool | None:
    """SQL's equality: unknown where a side is, or where the kinds differ."""
    return _compare(operator.eq, left, right)


class _Parser:
    def __init__(self, text: str, system: frozenset[str]) -> None:
        self._text = text
        self._system = system
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, place
        self._next = 0
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                wrong = text[place:].lstrip()
                self._fail(len(text) - len(wrong), f"{wrong[0]!r} starts nothing that is known")
            kind, found = match.lastgroup, match.group(match.lastgroup)
            if kind == "word" and found.upper() in _RESERVED:
                kind, found = "keyword", found.upper()
            self._tokens.append((kind, found, match.start(match.lastgroup)))
            place = match.end()
        self._tokens.append(("end", "the end", len(text)))

    def whole(self) -> Expression:
        expression = self._or()
        self._expect("the end")
        return expression

    def _fail(self, place: int, why: str) -> NoReturn:
        raise ValueError(f"filter {self._text!r}, character {place + 1}: {why}")

    def _take(self, *wanted: str) -> str | None:
        """The next word or sign, if it is one of these."""
        kind, text, _ = self._tokens[self._next]
        if kind in ("keyword", "sign", "end") and text in wanted:
            self._next += kind != "end"
            return text
        return None

    def _expect(self, wanted: str) -> None:
        if self._take(wanted) is None:
            _, text, place = self._tokens[self._next]
            self._fail(place, f"{wanted} was expected, not {text}")

    def _or(self) -> Expression:
        sides = [self._and()]
        while self._take("OR"):
            sides.append(self._and())
        return sides[0] if len(sides) == 1 else lambda found: _any(side(found) for side in sides)

    def _and(self) -> Expression:
        sides = [self._not()]
        while self._take("AND"):
            sides.append(self._not())
        if len(sides) == 1:
            return sides[0]
        return lambda found: _not(_any(_not(side(found)) for side in sides))

    def _not(self) -> Expression:
        if self._take("NOT"):
            negated = self._not()
            return lambda found: _not(negated(found))
        return self._predicate()

    def _predicate(self) -> Expression:
        left = self._sum()
        if sign := self._take(*_COMPARISONS):
            right, compare = self._sum(), _COMPARISONS[sign]
            return lambda found: _compare(compare, left(found), right(found))
        if self._take("IS"):
            negate = self._take("NOT") is not None
            self._expect("NULL")
            return lambda found: (left(found) is None) is not negate
        negate = self._take("NOT") is not None
        if self._take("IN"):
            test = self._in(left)
        elif self._take("LIKE"):
            test = self._like(left)
        elif negate:
            _, text, place = self._tokens[self._next]
            self._fail(place, f"IN or LIKE was expected, not {text}")
        else:
            return left
        return (lambda found: _not(test(found))) if negate else test

    def _in(self, left: Expression) -> Expression:
        self._expect("(")
        among = [self._sum()]
        while self._take(","):
            among.append(self._sum())
        self._expect(")")
        return lambda found: _any(equal(left(found), each(found)) for each in among)

    def _like(self, left: Expression) -> Expression:
        pattern = self._sum()
        escape = self._sum() if self._take("ESCAPE") else lambda _: None
        return lambda found: _matches(left(found), pattern(found), escape(found))

    def _sum(self) -> Expression:
        return self._chain(self._product, _SUMS)

    def _product(self) -> Expression:
        return self._chain(self._factor, _PRODUCTS)

    def _chain(self, part: Callable[[], Expression], signs: dict[str, Callable[..., Any]]) -> Expression:
        whole = part()
        while sign := self._take(*signs):
            whole = _joined(signs[sign], whole, part())
        return whole

    def _factor(self) -> Expression:
        if sign := self._take("+", "-"):
            return _joined(_SUMS[sign], lambda _: 0, self._factor())
        if self._take("("):
            inner = self._or()
            self._expect(")")
            return inner
        if self._take("EXISTS"):
            self._expect("(")
            name = self._property()
            self._expect(")")
            return lambda found: name in found
        for keyword, value in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._take(keyword):
                return lambda _, value=value: value  # type: ignore[misc]
        kind, text, _ = self._tokens[self._next]
        if kind in ("number", "text"):
            self._next += 1
            constant: Any = text[1:-1].replace("''", "'")
            if kind == "number":
                constant = int(text) if text.isdigit() and len(text) < _MOST_DIGITS else float(text)
            return lambda _: constant
        name = self._property()
        return lambda found: found.get(name)

    def _property(self) -> str:
        """The key of a property: `name`, `user.name`, `sys.name`, or one of these quoted."""
        name, place = self._name()
        if self._take("("):
            if name.lower() not in ("p", "property"):
                self._fail(place, f"the function {name} is not known; there is property(name)")
            name, place = self._name()
            self._expect(")")
        scope = "user"
        if self._take("."):
            scope, (name, place) = name.lower(), self._name()
        if scope not in ("user", "sys"):
            self._fail(
                place, f"{scope} is no scope; there are sys and user, and [{scope}.{name}] is one name"
            )
        if scope == "sys" and name.lower() not in self._system:
            self._fail(place, f"no system property {name}; there are {', '.join(sorted(self._system))}")
        return f"{scope}.{name.lower()}"

    def _name(self) -> tuple[str, int]:
        kind, text, place = self._tokens[self._next]
        self._next += kind != "end"
        if kind == "quoted":
            text = text[1:-1].replace(text[-1] * 2, text[-1])
        elif kind == "text":
            text = text[1:-1]
        elif kind != "word":
            self._fail(place, f"a property or a value was expected, not {text}")
        return text, place


def _kind(value: Any) -> type:
    """What can be compared with what; a truth value is no number here."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _compare(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool | None:
    if left is None or right is None or _kind(left) is not _kind(right):
        return None
    try:
        return compare(left, right)
    except TypeError:  # these have no order
        return None


def _joined(join: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    """Numbers, or texts put together; all else, of which Python makes something ('a%' % 2, TRUE + 1), is unknown."""

    def evaluate(found: Mapping[str, Any]) -> Any:
        sides = left(found), right(found)
        kinds = {_kind(side) for side in sides}
        if kinds != {float} and (join is not operator.add or kinds != {str}):
            return None
        try:
            return join(*sides)
        except ArithmeticError:
            return None

    return evaluate


def _not(value: Any) -> bool | None:
    return not value if isinstance(value, bool) else None


def _any(values: Any) -> bool | None:
    unknown = False
    for value in values:
        if value is True:
            return True
        unknown = unknown or value is not False
    return None if unknown else False


def _matches(value: Any, pattern: Any, escape: Any) -> bool | None:
    """LIKE: % is any text, _ any character, and what follows the escape character is itself."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    parts, characters = [""], iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1] += re.escape(next(characters, character))
        elif character == "%":
            parts.append("")
        else:
            parts[-1] += "." if character == "_" else re.escape(character)
    first, *others = parts
    # Each part where it comes first, for good: to try its other places as well would take years for a few of them.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    last = f".*{others[-1]}" if others else ""
    return re.fullmatch(first + middle + last, value, re.DOTALL) is not None
