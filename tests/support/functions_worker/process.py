"""A worker process: started, spoken to in the Functions RPC protocol, and ended."""

import os
import queue
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from .environment import worker_python
from .invocation import (
    AppRefusedError,
    Invocation,
    Log,
    NoResponseError,
    PendingInvocation,
    WorkerExitedError,
)
from .messages import EVENT_STREAM, PROTOCOL
from .metadata import Function, parse
from .triggers import Trigger

_WORKER = Path(__file__).with_name("worker.py")
_HOST_VERSION = "4.1042.100.1"


class WorkerProcess:
    """`with WorkerProcess(app_dir, settings) as worker:` a worker that has indexed and loaded the app.

    `settings` is its whole environment. `placeholder` starts it without an app and specialises it afterwards, as
    the Flex and Consumption plans do: the app is then indexed before the working directory is its own. With a
    CONTAINER_NAME among the settings the host takes the machine for one of those, and does so without being asked.
    `heard` is told of each log line, and of each line of its standard output and error as a text.
    Leaving the block kills the worker, as the host does: it sends no signal and asks for nothing before.
    """

    def __init__(
        self,
        app_dir: str | os.PathLike[str],
        settings: Mapping[str, str],
        *,
        placeholder: bool = False,
        start_timeout: float = 60,
        heard: Callable[[Log | str], None] = lambda _: None,
    ) -> None:
        self.functions: dict[str, Function] = {}
        self.logs: list[Log] = []
        self.console: list[str] = []
        self._app_dir = Path(app_dir).resolve()
        self._settings = dict(settings)
        self._placeholder = placeholder or "CONTAINER_NAME" in self._settings
        self._start_timeout, self._heard = start_timeout, heard
        self._news = threading.Condition()
        self._answers: dict[str, Future] = {}
        self._outgoing: queue.SimpleQueue = queue.SimpleQueue()
        self._stream_ended = threading.Event()
        self._process: subprocess.Popen | None = None
        self.hangs = False
        """Killed without those who wait for it being told."""

    def __enter__(self) -> Self:
        python = worker_python()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="functions-host")
        self._server = grpc.server(self._pool, options=[("grpc.max_receive_message_length", -1)])
        service, method = EVENT_STREAM
        handler = grpc.stream_stream_rpc_method_handler(
            self._event_stream,
            request_deserializer=PROTOCOL.StreamingMessage.FromString,
            response_serializer=PROTOCOL.StreamingMessage.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        try:
            self._start(python, port)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, python: Path, port: int) -> None:
        worker_id, request_id = str(uuid.uuid4()), str(uuid.uuid4())
        connected = self._expect(request_id)
        options = {"host": "127.0.0.1", "port": port, "worker-id": worker_id, "request-id": request_id}
        with tempfile.TemporaryDirectory() as nowhere:
            home = nowhere if self._placeholder else str(self._app_dir)
            self._process = subprocess.Popen(
                [python, _WORKER, *(f"--{name}={value}" for name, value in options.items())],
                cwd=home,
                env=self._settings | {"AzureWebJobsScriptRoot": home},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._reader = threading.Thread(target=self._read_console, name="functions-console", daemon=True)
            self._reader.start()
            self._watcher = threading.Thread(target=self._watch, name="functions-watch", daemon=True)
            self._watcher.start()
            self.receive(connected, "start of the worker", self._start_timeout)
            init = PROTOCOL.WorkerInitRequest(
                host_version=_HOST_VERSION, worker_directory=str(_WORKER.parent), function_app_directory=home
            )
            self._ask("indexing", worker_init_request=init)
            if self._placeholder:
                reload = PROTOCOL.FunctionEnvironmentReloadRequest(
                    environment_variables=self._settings, function_app_directory=str(self._app_dir)
                )
                self._ask("indexing", function_environment_reload_request=reload)
        request = PROTOCOL.FunctionsMetadataRequest(function_app_directory=str(self._app_dir))
        functions = parse(self._ask("metadata", functions_metadata_request=request).function_metadata_results)
        if not functions:
            raise AppRefusedError(f"the worker found no function in {self._app_dir}")
        self.functions = self._accepted(functions)
        for function in self.functions.values():
            load = PROTOCOL.FunctionLoadRequest(function_id=function.id, metadata=function.source)
            self._ask(f"loading {function.name}", function_load_request=load)

    def _accepted(self, functions: list[Function]) -> dict[str, Function]:
        """The functions to load, by name."""
        return {function.name: function for function in functions}

    # -- invocations

    def invoke(self, name: str, trigger: Trigger, timeout: float = 30) -> Invocation:
        """Invokes a function and waits for its response; a failed one is returned, not raised."""
        return self.start_invocation(name, trigger).wait(timeout)

    def start_invocation(self, name: str, trigger: Trigger) -> PendingInvocation:
        """Invokes a function without waiting."""
        if name not in self.functions:
            raise LookupError(f"no function {name!r}; the worker indexed {sorted(self.functions)}")
        return PendingInvocation(self, self.functions[name], trigger)

    @property
    def dropped_logs(self) -> list[Log]:
        """The user's log lines that carry no invocation id, which the host would drop."""
        return [log for log in self.logs if not log.invocation_id and not log.system]

    # -- the process

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What the worker has written to its standard output and error."""
        return "".join(f"{line}\n" for line in list(self.console))

    def kill(self, *, hangs: bool = False) -> None:
        """SIGKILL: nothing in the worker runs any more. With `hangs` nobody who waits is told."""
        self.hangs = hangs
        self._process.send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C in a terminal sends it to every process of the group."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM, as the platform sends it when it takes the instance away."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = 10) -> int:
        """Waits for the worker's end; returns its exit code, minus the number of a signal that ended it."""
        return self._process.wait(timeout)

    def close(self) -> None:
        """Kills the worker if it still lives and stops the server."""
        if self._process is not None:
            self._process.kill()
            self._watcher.join()
            self._reader.join()
            self._process.stdout.close()
        self._server.stop(grace=None).wait()
        self._pool.shutdown()

    # -- the stream

    def send(self, request_id: str, **content: Any) -> Future:
        """Sends a message; the future takes its answer."""
        answer = self._expect(request_id)
        self._outgoing.put(PROTOCOL.StreamingMessage(request_id=request_id, **content))
        return answer

    def receive(self, answer: Future, what: str, timeout: float | None) -> Any:
        """Waits for an answer."""
        try:
            return answer.result(timeout)
        except TimeoutError:
            raise NoResponseError(self._nothing(what, timeout)) from None

    def wait_until(self, condition: Any, what: str, timeout: float) -> None:
        """Waits until a condition on what was received holds."""
        with self._news:
            if not self._news.wait_for(condition, timeout):
                raise NoResponseError(self._nothing(what, timeout))

    def _nothing(self, what: str, timeout: float | None) -> str:
        return f"{what}: nothing within {timeout} s; the worker wrote:\n{self.output}"

    def _ask(self, what: str, **content: Any) -> Any:
        answer = self.receive(self.send(str(uuid.uuid4()), **content), what, self._start_timeout)
        if answer.result.status != PROTOCOL.StatusResult.Success:
            error = answer.result.exception
            raise AppRefusedError(f"{what}: {error.message}\n{error.stack_trace}")
        return answer

    def _expect(self, request_id: str) -> Future:
        answer: Future = Future()
        with self._news:
            if self._process is not None and self._process.returncode is not None:
                answer.set_exception(WorkerExitedError(self._process.returncode, self.output))
            else:
                self._answers[request_id] = answer
        return answer

    def _event_stream(self, incoming: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        receiver = threading.Thread(target=self._receive, args=(incoming,), name="functions-receive")
        receiver.start()
        yield from iter(self._outgoing.get, None)
        receiver.join()

    def _receive(self, incoming: Iterator[Any]) -> None:
        try:
            for message in incoming:
                kind = message.WhichOneof("content")
                body = getattr(message, kind)
                if kind == "rpc_log":
                    self._heard(_log(body))
                with self._news:
                    if kind == "rpc_log":
                        self.logs.append(_log(body))
                    elif answer := self._answers.pop(message.request_id, None):
                        answer.set_result(body)
                    self._news.notify_all()
        except grpc.RpcError:
            pass  # how a stream says that the worker is gone
        finally:
            self._outgoing.put(None)
            self._stream_ended.set()

    def _read_console(self) -> None:
        for line in self._process.stdout:
            self.console.append(line.rstrip("\n"))
            self._heard(self.console[-1])

    def _watch(self) -> None:
        self._process.wait()
        # What the worker had sent before it ended still counts: a response may overtake the exit code.
        self._stream_ended.wait(timeout=2)
        self._reader.join(timeout=2)
        if self.hangs:
            with self._news:
                self._news.notify_all()
        else:
            self.let_go()

    def let_go(self) -> None:
        """Tell those who wait for the worker that it is gone."""
        with self._news:
            lost, self._answers = self._answers, {}
            for answer in lost.values():
                answer.set_exception(WorkerExitedError(self._process.returncode, self.output))
            self._news.notify_all()


def _log(log: Any) -> Log:
    return Log(
        invocation_id=log.invocation_id,
        level=PROTOCOL.RpcLog.Level.Name(log.level),
        category=log.category,
        message=log.message,
        system=log.log_category == PROTOCOL.RpcLog.System,
    )
