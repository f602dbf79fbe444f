"""Finding the jobs: each file of the jobs folder is imported alone; a broken one hides no other."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runonce.errors import JobFileError, RunonceError, SettingsError, UnknownJobError
from runonce.messages.definition import Handler
from runonce.runs.definition import ScheduledJob

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger("runonce.hosts.discover")

_one_at_a_time = threading.RLock()
"""Job files are imported anew each time: a second thread would take a module that is half imported for a whole one."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The jobs and handlers of a folder by name, the file of each, and the files that could not be used."""

    jobs: dict[str, ScheduledJob] = field(default_factory=dict)
    handlers: dict[str, Handler] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    broken: list[JobFileError] = field(default_factory=list)

    def job(self, name: str) -> ScheduledJob:
        """The job of that name.

        Raises:
            UnknownJobError: There is none; the message lists the names, and the files that did not load.
        """
        if name in self.jobs:
            return self.jobs[name]
        raise self._unknown("job", name, list(self.jobs), list(self.handlers))

    def handler(self, name: str) -> Handler:
        """The handler of that name; raises as `job`."""
        if name in self.handlers:
            return self.handlers[name]
        raise self._unknown("handler", name, list(self.handlers), list(self.jobs))

    def _unknown(self, kind: str, name: str, names: list[str], others: list[str]) -> UnknownJobError:
        if name in others:
            other = (
                "a handler, which messages start"
                if kind == "job"
                else "a scheduled job, which fire times start"
            )
            return UnknownJobError(f"{name!r} is not a {kind}: it is {other}.")
        known = ", ".join(sorted(names)) or "none"
        hint = "".join(f"\n  It may be in a file that did not load: {error}" for error in self.broken)
        return UnknownJobError(f"There is no {kind} {name!r}; the {kind}s are: {known}.{hint}")


def discover(folder: str | Path) -> Discovered:
    """Import every `*.py` of the folder that does not begin with "_", and collect the jobs defined there.

    Raises:
        SettingsError: There is no such folder.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise SettingsError(
            f"The jobs folder {str(folder)!r} does not exist (looked at {root}): make it and put a file with a "
            f"@scheduled function in it, or name another one in RUNONCE_JOBS."
        )
    with _one_at_a_time:
        return _discover(root)


def _discover(root: Path) -> Discovered:
    found = Discovered()
    # A job file may import its neighbours and what lies beside the folder, as it would under the host.
    for path in (str(root.parent), str(root)):
        if path not in sys.path:
            sys.path.append(path)
    files = [file for file in sorted(root.glob("*.py")) if not file.name.startswith("_")]
    for file in files:
        _forget(file)
    importlib.invalidate_caches()  # a file may have been written just now
    for file in files:
        try:
            _collect(found, file)
        except JobFileError as error:
            log.error("%s", error)  # noqa: TRY400 - the message has the place; a traceback of ours adds none
            found.broken.append(error)
    return found


def _collect(found: Discovered, file: Path) -> None:
    module = _import(file)
    defined: dict[str, ScheduledJob | Handler] = {}
    for value in vars(module).values():
        # What a file imports from another belongs to that one.
        if not isinstance(value, ScheduledJob | Handler) or value.body.__module__ != module.__name__:
            continue
        if defined.get(value.name, value) is not value:
            raise JobFileError(
                f'{file.name}: job {value.name!r} is defined twice in it; give one of them another name with name="…". '
                f"This file's jobs are left out."
            )
        defined[value.name] = value
    for name in defined:
        if name in found.files:
            raise JobFileError(
                f"{file.name}: job {name!r} is defined in {found.files[name].name} already; give one of them "
                f'another name with name="…". This file\'s jobs are left out.'
            )
    for name, job in defined.items():
        if isinstance(job, Handler):
            found.handlers[name] = job
        else:
            found.jobs[name] = job
        found.files[name] = file


def _forget(file: Path) -> None:
    """Have the file imported anew; a test may have changed it since an earlier discovery."""
    for name in (f"runonce_jobs.{file.stem}", file.stem):
        if _is_of(sys.modules.get(name), file):
            del sys.modules[name]


def _is_of(module: ModuleType | None, file: Path) -> bool:
    return getattr(module, "__file__", None) == str(file)


def _import(file: Path) -> ModuleType:
    neighbour = sys.modules.get(file.stem)
    if neighbour is not None and _is_of(neighbour, file):
        return neighbour  # another job file has imported it; once more would define its jobs a second time
    # A module name of our own, so that a job file called json.py shadows nothing.
    name = f"runonce_jobs.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise JobFileError(f"{file.name}: Python cannot import it; a job file is a .py file.")
    module = importlib.util.module_from_spec(spec)
    names = [name, *([file.stem] if _is_imported_as(file.stem, file) else [])]
    for known in names:
        sys.modules[known] = module
    try:
        spec.loader.exec_module(module)
    except RunonceError as error:
        for known in names:
            sys.modules.pop(known, None)
        raise JobFileError(f"{file.name}{_line(file, error)}: {error}") from error
    except (Exception, SystemExit) as error:
        for known in names:
            sys.modules.pop(known, None)
        raise JobFileError(
            f"{file.name}{_line(file, error)} could not be imported: {type(error).__name__}: {error}. Its jobs are "
            f"left out until it is corrected; the other files' jobs run."
        ) from error
    return module


def _is_imported_as(name: str, file: Path) -> bool:
    """Whether `import name` in a job file means this file, and not a package of that name."""
    if not name.isidentifier() or name in sys.modules:
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin == str(file)


def _line(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
