"""Jobs folders made for a test, and what importing them leaves behind put back."""

from __future__ import annotations

import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@contextmanager
def job_files(folder: Path, **files: str) -> Iterator[Path]:
    """A jobs folder of files given as name=source; afterwards sys.path, and the modules of that name, are as before."""
    path, before = list(sys.path), _modules(folder)
    folder.mkdir(exist_ok=True)
    for name, source in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    yield folder
    sys.path[:] = path
    for name in _modules(folder):
        del sys.modules[name]
    sys.modules.update(before)


def _modules(folder: Path) -> dict[str, ModuleType]:
    """What lies in the folder or beside it, or is another package of its name."""
    package, beside = folder.name, str(folder.parent)
    return {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] == package or (getattr(module, "__file__", None) or "").startswith(beside)
    }
