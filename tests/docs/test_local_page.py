"""docs/local.md's way with the Functions host, as far as it goes without `func`: its double takes that place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.runs.table import read_jobs
from runonce.stores.azure.stores import azure_stores
from tests.support.functions_app import ROOT
from tests.support.functions_worker import LiveHost
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from pathlib import Path

SECTION = (ROOT / "docs" / "local.md").read_text(encoding="utf-8").partition("## 3.")[2].partition("\n## ")[0]


def commands() -> list[str]:
    """What the section's first three blocks tell to type, without comments."""
    blocks = re.findall(r"```\n(.*?)```", SECTION, re.DOTALL)[:3]
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_the_section_is_followed(tmp_path: Path, azurite: str) -> None:
    """The sample's settings serve app and commands alike; the functions named are there, nothing is amiss."""
    assert commands() == [
        "python dev.py azurite",
        ". .venv/bin/activate",
        "cp local.settings.sample.json local.settings.json",
        "python -m pip install -r requirements.txt",
        "func start",
        ". .venv/bin/activate",
        "python -m runonce run purge_sessions",
    ]
    settings = fresh_settings(azurite)
    for name in ("runonce", "jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("function_app.py", "host.json"):
        shutil.copy(ROOT / name, tmp_path / name)
    sample = json.loads((ROOT / "local.settings.sample.json").read_text(encoding="utf-8"))
    # As the page says where the emulator is not at its usual ports; the namespace keeps other tests apart.
    sample["Values"] |= {"AzureWebJobsStorage": azurite, "RUNONCE_NAMESPACE": settings.namespace}
    (tmp_path / "local.settings.json").write_text(json.dumps(sample))
    with LiveHost(tmp_path, sample["Values"]) as host:
        host.console.wait_for("Host started")
        for name in re.findall(r"`(runonce_\w+)`", SECTION):
            assert name in host.functions
        assert not any(line.startswith("runonce: ") for line in host.console.lines)
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RUNONCE_", "AzureWebJobs"))
        }
        command = [sys.executable, "-m", "runonce", "run", "purge_sessions"]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    rows = read_jobs(Registry(azure_stores(settings).runs, settings.namespace, SystemClock(), "test")).rows
    assert rows["purge_sessions"].last_outcome == "succeeded"
