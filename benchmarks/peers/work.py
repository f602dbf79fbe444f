"""The work that every system is given, and how each of them is asked to do it.

A system's module is a script with four commands: `prepare work` or `prepare schedule` (tables, for one of these two),
`send COUNT` (messages), `work` (handle messages until killed) and `schedule` (run the job at its fire times until
killed). What it needs to know is in the environment:

    URL       its server
    NOTES     the file of effects
    AT_ONCE   how many messages at once
    EVERY     seconds from a fire time to the next
    SECONDS   how long the handler or the job takes after its effect
    REPLICA   the name of this process, the same when it is started again

The effect is a line in NOTES: what happened, the message's key or the fire time, the process and the instant.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

URL = os.environ["URL"]
AT_ONCE, EVERY = int(os.environ["AT_ONCE"]), int(os.environ["EVERY"])
SECONDS = float(os.environ["SECONDS"])
REPLICA = os.environ["REPLICA"]


def note(what: str, key: str) -> None:
    """Add a line, whole whoever else adds one."""
    file = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{what} {key} {os.getpid()} {time.time():.4f}\n".encode())
    os.close(file)


def do(key: str) -> None:
    """What a message's handler does, and a scheduled job."""
    note("begun", key)
    if SECONDS:
        time.sleep(SECONDS)
        note("ended", key)


def body() -> dict[str, Any]:
    """A message of some 250 bytes."""
    lines = [{"cents": 1999, "text": "x" * 60}] * 2
    return {"invoice_id": uuid.uuid4().hex, "customer": "c" * 80, "lines": lines}


def main(
    prepare: Callable[[str], object],
    send: Callable[[list[dict[str, Any]]], object],
    work: Callable[[], object],
    schedule: Callable[[], object],
) -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["prepare", what]:
            prepare(what)
        case ["send", count]:
            send([body() for _ in range(int(count))])
        case ["work"]:
            work()
        case _:
            schedule()
