"""The dashboard on our own host: a server on loopback, in a thread of its own beside the jobs."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from runonce.errors import SettingsError
from runonce.execution.log import user_name
from runonce.hosts.dashboard.access import Loopback
from runonce.hosts.dashboard.app import make
from runonce.hosts.dashboard.lines import lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.hosts.runtime import Runtime

PORT = 8391
HOST = "127.0.0.1"
STOPPING = 2.0
"""Seconds that pages under way have when the host stops."""
LOOK = 0.5
"""Seconds between the server's looks whether it is to end."""


class _Server(uvicorn.Server):
    """Its own ten looks a second take as much CPU as all else that an idle host does."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 - what ends it sets a flag
            await asyncio.sleep(LOOK)


@contextmanager
def served(runtime: Runtime, port: int = PORT, *, may_act: bool) -> Iterator[str]:
    """Serve the dashboard while the block runs; its address. Port 0 takes a free one.

    Raises:
        SettingsError: The port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # so that nobody is refused until the server has begun
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"Port {port} of this machine is taken ({error.strerror}), by another host's dashboard perhaps; "
            f"give another with --port, or 0 for a free one."
        ) from error
    logging.getLogger("runonce").addHandler(lines)
    config = uvicorn.Config(
        make(runtime, Loopback(user_name(), may_act)),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(STOPPING),
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="runonce-dashboard", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(STOPPING + 1)
        listener.close()
        logging.getLogger("runonce").removeHandler(lines)
