"""Jobs folders made for a test, and what importing them leaves behind put back."""

from __future__ import annotations

import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def job_files(folder: Path, **files: str) -> Iterator[Path]:
    """A jobs folder of files given as name=source; sys.path and sys.modules are as before afterwards."""
    path, modules = list(sys.path), dict(sys.modules)
    folder.mkdir(exist_ok=True)
    for name, source in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)
