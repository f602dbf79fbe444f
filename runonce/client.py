"""For any program beside the hosts: sending messages to handlers, reading what they wrote, and what operators decide.

The functions about a job take what `@scheduled` made of it, or its name where it has left the code. They work on the
storage and in the namespace of this process's settings, and raise SettingsError where one is missing, StoreError where
storage does not answer, InputError or UnknownJobError with the remedy where nothing can be done.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal

from runonce.errors import InputError
from runonce.execution.log import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.runs.decide import Which
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.result import Result
    from runonce.stores.protocols import Value
    from runonce.transports.protocols import Sender

_lock = threading.Lock()
_senders: dict[str, Sender] = {}
_instead: list[Sender] = []
_inherited: list[dict[str, Sender]] = []
"""In a forked child: its parents' senders, which share connections with theirs and are neither used nor closed."""


def enqueue(
    handler: Handler | str,
    body: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    manifest: str | Path = "infra/jobs.json",
    at: datetime | None = None,
    correlation_id: str = "",
) -> str:
    """Send a message to a handler, by the transport and connection of this process's settings; its id.

    Sending the same message again is safe: it gets the same id, which the broker's duplicate detection drops
    within its window, and the same key, which the handler's claim recognises for as long as it is kept.

    Args:
        handler: Whom it is for: what `@handler` made of the function, or its name in a program that does not have it.
        body: bytes and text as they are; anything else as JSON.
        key: What the message id is made of; default is the handler's own key of the body.
        queue: Of a handler that is given by name: its queue or topic. Then no manifest is read, and a message without
            `key` gets an id of its own, so that sending it again makes another one.
        manifest: Of a handler that is given by name: the file that `runonce manifest` has written from its code.
        at: When it shall be there, an aware datetime; default is at once.
        correlation_id: Passed on to the handler.

    Raises:
        InputError: The body is not JSON, or the time has no offset; or there is no manifest.
        UnknownJobError: The manifest has no handler of that name.
        PermanentError: The body lacks the handler's key.
        SettingsError: A setting is missing or wrong.
        TransportError: The broker did not take it.
    """
    how: dict[str, Any] = {"key": key, "queue": queue, "manifest": manifest}
    return enqueue_many(handler, [body], at=at, correlation_id=correlation_id, **how)[0]


def enqueue_many(
    handler: Handler | str,
    bodies: Iterable[Any],
    *,
    key: str | None = None,
    queue: str | None = None,
    manifest: str | Path = "infra/jobs.json",
    at: datetime | None = None,
    correlation_id: str = "",
) -> list[str]:
    """Send messages to a handler in batches; their ids.

    Raises as `enqueue`, before any is sent if it can, and InputError when several messages are given one key.
    """
    from runonce.messages.sending import check_one_key, outgoing, send_all  # noqa: PLC0415 - with the rest of what sends

    listed, to = list(bodies), handler if not isinstance(handler, str) else None
    if to is None:
        from runonce.messages.named import named  # noqa: PLC0415 - hardly ever

        to = named(str(handler), key=key, queue=queue, manifest=manifest)
    elif queue is not None:
        raise InputError(f"enqueue({to.name}): queue={queue!r} is for a handler that is given by its name.")
    check_one_key(to, key, len(listed))
    messages = [outgoing(to, body, key=key, at=at, correlation_id=correlation_id) for body in listed]
    send_all(_sender(), to, messages)
    return [message.sent_as or message.message_id for message in messages]


def effects(handler: Handler) -> Iterator[dict[str, Value]]:
    """Every row a handler wrote with `Message.commit`: {"name": …, "key": the message's key, column: value, …}.

    Raises:
        SettingsError: A setting is missing or wrong.
        StoreError: Storage did not answer.
    """
    from runonce.hosts.runtime import Runtime  # noqa: PLC0415 - as above
    from runonce.messages.effects import read_effects  # noqa: PLC0415
    from runonce.settings import Settings  # noqa: PLC0415

    settings = Settings.from_env()
    return read_effects(Runtime(settings).stores.claims, settings.namespace, handler.name)


def ask(
    job: ScheduledJob, at: datetime, *, parameters: Mapping[str, Any] | None = None, by: str = ""
) -> None:
    """Ask the running hosts for a fire time; one that waits for its retry comes now."""
    from runonce.runs import operate  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        params = job.params(parameters or {})
        operate.ask(runtime.dispatcher, job, _utc(job, at), params, by or user_name())


def backfill(
    job: ScheduledJob, since: datetime, until: datetime, *, parameters: Mapping[str, Any] | None = None
) -> Iterator[Result]:
    """Run here every fire time from `since` to `until` that is not done, the oldest first; what came of each."""
    from runonce.runs.backfill import backfill as run_all  # noqa: PLC0415 - as above
    from runonce.runs.backfill import is_done, to_backfill  # noqa: PLC0415

    params = job.params(parameters or {})
    with _runtime(job) as runtime:
        known = to_backfill(runtime.dispatcher, job, _utc(job, since), _utc(job, until), params)
        left = [fire_time for fire_time, outcome in known if not is_done(outcome)]
        yield from run_all(runtime.dispatcher, job, left, params)


