"""Kusto's own parser, from npm: what it says of a query against the tables of a workspace."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parents[1] / "infra" / "kusto"

TABLES = {
    "AppTraces": (
        "(TimeGenerated: datetime, Message: string, SeverityLevel: int, Properties: dynamic, Measurements: dynamic,"
        " OperationName: string, OperationId: string, ParentId: string, AppRoleName: string,"
        " AppRoleInstance: string, ItemCount: int, ResourceGUID: string, Type: string, _ResourceId: string)"
    ),
    "AppMetrics": (
        "(TimeGenerated: datetime, Name: string, Sum: real, Min: real, Max: real, ItemCount: int, Properties: dynamic,"
        " OperationName: string, OperationId: string, AppRoleName: string, AppRoleInstance: string, Type: string,"
        " _ResourceId: string)"
    ),
    "ContainerAppConsoleLogs": (
        "(TimeGenerated: datetime, Log: string, Stream: string, ContainerAppName: string, ContainerName: string,"
        " ContainerId: string, ContainerGroupName: string, ContainerImage: string, EnvironmentName: string,"
        " RevisionName: string, JobName: string, Location: string, Type: string, _ResourceId: string)"
    ),
}
"""The tables that the alerts and the workbook read, with the columns of Azure Monitor's reference."""


def analyse(launcher: Any, queries: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What Kusto says of each query: its errors, and the names and types of the columns that come out.

    Args:
        launcher: The module that finds or installs Node.js for the emulator.
        queries: Queries by a name of the caller's choice.
    """
    try:
        node = launcher.find_or_install_node()
    except launcher.CommandError as error:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"the queries are checked by Kusto's own parser, which needs Node.js: {error}")
    _install(launcher, node)
    done = subprocess.run(
        [node.node, str(HERE / "check.js")],
        input=json.dumps({"tables": TABLES, "queries": dict(queries)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _install(launcher: Any, node: Any) -> None:
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    stamp = HERE / "node_modules" / ".runonce-stamp"
    with launcher._only_one(HERE / ".install.lock"):
        if stamp.exists() and stamp.read_text() == wanted:
            return
        command = [*node.npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
        launcher.run_quietly(command, cwd=HERE)
        stamp.write_text(wanted)
