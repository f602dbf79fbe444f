"""Finding the jobs: the jobs folder is a package, and each of its files a module; a broken one hides no other.

A job is whatever definition is made while a file is imported, wherever it is kept: in a loop, a list or a class, by a
function of another module, under a name that is used again. It belongs to the file whose import made it.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import opcode
import os
import sys
import threading
import traceback
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

from runonce.errors import JobFileError, RunonceError, SettingsError, UnknownJobError
from runonce.execution.every import Periodic
from runonce.execution.noted import noting
from runonce.hosts.clashes import clashes
from runonce.messages.definition import Handler
from runonce.runs.definition import ScheduledJob

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger("runonce.hosts.discover")

_one_at_a_time = threading.RLock()
"""Job files are imported anew each time: a second thread would take a module that is half imported for a whole one."""

Definition = ScheduledJob | Handler | Periodic


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a folder defines, by name, the file of each, and the files that could not be used."""

    jobs: dict[str, ScheduledJob] = field(default_factory=dict)
    handlers: dict[str, Handler] = field(default_factory=dict)
    every: dict[str, Periodic] = field(default_factory=dict)
    """What each host does by itself."""
    files: dict[str, Path] = field(default_factory=dict)
    """Relative to the folder."""
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
        if name in self.every:
            return UnknownJobError(
                f"{name!r} is not a {kind}: each host does it by itself, for it is @every."
            )
        known = ", ".join(sorted(names)) or "none"
        hint = "".join(f"\n  It may be in a file that did not load: {error}" for error in self.broken)
        return UnknownJobError(f"There is no {kind} {name!r}; the {kind}s are: {known}.{hint}")


def existing(folder: str | Path) -> Path:
    """The jobs folder, absolute.

    Raises:
        SettingsError: There is no such folder.
    """
    root = Path(os.path.abspath(folder))  # noqa: PTH100 - a link's own name is the package's, whatever it points to
    if not root.is_dir():
        raise SettingsError(
            f"The jobs folder {str(folder)!r} does not exist (looked at {root}): make it and put a file with a "
            f"@scheduled function in it, or name another one in RUNONCE_JOBS. `runonce init` writes a whole project."
        )
    return root


def discover(folder: str | Path) -> Discovered:
    """Import every `*.py` of the folder and its sub-folders, and collect the jobs that this defines.

    What begins with "_", a file or a sub-folder, is imported only by those that name it. The folder's parent is put
    first on `sys.path`, so that the folder is a package of its own name, here and in child processes.

    Raises:
        SettingsError: There is no such folder, or its name cannot be a package's.
    """
    with _one_at_a_time:
        return _discover(existing(folder))


def _discover(root: Path) -> Discovered:
    _open_package(root)
    found = Discovered()
    files = [(_module(root, file), file) for file in _job_files(root)]
    modules = {module for module, _ in files}
    made: dict[int, tuple[Definition, str | None]] = {}

    def note(definition: object) -> None:
        if isinstance(definition, Definition):
            made[id(definition)] = definition, _importing(modules)

    with noting(note):
        for module, file in files:
            if module not in sys.modules:  # what an import that failed half-way made counts no more
                _drop(made, module)
            try:
                _import(root, module, file)
                _bound(made, module)
                _collect(found, file.relative_to(root), [one for one, of in made.values() if of == module])
            except JobFileError as error:
                _drop(made, module)
                log.error("%s", error)  # noqa: TRY400 - the message has the place; a traceback of ours adds none
                found.broken.append(error)
    _leave_out_clashing(found)
    return found


def _leave_out_clashing(found: Discovered) -> None:
    """Neither of two that share a name runs: it would take what is the other one's for its own."""
    pairs = list(clashes([*found.jobs.values(), *found.handlers.values()]))
    for one, other, what in pairs:
        files = sorted({found.files[each.name].as_posix() for each in (one, other)})
        error = JobFileError(f"{' and '.join(files)}: {what} Both are left out.")
        log.error("%s", error)
        found.broken.append(error)
    for name in {each.name for one, other, _ in pairs for each in (one, other)}:
        found.jobs.pop(name, None)
        found.handlers.pop(name, None)
        del found.files[name]


def _job_files(root: Path) -> list[Path]:
    """A package's own file first: Python imports it before the others of its folder."""
    files = (file for file in root.rglob("*.py") if not file.is_dir())
    hidden = ("_", ".")
    return sorted(
        (
            file
            for file in files
            if not any(part.startswith(hidden) for part in file.relative_to(root).parts[:-1])
            and (file.name == "__init__.py" or not file.name.startswith(hidden))
        ),
        key=lambda file: (file.name != "__init__.py", file.parts),
    )


