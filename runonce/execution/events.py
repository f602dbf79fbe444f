"""What hooks are told: values that say what happens to a run or a message. No message's body and no key is in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context
    from datetime import datetime

IncidentKind = Literal["failed", "held", "missed", "dead_lettered", "recovered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    namespace: str
    host: str
    """The process, as rows and logs call it."""
    at: datetime
    """When, by this host's clock."""
    holder: str
    """The UUID of this attempt's lease or claim."""
    attempt: int
    """1 the first time."""
    token: int
    """The fencing token."""
    idempotency_key: str
    """The same in every attempt."""
    taken_over: float | None = None
    """Seconds since the last write of an attempt whose host died; None where none did."""
    context: Context = field(repr=False, compare=False)
    """The context variables that the code runs with: `run.context.run(variable.set, value)` sets one for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegun(_Begun):
    """A fire time is claimed here, and the job's code is about to begin."""

    job: str
    fire_time: datetime
    """In UTC."""
    by: str
    """What started it: "timer", "request" (recovery, a retry, an operator) or "hand"."""
    late: float
    """Seconds since the fire time."""
    lease_seconds: float
    """How long the lease took to acquire."""
    claim_seconds: float
    """How long the claim took after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A run has ended here, and that is recorded as far as it can be."""

    run: RunBegun
    outcome: str
    """succeeded, failed, retrying, stopped, abandoned or unknown."""
    reason: str
    error: BaseException | None
    """What the code raised."""
    seconds: float
    """Since it began."""
    again_at: datetime | None
    """When it comes again, where that is known."""
    renewed_late: float
    """Seconds that the latest of its lease's renewals was behind its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBegun(_Begun):
    """A message is claimed here, and its handler is about to begin."""

    handler: str
    queue: str
    """The queue, or topic/subscription."""
    message_id: str
    correlation_id: str
    headers: dict[str, str]
    """What `before_send` put on it."""
    waited: float | None
    """Seconds since the broker took it; None where it does not say."""
    deliveries: int
    """How often it came, 1 the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnded:
    """A handler has ended, and what becomes of its message is decided."""

    message: MessageBegun
    outcome: str
    """done, rescheduled or dead_lettered."""
    reason: str
    error: BaseException | None
    """What the handler raised."""
    seconds: float
    """Since it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """A run's lease, a message's claim or a handler's lock is lost while the code works; the code is told to stop."""

    work: RunBegun | MessageBegun
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """A fire time or a message came, and nothing of it was run here."""

    namespace: str
    name: str
    """Of the job or handler."""
    fire_time: datetime | None = None
    message_id: str = ""
    why: str
    """One word or two, of a fixed few: "held elsewhere", "turned away", "duplicate", "rescheduled" …"""
    reason: str
    """The same in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Messages are about to be sent to one queue or topic."""

    target: str
    message_ids: Sequence[str]
    headers: dict[str, str] = field(default_factory=dict)
    """What is put here travels with each of them: application properties on Service Bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was to be sent is taken by the broker, or is not."""

    sending: Sending
    error: BaseException | None
    """Why it may not have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that a person wants to hear of. Told by the host whose write recorded it, so by one."""

    kind: IncidentKind
    """failed: for good. held: whether it took effect is for a person to say. missed: nobody ran a fire time in time.
    dead_lettered: a message was put aside. recovered: it works again."""
    name: str
    """Of the job or handler."""
    namespace: str
    id: str
    """The same from the first trouble until it works again, on every host."""
    first: bool
    """Whether this kind of trouble is new in this incident; a job that fails every minute is one incident."""
    since: datetime | None
    """When the incident began; None where that is not known any more."""
    at: datetime
    host: str
    reason: str
    fire_time: datetime | None = None
    """Of a job's."""
    message_id: str = ""
    """Of a handler's."""
    attempt: int = 0
    idempotency_key: str = ""
    """Of the run or message; empty for what never began."""
    error: BaseException | None = None
    """What the code raised, where it ran here."""


Event = RunBegun | RunEnded | MessageBegun | MessageEnded | LeaseLost | NotRun | Sending | Sent | Incident
