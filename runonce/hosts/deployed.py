"""What has left the code does nothing more on Container Apps, though its old job ticks there until it is removed.

A deployment makes and updates jobs; one that a deletion or a new name has left behind stays, with its old image. So
each deployment has a time (RUNONCE_DEPLOYMENT), and a row of the namespace has the newest one's time and names, written
by whichever of its executions is first. An execution of an older deployment that is not named there does nothing. One
that is named goes ahead: while a deployment is under way, or where a second region gets it later, both are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runonce.errors import ConflictError
from runonce.hosts.manifest import on_container_apps
from runonce.stores.columns import LONGEST_COLUMN
from runonce.stores.protocols import Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runonce.hosts.runtime import Runtime
    from runonce.stores.protocols import Row, Value

KEY = "deployment"
"""Of the row, in the partition of the namespace."""


def why_not_in_code(runtime: Runtime, name: str, known: Iterable[str]) -> str | None:
    """Why a deployed execution has nothing to run; None when it has, or nobody deployed it, or a file did not load."""
    if name in known or runtime.found.broken or not runtime.settings.deployment:
        return None
    return f"{name}: nothing to do: it is not in the code of this image. Delete its Container Apps job."


def why_left(runtime: Runtime, name: str) -> str | None:
    """Why an execution must do nothing: a newer deployment no longer has it. None when it may go ahead.

    One read of storage where the templates have deployed it, and none elsewhere; the first execution of a deployment
    writes its row.

    Raises:
        StoreError: Storage did not answer.
    """
    mine = runtime.settings.deployment
    while mine:
        row = runtime.runs.table.get(runtime.runs.namespace, KEY)
        newest = "" if row is None else str(row.values["deployed_at"])
        if newest > mine:
            if row is None or name in _names(row):
                return None
            return (
                f"{name}: not run: the deployment of {newest} no longer has it, and this is the one of {mine}. Delete "
                f"its Container Apps job."
            )
        if newest == mine or runtime.found.broken:  # whose jobs would be missing
            return None
        try:
            runtime.runs.table.commit(runtime.runs.namespace, [_write(runtime, mine, row)])
        except ConflictError:
            continue  # another execution of this deployment, or of a newer one
    return None


def _write(runtime: Runtime, mine: str, row: Row | None) -> Insert | Replace:
    text = "\n".join(on_container_apps(runtime.found, runtime.clock.now()))
    values: dict[str, Value] = {"deployed_at": mine}
    for start in range(0, len(text), LONGEST_COLUMN):
        values[f"names_{start:07}"] = text[start : start + LONGEST_COLUMN]
    return Insert(KEY, values) if row is None else Replace(KEY, values, row.etag)


def _names(row: Row) -> list[str]:
    return "".join(str(row.values[name]) for name in sorted(row.values) if name.startswith("names_")).split(
        "\n"
    )
