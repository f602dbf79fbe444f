"""What a queue handler is: the decorator and the frozen definition it makes. No I/O, no registry."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from runonce.errors import DefinitionError
from runonce.execution.noted import note
from runonce.execution.options import (
    OnAbandoned,
    OnFailure,
    Retry,
    Size,
    checked_body,
    checked_choice,
    checked_name,
    checked_on_failure,
    checked_seconds,
    checked_size,
    checked_whole,
)
from runonce.messages.arguments import arguments_of
from runonce.stores.protocols import MAX_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runonce.messages.message import Message


QueueEncoding = Literal["base64", "none"]
MESSAGE_TTL = timedelta(days=14)
"""How long the broker keeps a message; what the shipped infrastructure sets."""
REPLAY_HORIZON = timedelta(days=7)
"""How long after that an operator may still replay a dead letter."""
LONGEST_ENTITY, LONGEST_SUBSCRIPTION = 260, 50
"""Characters of a queue's or topic's name, and of a subscription's (Service Bus' own limits)."""
_PATH_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")
ENTITY = {
    "queue": _PATH_NAME,
    "topic": _PATH_NAME,
    "subscription": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"),
}
WHOLE_BODY = "*"
PATH = re.compile(r"(?:[^.\\]|\\[.\\])+(?:\.(?:[^.\\]|\\[.\\])+)*")
"""A dotted path of the body; a dot or backslash of a field's own name has a backslash before it."""
LOCK = re.compile(r"(?=.{1,200}\Z)(?:[^{}\ud800-\udfff]|\{(?:[\w-]|\\[.\\])+(?:\.(?:[\w-]|\\[.\\])+)*\})+")
"""A lock's name: text, with dotted paths of the body in braces."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler's definition; what `@handler` returns."""

    name: str
    body: Callable[..., Awaitable[Any] | Any]
    queue: str
    """Where its messages come from and come back to: its own queue, which a topic's subscription forwards to. Without
    forwarding, the queue that messages of the subscription are retried through."""
    topic: str | None
    subscription: str | None
    forward: bool
    """Whether the subscription forwards to the queue."""
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
    queue_encoding: QueueEncoding | None
    arguments: tuple[Any, ...]
    """For each parameter of the function: a pydantic model, an adapter of another type, or None for the message."""
    size: Size | None = None
    """What its executions on Container Apps have; None is what the deployment says."""
    on_failure: OnFailure | None = None
    """Called when a message has been put aside, or is held."""
    batch: int | None = None
    """How many messages its function takes at once, as a list; None: one, as itself."""
    after_all: Handler | None = None
    """The handler it waits for: it has one message for each run, once all that the run sent to that one are done."""

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
        return self.queue if self.topic is None else f"{self.topic}/{self.subscription}"

    @property
    def target(self) -> str:
        """Where its messages are sent to: its queue, or the topic that others get them from too."""
        return self.topic or self.queue

    @property
    def sources(self) -> list[tuple[str, str | None]]:
        """Every entity its messages are in: a queue and None, or a topic and a subscription."""
        own = [] if self.topic is None or self.forward else [(self.topic, self.subscription)]
        return [*own, (self.queue, None)]

    def about(self, message_id: str) -> str:
        """What an error about one of its messages begins with."""
        return f"Handler {self.name}, message {message_id}"

    @property
    def function_names(self) -> list[str]:
        """What its functions on Functions are called, one for each source."""
        return [self.name, f"{self.name}_retry"][: len(self.sources)]

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.body) or "").partition("\n")[0]


def _all_named(given: object) -> None:
    """DefinitionError where a function or a queue was given without a name: `@handler`, `@handler("orders")`."""
    if given is not None:
        example = given if isinstance(given, str) else "orders"
        raise DefinitionError(
            f"@handler takes its options by name, and not {getattr(given, '__name__', given)!r}; write "
            f'`@handler(queue="{example}", key="id")` above the function.'
        )


