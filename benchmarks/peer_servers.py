"""The other systems of `peers.py`, and the servers behind them: an empty place for each time one works."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import standin

from azurite import launcher as azurite
from servicebus import launcher as servicebus
from tests.support.postgresql import postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venvs" / "peers"


class Peer(NamedTuple):
    """A system, and how it is set up."""

    name: str
    script: str
    server: str
    guarantee: str
    does: frozenset[str]
    environ: dict[str, str] = {}  # noqa: RUF012 - of a tuple, which nobody changes
    alone: bool = False
    """Only the process that works is killed, not what has started it and what that has started."""


MESSAGES, SCHEDULES, KILLS = "messages", "schedules", "kills"
ALL = frozenset({MESSAGES, SCHEDULES, KILLS})
OURS, HELD = "one effect a key; a dead host's goes on, fenced", {"ON_ABANDONED": "hold"}
PEERS = [
    Peer("runonce, Storage queue", "on_runonce", "standin", OURS, ALL),
    Peer("runonce, Azurite", "on_runonce", "azurite", OURS, ALL - {KILLS}),
    Peer("runonce, Service Bus", "on_runonce", "broker", OURS, ALL - {SCHEDULES}),
    Peer(
        'runonce, on_abandoned="hold"',
        "on_runonce",
        "standin",
        "never twice; a person decides",
        frozenset({KILLS}),
        HELD,
    ),
    Peer("runonce, leases in PostgreSQL", "on_runonce", "leases", OURS, ALL - {MESSAGES}),
    Peer("DBOS, PostgreSQL", "on_dbos", "postgresql", "one workflow an id; its executor resumes it", ALL),
    Peer(
        "DBOS, SQLite", "on_dbos", "sqlite", "one workflow an id; its executor resumes it", ALL - {SCHEDULES}
    ),
    Peer("procrastinate", "on_procrastinate", "postgresql", "at least once, by a task of your own", ALL),
    Peer("Celery, Redis, RedBeat", "on_celery", "redis", "at least once (acks_late), after 1 h", ALL),
    Peer(
        "Celery, its pool's process alone",
        "on_celery",
        "redis",
        "at least once (reject_on_worker_lost)",
        frozenset({KILLS}),
        alone=True,
    ),
    Peer("APScheduler 4", "on_apscheduler", "postgresql", "at least once, after a lease of 30 s", ALL),
]


class Place(NamedTuple):
    """Where a system works once: an empty database of its own, a file of effects, and who serves it."""

    peer: Peer
    environ: dict[str, str]
    notes: Path
    server: int | None
    """The process whose tree is the database or broker."""


def python_of(peer: Peer) -> Path:
    """The interpreter that a system runs in."""
    return Path(sys.executable) if peer.script == "on_runonce" else ENVIRONMENT / "bin" / "python"


def command(place: Place, *words: str) -> list[str]:
    """A command of a system's module."""
    script = ROOT / "benchmarks" / "peers" / f"{place.peer.script}.py"
    return [str(python_of(place.peer)), str(script), *words]


def ask(place: Place, *words: str) -> None:
    """Run a command to its end."""
    done = subprocess.run(
        command(place, *words),
        env=place.environ,
        cwd=place.notes.parent,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{words[0]}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")


def redis() -> contextlib.AbstractContextManager[tuple[str, int]]:
    """A Redis that appends each write to its file; its address and its process."""

    @contextlib.contextmanager
    def running() -> Iterator[tuple[str, int]]:
        if (program := shutil.which("redis-server")) is None:
            raise SystemExit("no redis-server on the path: apt-get install redis-server")
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes"]
            with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
                try:
                    for _ in range(100):
                        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                            break
                        time.sleep(0.1)
                    yield f"redis://127.0.0.1:{port}", process.pid
                finally:
                    process.terminate()

    return running()


class Servers:
    """The databases and brokers, each started when it is first asked for."""

    def __init__(self, ends: contextlib.ExitStack) -> None:
        self._ends, self._numbers = ends, iter(range(16))
        self._running: dict[str, tuple[str, int | None]] = {}
        self._lock = threading.Lock()

    def place(self, peer: Peer, word: str, at_once: int, *, every: int = 1, seconds: float = 0.0) -> Place:
        """An empty place to work in, its tables made."""
        folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="runonce-peers-")))
        with self._lock:
            url, pid = self._url(peer.server, folder)
        known = {name: text for name, text in os.environ.items() if not name.startswith(("RUNONCE", "DBOS"))}
        ours = {
            "NOTES": str(folder / "notes"),
            "URL": url,
            "AT_ONCE": str(at_once),
            "EVERY": str(every),
            "SECONDS": str(seconds),
            "REPLICA": "sender",
            "RUNONCE_NAMESPACE": f"n-{uuid.uuid4().hex[:12]}",
            "RUNONCE_STORAGE": url,
            "RUNONCE_DASHBOARD": "off",
            **peer.environ,
        }
        if peer.server in {"broker", "leases"}:
            ours["RUNONCE_STORAGE"] = self._server("standin")[0]
            ours["RUNONCE_LEASES" if peer.server == "leases" else "RUNONCE_SERVICEBUS"] = url
            ours["RUNONCE_QUEUE_NAMES"] = "plain"
        place = Place(peer, {**known, **ours}, folder / "notes", pid)
        ask(place, "prepare", word)
        return place

    def _url(self, kind: str, folder: Path) -> tuple[str, int | None]:
        if kind == "sqlite":
            return f"sqlite:///{folder / 'database'}", None
        if kind == "broker":  # its queues are given at its start, and none may have another's messages
            broker = self._ends.enter_context(servicebus.start([servicebus.Queue("benchmark")]))
            return broker.connection_string, None
        address, pid = self._server("postgresql" if kind == "leases" else kind)
        if kind == "redis":
            return f"{address}/{next(self._numbers)}", pid
        if kind in {"postgresql", "leases"}:
            name = f"d{uuid.uuid4().hex}"
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
            return f"{address.rpartition('/')[0]}/{name}", pid
        return address, pid

    def _server(self, kind: str) -> tuple[str, int | None]:
        if kind not in self._running:
            enter = self._ends.enter_context
            match kind:
                case "standin":
                    self._running[kind] = enter(standin.storage(0)), None
                case "azurite":
                    azurite.ensure_installed()
                    self._running[kind] = enter(azurite.start()).connection_string, None
                case "redis":
                    self._running[kind] = enter(redis())
                case _:
                    address = enter(postgresql("fsync=on"))
                    with psycopg.connect(address) as connection:
                        row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
                    self._running[kind] = address, int(str(row[0]).split()[0]) if row else None
        return self._running[kind]