def pause(job: ScheduledJob | str, *, why: str, by: str = "") -> None:
    """Start no more runs of a job, on any host; one that runs goes on."""
    from runonce.runs import operate  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        operate.pause(runtime.dispatcher, _name(job), why, by or user_name())


def resume(job: ScheduledJob | str, *, why: str = "", by: str = "") -> None:
    """Start runs of a paused job again; fire times that passed meanwhile go on record as skipped."""
    from runonce.runs import operate  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        operate.resume(runtime.dispatcher, _name(job), why, by or user_name())


def resume_run(job: ScheduledJob | str, at: datetime, **decision: Any) -> None:
    """Let a run that failed, is unknown or was cancelled go on: same idempotency key, from its checkpoint.

    Args:
        job: The job.
        at: The fire time, an aware datetime.
        decision: Of all verbs: `why`, kept on the run's record; `by`, who decides, default this system's user;
            `parameters`, of a run that has some.
    """
    from runonce.runs import decide  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        which = _which(job, at, **decision)
        decide.resume_run(runtime.dispatcher, which)
        decide.send(runtime.dispatcher, which)


def replay(job: ScheduledJob | str, at: datetime, **decision: Any) -> None:
    """Let a run that has ended be run again from its beginning, under another idempotency key; as `resume_run`."""
    from runonce.runs import decide  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        which = _which(job, at, **decision)
        decide.replay(runtime.dispatcher, which)
        decide.send(runtime.dispatcher, which)


def mark(job: ScheduledJob | str, at: datetime, outcome: Literal["done", "failed"], **decision: Any) -> None:
    """Say how a run ended, where only a person can know; nothing is run. As `resume_run`."""
    from runonce.runs import decide  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        decide.mark(runtime.dispatcher, _which(job, at, **decision), outcome)


def cancel(job: ScheduledJob | str, at: datetime, **decision: Any) -> None:
    """End a fire time for good, whether it runs, waits or is still to come; as `resume_run`."""
    from runonce.runs import decide  # noqa: PLC0415 - as above

    with _runtime(job) as runtime:
        decide.cancel(runtime.dispatcher, _which(job, at, **decision))


def _runtime(job: ScheduledJob | str) -> Runtime:
    from runonce.hosts.discover import Discovered  # noqa: PLC0415 - as above
    from runonce.hosts.runtime import Runtime  # noqa: PLC0415
    from runonce.settings import Settings  # noqa: PLC0415

    return Runtime(Settings.from_env(), found=Discovered({} if isinstance(job, str) else {job.name: job}))


def _name(job: ScheduledJob | str) -> str:
    return job if isinstance(job, str) else job.name


def _which(
    job: ScheduledJob | str,
    at: datetime,
    *,
    why: str = "",
    by: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Which:
    from runonce.runs.decide import Which  # noqa: PLC0415 - as above

    if isinstance(job, str) and parameters:
        raise InputError(f"Job {job}: give the job itself, not its name, with parameters.")
    params = "" if isinstance(job, str) else job.params(parameters or {})
    return Which(_name(job), _utc(job, at), params, by or user_name(), why)


def _utc(job: ScheduledJob | str, at: datetime) -> datetime:
    if at.tzinfo is None:
        raise InputError(f"Job {_name(job)}: the fire time {at} has no time zone; give an aware datetime.")
    return at.astimezone(UTC)


@contextmanager
def sending_by(sender: Sender) -> Iterator[None]:
    """Within the block, in all threads, `enqueue` sends by this sender: a test bench keeps what it gets."""
    _instead.append(sender)
    try:
        yield
    finally:
        _instead.remove(sender)


def _sender() -> Sender:
    """This process's sender, kept: opening a connection costs half a second."""
    if _instead:
        return _instead[-1]
    from runonce.hosts.runtime import Runtime  # noqa: PLC0415 - imports the SDKs
    from runonce.settings import Settings  # noqa: PLC0415

    settings = Settings.from_env()
    name = repr(
        (
            settings.transport,
            settings.storage.connection_string,
            settings.servicebus,
            settings.queue_prefix,
        )
    )
    with _lock:
        if name not in _senders:
            runtime = Runtime(settings)
            _senders[name] = runtime.sender
            if settings.watched.telemetry:
                from runonce.telemetry.set_up import listen  # noqa: PLC0415 - only where it is asked for

                listen(settings.watched, settings.namespace, runtime.host, settings.transport, None)
        return _senders[name]


def _after_fork() -> None:
    global _lock, _senders
    _inherited.append(_senders)
    _lock, _senders = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
