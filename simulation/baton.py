"""Threads that hand over one baton: exactly one runs, until it waits; which one is next follows from time alone.

A task is code of the toolkit that believes it has a thread of its own. Where it would block (a sleep, an event, a
lock, a call over the network), it gives the baton to the task whose time comes next. Time passes only there.
"""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

FOREVER = float("inf")


class Killed(BaseException):
    """The host of this task is dead: the task ends wherever it is."""


@dataclass(eq=False)
class Process:
    """What tasks live and die with."""

    name: str
    dead: bool = False
    paused: bool = False
    parked: list[tuple[Task, int]] = field(default_factory=list)
    """Tasks whose time came while it was paused."""


class Task:
    """Code with a thread of its own, as far as it can tell."""

    __slots__ = ("done", "ended", "name", "process", "target", "turn", "worker")

    def __init__(self, target: Callable[[], object], process: Process, name: str) -> None:
        self.target = target
        self.process = process
        self.name = name
        self.turn = 0
        """Rises with every wait, so that what would have ended an earlier one does not end this."""
        self.worker: _Worker | None = None
        self.done = False
        self.ended: list[tuple[Task, int]] = []
        """Who waits for its end."""


class _Worker:
    """A real thread, which carries one task after another."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.task: Task | None = None


class Simulator:
    """Time, and whose turn it is."""

    current: Simulator | None = None

    def __init__(self, rng: random.Random, after_step: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.steps = 0
        self.task: Task | None = None
        self.crashed: Callable[[Task, BaseException], None] = lambda *_: None
        self._rng = rng
        self._after_step = after_step
        self._heap: list[tuple[float, float, int, Task | Callable[[], None], int]] = []
        self._pushed = 0
        self._tasks: dict[Task, None] = {}
        self._idle: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._main = Task(lambda: None, Process("main"), "main")
        self._main.worker = _Worker()
        self._closing = False
        self._over = False
        self._fault: BaseException | None = None

    # -- what the world does ------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call it then, in nobody's thread: it must not wait."""
        self._push(max(time, self.now), call, 0)

    def spawn(self, target: Callable[[], object], process: Process, name: str) -> Task:
        """Start a task of a process."""
        task = Task(target, process, name)
        self._tasks[task] = None
        self._push(self.now, task, 0)
        return task

    def run(self, until: float) -> None:
        """Let time pass until then, or until `stop`."""
        self.at(until, self.stop)
        self._over = False
        self._hand_over(self._main)
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Let `run` return."""
        self._over = True

    def kill(self, process: Process) -> None:
        """End its tasks: each gets no further than its next wait."""
        process.dead = True
        for task in self._tasks:
            if task.process is process and task is not self.task:
                task.turn += 1
                self._push(self.now, task, task.turn)

    def resume(self, process: Process) -> None:
        """Let a paused process go on."""
        process.paused = False
        parked, process.parked = process.parked, []
        for task, turn in parked:
            self._push(self.now, task, turn)

    def close(self) -> None:
        """End every task and thread."""
        self._closing, self._heap = True, []
        for task in list(self._tasks):
            if task.worker is None:
                del self._tasks[task]
        while self._tasks:
            task = next(iter(self._tasks))
            task.turn += 1
            task.process.dead = True
            self._over = False
            self._push(self.now, task, task.turn)
            self.at(self.now, self.stop)
            self._hand_over(self._main)
        for worker in self._idle:
            worker.task = None
            worker.gate.release()
        for thread in self._threads:
            thread.join()

    # -- what a task does ---------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Wait so long; raises Killed."""
        self.wait(None, seconds)

    def wait(self, waiting: list[tuple[Task, int]] | None, seconds: float = FOREVER) -> None:
        """Wait so long, or until `wake` of the list it is put on; raises Killed."""
        me = self.task
        if me is None:
            raise RuntimeError("only a task can wait")
        if me.process.dead:
            raise Killed
        me.turn += 1
        if seconds < FOREVER:
            self._push(self.now + max(0.0, seconds), me, me.turn)
        if waiting is not None:
            waiting.append((me, me.turn))
        self._hand_over(me)
        if me.process.dead:
            raise Killed

    def wake(self, waiting: list[tuple[Task, int]]) -> None:
        """Let all that wait on the list go on."""
        for task, turn in waiting:
            if task.turn == turn:
                self._push(self.now, task, turn)
        waiting.clear()

    # -- the baton ----------------------------------------------------------------------------------------------

    def _push(self, time: float, what: Task | Callable[[], None], turn: int) -> None:
        self._pushed += 1
        # What falls on one instant comes in any order.
        heapq.heappush(self._heap, (time, self._rng.random(), self._pushed, what, turn))

    def _next(self) -> Task:
        self.task = None
        try:
            while self._heap and not self._over:
                self._after_step()
                time, _, _, what, turn = heapq.heappop(self._heap)
                self.now = max(self.now, time)
                self.steps += 1
                if not isinstance(what, Task):
                    what()
                elif what.turn != turn or what.done:
                    continue
                elif what.process.paused and not what.process.dead:
                    what.process.parked.append((what, turn))
                elif what.process.dead and what.worker is None:
                    self._finish(what)
                else:
                    return what
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            self._fault = error
        return self._main

    def _hand_over(self, me: Task) -> None:
        following = self._next()
        if following is not me:
            self._let_go_on(following)
            assert me.worker is not None  # noqa: S101 - only a task with a thread hands over
            me.worker.gate.acquire()
        self.task = me

    def _let_go_on(self, task: Task) -> None:
        if task.worker is None:
            worker = task.worker = self._idle.pop() if self._idle else self._new_worker()
            worker.task = task
        task.worker.gate.release()

    def _new_worker(self) -> _Worker:
        worker = _Worker()
        thread = threading.Thread(target=self._work, args=(worker,), name="simulated", daemon=True)
        self._threads.append(thread)
        thread.start()
        return worker

    def _work(self, worker: _Worker) -> None:
        worker.gate.acquire()
        while (task := worker.task) is not None:
            self.task = task
            try:
                if not task.process.dead:
                    task.target()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - for whoever judges it
                self.crashed(task, error)
            self._finish(task)
            following = self._next()
            if following.worker is None:
                following.worker, worker.task = worker, following
                continue
            self._idle.append(worker)
            following.worker.gate.release()
            worker.gate.acquire()

    def _finish(self, task: Task) -> None:
        task.done = True
        self._tasks.pop(task, None)
        self.wake(task.ended)


