"""What the toolkit needs of a message transport: to receive, to send, and to look after dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from runonce.messages.definition import Handler
    from runonce.transports.settlement import Settlement


@dataclass(eq=False, slots=True)
class Receipt:
    """What a Storage queue wants to see of whoever has a message in hand."""

    message_id: str
    """The queue's own."""
    pop_receipt: str
    """The latest, as far as we know."""
    is_ours: bool = False
    """Whether we have got it, so that whoever received the message has an earlier one, which is worth nothing."""
    lock: Lock = field(default_factory=Lock, repr=False)
    """Of whoever hides the message anew, until the new receipt is here."""
    is_let_go: bool = False
    """Whether nobody may hide it anew any more."""

    def let_go(self) -> bool:
        """Keep the receipt from now on as it is, once one that is on its way is here; whether it is ours."""
        with self.lock:
            self.is_let_go = True
            return self.is_ours


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
    """The one subscription that a copy is for, where an older version sent it to the whole topic."""
    sent_as: str = ""
    """The id its sender gave it, where the broker knows it by another one, as it does a copy."""
    skew: float = 0.0
    """Seconds the broker's clock is ahead of ours, as far as that is sure: 0 where they may be the same."""
    sequence: str = ""
    """What the broker numbers it by in its queue; the one name of a message whose sender gave it no id."""
    subject: str = ""
    content_type: str = ""
    dead: tuple[str, str] | None = None
    """Reason and description, where it was decided already that it is to be dead-lettered."""
    unreadable: str = ""
    """Why its body cannot be read, where it is no bytes and no text."""
    original: Callable[[], bytes | None] | None = field(default=None, compare=False)
    """Reads the message as it travels, for a copy that keeps every type; it gives None when that has gone."""
    receipt: Receipt | None = field(default=None, compare=False)
    """Of a Storage queue's message that the Functions host received."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send."""

    body: bytes
    message_id: str
    at: datetime | None = None
    """When it shall be there; None is at once."""
    correlation_id: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    reschedules: int = 0
    sent_as: str = ""
    """The id its sender gave it, where the broker knows it by another one."""
    original: Callable[[], bytes | None] | None = field(default=None, compare=False)
    """Of what it is a copy: what is said here is changed in it, all else is kept."""
    dead: tuple[str, str] | None = None
    """Why it is to be dead-lettered, where whoever handles it could do no more than send it."""
    skew: float = 0.0
    """Seconds the broker's clock is ahead of ours, by which `at` is told."""
    alive_since: datetime | None = None
    """From when on the original's time to live counts; None gives the copy all of it again."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery with what the transport needs to settle it."""

    delivery: Delivery
    native: Any
    renew_in: float = 10.0
    """Seconds after which it should be renewed if it is still being worked on."""


class Sender(Protocol):
    """Sends messages; safe to call from many threads."""

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Send to a queue or topic, all of them or an error.

        Raises:
            TransportError: They may not have been sent; sending again with the same ids is safe.
        """
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


class Inbox(Protocol):
    """Receives one handler's messages; for one thread."""

    any_thread: bool
    """Whether different messages may be settled in different threads, while another one receives."""

    def receive(self, count: int, wait: float) -> list[Received]:
        """Up to `count` messages, waiting up to `wait` seconds for the first."""
        ...

    def settle(self, received: Received, settlement: Settlement) -> None:
        """Do to the message what was decided. A copy to come later is sent before the message is removed.

        Raises:
            TransportError: It was not done; the message comes again.
        """
        ...

    def renew(self, received: Received) -> Received | None:
        """Keep the message hidden from others for another term; None when it is no longer ours."""
        ...

    def give_back(self, received: Received) -> None:
        """Let the message come again at once (the host stops before having started it)."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that was put aside."""

    delivery: Delivery
    reason: str
    description: str
    dead_at: datetime | None
    native: Any
    place: str = ""
    """What tells it from another one with the same message id."""
    expires_at: datetime | None = None
    """When the broker removes it; None is never."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a handler's broker holds for it."""

    waiting: int | None
    """Messages in its queue."""
    dead: int | None
    """Messages that were put aside."""
    oldest: datetime | None = None
    """When the first message that waits was put there."""
    counts_begun: bool = False
    """Whether `waiting` has those too that are being handled, or hidden until their retry."""
    at_least: bool = False
    """Whether there may be more."""


class DeadLetters(Protocol):
    """The messages of one handler that were put aside."""

    def peek(self, limit: int) -> list[Dead]:
        """The oldest ones, without touching them."""
        ...

    def take(self, limit: int) -> list[Dead]:
        """The oldest ones, hidden from others until `remove` or for a while."""
        ...

    def remove(self, dead: Dead) -> None:
        """Remove a taken one for good."""
        ...

    def put_back(self, dead: Dead) -> None:
        """Leave a taken one where it was."""
        ...

    def close(self) -> None:
        """Let connections go."""
        ...


class Transport(Protocol):
    """One kind of broker."""

    def sender(self) -> Sender:
        """The sender all handlers of this process share."""
        ...

    def inbox(self, handler: Handler) -> Inbox:
        """A new receiver of a handler's messages."""
        ...

    def dead_letters(self, handler: Handler) -> DeadLetters:
        """A handler's dead letters."""
        ...

    def backlog(self, handler: Handler) -> Backlog:
        """How much there is for a handler; nothing is touched. Raises TransportError."""
        ...
