"""The settings of how a process is watched from outside: a part of `runonce.settings`.

| variable | default | what |
|---|---|---|
| RUNONCE_NOTIFY_URL | | a webhook that is told of incidents; a secret |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from runonce.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Watched:
    """Who is told what this process does."""

    notify_url: str = field(default="", repr=False)
    """Where incidents are posted; empty is nowhere. Who knows it can post there, so it is never logged."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read them; raises SettingsError."""
        return cls(notify_url=_url(env, "RUNONCE_NOTIFY_URL"))


def is_url(text: str) -> bool:
    """Whether it is the whole URL of a web server."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # which raises where it is no number
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", text)


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
