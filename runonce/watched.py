"""The settings of how a process is watched from outside: a part of `runonce.settings`.

| variable | default | what |
|---|---|---|
| RUNONCE_NOTIFY_URL | | a webhook that is told of incidents; a secret |
| RUNONCE_TELEMETRY | | where spans and metrics go: `console`, `otlp`, `azure`, or `own`, the program's own providers |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from runonce.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


TELEMETRY = ("console", "otlp", "azure", "own")


@dataclass(frozen=True, slots=True)
class Watched:
    """Who is told what this process does."""

    notify_url: str = field(default="", repr=False)
    """Where incidents are posted; empty is nowhere. Who knows it can post there, so it is never logged."""

    telemetry: str = ""
    """Where spans and metrics go; empty is nowhere."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read them; raises SettingsError."""
        return cls(
            _url(env, "RUNONCE_NOTIFY_URL"),
            choice("RUNONCE_TELEMETRY", env.get("RUNONCE_TELEMETRY", ""), TELEMETRY),
        )


def choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """A setting's value: one of the choices, or empty where it is not set; SettingsError for anything else."""
    text = value.strip()
    if text and text not in choices:
        raise SettingsError(f"{name}={text!r} must be one of {', '.join(choices)}, or not set.")
    return text


def is_url(text: str) -> bool:
    """Whether it is the whole URL of a web server."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # which raises where it is no number
    except ValueError:
        return False
    named = re.fullmatch(r"[\w.:-]+", parts.hostname or "")
    return parts.scheme in ("http", "https") and named is not None and not re.search(r"\s", text)


def _url(env: Mapping[str, str], name: str) -> str:
    text = env.get(name, "").strip()
    if text and not is_url(text):
        if text.startswith("@Microsoft.KeyVault("):
            raise SettingsError(
                f"{name} is a reference to a Key Vault that was not resolved: let the app's identity read that secret."
            )
        raise SettingsError(
            f"{name} is not a URL (a text of {len(text)} characters, not repeated here, for it may be secret): give "
            f"the whole of it, such as https://hooks.example.com/services/…."
        )
    return text
