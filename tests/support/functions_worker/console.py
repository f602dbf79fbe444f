"""What the host's console shows, and what a test can wait for."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .invocation import Log, NoResponseError


@dataclass(eq=False)
class Execution:
    """A function's execution: `success` is None while it runs."""

    name: str
    reason: str
    """What it was for: the trigger's kind and the message's id."""
    started: float
    """By the machine's clock, as `ended`."""
    id: str = ""
    success: bool | None = None
    error: str = ""
    ended: float | None = None


class Console:
    """Lines and executions; `show` is called with each line."""

    def __init__(self, show: Callable[[str], None] = lambda _: None) -> None:
        self.lines: list[str] = []
        self.executions: list[Execution] = []
        self._show = show
        self._news = threading.Condition()

    def say(self, line: str) -> None:
        """Show a line."""
        with self._news:
            self.lines.append(line)
            self._news.notify_all()
        self._show(line)

    def hear(self, heard: Log | str) -> None:
        """Show what a worker logged or wrote; what belongs to no invocation is thrown away."""
        if isinstance(heard, str):
            self.say(heard)
        elif heard.invocation_id and not heard.system:
            self.say(f"{heard.level}: {heard.message}")

    def begin(self, name: str, reason: str) -> Execution:
        """A function starts."""
        execution = Execution(name, reason, time.time())
        with self._news:
            self.executions.append(execution)
        self.say(f"Executing 'Functions.{name}' (Reason='{reason}')")
        return execution

    def end(self, execution: Execution, *, success: bool, error: str = "") -> None:
        """It has ended."""
        execution.ended, execution.error, execution.success = time.time(), error, success
        took = round((execution.ended - execution.started) * 1000)
        state = "Succeeded" if success else "Failed"
        self.say(f"Executed 'Functions.{execution.name}' ({state}, Id={execution.id}, Duration={took}ms)")
        if error:
            self.say(error)

    @property
    def running(self) -> list[Execution]:
        """What has not ended."""
        return [execution for execution in list(self.executions) if execution.success is None]

    def of(self, name: str) -> list[Execution]:
        """The executions of a function."""
        return [execution for execution in list(self.executions) if execution.name == name]

    def wait_until(self, condition: Callable[[], Any], what: str, timeout: float = 30) -> None:
        """Wait until a condition on lines or executions holds."""
        with self._news:
            if not self._news.wait_for(condition, timeout):
                said = "\n".join(self.lines)
                raise NoResponseError(f"{what}: not within {timeout} s; the console shows:\n{said}")

    def wait_for(self, text: str, timeout: float = 30, *, count: int = 1) -> None:
        """Wait for a line that contains a text, or for several."""
        self.wait_until(lambda: sum(text in line for line in self.lines) >= count, f"{text!r}", timeout)
