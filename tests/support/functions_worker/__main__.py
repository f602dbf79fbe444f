"""Runs a project as the Functions host would: `python -m tests.support.functions_worker [FOLDER]`."""

import argparse
import json
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from types import FrameType

import pytest

from .environment import worker_python
from .live import LiveHost


def main() -> int:
    """Run until SIGTERM, Ctrl-C, or the host's own end."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.functions_worker", description=__doc__)
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="of function_app.py")
    parser.add_argument("--port", type=int, default=7071, help="for HTTP; 0 takes a free one")
    parser.add_argument("--functions", nargs="+", default=[], metavar="NAME", help="run only these")
    arguments = parser.parse_args()
    try:
        worker_python()
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        parser.exit(1, f"{error}\n")
    settings = _local_settings(arguments.folder) | dict(os.environ)
    settings |= {f"AzureFunctionsJobHost__functions__{n}": name for n, name in enumerate(arguments.functions)}
    if "AzureWebJobsStorage" not in settings:
        parser.exit(1, "AzureWebJobsStorage is neither in local.settings.json nor in the environment\n")
    try:
        host = LiveHost(arguments.folder, settings, port=arguments.port, show=_show)
    except FileNotFoundError as error:
        parser.exit(1, f"{error}\n")
    except OSError as error:
        parser.exit(1, f"Port {arguments.port}: {error}; --port 0 takes a free one\n")

    def told(_number: int, _frame: FrameType | None) -> None:
        host.terminate()  # a terminal's Ctrl-C has reached the worker as well, which is of this process's group

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    with host:
        _show(f"Functions: {', '.join(host.functions)}{host.refused}")
        _show(f"Listening on {host.port.settings['ASPNETCORE_URLS']}; worker {[w.pid for w in host.workers]}")
        return host.wait()


def _local_settings(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads((folder / "local.settings.json").read_text(encoding="utf-8-sig"))["Values"])
    except FileNotFoundError:
        return {}


def _show(line: str) -> None:
    print(f"[{datetime.now().astimezone().isoformat(timespec='milliseconds')}] {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
