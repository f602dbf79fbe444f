"""Runs a broker in this process until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from servicebus import control
from servicebus.broker import Broker
from servicebus.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from servicebus.entities import Queue, Topic

HOST = "127.0.0.1"
_FAREWELL = 0.05  # seconds for the last frames to leave
_PARENT_CHECK = 1.0


async def serve(
    entities: Sequence[Queue | Topic],
    *,
    port: int,
    path: Path | None,
    keys: Mapping[str, str],
    controlled: bool,
    ready: Callable[[int], None],
) -> None:
    """Listen, call `ready` with the port, and stay until a signal or the end of the control channel."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    broker = Broker(entities, path=path, keys=keys)
    server = await loop.create_server(partial(Connection, broker), HOST, port)
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows has no signals here; Ctrl-C still ends it
            loop.add_signal_handler(number, stop.set)
    ready(server.sockets[0].getsockname()[1])
    watch = None
    if controlled:
        control.listen(broker, loop, stop.set)
        watch = asyncio.create_task(_until_orphaned(stop))
    await stop.wait()
    if watch:
        watch.cancel()
    server.close()
    for connection in list(broker.connections):
        connection.close()
    await asyncio.sleep(_FAREWELL)
    broker.store.close()


async def _until_orphaned(stop: asyncio.Event) -> None:
    """Stop when the parent dies even if a forked child of it still holds the control channel open."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells us
        await asyncio.sleep(_PARENT_CHECK)
    stop.set()