def simulator() -> Simulator:
    """The one that runs."""
    assert Simulator.current is not None  # noqa: S101 - the threads below exist in a simulation only
    return Simulator.current


class Event:
    """As threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self.waiting: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        simulator().wake(self.waiting)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            simulator().wait(self.waiting, FOREVER if timeout is None else timeout)
        return self._set


class Lock:
    """As threading.Lock and threading.RLock."""

    def __init__(self) -> None:
        self._holder: Task | None = None
        self._depth = 0
        self._waiting: list[tuple[Task, int]] = []

    def acquire(self) -> bool:
        one = simulator()
        while self._depth and self._holder is not one.task:
            one.wait(self._waiting)
        self._holder = one.task
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth and self._waiting:
            simulator().wake(self._waiting)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    """As threading.Condition."""

    def __init__(self) -> None:
        super().__init__()
        self._notified: list[tuple[Task, int]] = []

    def wait(self, timeout: float | None = None) -> None:
        self.release()
        try:
            simulator().wait(self._notified, FOREVER if timeout is None else timeout)
        finally:
            self.acquire()

    def notify_all(self) -> None:
        simulator().wake(self._notified)


class Thread:
    """As threading.Thread: a task of the process that starts it."""

    def __init__(self, *, target: Callable[[], object], name: str = "", daemon: bool | None = None) -> None:
        self._target = target
        self._name = name
        self._task: Task | None = None
        self.daemon = daemon

    def start(self) -> None:
        one = simulator()
        assert one.task is not None  # noqa: S101 - threads are started by tasks
        self._task = one.spawn(self._target, one.task.process, self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.done:
            simulator().wait(self._task.ended, FOREVER if timeout is None else timeout)


RLock = Lock
"""A lock that its holder may take again serves for both: no code here takes one twice by mistake and hangs."""


def __getattr__(name: str) -> Any:
    """Refuse what is not simulated, where it is used."""
    raise AttributeError(f"threading.{name} is not simulated")
