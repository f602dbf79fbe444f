"""The control channel of a started broker: one JSON command a line on its standard input, one answer a line.

    {"fault": "drop-after-apply", "op": "complete", "entity": "orders", "count": 1, "skip": 0}
    {"do": "clear" | "pause" | "resume" | "cut" | "counts"}
    {"do": "detach" | "lose-locks", "entity": "orders"}
    {"do": "clock", "seconds": 120}

The end of the input means that whoever started the broker is gone, and ends it.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from servicebus.faults import Fault

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from servicebus.broker import Broker


def obey(broker: Broker, line: str) -> dict[str, Any]:
    """Do one command; returns the answer."""
    try:
        command = json.loads(line)
        if "fault" in command:
            broker.faults.arm(_fault(command))
            return {"ok": True}
        actions: dict[str, Callable[[], object]] = {
            "clear": broker.faults.clear,
            "pause": broker.pause,
            "resume": broker.resume,
            "cut": broker.cut,
            "counts": broker.counts,
            "detach": lambda: broker.detach(command.get("entity")),
            "lose-locks": lambda: broker.lose_locks(command.get("entity")),
            "clock": lambda: broker.clock(float(command["seconds"])),
        }
        found = actions[command["do"]]()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {"ok": False, "error": f"{line.strip()}: {error}"}
    return {"ok": True, "messages": found, "operations": broker.operations, "faults": broker.faults.struck}


def _fault(command: dict[str, Any]) -> Fault:
    return Fault(
        kind=command["fault"],
        operation=command["op"],
        entity=command.get("entity"),
        count=command.get("count", 1),
        skip=command.get("skip", 0),
    )


def say(answer: dict[str, Any]) -> None:
    """Write one answer."""
    print(json.dumps(answer), flush=True)  # noqa: T201 - this is the channel


def listen(broker: Broker, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Read commands in a thread, since not every system can await a pipe, and obey them in the loop."""

    def read() -> None:
        # Unbuffered: a thread that waits inside sys.stdin holds its lock, and Python then cannot shut down.
        with open(0, "rb", buffering=0, closefd=False) as commands:
            for line in commands:
                loop.call_soon_threadsafe(lambda text: say(obey(broker, text)), line.decode())
        loop.call_soon_threadsafe(end)

    threading.Thread(target=read, name="control", daemon=True).start()
