"""The flow of a message: read it, claim it, run the handler, finish the claim, say how to settle it.

    begin     body and key → claim → lock → message      or a Settlement at once
    (body)    the handler's own code, in the host's thread or on its event loop
    finish    outcome → claim → follow-ups → Settlement

As in `dispatch`, nothing is raised into the host; what it has to do to the message is the answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runonce.errors import (
    Fenced,
    InputError,
    LeaseLost,
    PermanentError,
    RunInterrupted,
    RunonceError,
    StoreError,
    StoreUnavailableError,
    TransportError,
)
from runonce.execution.blobs import Blobs
from runonce.execution.body import Begun, Flow, Steps, brief, told
from runonce.execution.checkpoint import Checkpoint
from runonce.execution.ending import Ending, judge
from runonce.execution.lease import Lease
from runonce.execution.log import run_logger
from runonce.execution.registry import Registry
from runonce.execution.stop import StopSignal
from runonce.messages.backoff import backoff
from runonce.messages.claim import Delivered, MessageClaim, claim_message
from runonce.messages.heartbeat import Heartbeats, over_its_time
from runonce.messages.message import BadMessageError, Message
from runonce.messages.reading import Prepared, prepare
from runonce.messages.rights import Rights
from runonce.messages.rows import MessageRow, State, check_outbox
from runonce.messages.sending import send_outbox
from runonce.stores.columns import LONGEST_TEXT
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.clock import Clock
    from runonce.messages.definition import Handler
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from runonce.transports.protocols import Delivery, Sender

log = logging.getLogger("runonce.deliver")

WHEN_STOPPING = 1.0
"""Seconds after which a message comes again that a stopping host gives back: at once, it would take it again itself."""
LOCK_POLL = 0.25
"""Seconds between tries for a handler's lock."""


@dataclass(eq=False, slots=True, kw_only=True)
class Working(Begun):
    """A claimed message between `begin` and `finish`."""

    handler: Handler
    delivery: Delivery
    message: Message
    claim: MessageClaim
    rights: Rights
    deadline: float
    """The elapsed time at which it must have ended."""
    lock: Lease | None = None


