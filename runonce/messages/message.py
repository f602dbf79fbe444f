"""What a handler is handed: the message, its rights, and the means to have one effect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from runonce.errors import InputError, LeaseLost, PermanentError
from runonce.records import column_problem
from runonce.run import Batches
from runonce.stores.protocols import MAX_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from runonce.blobs import Blobs
    from runonce.messages.claim import MessageClaim
    from runonce.messages.handler import Handler
    from runonce.messages.rows import MessageRow
    from runonce.run import Checkpoint
    from runonce.stop import StopSignal
    from runonce.stores.protocols import Value
    from runonce.telemetry import RunLogger

T = TypeVar("T")

LONGEST_KEY = 512
MAX_EFFECTS = MAX_TRANSACTION - 1
LARGEST_OUTBOX = 30_000
"""Characters of JSON that the follow-ups of one message may take; a table's text column ends at 32 Ki."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a transport delivers it, whichever transport that is."""

    body: bytes
    message_id: str
    delivery_count: int = 1
    """1 on the first delivery, whatever the transport counts from."""
    enqueued_at: datetime | None = None
    correlation_id: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    reschedules: int = 0
    """How often the toolkit sent the message back with a delay."""
    only_for: str = ""
    """The one subscription that a copy is for: the topic gives it to all of them."""
    sent_as: str = ""
    """The id its sender gave it, where this is a copy, which has one of its own."""


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
        self.message_id: str = delivery.sent_as or delivery.message_id
        """The id its sender gave it."""
        self.delivery_count: int = delivery.delivery_count
        """1 on the first delivery."""
        self.enqueued_at: datetime | None = delivery.enqueued_at
        """When the broker took it."""
        self.correlation_id: str = delivery.correlation_id
        """As its sender set it, or empty."""
        self.properties: Mapping[str, Any] = delivery.properties
        """Application properties (Service Bus only)."""
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
        """The value at a dotted path of the JSON body; `reason` names the dead letter when there is none.

        Raises:
            BadMessageError: There is none.
        """
        value: Any = self.json
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise self.bad(reason, f"its body has no field {path!r}")
            value = value[part]
        return value

    def bad(self, reason: str, what: str) -> BadMessageError:
        """The error for a message that cannot be handled: raise it where trying again cannot help."""
        return BadMessageError(
            reason,
            f"Handler {self.handler}, message {self.message_id or '(no id)'}: {what}. Correct what sends it, then "
            f"send it anew, or `runonce dead-letters show {self.handler}` and replay it.",
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
        return self._claimed().epoch

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
        """True once the handler should end: claim lost, host stopping, or over its time limit."""
        rights = self._own()
        return rights.stop.cause is not None or not rights.claim.held

    def check(self) -> None:
        """Return while the work may go on.

        Raises:
            LeaseLost, HostStopping, TimeLimitExceeded: It may not. Let it pass; the message comes again.
        """
        rights = self._own()
        cause = rights.stop.cause
        if cause is not None:
            raise type(cause)(str(cause))
        rights.claim.check()

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
        return Batches(f"Handler {self.handler}", self.check, self.checkpoint, items, size=size, name=name)

    def commit(self, effects: Mapping[str, Mapping[str, Value]], result: Any = None) -> None:
        """Write rows of your own and mark the message done, in one transaction: both, or neither.

        It closes the one gap an idempotent handler otherwise has, between its effect and the record of it.
        Nothing may be done after it but return.

        Args:
            effects: Rows by name, each {column: text, number or boolean}; at most 99. `runonce.effects` reads
                them.
            result: As the handler's return value, where keep_result is set.

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
        rights.claim.done(result=rights.keep(result), outbox=rights.outbox, effects=effects)

    def enqueue(self, handler: Handler, body: Any, *, key: str | None = None) -> None:
        """Send a follow-up message once this one is done, or a checkpoint after it is kept.

        Its id comes from this message's key and its ordinal, so that it is the same message when this one has
        to be handled again.
        """
        self._own().follow_up(handler, body, key)


@dataclass(eq=False, slots=True)
class Rights:
    """What comes with a claim."""

    claim: MessageClaim
    stop: StopSignal
    blobs: Blobs
    checkpoint: Checkpoint
    log: RunLogger
    keep: Any
    """Turns a result into the text that is kept, or ""."""
    outbox: list[Mapping[str, Any]] = field(default_factory=list)
    """Follow-ups that are not known to be sent; begins with what an earlier attempt left."""
    follow_ups: int = 0
    """How many there were so far, in this attempt and up to the checkpoint it began from."""

    def follow_up(self, handler: Handler, body: Any, key: str | None) -> None:
        """Put a follow-up into the outbox."""
        from runonce.messages.enqueue import follow_up  # noqa: PLC0415 - enqueue needs this module's classes

        if self.claim.finished:
            raise InputError(
                f"Handler {self.claim.row.handler}: message.enqueue came after message.commit, which sends what was "
                f"enqueued before it; swap the two."
            )
        self.outbox.append(follow_up(self.claim.row, self.follow_ups, handler, body, key))
        self.follow_ups += 1


def check_outbox(handler: str, outbox: Sequence[Mapping[str, Any]]) -> None:
    """InputError when the follow-ups do not fit on the claim's row."""
    size = len(json.dumps(list(outbox), ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2
    if size > LARGEST_OUTBOX:
        raise InputError(
            f"Handler {handler}: its follow-up messages take {size} characters together, over {LARGEST_OUTBOX}; put "
            f"the data in a blob and send its name."
        )


def _check_effects(handler: str, effects: Mapping[str, Mapping[str, Value]]) -> None:
    if len(effects) > MAX_EFFECTS:
        raise InputError(f"Handler {handler}: {len(effects)} rows in one commit; at most {MAX_EFFECTS}.")
    for row, columns in effects.items():
        for name, value in columns.items():
            taken = "the toolkit keeps that name for itself; use another" if name in ("name", "key") else None
            if (problem := taken or column_problem(name, value)) is not None:
                raise InputError(f"Handler {handler}: row {row!r:.80}, column {name!r}: {problem}.")


def read_key(handler: Handler, message: Message) -> str:
    """The key of a message.

    Raises:
        BadMessageError: It has none, or none that can be one.
    """
    if handler.key is None:
        value: Any = message.message_id
        where = "it has no message id"
    elif callable(handler.key):
        try:
            value = handler.key(message)
        except PermanentError:
            raise
        except Exception as error:
            # Not with its text, which may repeat what is in the body.
            raise message.bad("MissingKey", f"its key function raised {type(error).__name__}") from error
        where = "its key function gave nothing"
    else:
        value = message.field(handler.key, reason="MissingKey")
        where = f"its key {handler.key!r} is empty"
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise message.bad("BadKey", f"its key is of type {type(value).__name__}, not text or a whole number")
    if not value.strip():
        raise message.bad("MissingKey", where)
    if len(value) > LONGEST_KEY:
        raise message.bad("BadKey", f"its key has {len(value)} characters, over {LONGEST_KEY}")
    if not value.isprintable():
        raise message.bad("BadKey", "its key has control characters")
    return value
