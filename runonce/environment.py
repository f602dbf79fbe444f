"""Single values of an environment, read strictly: SettingsError names the variable, its value and what it may be."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from runonce.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


def word(env: Mapping[str, str], name: str, default: str, *words: str) -> str:
    """One of some words, or the default where nothing is set."""
    chosen = env.get(name, "").strip() or default
    if chosen not in (default, *words):
        raise SettingsError(f"{name}={chosen!r} must be {' or '.join(filter(None, (default, *words)))}.")
    return chosen


def server(env: Mapping[str, str], name: str, *schemes: str) -> str:
    """An address of one of some kinds, or nothing. Whether all of it is right, its own client finds."""
    text = env.get(name, "").strip()
    if text and not text.startswith(schemes):
        raise SettingsError(  # it may hold a password, so it is never repeated
            f"{name} is no address of a kind that is known here (a text of {len(text)} characters): begin it with "
            f"{' or '.join(schemes)}, or leave it out."
        )
    return text


def number(
    env: Mapping[str, str],
    name: str,
    default: float,
    *,
    low: float = 0,
    high: float = 86400,
    whole: bool = False,
    unit: str = "seconds",
) -> float:
    """A number between limits, or the default where nothing is set."""
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise SettingsError(f"{name}={text!r} must be {kind} of {unit} from {low:.9g} to {high:.9g}.")
    return value


def whole(env: Mapping[str, str], name: str, default: int, **limits: Any) -> int:
    """A whole number; as `number`."""
    return int(number(env, name, default, whole=True, **limits))


def is_base64(text: str) -> bool:
    """Whether it is Base64 of anything."""
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False
