"""Starts the broker as a child process and stops it. Standard library only: importing it needs no Proton.

    with launcher.start([Queue("send-invoice", lock=30), Topic("orders", ("billing",))]) as broker:
        client = ServiceBusClient.from_connection_string(broker.connection_string)

The child ends when it is told to, when its standard input closes, or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from servicebus.entities import Queue, Subscription, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

__all__ = [
    "HINT",
    "Broker",
    "Queue",
    "Subscription",
    "Topic",
    "arguments_of",
    "available",
    "connection_string",
    "start",
]

HINT = (
    "The local Service Bus broker needs Qpid Proton, which is built from source: install a C compiler"
    " (Debian, Ubuntu: apt-get install gcc libc6-dev python3-dev; macOS: xcode-select --install), then run"
    " pip install python-qpid-proton==0.40.0"
)
_ROOT = Path(__file__).resolve().parent.parent
_AMQP = b"AMQP\x03\x01\x00\x00"  # the protocol header that opens SASL, which any broker answers in kind
_START_TIMEOUT = 20.0
_STOP_TIMEOUT = 5.0


def available() -> bool:
    """Whether the broker can run in this interpreter."""
    return importlib.util.find_spec("cproton") is not None


def connection_string(port: int, name: str | None = None, key: str | None = None) -> str:
    """What the SDK needs to come here, without TLS, instead of to Azure."""
    return (
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={name or 'RootManageSharedAccessKey'};"
        f"SharedAccessKey={key or 'local'};UseDevelopmentEmulator=true"
    )


def arguments_of(handlers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The queues and topics of a manifest's handlers, as arguments, with the figures that Azure's would have."""
    topics: dict[str, str] = {}
    arguments: list[str] = []
    for handler in handlers:
        arguments += ["--queue", f"{handler['queue']}:{_like_azure(handler)}"]
        if handler["topic"]:
            topics[handler["topic"]] = _like_azure(handler)
            forward = f"forward={handler['queue']}" if handler["forward"] else ""
            arguments += ["--subscription", f"{handler['topic']}/{handler['subscription']}:{forward}"]
    for topic, figures in topics.items():
        arguments += ["--topic", f"{topic}:{figures}"]
    return arguments


def _like_azure(handler: Mapping[str, Any]) -> str:
    lock, window = (_seconds(handler[key]) for key in ("lock_duration", "duplicate_detection_window"))
    return f"lock={lock},max_delivery={handler['max_delivery_count']},dedup={window}"


def _seconds(duration: str) -> int:
    """Of an ISO 8601 duration such as PT1M or P14D."""
    units = {"D": 86_400, "H": 3600, "M": 60, "S": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([DHMS])", duration))


def start(
    entities: Sequence[Queue | Topic],
    port: int | None = None,
    folder: Path | str | None = None,
    *,
    key: str | None = None,
    python: str = sys.executable,
) -> Broker:
    """Start a broker and wait until it answers.

    Without a port it takes a free one; without a folder it keeps messages in memory. With a key, clients must
    sign with it, as `connection_string` does. RuntimeError, saying why, when it does not start.
    """
    arguments = [argument for entity in entities for argument in entity.arguments]
    if folder is not None:
        arguments += ["--folder", str(Path(folder).resolve())]
    broker = Broker(arguments, port or 0, key, python)
    broker.restart()
    return broker


class Broker:
    """A broker in a child process; a context manager that stops it."""

    def __init__(
        self, arguments: list[str], port: int = 0, key: str | None = None, python: str = sys.executable
    ) -> None:
        self.port = port
        self._arguments = arguments
        self._key = key
        self._python = python
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def connection_string(self) -> str:
        """Where clients connect; the same after a restart."""
        return connection_string(self.port, key=self._key)

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    def stop(self) -> None:
        """End it: clients are told. Does nothing when it is not running."""
        if self._process:
            with contextlib.suppress(OSError):  # it has gone already
                self._stdin.close()
            self._reap()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process:
            self._process.kill()
            self._reap()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends by itself, such as by an `exit` fault; returns its exit code."""
        return self._process.wait(timeout) if self._process else 0

    def restart(self) -> None:
        """Stop if running, and start on the same port. Only a broker with a folder remembers its messages."""
        self.stop()
        command = [self._python, "-m", "servicebus", "--control", "--port", str(self.port), *self._arguments]
        if self._key:
            command += ["--key", f"RootManageSharedAccessKey={self._key}"]
        with tempfile.TemporaryFile("w+") as said:
            self._process = subprocess.Popen(  # noqa: S603 - this module's own command
                command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )
            try:
                self.port = self._read()["port"]
                _check(self.port)
            except (OSError, RuntimeError) as error:
                self.kill()
                said.seek(0)
                text = said.read().strip() or str(error)
                raise RuntimeError(f"The local broker did not start. {text}") from error

    # Misbehaviour and insight: see README.md

    def fault(
        self, kind: str, operation: str, *, entity: str | None = None, count: int = 1, skip: int = 0
    ) -> None:
        """Arm a fault, such as `fault("drop-after-apply", "complete")`."""
        self._ask({"fault": kind, "op": operation, "entity": entity, "count": count, "skip": skip})

    def clear_faults(self) -> None:
        """Disarm what has not struck yet."""
        self._ask({"do": "clear"})

    def pause(self) -> None:
        """Hang: connections stay open and nothing is read or answered."""
        self._ask({"do": "pause"})

    def resume(self) -> None:
        """Go on after `pause`."""
        self._ask({"do": "resume"})

    def cut(self) -> None:
        """Cut every connection."""
        self._ask({"do": "cut"})

    def detach(self, entity: str | None = None) -> None:
        """Detach the senders and receivers of an entity, or of all, as Azure does with idle ones."""
        self._ask({"do": "detach", "entity": entity})

    def lose_locks(self, entity: str | None = None) -> None:
        """End the locks of an entity, or of all, at once: each counts as one that ran out."""
        self._ask({"do": "lose-locks", "entity": entity})

    def clock(self, seconds: float) -> None:
        """Set its clock this many seconds ahead of the machine's, or behind; what falls due by that falls due."""
        self._ask({"do": "clock", "seconds": seconds})

    def counts(self, entity: str) -> dict[str, int]:
        """How many are active, locked, scheduled and deferred; `…/$DeadLetterQueue` has the dead ones."""
        counts: dict[str, int] = self._ask({"do": "counts"})["messages"][entity.lower()]
        return counts

    def operations(self) -> dict[str, int]:
        """How often clients' operations were applied since the start, by name."""
        operations: dict[str, int] = self._ask({"do": "counts"})["operations"]
        return operations

    def faults_struck(self) -> int:
        """How often a fault struck since the start."""
        return int(self._ask({"do": "counts"})["faults"])

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        with self._turn:
            self._stdin.write(json.dumps(command) + "\n")
            self._stdin.flush()
            answer = self._read()
        if not answer["ok"]:
            raise ValueError(answer["error"])
        return answer

    @property
    def _stdin(self) -> Any:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the local broker is not running")
        return self._process.stdin

    def _read(self) -> dict[str, Any]:
        """The next answer; a broker that says nothing for long is killed, which ends the wait."""
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the local broker is not running")
        watchdog = threading.Timer(_START_TIMEOUT, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RuntimeError("the local broker has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _check(port: int) -> None:
    """It accepts connections and speaks AMQP."""
    with socket.create_connection(("127.0.0.1", port), timeout=_STOP_TIMEOUT) as connection:
        connection.sendall(_AMQP)
        if connection.recv(len(_AMQP))[:4] != _AMQP[:4]:
            raise RuntimeError(f"something else answers on port {port}")
