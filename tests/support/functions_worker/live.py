"""The host itself: it listens to timers and queues, feeds the app with them, and ends as the real one does."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from .console import Console
from .host import machine_environment
from .metadata import Function
from .port import HttpPort
from .process import WorkerProcess
from .project import Project
from .script import ScriptHost
from .times import Times

_POLL = 0.02


class LiveHost:
    """`with LiveHost(app_dir, env={...}) as host:` an app that runs by itself, by its host.json.

    `env` is the app's settings, AzureWebJobsStorage among them. What it does is in `host.console`, which can be
    waited for. Leaving the block ends it at once.
    """

    def __init__(
        self,
        app_dir: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        *,
        times: Times | None = None,
        port: int = 0,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.console = Console(show)
        self._times = times or Times()
        self._project = Project.read(Path(app_dir).resolve(), machine_environment() | dict(env or {}))
        self.port = HttpPort(port, {"/admin/host/drain": self.drain, "/admin/host/restart": self.restart})
        self._script = self._new_script()
        self._stopping = threading.Lock()
        self._exited = threading.Event()

    def __enter__(self) -> Self:
        try:
            self._script.start()
        except BaseException:
            self.port.close()
            raise
        self.console.say("Host started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.port.close()
        self._script.end()
        self._exited.set()

    @property
    def functions(self) -> dict[str, Function]:
        """What the worker indexed and the host accepted; empty when it refused the app."""
        return self._script.functions

    @property
    def refused(self) -> str:
        """Why the worker refused the app, which the host itself does not show: it runs with no function."""
        return self._script.refused

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that take invocations."""
        return self._script.workers.ready

    @property
    def worker(self) -> WorkerProcess:
        """The one worker; waits while a new one is starting."""
        return self._script.workers.pick()

    # -- being told

    def terminate(self) -> None:
        """SIGTERM to the host: its port refuses at once, nothing is fetched any more, the workers hear nothing.

        Returns at once; the host ends when its invocations have, and after ten seconds with SIGKILL to the workers.
        """
        if not self._stopping.acquire(blocking=False):
            return
        self.port.close()
        self.console.say("Application is shutting down...")
        self._script.stop_listening(exiting=True)
        self._script.workers.retire()
        threading.Thread(target=self._exit, name="functions-exit", daemon=True).start()

    def interrupt(self) -> None:
        """Ctrl-C of the process group: SIGINT to the workers too."""
        workers = self.workers
        self.terminate()
        for worker in workers:
            worker.interrupt()

    def drain(self) -> None:
        """Stop listening to queues; what is in hand ends, and the host lives on."""
        self._script.stop_listening(exiting=False)

    def restart(self) -> None:
        """A new script host, as after a change of settings: the old worker gets SIGKILL, and nothing is drained."""
        self._script.end()
        self._script = self._new_script()
        self._script.start()
        self.console.say("Host started")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the host's end; returns its exit code."""
        if not self._exited.wait(timeout):
            raise TimeoutError(f"the host still runs after {timeout} s")
        return 0

    def _new_script(self) -> ScriptHost:
        return ScriptHost(self._project, self.port, self._times, self.console, self.terminate)

    def _exit(self) -> None:
        deadline = time.monotonic() + self._times.shutdown
        while self.console.running and time.monotonic() < deadline:
            time.sleep(_POLL)
        self._script.end()
        self._exited.set()