class Deliverer(Flow[Working]):
    """Handles messages for one host; safe to call from many threads."""

    def __init__(
        self,
        stores: Stores,
        sender: Sender,
        settings: Settings,
        clock: Clock,
        *,
        host: str,
        stop: StopSignal | None = None,
    ) -> None:
        super().__init__(stores, settings, Registry(stores.claims, settings.namespace, clock, host), stop)
        self.heartbeats = Heartbeats(clock)
        self._sender = sender

    def deliver(self, handler: Handler, delivery: Delivery) -> Settlement:
        """Handle one delivery, whose handler may be sync or async, to its end in this thread."""
        return Steps(lambda: self.begin(handler, delivery), self.finish).run()

    async def deliver_async(self, handler: Handler, delivery: Delivery) -> Settlement:
        """The same for an async handler, without blocking the event loop this is called on."""
        return await Steps(lambda: self.begin(handler, delivery), self.finish).run_async()

    # -- begin ----------------------------------------------------------------------------------------------

    def begin(self, handler: Handler, delivery: Delivery) -> Working | Settlement:
        """Read, claim and lock; or how the message is to be settled without running anything."""
        with self._inflight.beginning():
            if self.stop.cause is not None:
                return Reschedule(WHEN_STOPPING, "this host is stopping")
            if delivery.only_for not in ("", handler.subscription):
                return Complete(duplicate=True)  # another subscription's copy, which the topic gave us too
            working = self._begin(handler, delivery)
            if isinstance(working, Working):
                self._inflight.add(working)
            return working

    def _begin(self, handler: Handler, delivery: Delivery) -> Working | Settlement:
        try:
            prepared = prepare(handler, delivery, self.settings.max_body)
        except PermanentError as bad:
            reason = bad.reason if isinstance(bad, BadMessageError) else type(bad).__name__
            log.error("%s", bad)  # noqa: TRY400 - the message says what is wrong with the other message
            return DeadLetter(reason, str(bad))
        message = prepared.message
        delivered = Delivered(
            key=message.key,
            message_id=message.message_id,
            fingerprint=prepared.fingerprint,
            redelivered=delivery.delivery_count > 1 or delivery.reschedules > 0,
            reschedules=delivery.reschedules,
            reconcile=_asking(handler, message),
        )
        try:
            claimed = claim_message(self.registry, handler, delivered, self.settings.claim_lease)
        except StoreError as error:
            log.warning("handler %s, message %s: %s", handler.name, message.message_id, error)
            away = isinstance(error, StoreUnavailableError)
            reason = "the claim table is out of reach" if away else str(error)
            return Reschedule(backoff(delivery.reschedules), reason)
        if not isinstance(claimed, MessageClaim):
            return self._settled(handler, delivery, *claimed)
        return self._start(handler, delivery, prepared, claimed)

    def _settled(
        self, handler: Handler, delivery: Delivery, settlement: Settlement, row: MessageRow | None
    ) -> Settlement:
        """A delivery that runs nothing; finished work sends its follow-ups once more, with the same ids."""
        if isinstance(settlement, Complete) and row is not None:
            if row.outbox and (trouble := self._send_outbox(handler, delivery, row)) is not None:
                return trouble
            return Complete(duplicate=True)
        if isinstance(settlement, DeadLetter):
            log.error("handler %s, message %s: %s", handler.name, delivery.message_id, settlement.description)
        return settlement

    def _start(
        self, handler: Handler, delivery: Delivery, prepared: Prepared, claim: MessageClaim
    ) -> Working | Settlement:
        stop = StopSignal(self.stop)
        limit = float("inf") if handler.max_runtime is None else handler.max_runtime
        deadline = self.clock.elapsed() + limit
        row = claim.row
        owner = f"{handler.name}/{row.key}".encode("unicode_escape").decode()

        def save(checkpoint: str, progress: Mapping[str, int], _: object) -> None:
            outbox, follow_ups = rights.noted()
            check_outbox(handler.name, outbox)
            claim.save(checkpoint, progress, outbox=outbox, follow_ups=follow_ups)
            # What cannot be sent now goes with the next checkpoint, or the end, or the next attempt.
            if self._send_outbox(handler, delivery, claim.row) is None:
                del rights.outbox[: len(outbox)]  # others may have been added since

        rights = Rights(
            claim=claim,
            stop=stop,
            blobs=Blobs(
                self.stores.blobs, self.settings.namespace, owner, row.token, claim.check, self.clock
            ),
            checkpoint=Checkpoint(f"Handler {handler.name}", save, row.checkpoint, row.progress),
            log=run_logger(handler.name, f"message {row.message_id}", row.attempt),
            outbox=list(row.outbox),
            follow_ups=row.follow_ups,
        )
        self.heartbeats.watch(claim, stop, deadline)
        working = Working(
            who=f"Handler {handler.name}",
            body=handler.body,
            arguments=prepared.arguments,
            stop=stop,
            handler=handler,
            delivery=delivery,
            message=prepared.message,
            claim=claim,
            rights=rights,
            deadline=deadline,
        )
        prepared.message.grant(rights)
        if prepared.lock is not None:
            try:
                working.lock = self._acquire(handler, prepared.lock, stop)
            except StoreError as error:
                return self._back(working, f"its lock was out of reach: {error}")
            if working.lock is None:
                return self._back(working, f"its lock was held elsewhere for {handler.lock_wait:g} s")
            working.lock.keep(stop.set)
        if not claim.held:  # this process was paused, or the table slow: somebody else may have begun
            if working.lock is not None:
                working.lock.release()
            return self._back(working, "its claim took too long to make")
        return working

    def _acquire(self, handler: Handler, name: str, stop: StopSignal) -> Lease | None:
        give_up_at = self.clock.elapsed() + handler.lock_wait
        path = f"{self.settings.namespace}/lock/{name}"
        while True:
            lease = Lease.acquire(self.stores.leases, path, self.settings.lease, self.clock)
            if lease is not None or self.clock.elapsed() >= give_up_at or stop.cause is not None:
                return lease
            self.clock.wait(stop.event, LOCK_POLL)

    def _back(self, working: Working, reason: str) -> Settlement:
        """Give a claimed message back unrun; that is no failure of it."""
        delay = backoff(working.delivery.reschedules)
        try:
            working.claim.release(self.clock.now() + timedelta(seconds=delay), reason, failed=False)
        except (RunonceError, RunInterrupted) as error:
            log.warning("handler %s: not released, its claim ends by itself: %s", working.handler.name, error)
        finally:
            working.claim.let_go()
            working.stop.detach()
        return Reschedule(delay, reason)

    # -- finish ---------------------------------------------------------------------------------------------

    def finish(self, working: Working, result: Any, error: BaseException | None) -> Settlement:
        """Finish the claim by what came of the handler, and how to settle the message."""
        if self.clock.elapsed() >= working.deadline:  # the heartbeat that tells it may be late
            over_its_time(working.claim, working.stop)
        try:
            settlement = self._finished(working, result, error)
        except (LeaseLost, Fenced) as lost:
            settlement = Reschedule(backoff(working.delivery.reschedules), str(lost))
        except StoreError as trouble:
            settlement = self._unrecorded(working, error, trouble)
        finally:
            working.claim.let_go()
            working.stop.detach()
            if working.lock is not None:
                working.lock.release()
            self._inflight.remove(working)
        self._say(working, settlement, error)
        return settlement

    def _finished(self, working: Working, result: Any, error: BaseException | None) -> Settlement:
        claim = working.claim
        if _done(claim):  # by message.commit; what was raised after it changes nothing
            if error is not None:
                working.rights.log.warning("raised after its commit, which stands", exc_info=error)
            return self._followed_up(working, result)
        ending, error = judge(error, working.stop, held=claim.held)
        if error is None:
            try:
                check_outbox(working.handler.name, working.rights.outbox)
            except InputError as misuse:  # what the handler sends cannot be kept
                ending, error = Ending.FAILED, misuse
            else:
                claim.done(outbox=working.rights.outbox)
                return self._followed_up(working, result)
        settlement = self._not_done(working, ending, error)
        if _done(claim):  # by a message.commit that got no answer
            return self._followed_up(working, result)
        return settlement

    def _not_done(  # noqa: PLR0911 - one settlement for each end
        self, working: Working, ending: Ending, error: BaseException
    ) -> Settlement:
        claim, handler = working.claim, working.handler
        if ending is Ending.LOST:
            delay = backoff(working.delivery.reschedules)
            if claim.held:  # then it is the handler's lock that it lost
                claim.release(self.clock.now() + timedelta(seconds=delay), str(error), failed=False)
            return Reschedule(delay, str(error))
        if ending is Ending.CUT_OFF and handler.on_abandoned == "hold":
            claim.hold(f"{self.registry.host} was stopping and cut it off")
            return Reschedule(WHEN_STOPPING, claim.row.reason)
        if ending in (Ending.STOPPED, Ending.CUT_OFF):
            claim.release(None, f"{self.registry.host} was stopping", failed=False)
            return Reschedule(WHEN_STOPPING, claim.row.reason)
        reason = brief(error)[:LONGEST_TEXT]
        if ending is Ending.OUT_OF_REACH:
            delay = backoff(working.delivery.reschedules)
            claim.release(self.clock.now() + timedelta(seconds=delay), reason, failed=False)
            return Reschedule(delay, reason)
        failures = claim.row.failures + 1
        if isinstance(error, PermanentError) or failures > handler.retry.retries:
            if isinstance(error, BadMessageError):  # it names handler and message itself
                claim.fail(str(error)[:LONGEST_TEXT])
                return DeadLetter(error.reason, str(error))
            claim.fail(reason, told(error))
            return DeadLetter(
                "Failed", f"Handler {handler.name}, message {working.message.message_id}: {reason}"
            )
        delay = handler.retry.wait(failures)
        retry_at = self.clock.now() + timedelta(seconds=delay)
        claim.release(retry_at, reason, failed=True, error=told(error))
        return Reschedule(delay, reason)

    def _followed_up(self, working: Working, result: Any) -> Settlement:
        row = working.claim.row
        if row.outbox and (trouble := self._send_outbox(working.handler, working.delivery, row)) is not None:
            return trouble
        return Complete(result=result)

    def _send_outbox(self, handler: Handler, delivery: Delivery, row: MessageRow) -> Settlement | None:
        try:
            send_outbox(self._sender, row.outbox, delivery.correlation_id)
        except TransportError as error:
            log.warning(
                "handler %s: its follow-ups are sent when the message is redelivered: %s", handler.name, error
            )
            return Reschedule(backoff(delivery.reschedules), "its follow-up messages could not be sent")
        return None

    def _unrecorded(self, working: Working, error: BaseException | None, trouble: StoreError) -> Settlement:
        """The table was out of reach for a minute after the handler ended."""
        if error is not None:
            return Reschedule(
                backoff(working.delivery.reschedules), f"its end could not be recorded: {trouble}"
            )
        return DeadLetter(
            "DoneButNotRecorded",
            f"Handler {working.handler.name}, message {working.message.message_id}: it was handled, but that "
            f"could not be recorded on its claim ({trouble}). Do not replay it unless its effect may happen twice.",
        )

    def _say(self, working: Working, settlement: Settlement, error: BaseException | None) -> None:
        say = working.rights.log
        match settlement:
            case Complete():
                say.info("done")
            case Reschedule():
                say.warning("redelivered in %.1f s: %s", settlement.delay, settlement.reason)
            case DeadLetter():
                # Where the message is at fault its description says all; a traceback would blame the handler.
                traceback = None if isinstance(error, BadMessageError) else error
                say.error(
                    "dead-lettered (%s): %s", settlement.reason, settlement.description, exc_info=traceback
                )


def _done(claim: MessageClaim) -> bool:
    return claim.row.state is State.DONE


def _asking(handler: Handler, message: Message) -> Callable[[MessageRow], bool | None] | None:
    """The reconcile hook, which must not fail the delivery: a hook that raises does not know."""
    hook = handler.reconcile
    if hook is None:
        return None

    def ask(row: MessageRow) -> bool | None:
        message.show(row)
        try:
            return hook(message)
        except Exception:
            log.exception(
                "handler %s, message %s: its reconcile hook failed", handler.name, message.message_id
            )
            return None

    return ask
