"""runonce itself: `serve` with a folder of one handler, or of one job; all is as it comes, but without the pages.

The key is a field of the body, `on_abandoned` is said by the environment.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import work

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))


def send(messages: list[dict[str, Any]]) -> None:
    """Enqueue."""
    from runonce import enqueue_many  # noqa: PLC0415 - only this command needs it

    enqueue_many(importlib.import_module("handlers.send_invoice").send_invoice, messages)


def serve(folder: str) -> None:
    """Become `runonce serve`."""
    os.environ["PYTHONPATH"] = f"{HERE.parent.parent}{os.pathsep}{HERE}"
    os.execv(sys.executable, [sys.executable, "-m", "runonce", "--jobs", str(HERE / folder), "serve"])  # noqa: S606 - no shell


if __name__ == "__main__":
    work.main(lambda _: None, send, lambda: serve("handlers"), lambda: serve("jobs"))
