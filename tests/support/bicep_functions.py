"""The functions of Bicep that infra/ uses, and what only a deployment knows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Later:
    """A value that only a deployment knows."""

    what: str

    def __str__(self) -> str:
        return f"<{self.what}>"


def as_text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _union(*objects: dict[str, Any]) -> dict[str, Any]:
    return reduce(lambda a, b: {**a, **b}, objects)


def _resource_id(*parts: str) -> str:
    """Of a resource wherever it is: a subscription and a group before its type do not matter here."""
    kind = next(n for n, part in enumerate(parts) if re.match(r"Microsoft\.\w+/", part))
    return f"/{parts[kind]}/{'/'.join(parts[kind + 1 :])}"


def _hash(*values: Any) -> str:
    return hashlib.sha256("|".join(map(str, values)).encode()).hexdigest()[:13]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "any": lambda value: value,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64ToJson": lambda text: json.loads(base64.b64decode(text)),
    "concat": lambda *lists: list(chain(*lists)),
    "contains": lambda items, item: item in items,
    "empty": lambda value: value is None or (not isinstance(value, Later) and len(value) == 0),
    "environment": lambda: {"suffixes": {"storage": "core.windows.net"}},
    "filter": lambda items, keep: [item for item in items if keep(item)],
    "flatten": lambda lists: list(chain(*lists)),
    "format": lambda text, *values: text.format(*map(as_text, values)),
    "guid": _hash,
    "indexOf": lambda items, item: items.index(item),
    "int": int,
    "items": lambda value: [{"key": k, "value": v} for k, v in sorted(value.items())],
    "join": lambda items, between: between.join(items),
    "json": json.loads,
    "last": lambda items: items[-1],
    "map": lambda items, change: [change(item) for item in items],
    "replace": lambda text, old, new: text.replace(old, new),
    "resourceGroup": lambda *_: {"location": "westeurope", "name": "rg-test"},
    "resourceId": _resource_id,
    "split": lambda text, between: text.split(between),
    "string": lambda value: json.dumps(value) if isinstance(value, dict | list) else as_text(value),
    "subscription": lambda: {"id": "/subscriptions/0", "subscriptionId": "0"},
    "subscriptionResourceId": lambda kind, *names: f"/{kind}/{'/'.join(names)}",
    "toLower": lambda text: text.lower(),
    "toObject": lambda items, key, value: {key(item): value(item) for item in items},
    "union": _union,
    "uniqueString": _hash,
    "utcNow": lambda: datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
}
