"""A host whose functions a test invokes by hand: one worker and the HTTP port, without listeners."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from .metadata import Function, validate
from .port import HttpPort
from .process import WorkerProcess
from .times import Times

# What of this process's environment the worker sees: the machine's own, never a setting a developer has.
_MACHINE = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")


def worker_environment(app_dir: Path, env: Mapping[str, str], port: HttpPort) -> dict[str, str]:
    """The worker's environment: what the host sets, and the settings."""
    return {
        "AZURE_FUNCTIONS_ENVIRONMENT": "Development",
        "AzureWebJobsScriptRoot": str(app_dir),
        "FUNCTIONS_EXTENSION_VERSION": "~4",
        "FUNCTIONS_WORKER_RUNTIME": "python",
        "FUNCTIONS_WORKER_RUNTIME_VERSION": "3.13",
        "PYTHON_THREADPOOL_THREAD_COUNT": "1000",
        **port.settings,
        **env,
    }


def machine_environment() -> dict[str, str]:
    """What of this process's environment the app sees."""
    return {name: os.environ[name] for name in _MACHINE if name in os.environ}


class FunctionsHost(WorkerProcess):
    """`with FunctionsHost(app_dir, env={...}) as host:` a worker that has indexed and loaded the app.

    `env` is the app's settings; of this process's environment only what belongs to the machine goes along.
    `placeholder` is as in `WorkerProcess`. A function the host would leave out is an error here.
    """

    def __init__(
        self,
        app_dir: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        *,
        times: Times | None = None,
        placeholder: bool = False,
        start_timeout: float = 60,
    ) -> None:
        self.port, self._times = HttpPort(), times or Times()
        settings = worker_environment(
            Path(app_dir).resolve(), machine_environment() | dict(env or {}), self.port
        )
        super().__init__(app_dir, settings, placeholder=placeholder, start_timeout=start_timeout)

    def _accepted(self, functions: list[Function]) -> dict[str, Function]:
        return validate(functions)

    def stop(self) -> threading.Timer:
        """SIGTERM to the host: its port refuses at once, the worker hears nothing and is killed in ten seconds.

        Returns the timer that kills it.
        """
        self.port.close()
        killer = threading.Timer(self._times.shutdown, self.kill)
        killer.daemon = True
        killer.start()
        return killer

    def close(self) -> None:
        """Kills the worker if it still lives."""
        self.port.close()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
