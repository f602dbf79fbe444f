"""A job's parameters: the keyword-only arguments of its function, typed by their annotations. Pure.

They are part of which run it is. What equals the function's own default is left out, so a run that names the
default is the schedule's own.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from runonce.errors import DefinitionError, InputError
from runonce.stores.columns import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNFIT = (ValueError, TypeError, OverflowError)
"""What a value that does not fit raises."""
LONGEST = 250
"""Characters of a run's parameters as JSON; its job's row has many of them."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One keyword-only argument of a job's function."""

    name: str
    kind: Any
    """str, int, float, bool, date, datetime, or a tuple of the texts of a Literal."""
    default: Any

    def read(self, given: Any) -> Any:
        """The value as the function takes it, from text or from a value of its type; raises ValueError."""
        if isinstance(self.kind, tuple):
            if given not in self.kind:
                raise ValueError(f"it is one of {', '.join(map(repr, self.kind))}")
            return given
        return READERS[self.kind](given)

    def is_default(self, value: Any) -> bool:
        """Whether a value that was read is the function's own default, of whatever type it is written there."""
        default = self.default
        with contextlib.suppress(*UNFIT):
            default = self.read(default)
        return bool(value == default) and type(value) is type(default)

    @property
    def wanted(self) -> str:
        """Its name and type, for people."""
        kind = " | ".join(map(repr, self.kind)) if isinstance(self.kind, tuple) else self.kind.__name__
        return f"{self.name}: {kind} = {self.default!r}"


def parameters_of(job: str, body: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a job's function, by name.

    Raises:
        DefinitionError: One has no default, which a timer could not give, or a type that no text can be read as.
    """
    found = {}
    for argument in inspect.signature(body).parameters.values():
        if argument.kind is not argument.KEYWORD_ONLY:
            continue
        if argument.default is argument.empty:
            raise DefinitionError(
                f"Job {job!r}: its parameter {argument.name!r} has no default, and a timer has no value for it; write "
                f"`{argument.name}: str = …`."
            )
        kind = _kind(body, argument)
        if kind is None:
            raise DefinitionError(
                f"Job {job!r}: its parameter `{argument}` can only be str, int, float, bool, date, datetime or a "
                f"Literal of texts; take one of those and convert it in the function."
            )
        found[argument.name] = Parameter(argument.name, kind, argument.default)
    return found


def _kind(body: Callable[..., Any], argument: inspect.Parameter) -> Any:
    hint = argument.annotation
    if isinstance(hint, str):
        try:  # this one alone: another's name may exist for type checkers only
            hint = eval(hint, getattr(body, "__globals__", {}))  # noqa: S307 - the job's own source
        except Exception:  # noqa: BLE001 - whatever the job's source does
            return None
    if hint is argument.empty:
        hint = str if argument.default is None else type(argument.default)
    if get_origin(hint) in (Union, UnionType):  # `str | None = None`
        rest = [one for one in get_args(hint) if one is not type(None)]
        hint = rest[0] if len(rest) == 1 else None
    if get_origin(hint) is Literal and all(isinstance(choice, str) for choice in get_args(hint)):
        return get_args(hint)
    return hint if hint in READERS else None


def canonical(job: str, parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> str:
    """The parameters as their run's row keeps them: JSON, sorted, without defaults; "" when nothing differs.

    Args:
        job: The job's name, for the error.
        parameters: What the job takes.
        given: Values of their types, or texts, by name.

    Raises:
        InputError: The job has no such parameter, or a value does not fit; the message has the names that exist.
    """
    values = {}
    for name, value in sorted(given.items()):
        parameter = parameters.get(name)
        if parameter is None:
            known = "; ".join(one.wanted for one in parameters.values()) or "none"
            raise InputError(f"Job {job}: it has no parameter {name!r}. Its parameters are: {known}.")
        try:
            read = None if value is parameter.default is None else parameter.read(value)
            if not parameter.is_default(read):
                values[name] = _to_json(read)
        except UNFIT as error:
            raise InputError(
                f"Job {job}: parameter {name}={_shown(value)} does not fit `{parameter.wanted}`: {error}."
            ) from error
    if not values:
        return ""
    text = compact(values)
    if len(text) > LONGEST:
        raise InputError(
            f"Job {job}: its parameters take {len(text)} characters, over {LONGEST}; put the data in a blob and give "
            f"its name."
        )
    return text


def arguments(job: str, parameters: Mapping[str, Parameter], text: str) -> dict[str, Any]:
    """What the function is called with, from the row's text; raises InputError as `canonical`."""
    given = parameters_json(text)
    canonical(job, parameters, given)
    return {name: parameters[name].read(value) for name, value in given.items()}


def parameters_json(text: str) -> dict[str, Any]:
    """The parameters on a row, for people."""
    return dict(json.loads(text)) if text else {}


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # a whole number of thousands of digits
        return "a number too long to be written"


def _to_json(value: Any) -> Any:
    if isinstance(value, int):
        str(value)  # one that is too long to be written raises here
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else value


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"it is a {type(given).__name__}")
    given.encode()  # half of a surrogate pair cannot be kept
    return str.__str__(given)


def _whole(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError(f"it is a {type(given).__name__}")
    return int(given)


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise TypeError(f"it is a {type(given).__name__}")
    number = float(given)
    if not math.isfinite(number):
        raise ValueError("it is no finite number")
    return number + 0.0  # there is no -0.0 beside 0.0


def _truth(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if given not in ("true", "false"):
        raise ValueError("write true or false")
    return bool(given == "true")


def _date(given: Any) -> date:
    if isinstance(given, date) and not isinstance(given, datetime):
        return given
    return date.fromisoformat(given)


def _instant(given: Any) -> datetime:
    instant = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    if instant.tzinfo is None:
        raise ValueError("it has no offset; write 2026-11-29T03:00:00Z")
    return instant.astimezone(UTC)


READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _truth,
    date: _date,
    datetime: _instant,
}
