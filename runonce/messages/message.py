"""What a handler is handed: the message, its rights, and the means to have one effect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from runonce.errors import InputError, LeaseLost, NotKeptError, PermanentError
from runonce.execution.checkpoint import Batches
from runonce.execution.steps import step
from runonce.messages.definition import path_parts
from runonce.messages.rows import check_outbox
from runonce.stores.columns import LARGEST_TRANSACTION, column_problem, payload, row_problem
from runonce.stores.protocols import MAX_TRANSACTION
from runonce.transports.copies import known_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from runonce.execution.blobs import Blobs
    from runonce.execution.checkpoint import Checkpoint
    from runonce.execution.log import RunLogger
    from runonce.messages.definition import Handler
    from runonce.messages.rights import Rights
    from runonce.messages.rows import MessageRow
    from runonce.stores.protocols import Value
    from runonce.transports.protocols import Delivery

T = TypeVar("T")
P = ParamSpec("P")

LONGEST_KEY = 512
MAX_EFFECTS = MAX_TRANSACTION - 1
CLAIM_PAYLOAD = 650_000
"""Bytes that a claim's own row may take of its transaction: five texts of 32,000 characters, escaped."""


class BadMessageError(PermanentError):
    """The message cannot be handled as it is; correct its sender, then replay it from the dead letters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Message:
    """One message; the argument a handler takes."""

    def __init__(self, handler: Handler, delivery: Delivery) -> None:
        self.handler: str = handler.name
        """The handler's name."""
        self.body: bytes = delivery.body
        """The body as it came."""
        self.message_id: str = known_as(delivery)
        """The id its sender gave it; without one, on Service Bus, of its number in the queue."""
        self.delivery_count: int = delivery.delivery_count
        """1 on the first delivery."""
        self.enqueued_at: datetime | None = delivery.enqueued_at
        """When the broker took it."""
        self.correlation_id: str = delivery.correlation_id
        """As its sender set it, or empty."""
        self.properties: Mapping[str, Any] = delivery.properties
        """Application properties (Service Bus only): text, numbers, booleans and None."""
        self.subject: str = delivery.subject
        """As its sender set it, or empty (Service Bus only)."""
        self.content_type: str = delivery.content_type
        """As its sender set it, such as application/json, or empty (Service Bus only)."""
        self.key: str = ""
        """What makes two messages the same."""
        self._json: Any = None
        self._parsed = False
        self._rights: Rights | None = None
        self._row: MessageRow | None = None

    # -- the body -------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            BadMessageError: It is not UTF-8.
        """
        try:
            return self.body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.bad(
                "NotText", f"its body is not UTF-8 ({error.reason} at byte {error.start})"
            ) from error

    @property
    def json(self) -> Any:
        """The body as JSON.

        Raises:
            BadMessageError: It is not JSON.
        """
        if not self._parsed:
            text = self.text
            try:
                self._json = json.loads(text)
            except RecursionError as error:
                raise self.bad("NotJson", "its body is nested too deeply to be read") from error
            except ValueError as error:
                raise self.bad(
                    "NotJson", f"its body of {len(self.body)} bytes is not JSON ({error})"
                ) from error
            self._parsed = True
        return self._json

    def field(self, path: str, *, reason: str = "MissingField") -> Any:
        r"""The value at a dotted path of the JSON body; a dot of a name is written "\.".

        `reason` names the dead letter when there is none.

        Raises:
            BadMessageError: There is none.
        """
        found = self.find(path)
        if not found:
            twice = isinstance(self.json, str) and self.json.lstrip()[:1] in ("{", "[")
            why = "; it is a text that holds JSON, so what sends it encodes it twice" if twice else ""
            raise self.bad(reason, f"its body has no field {path!r}{why}")
        return found[0]

    def find(self, path: str) -> list[Any]:
        """The value at a dotted path of the JSON body in a list, which is empty when there is none.

        Raises:
            BadMessageError: The body is not JSON.
        """
        return found_at(self.json, path)

    def bad(self, reason: str, what: str) -> BadMessageError:
        """The error for a message that cannot be handled: raise it where trying again cannot help."""
        return BadMessageError(
            reason,
            f"Handler {self.handler}, message {self.message_id or '(no id)'}: {what}. Correct what sends it, then "
            f"send it again, or look at it with `runonce dead-letters show {self.handler} --id "
            f"{self.message_id or 'ID'}` and replay it.",
        )

    # -- the work -------------------------------------------------------------------------------------------

    def _own(self) -> Rights:
        if self._rights is None:
            raise InputError(
                f"Handler {self.handler}: this message was not claimed, so it has no attempt, token or checkpoint; "
                f"in tests, deliver it through runonce.testing.Workbench."
            )
        return self._rights

    def grant(self, rights: Rights) -> None:
        """Give the message what comes with its claim (the toolkit does)."""
        self._rights = rights

    def show(self, row: MessageRow) -> None:
        """Let a reconcile hook see the claim it is asked about (the toolkit does)."""
        self._row = row

    def _claimed(self) -> MessageRow:
        return self._row if self._rights is None and self._row is not None else self._own().claim.row

    @property
    def attempt(self) -> int:
        """1 for the first start, one more for each restart of whatever kind."""
        return self._claimed().attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every claim of this message; have older ones refused by what you write to."""
        return self._claimed().token

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt; give it to what you call, so that a repeated call has one effect."""
        return self._claimed().idempotency_key

    @property
    def log(self) -> RunLogger:
        """A logger that names handler, message and attempt in every line; it never logs the body."""
        return self._own().log

    @property
    def blobs(self) -> Blobs:
        """The namespace's blobs; writes are refused once a newer attempt has written."""
        return self._own().blobs

    @property
    def checkpoint(self) -> Checkpoint:
        """What an earlier attempt saved, and saving."""
        return self._own().checkpoint

    @property
    def stopping(self) -> bool:
        """True once the handler should end: claim lost, host stopping, or over its time limit.

        A handler that has seen it and returns counts as stopped, and the message comes again, unless it calls `done`.
        """
        rights = self._own()
        lock = rights.claim.lock
        held = rights.claim.held and (lock is None or lock.held)
        stopping = rights.stop.cause is not None or not held
        rights.stop.told |= stopping
        return stopping

    def check(self) -> None:
        """Return while the work may go on.

        Raises:
            LeaseLost, HostStopping, TimeLimitExceeded: It may not. Let it pass; the message comes again.
        """
        if not self.stopping:
            return
        rights = self._own()
        if (cause := rights.stop.cause) is not None:
            raise type(cause)(str(cause))
        rights.claim.check()

    def done(self) -> None:
        """Say that the work is complete, although the handler may have been told to stop; the message is then done.

        Not needed after `commit`, where `batches` ran out, or where the handler never asked. Over its max_runtime it
        fails all the same.
        """
        self._own().stop.done = True

    def fail(self, error: Exception) -> None:
        """Say that this message of a batch has failed, as if its handler had raised that; the others go on.

        It is tried again, alone, while it has retries; after a `PermanentError` it is dead-lettered. The last error
        counts, and none after `commit`.

        Args:
            error: Why; an exception, which need not have been raised.

        Raises:
            InputError: The handler takes no batches, so it has to raise; or that is no exception.
        """
        rights = self._own()
        if not rights.in_batch:
            raise NotKeptError(
                f"Handler {self.handler}: message.fail is for a handler with batch=; raise the error instead."
            )
        if not isinstance(error, Exception):
            raise NotKeptError(
                f"Handler {self.handler}: message.fail({error!r:.80}) takes an exception, such as ValueError(…)."
            )
        rights.failure = error

    def batches(self, items: Iterable[T], *, size: int, name: str = "items") -> Batches[T]:
        """The items in batches, from the first batch an earlier attempt did not finish.

        A batch is committed when the loop comes back for the next one: one storage call; then its follow-ups
        are sent. Otherwise as `Run.batches`.

        Args:
            items: What to work through, in the same order on every attempt.
            size: Items in a batch, 1 or more.
            name: Tells several loops of one message apart.

        Raises:
            InputError: size is less than 1, or there is a loop of that name already.
        """
        return Batches(
            f"Handler {self.handler}",
            self.check,
            self._own().stop,
            self.checkpoint,
            items,
            size=size,
            name=name,
        )

    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function once in all attempts at this message: what it returned is kept, and given to later ones.

        One storage call; then the follow-ups so far are sent. Otherwise as `Run.step`.

        Args:
            name: 1 to 200 characters, once in an attempt.
            function: What to call; its result must be JSON.
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            InputError: As `Run.step`; or the message is committed already.
            LeaseLost, HostStopping, TimeLimitExceeded, Fenced: As `Run.step`.
        """
        who = f"Handler {self.handler}"
        claim = self._own().claim

        def check() -> None:
            if claim.finished:
                raise NotKeptError(f"{who}: step {name!r} comes after message.commit; swap the two.")
            self.check()

        return step(who, check, self.checkpoint, name, partial(function, *args, **kwargs))

    def step_key(self, name: str) -> str:
        """A step's own idempotency key, the same in every attempt: handler, message and the step's name."""
        return f"{self.idempotency_key}/{name}"

    def commit(self, effects: Mapping[str, Mapping[str, Value]]) -> None:
        """Write rows of your own and mark the message done, in one transaction: both, or neither.

        It closes the one gap an idempotent handler otherwise has, between its effect and the record of it.
        Nothing may be done after it but return.

        Args:
            effects: Rows by name, each {column: text, number or boolean}; at most 99. `runonce.effects` reads
                them.

        Raises:
            LeaseLost, Fenced: The message or its lock is somebody else's by now; nothing was written.
            AlreadyRecordedError: An earlier attempt wrote a row of that name.
            InputError: There are too many rows, or one that a table cannot hold.
        """
        _check_effects(self.handler, effects)
        rights = self._own()
        if isinstance(rights.stop.cause, LeaseLost) and rights.claim.held:
            raise LeaseLost(str(rights.stop.cause))  # its lock: somebody else may be in there
        check_outbox(self.handler, rights.outbox)
        rights.claim.done(outbox=rights.outbox, effects=effects)

    def enqueue(self, handler: Handler, body: Any, *, key: str | None = None) -> None:
        """Send a follow-up message once this one is done, or a checkpoint after it is kept.

        Its id comes from this message, its ordinal, its handler, `key` and body: it is the same message when this one
        has to be handled again, and every other call sends another one. Two equal calls send two messages, and the
        handler's own key says whether they have one effect.

        Args:
            handler: Whom it is for; what `@handler` made of the function.
            body: bytes and text as they are (UTF-8); anything else as JSON.
            key: What it is known by; for a handler without a key of its own the key, so that of two calls with one
                `key` the second has no effect if its body is equal, and else is dead-lettered as `KeyReused`.

        Raises:
            InputError: The body is not JSON.
            PermanentError: The body lacks the handler's key.
        """
        self._own().follow_up(handler, body, key)


def found_at(value: Any, path: str) -> list[Any]:
    """What is at a dotted path of a JSON value, in a list, which is empty when there is nothing."""
    for part in path_parts(path):
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    return [value]


def _check_effects(handler: str, effects: Mapping[str, Mapping[str, Value]]) -> None:
    if not isinstance(effects, Mapping):
        raise NotKeptError(
            f"Handler {handler}: it commits a {type(effects).__name__}, not rows by their names."
        )
    if len(effects) > MAX_EFFECTS:
        raise NotKeptError(f"Handler {handler}: {len(effects)} rows in one commit; at most {MAX_EFFECTS}.")
    for row, columns in effects.items():
        if not (isinstance(row, str) and isinstance(columns, Mapping)):
            raise NotKeptError(f"Handler {handler}: row {row!r:.80}: a row is {{name: {{column: value}}}}.")
        for name, value in columns.items():
            taken = "the toolkit keeps that name for itself; use another" if name in ("name", "key") else None
            if (problem := taken or column_problem(name, value)) is not None:
                raise NotKeptError(f"Handler {handler}: row {row!r:.80}, column {name!r:.80}: {problem}.")
        if (problem := column_problem("name", row)) is not None:
            raise NotKeptError(f"Handler {handler}: a row is called {row!r:.80}: {problem}.")
        if (problem := row_problem({"name": row, "key": "", **columns})) is not None:
            raise NotKeptError(f"Handler {handler}: row {row!r:.80}: {problem}.")
    if (size := sum(map(payload, effects.values()))) > LARGEST_TRANSACTION - CLAIM_PAYLOAD:
        raise NotKeptError(
            f"Handler {handler}: {len(effects)} rows of {size:,} bytes in one commit, over "
            f"{LARGEST_TRANSACTION - CLAIM_PAYLOAD:,}; keep the data in a blob."
        )
