"""What is asked of a worker, and what comes of it."""

import uuid
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .messages import PROTOCOL
from .metadata import Function
from .triggers import BindingError, Trigger

if TYPE_CHECKING:
    from .process import WorkerProcess


class AppRefusedError(AssertionError):
    """The worker could not index or load the app; the message is the worker's."""


class NoResponseError(AssertionError):
    """No response in time: the host would wait until functionTimeout, then restart the worker."""


class WorkerExitedError(AssertionError):
    """The worker process ended and took what it was asked with it."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"the worker process ended with {code}:\n{output}")
        self.code = code


@dataclass(frozen=True)
class Log:
    """A log line as the host received it; without an invocation id the host drops a user's line."""

    invocation_id: str
    level: str
    category: str
    message: str
    system: bool


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What became of an invocation: `exception` is the message of what a failed one raised."""

    id: str
    success: bool
    exception: str = ""
    stack_trace: str = field(default="", repr=False)
    result: Any = None
    logs: list[Log] = field(default_factory=list, repr=False)

    def said(self, text: str) -> bool:
        """Whether a line of this invocation's user logs contains the text."""
        return any(text in log.message for log in self.logs)


class PendingInvocation:
    """An invocation on its way."""

    def __init__(self, worker: "WorkerProcess", function: Function, trigger: Trigger) -> None:
        self.id = str(uuid.uuid4())
        self._worker, self._function = worker, function
        try:
            data, metadata = trigger.bound(function.trigger)
        except BindingError as error:  # the worker never hears of it
            self._answer: Future = Future()
            self._answer.set_exception(error)
            return
        binding = PROTOCOL.ParameterBinding(name=function.trigger["name"], data=data)
        request = PROTOCOL.InvocationRequest(
            invocation_id=self.id,
            function_id=function.id,
            input_data=[binding],
            trigger_metadata=metadata,
            trace_context=PROTOCOL.RpcTraceContext(
                trace_parent=f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-00"
            ),
            retry_context=PROTOCOL.RetryContext(),
        )
        self._answer = worker.send(self.id, invocation_request=request)

    @property
    def done(self) -> bool:
        """Whether the response has come, or the worker is gone."""
        return self._answer.done()

    @property
    def logs(self) -> list[Log]:
        """The user's log lines of this invocation so far."""
        return [log for log in self._worker.logs if log.invocation_id == self.id and not log.system]

    def wait(self, timeout: float | None = 30) -> Invocation:
        """Waits for the response; raises `WorkerExitedError` as soon as the worker is gone.

        A message that cannot be bound is a failed invocation whose function was never called.
        """
        try:
            response = self._worker.receive(self._answer, f"invocation of {self._function.name}", timeout)
        except BindingError as error:
            reason = f"Exception binding parameter '{self._function.trigger['name']}': {error}"
            return Invocation(id=self.id, success=False, exception=reason)
        result = response.result
        return Invocation(
            id=self.id,
            success=result.status == PROTOCOL.StatusResult.Success,
            exception=result.exception.message,
            stack_trace=result.exception.stack_trace,
            result=_plain(response.return_value),
            logs=self.logs,
        )

    def wait_for_log(self, text: str, timeout: float = 10) -> Log:
        """Waits until the job has logged a line that contains the text; raises if it ends without."""

        def line() -> Log | None:
            return next((log for log in self.logs if text in log.message), None)

        self._worker.wait_until(lambda: line() or self.done, f"log line {text!r}", timeout)
        if (found := line()) is None:
            self.wait(0)  # raises if the worker is gone
            said = "\n".join(log.message for log in self.logs)
            raise AssertionError(f"{self._function.name} ended without logging {text!r}:\n{said}")
        return found


def _plain(data: Any) -> Any:
    kind = data.WhichOneof("data")
    return getattr(data, kind) if kind else None
