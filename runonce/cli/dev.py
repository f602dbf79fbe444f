"""The command `dev`: an emulator and a host in one, which is started anew whenever a job file changes.

The host is a child process, so that changed code is imported from nothing. It is asked to stop by the end of its
standard input, which comes whatever ends this process: nothing outlives it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from runonce.cli import logs, output
from runonce.cli.app import EXECUTE, command
from runonce.cli.context import Context
from runonce.errors import SettingsError
from runonce.hosts import emulators
from runonce.hosts.discover import existing
from runonce.hosts.explained import where
from runonce.hosts.signals import end_process, heard
from runonce.settings import EMULATED, Settings

DATA = Path(".azurite")
LOOK_EVERY = 0.3
"""Seconds between two looks at the job files and at the host."""
PATIENCE = "2"
"""Seconds a stopping host waits for its runs, as text: a person waits too, and the next host resumes them."""
CHILD = "from runonce.cli.dev import serve_while_held; serve_while_held()"


@command(EXECUTE, "runonce dev")
def dev(ctx: typer.Context) -> None:
    """Run all jobs and handlers here with an emulator of storage, anew whenever a job file changes, until Ctrl-C.

    The emulator is Azurite, which npm installs the first time; Node comes as a Python package where there is none. Its
    data is in .azurite/. Where RUNONCE_STORAGE names other storage, that is used and nothing started. A handler of a
    topic needs a Service Bus, which is started too where it can be, unless RUNONCE_SERVICEBUS names one.
    """
    context = Context.of(ctx)
    logs.set_up(verbose=context.verbose)
    try:
        with contextlib.ExitStack() as started:
            folder = existing(context.runtime.jobs_folder or os.environ.get("RUNONCE_JOBS") or "jobs")
            environ = _environment(context, started)
            arguments = [*(["--verbose"] if context.verbose else []), "--jobs", str(folder)]
            code = Watched(arguments, environ, folder, emulators.launcher("azurite").own_group()).run()
    except KeyboardInterrupt:  # while something was being installed or started
        code = 130
    raise typer.Exit(code)


def serve_while_held() -> None:
    """Be `runonce serve`, stopped as by Ctrl-C when standard input ends: in a child of `dev`."""
    from runonce.cli import main  # noqa: PLC0415 - it imports this module

    def wait() -> None:
        while os.read(0, 1):  # not by sys.stdin, whose lock would be held when the interpreter ends
            pass
        if os.name == "nt":
            signal.raise_signal(signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()
    main()


# -- what the host needs ----------------------------------------------------------------------------------------


def _environment(context: Context, started: contextlib.ExitStack) -> dict[str, str]:
    """The host's environment, with what was started for it."""
    given = os.environ.get("RUNONCE_STORAGE") or any(
        name.startswith("RUNONCE_STORAGE__") for name in os.environ
    )
    own = {} if given else {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
    settings = Settings.from_env({**context.runtime.environ, **own})
    place = where(settings.storage) if given else f"account {EMULATED} of the emulator on this machine"
    output.note(f"namespace {settings.namespace!r}, {place}")
    if not given:
        own = _emulators(context, settings, started)
        setting = "$env:{}='{}'" if os.name == "nt" else "export {}='{}'"
        output.note("in another terminal, for any other command:")
        for name, value in own.items():
            typer.echo("  " + setting.format(name, value), err=True)
    return {"RUNONCE_SHUTDOWN_TIMEOUT": PATIENCE, **os.environ, **own}


def _emulators(context: Context, settings: Settings, started: contextlib.ExitStack) -> dict[str, str]:
    """The settings of the emulators of this folder, which are started unless they run."""
    azurite = emulators.launcher("azurite")
    running: dict[str, str] | None = azurite.running(DATA)
    if running:
        output.note(f"the emulator of this folder, {DATA}/, runs already")
        return running
    if not azurite.is_installed():
        output.note("installing the emulator Azurite, once for all projects; this takes a minute or so")
    try:
        emulator = azurite.start_for_people(DATA)
    except (azurite.CommandError, azurite.AzuriteError) as error:
        raise SettingsError(f"The emulator does not start. {error}") from error
    started.enter_context(emulator)
    more = {} if settings.servicebus else _service_bus(context, started)
    found: dict[str, str] = started.enter_context(azurite.noted(DATA, emulator, more))
    return found


def _service_bus(context: Context, started: contextlib.ExitStack) -> dict[str, str]:
    """The settings of a local Service Bus, if a handler reads a topic, which Storage queues do not have."""
    jobs = ["--jobs", context.runtime.jobs_folder] if context.runtime.jobs_folder else []
    handlers = emulators.handlers(jobs)
    if not any(handler["topic"] for handler in handlers):
        return {}
    if missing := emulators.bus_missing():
        output.warn(f"a handler reads a topic, which needs a Service Bus: set RUNONCE_SERVICEBUS. {missing}")
        return {}
    connection_string = started.enter_context(emulators.bus_of(handlers))
    # It has this project's entities alone, and is gone with it.
    return {"RUNONCE_SERVICEBUS": connection_string, "RUNONCE_QUEUE_NAMES": "plain"}


# -- the host ---------------------------------------------------------------------------------------------------


class Watched:
    """A host in a child process, replaced when a job file changes."""

    def __init__(
        self, arguments: list[str], environ: dict[str, str], folder: Path, apart: dict[str, Any]
    ) -> None:
        self._command = [sys.executable, "-c", CHILD, *arguments, "serve"]
        self._environ = environ
        self._folder = folder
        self._apart = apart
        self._received: list[int] = []
        self._told = threading.Event()
        self._host: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until Ctrl-C, which waits for the host to stop; a second one waits for nothing. The exit code."""
        with heard(self._tell):
            output.note(f"a file that changes in {self._folder}/ is loaded anew; Ctrl-C stops everything")
            while not self._told.is_set():
                before = _changed_at(self._folder)
                with self._running() as host:
                    changed = self._wait(host, before)
                if not self._told.is_set():
                    output.note(f"{', '.join(changed)} changed: the host starts anew")
        return 0

    def _tell(self, number: int) -> None:
        self._received.append(number)
        self._told.set()
        if len(self._received) > 1:
            if self._host is not None:
                self._host.kill()
            end_process(128 + number)

    @contextlib.contextmanager
    def _running(self) -> Iterator[subprocess.Popen[bytes]]:
        # A group of its own: a terminal's Ctrl-C is ours, and comes to it as the end of its input.
        self._host = host = subprocess.Popen(
            self._command, env=self._environ, stdin=subprocess.PIPE, **self._apart
        )
        try:
            yield host
        finally:
            if host.stdin is not None:
                host.stdin.close()
            host.wait()

    def _wait(self, host: subprocess.Popen[bytes], before: dict[str, int]) -> list[str]:
        """The files that have changed, or none at Ctrl-C. A host that ended by itself is left so until then."""
        ended = False
        while not self._told.wait(LOOK_EVERY):
            now = _changed_at(self._folder)
            if changed := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
                return changed
            if not ended and host.poll() is not None:
                ended = True
                output.warn(f"the host ended with {host.returncode}; it starts anew when a file changes")
        return []


def _changed_at(folder: Path) -> dict[str, int]:
    """When each Python file of a folder was changed last, in nanoseconds."""
    found: dict[str, int] = {}
    for path in folder.rglob("*.py"):
        with contextlib.suppress(OSError):  # gone meanwhile
            found[str(path)] = path.stat().st_mtime_ns
    return found
