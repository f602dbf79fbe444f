"""What a queue handler is: the decorator and the frozen definition it makes. No I/O, no registry."""

from __future__ import annotations

import inspect
import re
import typing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from runonce.errors import DefinitionError
from runonce.execution.noted import note
from runonce.execution.options import (
    OnAbandoned,
    Retry,
    checked_body,
    checked_choice,
    checked_name,
    checked_seconds,
    checked_whole,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runonce.messages.message import Message


MESSAGE_TTL = timedelta(days=14)
"""How long the broker keeps a message; what the shipped infrastructure sets."""
REPLAY_HORIZON = timedelta(days=7)
"""How long after that an operator may still replay a dead letter."""
WHOLE_BODY = "*"
PATH = re.compile(r"(?:[^.\\]|\\[.\\])+(?:\.(?:[^.\\]|\\[.\\])+)*")
"""A dotted path of the body; a dot or backslash of a field's own name has a backslash before it."""
LOCK = re.compile(r"(?=.{1,200}\Z)(?:[^{}]|\{(?:[\w-]|\\[.\\])+(?:\.(?:[\w-]|\\[.\\])+)*\})+")
"""A lock's name: text, with dotted paths of the body in braces."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler's definition; what `@handler` returns."""

    name: str
    body: Callable[..., Awaitable[Any] | Any]
    queue: str
    """The queue, or the topic when there is a subscription."""
    subscription: str | None
    key: str | Callable[[Message], str] | None
    fingerprint: str | Sequence[str] | Callable[[Message], Any] | None
    retry: Retry
    lock: str | None
    lock_wait: float
    on_abandoned: OnAbandoned
    reconcile: Callable[[Message], bool | None] | None
    retention: float
    """Seconds a finished claim is kept."""
    max_runtime: float | None
    concurrency: int
    arguments: tuple[Any, ...]
    """For each parameter of the function: a pydantic model class, or None for the message."""

    def __post_init__(self) -> None:
        note(self)

    def __call__(self, *arguments: Any) -> Awaitable[Any] | Any:
        """Call the function itself, with no claim: for tests of its logic."""
        return self.body(*arguments)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.body)

    @property
    def entity(self) -> str:
        """Where its messages come from; a subscription's name is part of it, so each subscriber claims alone."""
        return self.queue if self.subscription is None else f"{self.queue}/{self.subscription}"

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.body) or "").partition("\n")[0]


def handler(
    *,
    queue: str | None = None,
    topic: str | None = None,
    subscription: str | None = None,
    key: str | Callable[[Message], str] | None = None,
    fingerprint: str | Sequence[str] | Callable[[Message], Any] | None = WHOLE_BODY,
    name: str | None = None,
    retries: int = 5,
    retry_delay: float | timedelta = 10.0,
    lock: str | None = None,
    lock_wait: float | timedelta = 10.0,
    on_abandoned: OnAbandoned = "rerun",
    reconcile: Callable[[Message], bool | None] | None = None,
    retention: float | timedelta = timedelta(days=30),
    max_runtime: float | timedelta | None = timedelta(minutes=4),
    concurrency: int = 8,
) -> Callable[[Callable[..., Awaitable[Any] | Any]], Handler]:
    r"""Handle the messages of a queue or a topic's subscription, each with one effect however often it comes.

    The function takes a `Message`. A parameter annotated with a pydantic model gets the validated body instead.

    Args:
        queue: The queue's name. Give either this, or topic and subscription.
        topic: The topic's name (Service Bus only).
        subscription: The subscription's name; each subscription handles every message once.
        key: What makes two messages the same: a field of the JSON body ("invoice_id"), a dotted path
            ("order.id"; a dot of a name is written "\."), or a function of the message. None means the message id,
            which its sender must then repeat for the same message. A message without its key is dead-lettered, never
            run.
        fingerprint: What of the body must be the same under one key: "*" is all that its JSON says; a field or
            several ("amount", or ["amount", "customer.id"]); a function of the message that gives a JSON value; None
            is nothing. A message whose key came before with another fingerprint is dead-lettered, unless the one
            before failed: then it is its correction, and handled.
        name: The handler's name, which its claims hang on. Default: the function's name.
        retries: How often a message whose handling raised is tried again, before it is dead-lettered.
        retry_delay: Seconds (or a timedelta) before the first retry, doubled for each further one.
        lock: One at a time across replicas and handlers: a name, or one with fields of the body in it, such as
            "customer:{customer_id}".
        lock_wait: Seconds (or a timedelta) to wait for the lock before the message goes back to the queue.
        on_abandoned: What to do when a host died while handling: "rerun", or "hold" the message as unknown.
        reconcile: For "hold": asked whether the effect happened; True, False (it is run again), or None. After
            True the follow-ups of the attempt that died are not sent, for nobody knows them: have the hook look
            for those as well.
        retention: Seconds (or a timedelta) a finished claim is kept, and so a repetition recognised; at least 21
            days, the time a message may wait in the queue and then be replayed.
        max_runtime: Seconds (or a timedelta) one message may take; None means no limit.
        concurrency: Messages handled at the same time by one local host or `work` process.

    Raises:
        DefinitionError: An argument cannot work; the message names the handler, the value and the remedy.
    """

    def define(body: Callable[..., Awaitable[Any] | Any]) -> Handler:
        checked_body("handler", body)
        job = checked_name(name if name is not None else body.__name__)
        checked_choice(job, "on_abandoned", on_abandoned, get_args(OnAbandoned))
        checked_whole(job, "retries", retries, 0, 100)
        checked_whole(job, "concurrency", concurrency, 1, 256)
        source = _source(job, queue, topic, subscription)
        if not (key is None or callable(key) or _is_path(key)):
            raise DefinitionError(
                f"Job {job!r}: key={key!r} must be a field's name, a dotted path or a function."
            )
        if not (fingerprint is None or callable(fingerprint) or _are_paths(fingerprint)):
            raise DefinitionError(
                f"Job {job!r}: fingerprint={fingerprint!r} must be a field's name or several, a function, "
                f'"{WHOLE_BODY}" for the whole body, or None for nothing of it.'
            )
        for option, hook in (("key", key), ("fingerprint", fingerprint), ("reconcile", reconcile)):
            if inspect.iscoroutinefunction(hook):
                raise DefinitionError(
                    f"Job {job!r}: {option}={hook.__name__} is an async function; it is called from a thread, so make "
                    f"it a plain def."
                )
        if not (reconcile is None or callable(reconcile)):
            raise DefinitionError(f"Job {job!r}: reconcile={reconcile!r} must be a function of the message.")
        if reconcile is not None and on_abandoned != "hold":
            raise DefinitionError(f'Job {job!r}: reconcile is asked only with on_abandoned="hold"; add that.')
        kept = checked_seconds(job, "retention", retention, most=timedelta(days=3650))
        least = MESSAGE_TTL + REPLAY_HORIZON
        if kept < least.total_seconds():
            raise DefinitionError(
                f"Job {job!r}: retention={retention!r} is under {least.days} days: a message may wait "
                f"{MESSAGE_TTL.days} days in the queue and be replayed {REPLAY_HORIZON.days} days later, and its "
                f"claim must still be there then."
            )
        return Handler(
            name=job,
            body=body,
            queue=source,
            subscription=subscription,
            key=key,
            fingerprint=tuple(fingerprint) if isinstance(fingerprint, list) else fingerprint,
            retry=Retry(retries, checked_seconds(job, "retry_delay", retry_delay)),
            lock=_lock(job, lock),
            lock_wait=checked_seconds(job, "lock_wait", lock_wait),
            on_abandoned=on_abandoned,
            reconcile=reconcile,
            retention=kept,
            max_runtime=None if max_runtime is None else checked_seconds(job, "max_runtime", max_runtime),
            concurrency=concurrency,
            arguments=_arguments(job, body),
        )

    return define


