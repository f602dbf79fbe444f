"""The rules by which the Functions host accepts what a worker indexed."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_FUNCTION_NAME = re.compile(r"(?!host$)[a-z][a-z0-9_-]{0,127}", re.IGNORECASE)
_BINDING_NAME = re.compile(r"(?!.*__)[a-z_][a-z0-9_]{0,127}|\$return", re.IGNORECASE | re.ASCII)


class InvalidMetadataError(AssertionError):
    """The host would not start these functions; every reason is named."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """One indexed function: its bindings are the host's JSON, read."""

    name: str
    bindings: list[dict[str, Any]]
    id: str = ""
    source: Any = field(default=None, repr=False)
    """The worker's own message, which the host hands back when it loads the function."""

    @property
    def trigger(self) -> dict[str, Any]:
        return next(binding for binding in self.bindings if _is_trigger(binding))


def parse(results: Iterable[Any]) -> list[Function]:
    """Reads the worker's answer to the metadata request."""
    return [
        Function(
            name=result.name,
            bindings=[json.loads(binding) for binding in result.raw_bindings],
            id=result.function_id,
            source=result,
        )
        for result in results
    ]


def accept(functions: Iterable[Function]) -> tuple[dict[str, Function], list[str]]:
    """The functions the host starts, by name, and why it leaves out the others."""
    functions, accepted, problems = list(functions), {}, []
    used = Counter(function.name.lower() for function in functions)
    for function in functions:
        own = list(_problems(function))
        if used[function.name.lower()] > 1:
            count = used[function.name.lower()]
            own.append(
                f"function name {function.name.lower()!r} is used {count} times (the host ignores case)"
            )
        if not own:
            accepted[function.name] = function
        problems += own
    return accepted, list(dict.fromkeys(problems))


def validate(functions: Iterable[Function]) -> dict[str, Function]:
    """Returns the functions by name, or raises with every reason the host would give.

    The host drops an invalid function and starts the others; here that is an error, since a job nobody runs
    is what a test wants to see.
    """
    accepted, problems = accept(functions)
    if problems:
        raise InvalidMetadataError("; ".join(problems))
    return accepted


def _problems(function: Function) -> Iterable[str]:
    if not _FUNCTION_NAME.fullmatch(function.name):
        yield f"{function.name!r} is not a valid function name"
    names = Counter(str(binding.get("name", "")).lower() for binding in function.bindings)
    for binding in function.bindings:
        name = binding.get("name") or ""
        if not _BINDING_NAME.fullmatch(name):
            yield f"{function.name}: {name!r} is not a valid binding name"
        if not binding.get("type"):
            yield f"{function.name}: binding {name!r} has no type"
    yield from (f"{function.name}: {n} bindings are named {name!r}" for name, n in names.items() if n > 1)
    if not any(map(_is_trigger, function.bindings)):
        yield f"{function.name}: no trigger"


def _is_trigger(binding: dict[str, Any]) -> bool:
    kind, direction = binding.get("type") or "", binding.get("direction") or "in"
    return kind.lower().endswith("trigger") and direction.lower() == "in"
