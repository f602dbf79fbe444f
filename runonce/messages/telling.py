"""What the hooks are told of messages."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

from runonce.errors import Fenced, LeaseLost
from runonce.execution import events, hooks
from runonce.messages.rows import MessageRow, State
from runonce.transports.copies import known_as
from runonce.transports.ids import digest
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from runonce.errors import RunInterrupted
    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.messages.ended import Working
    from runonce.transports.protocols import Delivery

HEARD = ("before_message", "after_message", "on_lease_lost")


def begins(working: Working) -> None:
    """A message is claimed and its handler about to begin."""
    if not any(map(hooks.listening, HEARD)):
        return
    row, delivery, registry = working.claim.row, working.delivery, working.registry
    working.context = copy_context()
    enqueued_at = delivery.enqueued_at
    begun = events.MessageBegun(
        namespace=registry.namespace,
        host=registry.host,
        at=registry.clock.now(),
        holder=row.holder,
        attempt=row.attempt,
        token=row.token,
        idempotency_key=row.idempotency_key,
        taken_over=working.claim.taken_over,
        context=working.context,
        handler=row.handler,
        queue=row.entity,
        message_id=row.message_id,
        correlation_id=delivery.correlation_id,
        headers={name: str(value) for name, value in delivery.properties.items()},
        waited=None
        if enqueued_at is None
        else max(0.0, (registry.clock.now() - enqueued_at).total_seconds()),
        deliveries=max(delivery.delivery_count, delivery.reschedules + 1),
    )

    def lost(cause: RunInterrupted) -> None:
        if isinstance(cause, LeaseLost | Fenced):
            hooks.tell("on_lease_lost", events.LeaseLost(work=begun, reason=str(cause)))

    working.told, working.began_at = begun, registry.clock.elapsed()
    working.stop.listen(lost)
    hooks.tell_and_wait("before_message", begun)


def ended(working: Working, settlement: Settlement, error: BaseException | None) -> None:
    """A handler has ended, and what becomes of its message is decided."""
    row, registry = working.claim.row, working.registry
    if working.told is not None:
        outcome, reason = _outcome(settlement)
        hooks.tell(
            "after_message",
            events.MessageEnded(
                message=working.told,
                outcome=outcome,
                reason=reason,
                error=error,
                seconds=registry.clock.elapsed() - working.began_at,
            ),
        )
    put_aside(registry, row, settlement, error)
    if row.state is State.DONE and row.generation and isinstance(settlement, Complete):
        _incident(registry, row, "recovered", "it was handled after all", None)


def put_aside(
    registry: Registry, row: MessageRow, settlement: Settlement, error: BaseException | None = None
) -> None:
    """Our write, or our settling it, ends a message without its effect, where it does."""
    if row.state is State.UNKNOWN:
        _incident(registry, row, "held", row.reason, error)
    elif isinstance(settlement, DeadLetter):
        _incident(registry, row, "dead_lettered", settlement.description, error)


def not_run(
    registry: Registry, handler: Handler, delivery: Delivery, begun: Working | Settlement
) -> Working | Settlement:
    """What `begin` gave; where that is a settlement at once, the hooks are told."""
    if isinstance(begun, Complete | Reschedule | DeadLetter) and hooks.listening("on_not_run"):
        outcome, reason = _outcome(begun)
        refused = events.NotRun(
            namespace=registry.namespace,
            name=handler.name,
            message_id=known_as(delivery),
            why="duplicate" if outcome == "done" else outcome.replace("_", " "),
            reason=reason,
        )
        hooks.tell("on_not_run", refused)
    return begun


def unclaimed(registry: Registry, handler: Handler, delivery: Delivery, settlement: Settlement) -> None:
    """A message is put aside that has no claim of its own: it cannot be read, or its key is another one's."""
    name = known_as(delivery)
    put_aside(registry, MessageRow(handler.name, handler.entity, name, message_id=name), settlement)


def _incident(
    registry: Registry, row: MessageRow, kind: events.IncidentKind, reason: str, error: BaseException | None
) -> None:
    if hooks.listening("on_incident"):
        now = registry.clock.now()
        hooks.tell(
            "on_incident",
            events.Incident(
                kind=kind,
                name=row.handler,
                namespace=registry.namespace,
                id=f"{registry.namespace}/{row.handler}/{digest(row.entity, row.handler, row.key)[:32]}",
                first=True,
                since=None if kind == "recovered" else now,
                at=now,
                host=registry.host,
                reason=reason,
                message_id=row.message_id,
                attempt=row.attempt,
                idempotency_key=row.idempotency_key if row.attempt else "",
                error=error,
            ),
        )


def _outcome(settlement: Settlement) -> tuple[str, str]:
    match settlement:
        case Complete():
            return "done", ""
        case Reschedule(_, reason):
            return "rescheduled", reason
        case DeadLetter(_, description):
            return "dead_lettered", description
