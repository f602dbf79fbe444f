"""The storage calls that docs/deploy.md counts by the day."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from support.command_line import invoke

from runonce.cli.context import Context
from tests.support.infrastructure import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from tests.conftest import Calls

MINUTES = 24 * 60
JOB = """
from runonce import Run, scheduled

@scheduled("0 0 3 * * *")
def nightly(run: Run) -> None:
    "Works."
"""


def test_an_idle_recovery_execution_costs_what_is_written(
    settings: Settings, azure: Stores, calls: Calls, tmp_path: Path
) -> None:
    """With nothing unfinished a recovery execution makes three calls, and the page counts them so."""
    (tmp_path / "job.py").write_text(JOB)
    environ = {
        "RUNONCE_STORAGE": settings.storage.connection_string or "",
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_JOBS": str(tmp_path),
    }
    for _ in range(2):  # the first makes the row, the table and the queue
        calls.made.clear()
        assert invoke(Context(environ=environ, stores=azure), "recover", "--work").exit_code == 0
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"recovery, idle, on Container Apps \| ([\d,]+)", text)
    assert len(calls.made) * MINUTES == int(written.replace(",", "")), calls.made
