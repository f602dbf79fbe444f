"""A function app made for a test: the shipped function_app.py with job files of the test's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runonce.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def make_app(folder: Path, jobs: dict[str, str]) -> Path:
    """A function app of its own folder: the shipped function_app.py and host.json, with these job files."""
    (folder / "jobs").mkdir(parents=True)
    for name in ("function_app.py", "host.json"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "runonce").symlink_to(ROOT / "runonce")  # deployed, the package lies there
    for name, text in jobs.items():
        (folder / "jobs" / name).write_text(text)
    return folder


def environment(settings: Settings) -> dict[str, str]:
    """What the app is told."""
    return {
        "AzureWebJobsStorage": str(settings.storage.connection_string),
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_QUEUE_NAMES": "plain",
        "RUNONCE_LEASE_DURATION": "15",
        "RUNONCE_LEASE_RENEWAL": "5",
        "RUNONCE_LEASE_MARGIN": "2",
        "RUNONCE_MISFIRE_GRACE": "1",
    }