def _source(job: str, queue: str | None, topic: str | None, subscription: str | None) -> str:
    if (queue is None) == (topic is None) or (topic is None) != (subscription is None):
        raise DefinitionError(
            f"Job {job!r}: queue={queue!r}, topic={topic!r}, subscription={subscription!r}; give queue, or topic "
            f"and subscription."
        )
    source = queue if topic is None else topic
    for entity in (source, subscription):
        allowed = entity is None or (
            isinstance(entity, str)
            and 0 < len(entity) <= 50  # noqa: PLR2004 - Service Bus: a subscription's name
            and all(c.isascii() and (c.isalnum() or c in "-_.") for c in entity)
            and entity[0].isalnum()
        )
        if not allowed:
            raise DefinitionError(
                f"Job {job!r}: {entity!r} is not the name of a queue, topic or subscription; use 1 to 50 letters, "
                f"digits, - . and _, beginning with a letter or digit (Storage queues: lower-case letters, digits "
                f"and -)."
            )
    return str(source)


def _is_path(path: object) -> bool:
    return isinstance(path, str) and PATH.fullmatch(path) is not None


def _are_paths(paths: object) -> bool:
    return _is_path(paths) or (isinstance(paths, list | tuple) and bool(paths) and all(map(_is_path, paths)))


def path_parts(path: str) -> list[str]:
    """The names in a dotted path."""
    names = [""]
    for part in re.findall(r"\\.|.", path, re.DOTALL):
        if part == ".":
            names.append("")
        else:
            names[-1] += part.removeprefix("\\") or part
    return names


def _lock(job: str, lock: str | None) -> str | None:
    if lock is None:
        return None
    if not isinstance(lock, str) or not LOCK.fullmatch(lock):
        raise DefinitionError(
            f"Job {job!r}: lock={lock!r} must be a name, or one with fields of the body in braces, such as "
            f'"customer:{{customer_id}}".'
        )
    return lock


def _arguments(job: str, body: Callable[..., Any]) -> tuple[Any, ...]:
    parameters = list(inspect.signature(body).parameters.values())
    plain = all(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters
    )
    if not plain or not 1 <= len(parameters) <= 2:  # noqa: PLR2004 - the message, and a model of its body
        raise DefinitionError(
            f"Job {job!r}: its function takes ({', '.join(map(str, parameters))}); write "
            f"`def {body.__name__}(message: Message)`, or take a pydantic model of the body, or both."
        )
    try:
        hints = typing.get_type_hints(body)
    except (NameError, TypeError, AttributeError):
        hints = {}  # names known to the type checker only: then none of them is a model, which is real at run time
    models = tuple(_model(hints.get(p.name)) for p in parameters)
    if len([m for m in models if m is not None]) == len(models) > 1:
        raise DefinitionError(f"Job {job!r}: its function takes two models; a message has one body.")
    return models


def _model(annotation: Any) -> Any:
    """The annotation if it is a pydantic model; told without importing pydantic, which is an extra."""
    return annotation if isinstance(annotation, type) and hasattr(annotation, "model_validate") else None
