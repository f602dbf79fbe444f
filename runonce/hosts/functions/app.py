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
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import azure.functions as func

from runonce.errors import JobFileError, RunonceError, SettingsError, StoreError
from runonce.execution import ticking
from runonce.execution.loop import close_body_loop
from runonce.execution.threads import start_thread
from runonce.hosts.functions.dashboard import add_dashboard
from runonce.hosts.functions.handlers import add_handler, give_up
from runonce.hosts.functions.host_port import watch_host
from runonce.hosts.functions.in_hand import InHand
from runonce.hosts.functions.startup import left_out, look, most_deliveries, tell
from runonce.hosts.manifest import RECOVERY, RECOVERY_TIMER, REQUESTS
from runonce.hosts.runtime import Runtime
from runonce.hosts.signals import end_process, listen
from runonce.runs.presence import Presence
from runonce.runs.recovery import recover
from runonce.runs.rows import Outcome
from runonce.runs.switched_off import note_switched_off
from runonce.schedules.host_cron import functions_timer
from runonce.settings import Settings
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from runonce.hosts.discover import Discovered
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.runs.result import Result

log = logging.getLogger("runonce.functions")

LAST_WORDS = 0.5
"""Seconds for the responses of drained runs to leave the worker before it ends."""
HEARD = 1.0
"""Seconds for hooks to hear of everything, and for what they have still to send."""
PATIENCE = 8.5
"""Seconds after the first sign of a stop that the worker ends at the latest; the host ends it after ten."""
HOST_GONE = 0
"""In the place of a signal's number: the host's port refuses."""
RECORDING = 3.0
"""Seconds of them for recording what did not stop and releasing its lease."""


LONGEST_WAIT = timedelta(hours=1)
"""How long a tick may have waited for a thread; one that is later was none for the fire time before it."""


class JobFailedError(RunonceError):
    """The job failed; the invocation is reported as failed so that the host's own monitoring shows it."""


def make_app(root: Path) -> func.FunctionApp:
    """See `runonce.hosts.functions.build`."""
    settings = Settings.from_env(folder=root)
    settings = replace(settings, jobs_folder=str(root / settings.jobs_folder))
    logging.getLogger("azure").setLevel(logging.WARNING)  # one line for each storage call otherwise
    runtime = Runtime(settings)
    off = left_out(os.environ, [*runtime.jobs, *runtime.found.handlers, RECOVERY, REQUESTS])
    said = look(root, runtime, off)
    app = func.FunctionApp()
    now = runtime.clock.now()
    for job in runtime.jobs.values():
        timer = app.timer_trigger(arg_name="timer", schedule=functions_timer(job.schedule, now))
        app.function_name(job.name)(timer(_timer(runtime.dispatcher, job)))
    for name in off:
        runtime.jobs.pop(name, None)  # recovery would run what the host was told not to
    in_hand = InHand(runtime)
    _bind_handlers(app, runtime, in_hand, most_deliveries(root), off)
    timer = app.timer_trigger(arg_name="timer", schedule=RECOVERY_TIMER)
    note = partial(_note_switched_off, runtime, off)
    app.function_name(RECOVERY)(timer(_recovery(runtime.dispatcher, runtime.found, said, note)))
    requests = app.queue_trigger(
        arg_name="message",
        queue_name=settings.request_queue,
        connection=settings.storage.setting,
        data_type=func.DataType.BINARY,
    )
    app.function_name(REQUESTS)(requests(_requests(runtime.dispatcher)))
    try:
        add_dashboard(app, runtime)
    except RunonceError as error:
        said.append(str(error))
    for text in [*said, *map(str, runtime.found.broken)]:
        tell(text)
    if RECOVERY in off:
        start_thread(note, "runonce-switched-off")
    _stop_when_told(runtime, in_hand)
    ticking.start(runtime.found.every.values(), runtime.clock, runtime.stop)
    if runtime.found.handlers and settings.transport == "storage":
        start_thread(in_hand.run, "runonce-in-hand")
    return app


def _bind_handlers(
    app: func.FunctionApp, runtime: Runtime, in_hand: InHand, deliveries: int, off: Collection[str]
) -> None:
    """Bind the handlers; one that cannot be is a broken file, and the others work."""
    found = runtime.found
    for name, handler in list(found.handlers.items()):
        try:
            add_handler(app, runtime, handler, in_hand, deliveries, off=name in off)
        except SettingsError as error:
            found.broken.append(JobFileError(f"{found.files.get(name, name)}: {error}"))
            del found.handlers[name]


