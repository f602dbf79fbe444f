"""A host that dies on this machine is seen to be dead at once: its leases are released, and not waited out.

Each host has a small file for each run it has in hand, and holds the system's lock (flock) on it. The system lets go of
that when the process has ended, however it did, and not before: so whoever gets the lock knows that nobody works on the
run any more. A paused process keeps its locks, and a child that it left behind does, too: then the lease is waited out,
as it is for a host on another machine. Nothing here costs a storage call while all goes well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runonce.errors import StoreError
from runonce.execution.threads import start_thread
from runonce.runs.requests import send_request
from runonce.stores.columns import UNREADABLE, instant, to_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runonce.runs.dispatch import Dispatcher, Started

log = logging.getLogger("runonce.local")

LOOK = 0.5
"""Seconds between two looks at what is in hand here, and at the files of the other hosts."""
SUFFIX = ".run"


@contextmanager
def watched(dispatcher: Dispatcher) -> Iterator[None]:
    """Show what this process has in hand to the others of this machine, and take up what dead ones leave behind."""
    folder = None if fcntl is None else _folder(dispatcher)
    if folder is None:
        yield
        return
    machine = _Machine(dispatcher, folder)
    thread = start_thread(machine.look_until_stopped, "runonce-same-machine")
    try:
        yield
    finally:
        machine.ended.set()
        thread.join(LOOK * 4)
        machine.show([])


class _Machine:
    def __init__(self, dispatcher: Dispatcher, folder: Path) -> None:
        self.ended = threading.Event()
        self._dispatcher = dispatcher
        self._folder = folder
        self._shown: dict[Started, tuple[Path, int]] = {}

    def look_until_stopped(self) -> None:
        while not self.ended.wait(LOOK):
            try:
                self.show(self._dispatcher.running)
                self.take_up()
            except (OSError, StoreError) as error:  # the lease is waited out, as if this were another machine
                log.debug("the other hosts of this machine were not looked at: %s", error)

    def show(self, running: list[Started]) -> None:
        """Have a locked file for each run in hand, and none for those that have ended."""
        for started in [one for one in self._shown if one not in running]:
            path, number = self._shown.pop(started)
            path.unlink(missing_ok=True)
            os.close(number)
        for started in running:
            if started not in self._shown:
                path = self._folder / f"{started.lease.holder}{SUFFIX}"
                hidden = path.with_suffix(".new")  # nobody shall find it before it is locked
                number = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
                fcntl.flock(number, fcntl.LOCK_EX)
                about = {"job": started.job.name, "fire_time": to_text(started.run.fire_time)}
                os.write(number, json.dumps({**about, "lock": started.lease.name}).encode())
                hidden.rename(path)
                self._shown[started] = (path, number)

    def take_up(self) -> None:
        """Release the leases of dead hosts, and ask for their runs."""
        own = {path for path, _ in self._shown.values()}
        for path in [path for path in self._folder.iterdir() if path.suffix == SUFFIX]:
            if path not in own:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue  # whoever it is lives
                    try:
                        about = json.loads(file.read())
                        name, lock, fire_time = about["job"], about["lock"], instant(about["fire_time"])
                    except UNREADABLE as error:  # as after a power cut: the lease is waited out
                        log.warning("%s cannot be read (%s); it is removed", path, error)
                        path.unlink()
                        continue
                    # Silent where that holder has it no more.
                    self._dispatcher.stores.leases.release(lock, path.stem)
                    log.warning(
                        "job %s, fire time %s: its host on this machine is dead; its lease is free",
                        name,
                        to_text(fire_time),
                    )
                    send_request(self._dispatcher.stores.requests, name, fire_time, "abandoned")
                    path.unlink()


def _folder(dispatcher: Dispatcher) -> Path | None:
    """Where the hosts of one namespace and account on this machine and of this user have their files."""
    settings = dispatcher.settings
    storage = settings.storage
    whose = f"{storage.connection_string} {sorted(storage.endpoints.items())} {settings.namespace}"
    name = hashlib.sha256(whose.encode()).hexdigest()[:16]
    root = Path(tempfile.gettempdir()) / f"runonce-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid() or root.is_symlink():
            return None
        (root / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        log.debug("the other hosts of this machine cannot be seen: %s", error)
        return None
    return root / name
