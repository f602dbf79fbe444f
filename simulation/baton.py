"""Tasks that hand over one baton: exactly one runs, until it waits; which one is next follows from time alone.

A task is code of the toolkit that believes it has a thread of its own. Where it would block (a sleep, an event, a
lock, a call over the network), it gives the baton to the task whose time comes next. Time passes only there.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from heapq import heappop, heappush
from queue import Empty
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

FOREVER = float("inf")
Waiting: TypeAlias = "list[tuple[Task, int]]"
"""Who waits for something, each with its turn as it began to."""


class Killed(BaseException):
    """The host of this task is dead: the task ends wherever it is."""


@dataclass(eq=False)
class Process:
    """What tasks live and die with."""

    name: str
    dead: bool = False
    paused: bool = False
    parked: Waiting = field(default_factory=list)
    """Tasks whose time came while it was paused."""


NOBODY = Process("nobody", dead=True)


class Task:
    """Code with a thread of its own, as far as it can tell."""

    __slots__ = ("done", "ended", "name", "process", "stack", "target", "turn")

    def __init__(self, target: Callable[[], object], process: Process, name: str) -> None:
        self.target = target
        self.process = process
        self.name = name
        self.turn = 0
        """Rises with every wait, so that what would have ended an earlier one does not end this."""
        self.stack: greenlet | None = None
        self.done = False
        self.ended: Waiting = []
        """Who waits for its end."""


class Simulator:
    """Time, and whose turn it is."""

    current: Simulator | None = None

    def __init__(self, rng: random.Random, after_step: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.steps = 0
        self.task: Task | None = None
        self.crashed: Callable[[Task, BaseException], None] = lambda *_: None
        self._random = rng.random
        self._after_step = after_step
        self._heap: list[tuple[float, float, int, Task | Callable[[], object], int]] = []
        self._pushed = 0
        self._tasks: dict[Task, None] = {}
        self._hub = getcurrent()
        self._over = False

    # -- what the world does ------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[], object]) -> None:
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
        while (following := self._next()) is not None:
            self._go_on(following)

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
        """End every task."""
        while self._tasks:
            task = next(iter(self._tasks))
            task.process.dead = True
            self.task = task
            self._go_on(task)

    # -- what a task does ---------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Wait so long; raises Killed."""
        self.wait(None, seconds)

    def wait(self, waiting: Waiting | None, seconds: float = FOREVER, *, also: Waiting | None = None) -> None:
        """Wait so long, or until `wake` of a list it is put on; raises Killed."""
        me = self.task
        if me is None:
            raise RuntimeError("only a task can wait")
        if me.process.dead:
            raise Killed
        turn = me.turn = me.turn + 1
        if seconds < FOREVER:
            self._push(self.now + seconds if seconds > 0.0 else self.now, me, turn)
        for waits in (waiting, also):
            if waits is not None:
                waits.append((me, turn))
        self._hand_over(me)
        if me.process.dead:
            raise Killed

    def wake(self, waiting: Waiting) -> None:
        """Let all that wait on the list go on."""
        for task, turn in waiting:
            if task.turn == turn:
                self._push(self.now, task, turn)
        waiting.clear()

    # -- the baton ----------------------------------------------------------------------------------------------

    def _push(self, time: float, what: Task | Callable[[], object], turn: int) -> None:
        self._pushed += 1
        # What falls on one instant comes in any order.
        heappush(self._heap, (time, self._random(), self._pushed, what, turn))

    def _next(self) -> Task | None:
        """Whose turn it is, from now on; None when `run` is over."""
        self.task, heap = None, self._heap
        self._after_step()
        while heap and not self._over:
            self.now, _, _, what, turn = heappop(heap)
            self.steps += 1
            if not isinstance(what, Task):
                what()
                self._after_step()
            elif what.turn != turn:
                self.steps -= 1  # something else ended its wait
            elif what.process.paused and not what.process.dead:
                what.process.parked.append((what, turn))
            else:
                self.task = what
                return what
        return None

    def _hand_over(self, me: Task) -> None:
        """Return when it is this task's turn again; others run meanwhile, each from where the one before waits."""
        try:
            following = self._next()
        except BaseException as error:  # noqa: BLE001 - of a check or of the world, and no business of this task's
            self._hub.throw(error)
            return
        if following is None:
            self._hub.switch()
        elif following is not me:
            self._go_on(following)

    def _go_on(self, task: Task) -> None:
        """Let it run, from whoever runs now: until it waits or ends, if that is the hub."""
        if task.stack is None:
            task.stack = greenlet(self._carry_out, parent=self._hub)
            task.stack.switch(task)
        else:
            task.stack.switch()

    def _carry_out(self, task: Task) -> None:
        try:
            if not task.process.dead:
                task.target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - for whoever judges it
            self.crashed(task, error)
        self._finish(task)

    def _finish(self, task: Task) -> None:
        task.done = True
        task.turn += 1
        # Events that outlive the simulation may know the task.
        task.process, task.target, task.stack = NOBODY, _nothing, None
        self._tasks.pop(task, None)
        self.wake(task.ended)


def _nothing() -> None:
    pass


def simulator() -> Simulator:
    """The one that runs."""
    assert Simulator.current is not None  # noqa: S101 - the threads below exist in a simulation only
    return Simulator.current


class Event:
    """As threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self.waiting: Waiting = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        # What is swept away with an earlier simulation may end events of it.
        if any(not task.done for task, _ in self.waiting):
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
        self._waiting: Waiting = []

    def acquire(self, blocking: bool = True) -> bool:
        one = simulator()
        if not blocking and self._depth:
            return False
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
        if self._depth:
            self.acquire()
        else:  # mostly: without a further call
            self._holder, self._depth = simulator().task, 1
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    """As threading.Condition."""

    def __init__(self) -> None:
        super().__init__()
        self._notified: Waiting = []

    def wait(self, timeout: float | None = None) -> None:
        self.release()
        try:
            simulator().wait(self._notified, FOREVER if timeout is None else timeout)
        finally:
            self.acquire()

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            self.wait()

    def notify_all(self) -> None:
        simulator().wake(self._notified)


class SimpleQueue:
    """As queue.SimpleQueue."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: Waiting = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        simulator().wake(self._waiting)

    def get(self, timeout: float | None = None) -> Any:
        one = simulator()
        give_up_at = one.now + (FOREVER if timeout is None else timeout)
        while not self._items and one.now < give_up_at:
            one.wait(self._waiting, give_up_at - one.now)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class Future:
    """As concurrent.futures.Future."""

    def __init__(self) -> None:
        self.ended = Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @classmethod
    def __class_getitem__(cls, _: Any) -> type[Future]:
        return cls

    def set_result(self, result: Any) -> None:
        if self.ended.is_set():
            raise InvalidStateError
        self._result = result
        self.ended.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self.ended.set()

    def result(self, timeout: float | None = None) -> Any:
        if not self.ended.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


def wait(futures: Sequence[Future], timeout: float = FOREVER) -> None:
    """As concurrent.futures.wait."""
    one = simulator()
    give_up_at = one.now + timeout
    for future in futures:
        if not future.ended.is_set():
            future.ended.wait(max(0.0, give_up_at - one.now))


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
