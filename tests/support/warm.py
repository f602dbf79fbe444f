"""Python that has everything imported, for tests that run a hundred commands: each in a process of its own, by fork.

Starting an interpreter and importing the SDKs is nine tenths of what most commands cost. What a fresh start does,
other tests see (tests/hosts).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

IMPORTED = (
    "import runonce.cli.app, azure.storage.blob, azure.data.tables, azure.storage.queue, azure.servicebus"
)


def run_python(arguments: list[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What `python ARGUMENTS` does: `-m MODULE …`, `-c CODE` (with `-W error` before it) or a file."""
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{name}" for name in ("out", "err")]
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([arguments, str(cwd), dict(env), files]) + "\n")
        server.stdin.flush()
        try:
            code = int(server.stdout.readline())
        except BaseException:  # the test's time is over; the answer must not be taken for that to the next
            server.kill()
            _server.cache_clear()
            raise
        out, err = (Path(name).read_text(encoding="utf-8") for name in files)
    return subprocess.CompletedProcess(arguments, code, out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.warm"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)  # it ends with its input
    return process


def _serve() -> None:
    exec(IMPORTED, {})
    sys.path.remove(str(ROOT))
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(line))
            return  # as a fresh interpreter ends: threads are waited for, exit handlers called
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 - the answer


def _become(arguments: list[str], cwd: str, env: dict[str, str], files: list[str]) -> None:
    for number, name in enumerate(files, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    while arguments[0] == "-W":
        _, action, *arguments = arguments
        sys.warnoptions.append(action)
        import warnings  # noqa: PLC0415 - of one child

        warnings.simplefilter(action)  # type: ignore[arg-type]
    kind, *rest = arguments if arguments[0] in ("-m", "-c") else ("", *arguments)
    sys.path[:0] = ["" if kind else str(Path(cwd, rest[0]).parent), *filter(None, paths)]
    sys.argv = [kind, *rest[1:]] if kind else rest
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
