"""The Python 3.13 environment of the worker process, made once and kept beside the repository's own."""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
ENVIRONMENT = REPOSITORY / ".venvs" / "functions-3.13"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OVERRIDE = "RUNONCE_PYTHON313"

# The files pip reads for this environment: a change in any of them makes it anew.
_PINS = (REQUIREMENTS, REPOSITORY / "requirements.txt", REPOSITORY / "constraints.txt")


def worker_python() -> Path:
    """The interpreter that runs the worker, its environment made first if need be.

    Without Python 3.13 the calling test is skipped with the reason, but fails where `CI` is set: a green run
    must not mean that nothing was tested.
    """
    if sys.platform == "win32":
        pytest.skip("worker processes are driven by POSIX signals")
    python = find_python()
    if python is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"the Functions worker needs Python 3.13: install it, or name one in {OVERRIDE}")
    return _make_environment(Path(python))


def find_python() -> str | None:
    """A Python 3.13 that runs: named in RUNONCE_PYTHON313, on the path, pyenv's, or this one."""
    if named := os.environ.get(OVERRIDE):
        if not _is_python313(named):
            pytest.fail(f"{OVERRIDE}={named} is not a Python 3.13")
        return named
    return next(filter(_is_python313, _candidates()), None)


def _candidates() -> Iterator[str]:
    if on_path := shutil.which("python3.13"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/3.13*/bin/python"), reverse=True))
    yield sys.executable


@functools.cache
def _is_python313(python: str) -> bool:
    # It has to be run to know: pyenv's shim is on the path even where the version it names is not selected.
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run(
            [python, "-c", script], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.stdout.strip() == "3.13"


def _make_environment(python: Path) -> Path:
    stamp, interpreter = ENVIRONMENT / "pins.sha256", ENVIRONMENT / "bin" / "python"
    wanted = hashlib.sha256(
        b"\0".join(pin.read_bytes() for pin in _PINS if pin.exists()) + bytes(python)
    ).hexdigest()
    if _read(stamp) == wanted:
        return interpreter
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    with _only_one(ENVIRONMENT.with_name(f"{ENVIRONMENT.name}.lock")):
        if _read(stamp) != wanted:  # another test process may have made it meanwhile
            stamp.unlink(missing_ok=True)
            _run(python, "-m", "venv", "--clear", ENVIRONMENT)
            pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
            _run(interpreter, *pip, "install", "--requirement", REQUIREMENTS)
            stamp.write_text(wanted)
    return interpreter


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    import fcntl  # noqa: PLC0415  (absent on Windows, where the module must still import)

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a process that died
        yield


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
