"""The worker processes of a host: replaced when they end, and given invocations in turn."""

import itertools
import threading
import time
from collections.abc import Callable

from .console import Console
from .invocation import AppRefusedError, NoResponseError, WorkerExitedError
from .process import WorkerProcess
from .times import Times


class HostEndedError(Exception):
    """The host ended under an invocation: nobody settles its message."""


class Workers:
    """FUNCTIONS_WORKER_PROCESS_COUNT workers; `give_up` is called when they end too often."""

    def __init__(
        self,
        make: Callable[[], WorkerProcess],
        count: int,
        times: Times,
        console: Console,
        give_up: Callable[[], None],
    ) -> None:
        self._make, self._count, self._times = make, count, times
        self._console, self._give_up = console, give_up
        self._ready: list[WorkerProcess] = []
        self._all: list[WorkerProcess] = []
        self._changed = threading.Condition()
        self._retired, self._closed = threading.Event(), threading.Event()
        self._exits: list[float] = []
        self._turns = itertools.count()
        self._threads: list[threading.Thread] = []

    def start(self) -> WorkerProcess:
        """Start the first; the others come later, one by one. AppRefusedError when the app cannot be indexed."""
        first = self._add()
        if self._count > 1:
            self._in_background(self._add_others)
        return first

    @property
    def ready(self) -> list[WorkerProcess]:
        """Those that take invocations."""
        return list(self._ready)

    def pick(self) -> WorkerProcess:
        """The worker whose turn it is; waits while there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed.is_set())
            if self._closed.is_set():
                raise HostEndedError
            return self._ready[next(self._turns) % len(self._ready)]

    @property
    def closed(self) -> bool:
        """Whether the host has ended them."""
        return self._closed.is_set()

    def retire(self) -> None:
        """Start no more of them; who waits for one that ends now is not told."""
        self._retired.set()
        for worker in self.ready:
            worker.hangs = True

    def close(self) -> None:
        """SIGKILL to all of them; who waits for them waits no longer."""
        self._retired.set()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        for worker in self.ready:
            worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._all:
            worker.let_go()

    def _in_background(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="functions-workers", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _add_others(self) -> None:
        for _ in range(self._count - 1):
            if self._retired.wait(self._times.second_worker):
                return
            self._add()

    def _add(self) -> WorkerProcess:
        worker = self._make().__enter__()
        with self._changed:
            self._ready.append(worker)
            self._all.append(worker)
            self._changed.notify_all()
        if self._closed.is_set():
            worker.kill()
        self._in_background(self._replace, worker)
        return worker

    def _replace(self, worker: WorkerProcess) -> None:
        code = worker.wait(None)
        with self._changed:
            self._ready.remove(worker)
        worker.close()
        if self._retired.is_set():
            return
        self._console.say(f"Language Worker Process exited. Pid={worker.pid}. Exit code {code}.")
        if not worker.hangs:  # a functionTimeout is the host's own doing and not counted
            self._count_exit()
        while not self._retired.wait(self._times.new_worker):
            try:
                self._add()
            except (AppRefusedError, NoResponseError, WorkerExitedError) as error:
                self._console.say(f"A new worker did not start: {error}")
                self._count_exit()
            else:
                return

    def _count_exit(self) -> None:
        now = time.monotonic()
        self._exits = [at for at in self._exits if now - at < self._times.exits_within] + [now]
        if len(self._exits) >= self._times.exits:
            self._console.say("Exceeded language worker restart retry count. Shutting down Functions Host.")
            self._give_up()
