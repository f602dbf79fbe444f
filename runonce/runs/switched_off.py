"""Which functions an app on Azure Functions does not start, kept for those who look from elsewhere.

The setting that switches one off (`AzureWebJobs.NAME.Disabled`) is the app's own, so nobody else can read it. The
app writes down what it found, one row for each app, beside those of the hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runonce.errors import ConflictError
from runonce.runs.presence import partition, row_key
from runonce.stores.columns import UNREADABLE, compact, typed, unreadable
from runonce.stores.protocols import Delete, Insert, Replace, Write

if TYPE_CHECKING:
    from datetime import datetime

    from runonce.execution.registry import Registry

FIRST, LAST = "off:", "off;"


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """One function that an app does not start."""

    name: str
    """The job's or handler's, or that of a function of the toolkit's own."""
    setting: str
    """What says so: the setting's name as it is spelt there, or `--functions`."""
    app: str
    """The app's host name, such as `shop.azurewebsites.net`."""
    noted_at: datetime
    """When the app wrote this down, by storage's clock."""


def note_switched_off(registry: Registry, app: str, off: Mapping[str, str]) -> None:
    """Write down what an app does not start, by name with the setting; one that starts everything has no row.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    at = partition(registry.namespace)
    key = row_key(FIRST, app)
    row = registry.table.get(at, key)
    values = {"app": app, "functions": compact(dict(off))}
    write: Write
    if off:
        write = Insert(key, values) if row is None else Replace(key, values, row.etag)
    elif row is None:
        return
    else:
        write = Delete(key, row.etag)
    try:
        registry.table.commit(at, [write])
    except ConflictError:  # another instance of the app was faster, and has the same settings
        return


def switched_off(registry: Registry) -> list[SwitchedOff]:
    """What the namespace's apps do not start, by app and name: one call.

    Raises:
        StoreError: Storage did not answer, or refused.
    """
    found = []
    for row in registry.table.scan(partition(registry.namespace), FIRST, LAST):
        try:
            functions: Mapping[str, str] = typed(json.loads(str(row.values["functions"])), Mapping[str, str])
            app = str(row.values["app"])
        except UNREADABLE as error:
            raise unreadable(row, error) from error
        found += [SwitchedOff(name, functions[name], app, row.timestamp) for name in sorted(functions)]
    return found
