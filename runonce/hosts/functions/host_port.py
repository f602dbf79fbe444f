"""Hearing that the host stops, which it tells its Python worker by nothing but this: its own port refuses at once.

The host then waits ten seconds for what runs, and kills the worker. The worker's environment names the port; where it
names none of this machine, or nothing ever answered there, nothing is concluded.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from runonce.execution.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVERY = 0.5
"""Seconds between looks; as long one may take."""
CONFIRM = 0.1
"""Seconds until a refusal is looked at again."""
HERE = ("localhost", "127.0.0.1", "[::1]", "[::]", "0.0.0.0", "*", "+")  # noqa: S104 - of what the host listens on


def watch_host(environ: Mapping[str, str], gone: Callable[[], None]) -> None:
    """Call `gone`, once and in a thread of its own, when the host's port has answered and then refuses twice."""
    port = port_of(environ)
    if port is not None:
        start_thread(lambda: _watch(port, gone), "runonce-host")


def port_of(environ: Mapping[str, str]) -> int | None:
    """The host's port on this machine, as ASPNETCORE_URLS or WEBSITE_HOSTNAME name it."""
    for name in ("ASPNETCORE_URLS", "WEBSITE_HOSTNAME"):
        for address in environ.get(name, "").split(";"):
            match = re.fullmatch(r"(?:http://)?(.+?):(\d{1,5})/?", address.strip())
            if match and match[1] in HERE and 0 < int(match[2]) < 2**16:
                return int(match[2])
    return None


def _watch(port: int, gone: Callable[[], None]) -> None:
    answered, never = False, threading.Event()
    while True:
        found = _answers(port)
        answered = answered or found is True
        if answered and found is False and not never.wait(CONFIRM) and _answers(port) is False:
            gone()
            return
        never.wait(EVERY)


def _answers(port: int) -> bool | None:
    """Whether the port takes connections; None when that cannot be told."""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), EVERY)):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