def _timer(dispatcher: Dispatcher, job: ScheduledJob) -> Callable[[func.TimerRequest], None]:
    # A plain function for an async job too: its body has a loop of its own, and nothing waits on the worker's.
    def run(timer: func.TimerRequest) -> None:  # noqa: ARG001 - what is due depends on the time alone
        result = dispatcher.tick(job)
        if result is None:
            log.info(
                "job %s: %s; `runonce run %s` runs it now", job.name, _not_due(dispatcher, job), job.name
            )
        _report(result)

    return run


def _not_due(dispatcher: Dispatcher, job: ScheduledJob) -> str:
    """Why a tick runs nothing: what it was too late for, and what comes next."""
    now = dispatcher.clock.now()
    upcoming, before = job.schedule.next(now), job.schedule.previous(now)
    coming = "it never fires again" if upcoming is None else f"next at {to_text(upcoming)}"
    if before is None or now - before > LONGEST_WAIT:
        return f"nothing is due, {coming}"
    late = (now - before).total_seconds()
    return f"nothing is due ({to_text(before)} is {late:.0f} s ago, and left to recovery), {coming}"


def _note_switched_off(runtime: Runtime, off: Mapping[str, str]) -> None:
    """Write down for other machines what the host was told not to start."""
    try:
        note_switched_off(runtime.runs, os.environ.get("WEBSITE_HOSTNAME") or runtime.host, off)
    except StoreError as error:
        log.warning("what is switched off here is not shown by `runonce status` elsewhere: %s", error)


def _recovery(
    dispatcher: Dispatcher, found: Discovered, said: list[str], note: Callable[[], None]
) -> Callable[[func.TimerRequest], None]:
    first = [note]
    presence = Presence(dispatcher.registry, dispatcher.jobs, dispatcher.clock.now(), kind="functions")

    def run(timer: func.TimerRequest) -> None:  # noqa: ARG001 - what is due depends on the time alone
        while said:
            log.warning("%s", said.pop(0))
        while first:
            first.pop()()
        for error in found.broken:
            log.error("%s", error)  # every minute, so that an alert sees it as long as it is so
        presence.say()
        recover(dispatcher)

    return run


def _requests(dispatcher: Dispatcher) -> Callable[[func.QueueMessage], None]:
    def run(message: func.QueueMessage) -> None:
        _report(dispatcher.handle_request(message.get_body().decode(errors="replace")))

    return run


def _report(result: Result | None) -> None:
    """Raise what a person must hear of: the host counts failed invocations, whether the job ran or was given up."""
    if result is not None and result.outcome in (Outcome.FAILED, Outcome.UNKNOWN):
        attempt = f"attempt {result.attempt}: " if result.ran else ""
        text = f"Job {result.job}, fire time {result.fire_time}, {attempt}{result.outcome}: {result.reason}"
        raise JobFailedError(text) from result.error


def _stop_when_told(runtime: Runtime, in_hand: InHand) -> None:
    """On SIGTERM, Ctrl-C or the host's own end tell what runs, wait for it, give back the rest, end the process."""
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
        left = max(0.0, timeout - (runtime.clock.elapsed() - started))
        if runtime.found.handlers and not runtime.deliverer.drain(left):
            giving = start_thread(lambda: give_up(runtime), "runonce-give-up")
        else:
            giving = None
        if not drained:
            dispatcher.abandon()
        if giving is not None:
            giving.join(RECORDING)
        try:
            in_hand.leave()
        except StoreError as error:
            log.warning("messages that were given back may come once more: %s", error)
        if number == HOST_GONE:
            return  # it still hands over what it had fetched, which is given back
        start_thread(runtime.close, "runonce-last-words").join(HEARD)
        # As long as that takes, and no longer than the last words.
        start_thread(close_body_loop, "runonce-close")
        _end_after(LAST_WORDS, number)

    watch_host(os.environ, lambda: shut_down(HOST_GONE))
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
    end_process(128 + (number or signal.SIGTERM))


def _forget_the_pool() -> None:
    # A child forked in a thread of the worker's pool has none of its threads. Python joins them at the child's end,
    # among them the one it runs in, which makes its exit code 1 whatever it did.
    getattr(concurrent.futures.thread, "_threads_queues", {}).clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_pool)
