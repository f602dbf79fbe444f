"""What a handler's end means for its message: its claim is finished, its follow-ups are sent, and it is settled."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runonce.errors import NotKeptError, PermanentError, StoreError
from runonce.execution.body import Begun, brief, told
from runonce.execution.ending import Ending, judge
from runonce.execution.terms import WAITING, Terms
from runonce.messages.backoff import backoff
from runonce.messages.message import BadMessageError
from runonce.messages.outbox import FollowUpsWait, send_kept
from runonce.messages.reading import has_key_in_body
from runonce.messages.rows import State, check_outbox
from runonce.stores.columns import shortened
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.events import MessageBegun
    from runonce.execution.lease import Lease
    from runonce.execution.registry import Registry
    from runonce.messages.claim import MessageClaim
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.messages.rights import Rights
    from runonce.transports.protocols import Delivery, Sender

log = logging.getLogger("runonce.deliver")

ALONE = 1.0
"""Seconds after which a message comes again, alone, whose batch raised."""
WHEN_STOPPING = 1.0
"""Seconds after which a message comes again that a stopping host gives back: at once, it would take it again itself."""


@dataclass(eq=False, slots=True, kw_only=True)
class Working(Begun):
    """A claimed message between `begin` and `finish`."""

    registry: Registry
    sender: Sender
    handler: Handler
    delivery: Delivery
    message: Message
    claim: MessageClaim
    rights: Rights
    given_up: Callable[[Settlement], None]
    terms: Terms = WAITING
    lock: Lease | None = None
    is_given_up: bool = False
    with_others: bool = False
    """Whether one call has it together with other messages."""
    ending: threading.Lock = field(default_factory=threading.Lock)
    """Taken by whoever finishes it first: its own thread, or the one that waits for it no longer."""
    settled: Future[Settlement] = field(default_factory=Future)
    told: MessageBegun | None = None
    """What hooks were told of it, where anybody listens."""
    began_at: float = 0.0


def finished(working: Working, result: Any, error: BaseException | None) -> Settlement:
    """Finish the claim by what came of the handler, and how to settle the message.

    Raises:
        LeaseLost, Fenced: The message is somebody else's by now.
        StoreError: That could not be recorded.
    """
    claim = working.claim
    if _done(claim):  # by message.commit; what was raised after it changes nothing
        if error is not None:
            working.rights.log.warning("raised after its commit, which stands", exc_info=error)
        return _followed_up(working, Complete(result=result))
    ending, error = judge(error, working.stop, held=claim.held)
    if error is None:
        try:
            check_outbox(working.handler.name, working.rights.outbox)
        except NotKeptError as misuse:
            ending, error = Ending.FAILED, misuse
            working.rights.failure = misuse  # this one's own, where it is one of a batch
        else:
            claim.done(outbox=working.rights.outbox)
            return _followed_up(working, Complete(result=result))
    settlement = _not_done(working, ending, error)
    if _done(claim):  # by a message.commit that got no answer
        return _followed_up(working, Complete(result=result))
    return settlement


def is_done(working: Working, error: BaseException | None) -> bool:
    """Whether `finished` is going to mark it done."""
    if working.claim.finished:
        return False  # it is already, or can not be any more
    ending, _ = judge(working.rights.failure or error, working.stop, held=working.claim.held)
    try:
        check_outbox(working.handler.name, working.rights.outbox)
    except NotKeptError:
        return False
    return ending is Ending.DONE


def _not_done(  # noqa: PLR0911 - one settlement for each end
    working: Working, ending: Ending, error: BaseException
) -> Settlement:
    claim, handler = working.claim, working.handler
    if ending is Ending.LOST:
        delay = backoff(working.delivery.reschedules)
        if claim.held:  # then it is the handler's lock that it lost
            claim.release(working.registry.clock.now() + timedelta(seconds=delay), str(error), failed=False)
        return Reschedule(delay, str(error))
    if handler.on_abandoned == "hold" and (ending is Ending.CUT_OFF or working.is_given_up):
        claim.hold(
            f"{working.registry.host} {'gave it up' if working.is_given_up else 'was stopping and cut it off'}"
        )
        return Reschedule(WHEN_STOPPING, claim.row.reason)
    if ending in (Ending.STOPPED, Ending.CUT_OFF):
        delay, reason, retry_at = WHEN_STOPPING, f"{working.registry.host} was stopping", None
        if isinstance(working.stop.cause, FollowUpsWait):
            delay, reason = backoff(working.delivery.reschedules), str(working.stop.cause)
            retry_at = working.registry.clock.now() + timedelta(seconds=delay)
        claim.release(retry_at, reason, failed=False)
        return Reschedule(delay, reason)
    reason = shortened(brief(error))
    if ending is Ending.OUT_OF_REACH:
        delay = backoff(working.delivery.reschedules)
        claim.release(working.registry.clock.now() + timedelta(seconds=delay), reason, failed=False)
        return Reschedule(delay, reason)
    if working.with_others and working.rights.failure is None:
        # Which of them it was nobody knows: what fails alone counts.
        reason = shortened(f"its batch ended with {reason}; it comes again alone")
        claim.release(working.registry.clock.now() + timedelta(seconds=ALONE), reason, failed=False)
        return Reschedule(ALONE, reason)
    failures = claim.row.failures + 1
    if isinstance(error, PermanentError) or failures > handler.retry.retries:
        if isinstance(error, BadMessageError):  # it names handler and message itself
            claim.fail(shortened(str(error)), dead_as=error.reason)
            return _followed_up(working, DeadLetter(error.reason, str(error)))
        claim.fail(reason, told(error))
        told_of = f"Handler {handler.name}, message {working.message.message_id}: {reason}"
        return _followed_up(working, DeadLetter("Failed", told_of))
    delay = handler.retry.wait(failures)
    retry_at = working.registry.clock.now() + timedelta(seconds=delay)
    claim.release(retry_at, reason, failed=True, error=told(error))
    return Reschedule(delay, reason)


def _followed_up(working: Working, settlement: Settlement) -> Settlement:
    """The settlement of a message whose claim is finished, once the follow-ups on it are sent."""
    row = working.claim.row
    return send_kept(working.sender, working.handler, working.delivery, row) or settlement


def unrecorded(working: Working, error: BaseException | None, trouble: StoreError) -> Settlement:
    """The table was out of reach for a minute after the handler ended."""
    if error is not None:
        return Reschedule(backoff(working.delivery.reschedules), f"its end could not be recorded: {trouble}")
    return DeadLetter(
        "DoneButNotRecorded",
        f"Handler {working.handler.name}, message {working.message.message_id}: it was handled, but that "
        f"could not be recorded on its claim ({trouble}). Do not replay it unless its effect may happen twice.",
        on_claim=False,
    )


def named(handler: Handler, delivery: Delivery, settlement: Settlement) -> Settlement:
    """A dead letter whose claim is filed under its id has to carry its reason and that id."""
    if isinstance(settlement, DeadLetter) and not has_key_in_body(handler, delivery):
        return replace(settlement, on_claim=False)
    return settlement


def say(working: Working, settlement: Settlement, error: BaseException | None) -> None:
    """Tell the log how a message ended."""
    tell = working.rights.log
    match settlement:
        case Complete():
            tell.info("done")
        case Reschedule():
            tell.warning("redelivered in %.1f s: %s", settlement.delay, settlement.reason)
        case DeadLetter():
            # Where the message is at fault its description says all; a traceback would blame the handler.
            traceback = None if isinstance(error, BadMessageError) else error
            tell.error(
                "dead-lettered (%s): %s", settlement.reason, settlement.description, exc_info=traceback
            )


def escaped(
    handler: Handler, delivery: Delivery, error: BaseException, *, delay: float | None = None
) -> Settlement:
    """What becomes of a message that met an error nobody expects: a failure of it, so that it ends."""
    log.error(
        "handler %s, message %s: failed in the toolkit", handler.name, delivery.message_id, exc_info=error
    )
    if delivery.reschedules < handler.retry.retries:
        wait = handler.retry.wait(delivery.reschedules + 1) if delay is None else delay
        return Reschedule(wait, f"the toolkit failed: {type(error).__name__}")
    return DeadLetter(
        "Failed",
        f"Handler {handler.name}, message {delivery.message_id}: the toolkit failed with {type(error).__name__}, "
        f"{delivery.reschedules + 1} times; its host's log says where.",
        on_claim=False,
    )


def _done(claim: MessageClaim) -> bool:
    return claim.row.state is State.DONE