def _module(root: Path, file: Path) -> str:
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _importing(modules: set[str]) -> str | None:
    """The job file being imported here, the innermost where one imports another."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and module in modules:
            return str(module)
        frame = frame.f_back
    return None


def _bound(made: dict[int, tuple[Definition, str | None]], module: str) -> None:
    """Count what the module has imported from where it was defined before this discovery began."""
    for value in list(getattr(sys.modules.get(module), "__dict__", {}).values()):
        if issubclass(type(value), Definition):  # isinstance would ask a lazy proxy for what it stands for
            made.setdefault(id(value), (value, module))


def _drop(made: dict[int, tuple[Definition, str | None]], module: str) -> None:
    for key in [key for key, (_, of) in made.items() if of == module]:
        del made[key]


def _collect(found: Discovered, file: Path, definitions: list[Definition]) -> None:
    defined: dict[str, Definition] = {}
    for one in definitions:
        other = defined.setdefault(one.name, one)
        if other is not one:
            raise JobFileError(
                f"{file.as_posix()}: job {one.name!r} is defined twice in it ({_place(other)} and {_place(one)}); give "
                f'one of them another name with name="…". This file\'s jobs are left out.'
            )
    for name in defined:
        if name in found.files:
            raise JobFileError(
                f"{file.as_posix()}: job {name!r} is defined in {found.files[name].as_posix()} already; give one of "
                f'them another name with name="…". This file\'s jobs are left out.'
            )
    for name, one in defined.items():
        if isinstance(one, Handler):
            found.handlers[name] = one
        elif isinstance(one, Periodic):
            found.every[name] = one
        else:
            found.jobs[name] = one
        found.files[name] = file


def _place(definition: Definition) -> str:
    code = inspect.unwrap(definition.body).__code__  # the decorators take functions only
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def _open_package(root: Path) -> None:
    """Make the folder a package that is imported anew; a test may have changed its files since.

    Raises:
        SettingsError: Its name means something else in Python.
    """
    package, parent = root.name, str(root.parent)
    if not package or "." in package:
        raise SettingsError(
            f"The jobs folder {str(root)!r} cannot be a Python package, for its name {package!r} "
            f"{'has a dot in it' if package else 'is empty'}: rename it, and name it in RUNONCE_JOBS."
        )
    path = [parent, *(entry for entry in sys.path if entry != parent)]
    importlib.invalidate_caches()  # a file may have been written just now
    _check_meaning(root, path)
    sys.path[:] = path
    _forget(package, keep=set())
    if not (root / "__init__.py").is_file():
        sys.modules[package] = _bare(package, root)  # not of every folder of that name that is on the path


def _check_meaning(root: Path, path: list[str]) -> None:
    """SettingsError when `import` would find something else under the folder's name, or miss what is installed."""
    package = root.name
    meant, remedy = "", "rename the folder, and name it in RUNONCE_JOBS"
    installed = [entry for entry in path if {"site-packages", "dist-packages"} & {*Path(entry).parts}]
    if package in sys.stdlib_module_names or package == __name__.partition(".")[0]:
        meant = f"{'the toolkit' if package in __name__ else 'Python'}'s own module"
    elif other := _elsewhere(root, installed):
        meant = other
    elif other := _elsewhere(root, path):
        meant, remedy = other, f"put an empty __init__.py into it, or {remedy}"
    if meant:
        raise SettingsError(
            f"The jobs folder {str(root)!r} cannot be imported, for `import {package}` means {meant}: {remedy}."
        )


def _elsewhere(root: Path, path: list[str]) -> str | None:
    spec = PathFinder.find_spec(root.name, path)
    places = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
    return places[0] if places and places[0] != str(root) else None


def _bare(package: str, folder: Path) -> ModuleType:
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return module_from_spec(spec)


def _forget(package: str, keep: set[str]) -> None:
    """Take the package's modules out of Python's memory, but those to keep."""
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        if name not in keep:
            module = sys.modules.pop(name)
            above, _, own = name.rpartition(".")
            if getattr(sys.modules.get(above), own, None) is module:
                delattr(sys.modules[above], own)  # `from . import x` would find it there


def _import(root: Path, module: str, file: Path) -> None:
    name = file.relative_to(root).as_posix()
    if "." in file.relative_to(root).with_suffix("").as_posix():
        raise JobFileError(
            f"{name}: Python cannot import it, for its name has a dot in it; rename it. Its jobs are left out."
        )
    before = set(sys.modules)
    try:
        imported = importlib.import_module(module)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _raised_by_statement(error):
            raise  # a person's
        _forget(root.name, keep=before)  # half of a file, and what only that has imported
        if file.name == "__init__.py":
            sys.modules[module] = _bare(module, file.parent)  # for the other files of its folder
        line = _line(file, error)
        if isinstance(error, RunonceError):
            raise JobFileError(f"{name}{line}: {error}") from error
        raise JobFileError(
            f"{name}{line} could not be imported: {_told(error)}. {_remedy(root, error)}Its jobs are left out until it "
            f"is corrected; the other files' jobs run."
        ) from error
    origin = getattr(imported, "__file__", None) or str(file)
    if origin != str(file):
        raise JobFileError(
            f"{name}: `import {module}` means {origin}; rename one of the two. Its jobs are left out."
        )


def _raised_by_statement(error: BaseException) -> bool:
    """Whether a `raise` brought it up, and no key that was pressed meanwhile."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == opcode.opmap["RAISE_VARARGS"]
    )


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the error's own text fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _remedy(root: Path, error: BaseException) -> str:
    """What to write instead of `from _x import y`, which is for files that lie beside the folder."""
    wanted = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not wanted or not ((root / f"{wanted}.py").is_file() or (root / wanted).is_dir()):
        return ""
    return f"It lies in the jobs folder, which is a package: write `from {root.name}.{wanted} import …`. "


def _line(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