def handler(
    unnamed: None = None,
    /,
    *,
    queue: str | None = None,
    topic: str | None = None,
    subscription: str | None = None,
    forward: bool = True,
    key: str | Callable[[Message], str] | None = None,
    fingerprint: str | Sequence[str] | Callable[[Message], Any] | None = "*",
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
    queue_encoding: QueueEncoding | None = None,
    cpu: float | None = None,
    memory: str | None = None,
    on_failure: OnFailure | None = None,
    batch: int | None = None,
    after_all: Handler | None = None,
) -> Callable[[Callable[..., Awaitable[Any] | Any]], Handler]:
    r"""Handle the messages of a queue or a topic's subscription, each with one effect however often it comes.

    The function takes a `Message`. A parameter annotated with a pydantic model, or another type that pydantic knows (a
    dataclass, `Order | None`, `list[Order]`), gets the validated body instead.

    Args:
        unnamed: Nothing; every option has a name.
        queue: The queue's name. Give either this, or topic and subscription.
        topic: The topic's name (Service Bus only).
        subscription: The subscription's name; each subscription handles every message once. It forwards to the queue
            `{topic}.{subscription}`, which the handler reads, so that what comes again comes to this handler alone.
        forward: False where the subscription cannot be made to forward: it is read directly, and what comes again goes
            through the queue `{topic}.{subscription}.retry`.
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
        queue_encoding: For a Storage queue that others send to: whether its texts are "base64" or, with "none", as they
            are; what host.json's messageEncoding says. By default Base64 is told by what is in it, which is JSON.
        cpu: Cores of its executions on Container Apps, a multiple of 0.25 up to 4. Default: what the deployment says.
            On Functions all have what an instance has, and it is not read.
        memory: The same in memory, 2 Gi for each core ("2Gi" is cpu=1). Either says both.
        on_failure: Called with the `runonce.hooks.Incident`, in a thread of its own, when a message has been put aside
            or is held.
        batch: The function takes a list of up to so many messages (1 to 100), and says with `Message.fail` which of
            them failed; `concurrency` is then of batches. What comes again comes alone, and on Functions everything.
        after_all: Another handler. This one gets a message for each run of a job that sent that one messages with
            `run.enqueue`, once the run has succeeded and all are done: {"job", "fire_time", "handler", "count"}.

    Raises:
        DefinitionError: An argument cannot work; the message names the handler, the value and the remedy.
    """
    _all_named(unnamed)

    def define(body: Callable[..., Awaitable[Any] | Any]) -> Handler:
        checked_body("handler", body)
        job = checked_name(name if name is not None else body.__name__)
        checked_choice(job, "on_abandoned", on_abandoned, get_args(OnAbandoned))
        checked_whole(job, "retries", retries, 0, 100)
        checked_whole(job, "concurrency", concurrency, 1, 256)
        if queue_encoding is not None:
            checked_choice(job, "queue_encoding", queue_encoding, get_args(QueueEncoding))
        source = _source(job, queue, topic, subscription, forward)
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
            called = getattr(hook, "__call__", None)  # noqa: B004 - an object's own
            if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(called):
                shown = getattr(hook, "__name__", hook)
                raise DefinitionError(
                    f"Job {job!r}: {option}={shown} is an async function; it is called from a thread, so make it a "
                    f"plain def."
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
            topic=topic,
            subscription=subscription,
            forward=topic is not None and forward,
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
            queue_encoding=queue_encoding,
            arguments=arguments_of(job, body, batch),
            size=checked_size(job, cpu, memory),
            on_failure=checked_on_failure(job, on_failure),
            batch=_batch(job, batch, lock),
            after_all=_after_all(job, after_all, key),
        )

    return define


def _source(job: str, queue: str | None, topic: str | None, subscription: str | None, forward: bool) -> str:
    """The queue that the handler reads or retries through."""
    if (queue is None) == (topic is None) or (topic is None) != (subscription is None):
        raise DefinitionError(
            f"Job {job!r}: queue={queue!r}, topic={topic!r}, subscription={subscription!r}; give queue, or topic "
            f"and subscription."
        )
    if not isinstance(forward, bool) or (topic is None and not forward):
        raise DefinitionError(
            f"Job {job!r}: forward={forward!r} must be True or False, False only with a topic."
        )
    _check_entity(job, "queue", queue, LONGEST_ENTITY)
    _check_entity(job, "topic", topic, LONGEST_ENTITY)
    _check_entity(job, "subscription", subscription, LONGEST_SUBSCRIPTION)
    if queue is not None:
        return queue
    source = f"{topic}.{subscription}" if forward else f"{topic}.{subscription}.retry"
    if len(source) > LONGEST_ENTITY:
        raise DefinitionError(
            f"Job {job!r}: its queue would be called {source!r}, which is over {LONGEST_ENTITY} characters; shorten "
            f"the topic's or subscription's name."
        )
    return source


def _check_entity(job: str, option: str, name: object, longest: int) -> None:
    if name is None or (isinstance(name, str) and len(name) <= longest and ENTITY[option].fullmatch(name)):
        return
    slash = "" if option == "subscription" else " /"
    raise DefinitionError(
        f"Job {job!r}: {name!r:.300} is not the name of a {option}; use 1 to {longest} letters, digits, - . _{slash}, "
        f"beginning and ending with a letter or digit (Storage queues: 3 to 55 lower-case letters, digits, single -)."
    )


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


def _after_all(job: str, after_all: Handler | None, key: object) -> Handler | None:
    if after_all is not None and not isinstance(after_all, Handler):
        raise DefinitionError(
            f"Job {job!r}: after_all={after_all!r:.80} must be what @handler made of a function."
        )
    if after_all is not None and (key is not None or after_all.name == job):
        raise DefinitionError(
            f"Job {job!r}: with after_all it waits for another handler, and its message is known by the run that it "
            f"follows; leave key={key!r} out."
        )
    return after_all


def _batch(job: str, batch: int | None, lock: str | None) -> int | None:
    if batch is not None:
        checked_whole(job, "batch", batch, 1, MAX_TRANSACTION)
        if lock is not None:
            raise DefinitionError(
                f"Job {job!r}: lock={lock!r} is of one message, and batch={batch} takes several; leave one out."
            )
    return batch


def _lock(job: str, lock: str | None) -> str | None:
    if lock is None:
        return None
    if not isinstance(lock, str) or not LOCK.fullmatch(lock):
        raise DefinitionError(
            f"Job {job!r}: lock={lock!r} must be a name, or one with fields of the body in braces, such as "
            f'"customer:{{customer_id}}".'
        )
    return lock
