"""The worker process: a gRPC stream on one side, the production worker library on the other, nothing else.

Run as a script by `FunctionsHost` with the 3.13 environment's interpreter.
"""

import argparse
import asyncio
import logging
import os
import queue
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure_functions_runtime as runtime
import grpc

# The app must not be able to import this folder's modules; in Azure it could not. A child process that a job spawns
# imports this file again, with the path as it was left here.
_HERE = str(Path(__file__).parent)
sys.path.insert(0, _HERE)
from messages import EVENT_STREAM, PROTOCOL  # noqa: E402

sys.path = [folder for folder in sys.path if folder != _HERE]

_STARTS_THREAD_POOL = {"worker_init_request", "function_environment_reload_request"}
_SYSTEM_LOGGERS = ("azure_functions_runtime", "azure.functions", "proxy_worker")
_LEVELS = {
    logging.DEBUG: PROTOCOL.RpcLog.Debug,
    logging.INFO: PROTOCOL.RpcLog.Information,
    logging.WARNING: PROTOCOL.RpcLog.Warning,
    logging.ERROR: PROTOCOL.RpcLog.Error,
    logging.CRITICAL: PROTOCOL.RpcLog.Critical,
}
_ANSWERS = {
    field.message_type.name: field.name for field in PROTOCOL.StreamingMessage.DESCRIPTOR.oneofs[0].fields
}


class InvocationTask(asyncio.Task):
    """A task that passes the id of its invocation on to the tasks it starts."""

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        super().__init__(coro, **options)
        self.invocation_id = getattr(asyncio.current_task(options["loop"]), "invocation_id", "")


def _invocation_id() -> str:
    """Whose log line this is: the current task says so on the loop, a context variable in the thread pool."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return getattr(task, "invocation_id", "") or runtime.invocation_id_cv.get() or ""


class HostLogHandler(logging.Handler):
    """Sends log records to the host."""

    def __init__(self, outgoing: queue.SimpleQueue, request_id: str) -> None:
        super().__init__()
        self._outgoing, self._request_id = outgoing, request_id

    def emit(self, record: logging.LogRecord) -> None:
        log = PROTOCOL.RpcLog(
            invocation_id=_invocation_id(),
            category=record.name,
            level=_LEVELS.get(record.levelno, PROTOCOL.RpcLog.Information),
            message=self.format(record),
            log_category=PROTOCOL.RpcLog.System
            if record.name.startswith(_SYSTEM_LOGGERS)
            else PROTOCOL.RpcLog.User,
        )
        self._outgoing.put(PROTOCOL.StreamingMessage(request_id=self._request_id, rpc_log=log))


class Worker:
    """Answers the host's requests on the main thread's event loop, where the production worker does."""

    def __init__(self, host: str, port: str, worker_id: str, request_id: str) -> None:
        self._host = host
        self._outgoing: queue.SimpleQueue = queue.SimpleQueue()
        self._tasks: set[asyncio.Task] = set()
        self._ending = threading.Event()
        # Without the proxy option an HTTP proxy of the machine would be asked for 127.0.0.1.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(f"{host}:{port}", options)
        self._stream = channel.stream_stream(
            "/{}/{}".format(*EVENT_STREAM),
            PROTOCOL.StreamingMessage.SerializeToString,
            PROTOCOL.StreamingMessage.FromString,
        )(iter(self._outgoing.get, None))
        start = PROTOCOL.StartStream(worker_id=worker_id)
        self._outgoing.put(PROTOCOL.StreamingMessage(request_id=request_id, start_stream=start))
        root = logging.getLogger()
        root.setLevel(logging.DEBUG if os.environ.get("PYTHON_ENABLE_DEBUG_LOGGING") == "1" else logging.INFO)
        root.addHandler(HostLogHandler(self._outgoing, request_id))

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_task_factory(lambda loop, coro, **options: InvocationTask(coro, loop=loop, **options))
        threading.Thread(target=self._receive, name="receive").start()
        try:
            await self._loop.create_future()
        finally:  # an interrupt, or a SystemExit out of a job
            self._ending.set()
            self._outgoing.put(None)
            self._stream.cancel()
            runtime.stop_threadpool_executor()

    def _receive(self) -> None:
        try:
            for message in self._stream:
                self._loop.call_soon_threadsafe(self._start, message)
        except grpc.RpcError:
            pass  # how a stream says that its other end is gone, or that it was cancelled
        if not self._ending.is_set():
            # The host is gone, and with it whoever would have ended this process: it finishes what it has.
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._end_as_orphan()))

    async def _end_as_orphan(self) -> None:
        while self._tasks - {asyncio.current_task()}:
            await asyncio.wait(self._tasks - {asyncio.current_task()})
        os._exit(1)

    def _start(self, message: Any) -> None:
        task = self._loop.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Any) -> None:
        kind = message.WhichOneof("content")
        asyncio.current_task().invocation_id = getattr(getattr(message, kind), "invocation_id", "")
        if kind in _STARTS_THREAD_POOL:
            runtime.start_threadpool_executor()
        request = SimpleNamespace(
            name=kind, request=message, properties={"protos": PROTOCOL, "host": self._host}
        )
        answer = await getattr(runtime, kind)(request)
        content = {_ANSWERS[answer.DESCRIPTOR.name]: answer}
        self._outgoing.put(PROTOCOL.StreamingMessage(request_id=message.request_id, **content))


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("--host", "--port", "--worker-id", "--request-id"):
        parser.add_argument(option, required=True)
    worker = Worker(**vars(parser.parse_args()))
    if script_root := os.environ.get("AzureWebJobsScriptRoot"):  # noqa: SIM112  (the name Azure gives it)
        sys.path.append(script_root)
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
