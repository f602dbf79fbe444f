"""The Functions host: one timer per scheduled job, the recovery timer, and the internal queue's function.

What is peculiar to the Python worker, and handled here:

* It is killed by SIGTERM without running any `finally`. A handler installed while function_app.py is imported
  works, but then the process no longer ends by itself, so whoever hears the signal ends it.
* A BaseException that leaves a function is never answered; `dispatch` lets none out.
* Timers on Flex Consumption run in UTC. A zoned schedule's timer covers all its offsets, and a tick that is
  not due returns without a storage call.
"""

from __future__ import annotations

import concurrent.futures.thread
import logging
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import azure.functions as func

from runonce.errors import RunonceError, SettingsError
from runonce.execution.loop import close_body_loop
from runonce.execution.threads import start_thread
from runonce.hosts.functions.handlers import add_handler
from runonce.hosts.functions.host_json import check_host_json
from runonce.hosts.manifest import RECOVERY, RECOVERY_TIMER
from runonce.hosts.runtime import Runtime
from runonce.hosts.signals import end_process, listen
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.schedules.host_cron import functions_timer
from runonce.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runonce.hosts.discover import Discovered
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.result import Result

log = logging.getLogger("runonce.functions")

LAST_WORDS = 0.5
"""Seconds for the responses of drained runs to leave the worker before it ends."""
PATIENCE = 8.0
"""Seconds after the first sign of a stop that the worker ends at the latest; the host ends it after ten."""
RECORDING = 2.0
"""Seconds of them for recording what did not stop and releasing its lease."""


class JobFailedError(RunonceError):
    """The job failed; the invocation is reported as failed so that the host's own monitoring shows it."""


def make_app(root: Path) -> func.FunctionApp:
    """See `runonce.hosts.functions.build`."""
    settings = Settings.from_env()
    settings = replace(settings, jobs_folder=str(root / settings.jobs_folder))
    logging.getLogger("azure").setLevel(logging.WARNING)  # one line for each storage call otherwise
    runtime = Runtime(settings)
    app = func.FunctionApp()
    for job in runtime.dispatcher.jobs.values():
        app.function_name(job.name)(
            app.timer_trigger(arg_name="timer", schedule=functions_timer(job.schedule, runtime.clock.now()))(
                _async_timer(runtime.dispatcher, job) if job.is_async else _timer(runtime.dispatcher, job)
            )
        )
    _check_host_json(root, runtime)
    for handler in runtime.found.handlers.values():
        add_handler(app, runtime, handler)
    app.function_name(RECOVERY)(
        app.timer_trigger(arg_name="timer", schedule=RECOVERY_TIMER)(
            _recovery(runtime.dispatcher, runtime.found)
        )
    )
    app.function_name("runonce_requests")(
        app.queue_trigger(
            arg_name="message",
            queue_name=settings.request_queue,
            connection=settings.storage.setting,
            data_type=func.DataType.BINARY,
        )(_requests(runtime.dispatcher))
    )
    _stop_on_signals(runtime)
    return app


def _check_host_json(root: Path, runtime: Runtime) -> None:
    """Say what in host.json does not fit; raises SettingsError when no message could be handled so."""
    try:
        text = (root / "host.json").read_text(encoding="utf-8-sig")
    except OSError:
        return  # then the host itself has said so
    findings = check_host_json(text, os.environ, runtime.found.handlers.values(), runtime.settings.transport)
    for finding in findings:
        log.log(logging.ERROR if finding.fatal else logging.WARNING, "%s", finding.text)
    fatal = [finding.text for finding in findings if finding.fatal]
    if fatal:
        raise SettingsError("\n".join(fatal))


def _timer(dispatcher: Dispatcher, job: ScheduledJob) -> Callable[[func.TimerRequest], None]:
    def run(timer: func.TimerRequest) -> None:  # noqa: ARG001 - what is due depends on the time alone
        _report(dispatcher.tick(job))

    return run


def _async_timer(dispatcher: Dispatcher, job: ScheduledJob) -> Callable[[func.TimerRequest], Any]:
    async def run(timer: func.TimerRequest) -> None:  # noqa: ARG001 - as above
        fire_time = dispatcher.due(job)
        if fire_time is not None:
            _report(await dispatcher.execute_async(job, fire_time, by="timer"))

    return run


def _recovery(dispatcher: Dispatcher, found: Discovered) -> Callable[[func.TimerRequest], None]:
    def run(timer: func.TimerRequest) -> None:  # noqa: ARG001 - what is due depends on the time alone
        for error in found.broken:
            log.error("%s", error)  # every minute, so that an alert sees it as long as it is so
        recover(dispatcher)

    return run


def _requests(dispatcher: Dispatcher) -> Callable[[func.QueueMessage], None]:
    def run(message: func.QueueMessage) -> None:
        _report(dispatcher.handle_request(message.get_body().decode(errors="replace")))

    return run


def _report(result: Result | None) -> None:
    if result is not None and result.outcome is Outcome.FAILED and result.ran:
        text = f"Job {result.job}, fire time {result.fire_time}, attempt {result.attempt}: {result.reason}"
        raise JobFailedError(text) from result.error


def _stop_on_signals(runtime: Runtime) -> None:
    """On SIGTERM or Ctrl-C tell the runs, wait for them, release every lease, and end the process."""
    dispatcher = runtime.dispatcher
    timeout = min(runtime.settings.shutdown_timeout, PATIENCE - RECORDING - LAST_WORDS)
    told = threading.Event()

    def shut_down(number: int) -> None:
        if told.is_set():
            return
        told.set()
        start_thread(lambda: _end_after(PATIENCE - LAST_WORDS, number), "runonce-end")
        start_thread(lambda: stop(number), "runonce-stop")

    def stop(number: int) -> None:
        started = runtime.clock.elapsed()
        drained = dispatcher.drain(timeout)
        if runtime.found.handlers:
            runtime.deliverer.drain(timeout - (runtime.clock.elapsed() - started))
        if not drained:
            dispatcher.abandon()
        # As long as that takes, and no longer than the last words.
        start_thread(close_body_loop, "runonce-close")
        _end_after(LAST_WORDS, number)

    try:
        listen(shut_down)
    except ValueError:
        log.warning(
            "function_app.py is not imported in the main thread, so a stopping host is not noticed: runs are taken "
            "over when their leases end, after %d s",
            runtime.settings.lease.duration,
        )


def _end_after(seconds: float, number: int) -> None:
    threading.Event().wait(seconds)
    end_process(128 + number)


def _forget_the_pool() -> None:
    # A child forked in a thread of the worker's pool has none of its threads. Python joins them at the child's end,
    # among them the one it runs in, which makes its exit code 1 whatever it did.
    getattr(concurrent.futures.thread, "_threads_queues", {}).clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_pool)
