"""A script host: one generation of an app's workers and listeners."""

import threading
from collections.abc import Callable
from contextlib import suppress

from .bus_listener import BusListener
from .console import Console
from .host import worker_environment
from .invocation import AppRefusedError, NoResponseError, WorkerExitedError
from .metadata import Function, accept
from .port import HttpPort
from .process import WorkerProcess
from .project import Project
from .queue_listener import QueueListener
from .storage import StorageWatch
from .timer_listener import TimerListener
from .times import Times
from .triggers import Trigger
from .workers import HostEndedError, Workers

Listener = QueueListener | BusListener


class _Worker(WorkerProcess):
    """A worker that loads what the host accepts."""

    problems: list[str]

    def _accepted(self, functions: list[Function]) -> dict[str, Function]:
        accepted, self.problems = accept(functions)
        return accepted


class ScriptHost:
    """`shut_down` is called when storage is away for long, or when workers end too often."""

    def __init__(
        self, project: Project, port: HttpPort, times: Times, console: Console, shut_down: Callable[[], None]
    ) -> None:
        self._project, self._times, self._console = project, times, console
        self._watch = StorageWatch(times.storage_patience, lambda: self._storage_away(shut_down))
        environment = worker_environment(project.folder, project.settings, port)
        count = int(project.settings.get("FUNCTIONS_WORKER_PROCESS_COUNT") or 1)
        self.workers = Workers(
            lambda: _Worker(project.folder, environment, heard=console.hear), count, times, console, shut_down
        )
        self.functions: dict[str, Function] = {}
        self.refused = ""
        """Why the worker found no function; the host runs all the same."""
        self._listeners: list[Listener] = []
        self._timers: list[TimerListener] = []

    def start(self) -> None:
        """Start a worker and listen to what its functions are for."""
        try:
            worker = self.workers.start()
        except (AppRefusedError, WorkerExitedError) as error:
            self.refused = str(error)
            self._console.say("0 functions found")
            return
        self.functions = worker.functions
        for problem in worker.problems:
            self._console.say(f"A function is in error and left out: {problem}")
        for function in self.functions.values():
            if not self._project.listens(function.name):
                self._console.say(f"Function '{function.name}' is disabled.")
            elif problem := self._listen(function):
                self._console.say(
                    f"The listener for function '{function.name}' was unable to start. {problem}"
                )
        for listener in (*self._listeners, *self._timers):
            listener.start()

    def _listen(self, function: Function) -> str | None:
        """Make a function's listener; returns what keeps it from starting."""
        project, trigger = self._project, function.trigger
        kind = trigger["type"].lower()
        connection = project.storage if kind == "timertrigger" else project.connection(trigger, "")
        if not connection:
            return f"Its connection {trigger.get('connection') or 'AzureWebJobsStorage'!r} is not set."
        if kind == "timertrigger":
            timer = TimerListener(
                function, connection, project.host_id, project.zone, self._times, self._watch, self.run
            )
            self._timers.append(timer)
        elif kind == "queuetrigger":
            queue = QueueListener(function, connection, project.queues, self._times, self._watch, self.run)
            self._listeners.append(queue)
        elif kind == "servicebustrigger":
            self._listeners.append(BusListener(function, connection, project.bus, self._console, self.run))
        else:
            return f"This host has no {trigger['type']}."
        return None

    def run(self, function: Function, trigger: Trigger, reason: str) -> bool:
        """Execute a function to its end; whether it succeeded. HostEndedError when the host ended first."""
        worker = self.workers.pick()
        execution = self._console.begin(function.name, reason)
        try:
            call = worker.start_invocation(function.name, trigger)
            execution.id = call.id
            done = call.wait(self._project.function_timeout)
            success, error = done.success, done.exception
        except WorkerExitedError as lost:
            success, error = False, f"{worker.pid} exited with code {lost.code}"
        except NoResponseError:
            success, error = False, self._timed_out(worker, function)
        if self.workers.closed and not success:
            self._console.end(execution, success=False, error="The host ended first.")
            raise HostEndedError
        self._console.end(execution, success=success, error=error)
        return success

    def _timed_out(self, worker: WorkerProcess, function: Function) -> str:
        """The worker is killed, and those beside the function are not told: they hang until their own timeout."""
        if worker in self.workers.ready:
            killer = threading.Timer(self._times.timeout_kill, worker.kill, kwargs={"hangs": True})
            killer.daemon = True
            killer.start()
        limit = self._project.function_timeout
        return f"FunctionTimeoutException: Timeout of {limit:.0f} s exceeded by 'Functions.{function.name}'"

    def _storage_away(self, shut_down: Callable[[], None]) -> None:
        self._console.say("Storage does not answer. Host is shutting down.")
        shut_down()

    def stop_listening(self, *, exiting: bool) -> None:
        """Fetch no more messages. Timers go on."""
        for listener in self._listeners:
            listener.stop(exiting=exiting)

    def end(self) -> None:
        """SIGKILL to the workers; messages in hand are left as they are, the timers' locks are given back."""
        self.stop_listening(exiting=True)
        self.workers.close()
        for timer in self._timers:
            with suppress(Exception):  # storage is away, perhaps
                timer.stop()
        for listener in self._listeners:
            if isinstance(listener, BusListener):
                listener.end()
