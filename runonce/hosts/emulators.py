"""The stand-ins for Azure on one machine, Azurite and the local Service Bus broker: for `runonce dev` and for tests.

Their launchers know nothing of the package; a wheel has a copy of them, a checkout the originals.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runonce.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKED, CHECKOUT = Path(__file__).parents[1] / "_local", Path(__file__).parents[2]
"""Where the package has the stand-ins for Azure, and where a checkout has them."""
PARTS = ("run.js", "package.json", "package-lock.json")
"""Of azurite/, what has to lie beside the packages that npm installs."""


@cache
def launcher(name: str) -> Any:
    """The launcher of azurite/ or servicebus/, of this package or of the checkout."""
    root = PACKED if PACKED.is_dir() else CHECKOUT
    if str(root) not in sys.path:
        sys.path.append(str(root))
    found = import_module(f"{name}.launcher")
    if root == PACKED and name == "azurite":  # packages of npm have no place among Python's
        mark = hashlib.sha256((found.HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
        home = _app_folder() / f"azurite-{mark}"
        home.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            shutil.copyfile(found.HERE / part, home / part)
        vars(found)["HERE"] = home
    return found


def _app_folder() -> Path:
    try:
        import typer  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("The emulator", "cli") from error
    return Path(typer.get_app_dir("runonce", roaming=False))


def handlers(arguments: Sequence[str] = (), folder: Path | None = None) -> list[dict[str, Any]]:
    """A project's handlers as its manifest has them, asked of a process of their own; none where it has no answer."""
    ask = [sys.executable, "-m", "runonce", *arguments, "manifest", "--output", "-"]
    answer = subprocess.run(ask, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - ours
    found: list[dict[str, Any]] = json.loads(answer.stdout)["handlers"] if answer.returncode == 0 else []
    return found


def bus_missing() -> str:
    """What keeps the local broker from being used here, with the remedy; empty when nothing does."""
    if find_spec("azure.servicebus") is None:
        return str(MissingExtraError("Service Bus", "servicebus"))
    bus = launcher("servicebus")
    return "" if bus.available() else bus.HINT


@contextmanager
def bus_of(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A local broker with the entities of these handlers alone, whose messages are gone with it; where it is."""
    bus = launcher("servicebus")
    broker = bus.Broker(bus.arguments_of(found))
    broker.restart()
    with broker:
        yield broker.connection_string
