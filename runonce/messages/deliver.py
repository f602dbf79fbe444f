"""The flow of a message: read it, claim it, run the handler, finish the claim, say how to settle it.

    begin     body and key → claim → lock → message      or a Settlement at once
    (body)    the handler's own code, in the host's thread or on its event loop
    finish    outcome → claim → follow-ups → Settlement

As in `dispatch`, nothing is raised into the host; what it has to do to the message is the answer.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from concurrent.futures import InvalidStateError
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runonce.errors import (
    Fenced,
    LeaseLost,
    RunInterrupted,
    RunonceError,
    StoreError,
    StoreUnavailableError,
)
from runonce.execution.blobs import Blobs
from runonce.execution.body import Flow, Steps
from runonce.execution.checkpoint import Checkpoint
from runonce.execution.log import run_logger
from runonce.execution.registry import Registry
from runonce.execution.stop import StopSignal
from runonce.execution.terms import terms
from runonce.messages import telling
from runonce.messages.backoff import backoff
from runonce.messages.claim import MessageClaim, Settled
from runonce.messages.ended import WHEN_STOPPING, Working, escaped, finished, is_done, named, say, unrecorded
from runonce.messages.heartbeat import Heartbeats, over_its_time
from runonce.messages.known import Known, known
from runonce.messages.lock import LockToken, lock_path, take_lock
from runonce.messages.outbox import saver, send_kept
from runonce.messages.rights import Rights
from runonce.messages.together import Claimed, claim_all, done_all
from runonce.stores.columns import shortened
from runonce.transports.settlement import Complete, DeadLetter, Reschedule, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runonce.clock import Clock
    from runonce.execution.turns import Turn
    from runonce.messages.definition import Handler
    from runonce.messages.reading import Prepared
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores
    from runonce.transports.protocols import Delivery, Sender

log = logging.getLogger("runonce.deliver")

LONGEST_ENDING = 5.0
"""Seconds to wait for an end that another thread is recording."""

T = TypeVar("T")


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

    def deliver(
        self,
        handler: Handler,
        delivery: Delivery,
        turn: Turn | None = None,
        given_up: Callable[[Settlement], None] = lambda _: None,
    ) -> Settlement:
        """Handle one delivery, whose handler may be sync or async, to its end in this thread.

        While the message waits for its handler's lock, others may have its `turn`. `given_up` is called with how it is
        to be settled where its handler does not end within its terms, and so this does not return.
        """
        return self._steps(handler, delivery, turn, given_up).run()

    async def deliver_async(self, handler: Handler, delivery: Delivery) -> Settlement:
        """The same for an async handler, without blocking the event loop this is called on."""
        return await self._steps(handler, delivery).run_async()

    def _steps(self, handler: Handler, delivery: Delivery, *how: Any) -> Steps[Working, Settlement]:
        def begin() -> Working | Settlement:
            return telling.not_run(self.registry, handler, delivery, self.begin(handler, delivery, *how))

        return Steps(begin, self.finish)

    # -- begin ----------------------------------------------------------------------------------------------

    def begin(
        self,
        handler: Handler,
        delivery: Delivery,
        turn: Turn | None = None,
        given_up: Callable[[Settlement], None] = lambda _: None,
    ) -> Working | Settlement:
        """Read, claim and lock; or how the message is to be settled without running anything."""
        return self.begin_all(handler, [delivery], turn, lambda _, settlement: given_up(settlement))[0]

    def begin_all(
        self,
        handler: Handler,
        deliveries: Sequence[Delivery],
        turn: Turn | None,
        given_up: Callable[[int, Settlement], None],
    ) -> list[Working | Settlement]:
        """The same for several messages, which are claimed together; `given_up` is told which of them it is."""
        with self._inflight.beginning():
            begun: list[Working | Settlement | Known] = [
                self._safely(handler, one, partial(self._read, handler, one)) for one in deliveries
            ]
            new = [one.delivered for one in begun if isinstance(one, Known)]
            claims = iter(claim_all(self.registry, handler, new, self.settings.claim_lease))
            for number, (one, delivery) in enumerate(zip(begun, deliveries, strict=True)):
                if isinstance(one, Known):
                    give_up = partial(given_up, number)
                    begin = partial(self._begin, handler, delivery, one.prepared, next(claims), turn, give_up)
                    begun[number] = self._safely(handler, delivery, begin)
        return cast("list[Working | Settlement]", begun)

    def _safely(self, handler: Handler, delivery: Delivery, step: Callable[[], T]) -> T | Settlement:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - it is told in the log
            settlement = escaped(handler, delivery, error)
            telling.unclaimed(self.registry, handler, delivery, settlement)
            return settlement

    def _read(self, handler: Handler, delivery: Delivery) -> Known | Settlement:
        """What its body says; or how it is settled without a claim."""
        if delivery.dead is not None:
            return DeadLetter(*delivery.dead)
        if self.stop.cause is not None:
            return Reschedule(WHEN_STOPPING, "this host is stopping")
        if delivery.only_for not in ("", handler.subscription):
            return Complete(duplicate=True)  # another subscription's copy, which the topic gave us too
        return known(self.registry, handler, delivery, self.settings.max_body)

    def _begin(
        self,
        handler: Handler,
        delivery: Delivery,
        prepared: Prepared,
        claimed: Claimed,
        turn: Turn | None,
        given_up: Callable[[Settlement], None],
    ) -> Working | Settlement:
        message_id = prepared.message.message_id
        if isinstance(claimed, StoreUnavailableError):
            log.warning("handler %s, message %s: %s", handler.name, message_id, claimed)
            return Reschedule(backoff(delivery.reschedules), "the claim table is out of reach")
        if isinstance(claimed, StoreError):
            log.error("handler %s, message %s: %s", handler.name, message_id, claimed)
            return Reschedule(backoff(delivery.reschedules), str(claimed))
        if isinstance(claimed, Exception):
            raise claimed
        if not isinstance(claimed, MessageClaim):
            return self._settled(handler, delivery, claimed)
        working = self._working(handler, delivery, prepared, claimed, given_up)
        try:
            begun = self._start(working, prepared.lock, turn)
        except BaseException:  # such as no thread for the renewal: nobody would ever finish it
            self._let_go(working)
            raise
        if isinstance(begun, Working):
            self._inflight.add(begun)
            telling.begins(begun)
        return begun

    def _settled(self, handler: Handler, delivery: Delivery, settled: Settled) -> Settlement:
        """A delivery that runs nothing. What its message has sent, or had still to send, is sent once more."""
        settlement, row, written = settled
        is_anothers = isinstance(settlement, DeadLetter) and settlement.reason == "KeyReused"
        if row is not None and not is_anothers and not isinstance(settlement, Reschedule):
            trouble = send_kept(self._sender, handler, delivery, row)
            if trouble is not None:
                settlement = trouble
            elif isinstance(settlement, Complete):
                return Complete(duplicate=True)
        if isinstance(settlement, DeadLetter):
            log.error("handler %s, message %s: %s", handler.name, delivery.message_id, settlement.description)
            if is_anothers:
                telling.unclaimed(self.registry, handler, delivery, settlement)
            elif row is not None and written:
                telling.put_aside(self.registry, row, settlement)
        return named(handler, delivery, settlement)

    def _working(
        self,
        handler: Handler,
        delivery: Delivery,
        prepared: Prepared,
        claim: MessageClaim,
        given_up: Callable[[Settlement], None],
    ) -> Working:
        stop, row = StopSignal(self.stop), claim.row
        save = saver(self._sender, handler, delivery, lambda: rights)
        rights = Rights(
            claim=claim,
            stop=stop,
            blobs=self._blobs(handler, claim, prepared.lock),
            checkpoint=Checkpoint(f"Handler {handler.name}", save, row.checkpoint, row.progress, row.steps),
            log=run_logger(
                handler.name,
                f"message {row.message_id}",
                row.attempt,
                message_id=row.message_id,
                holder=row.holder,
            ),
            follow_ups=row.follow_ups,
            in_batch=handler.batch is not None,
        )
        prepared.message.grant(rights)
        return Working(
            who=f"Handler {handler.name}",
            body=handler.body,
            arguments=prepared.arguments,
            stop=stop,
            registry=self.registry,
            sender=self._sender,
            handler=handler,
            delivery=delivery,
            message=prepared.message,
            claim=claim,
            rights=rights,
            given_up=given_up,
        )

    def _blobs(self, handler: Handler, claim: MessageClaim, lock: str | None) -> Blobs:
        """Under a lock, writers are told apart by who holds that, else by who holds the message."""
        owner = f"{handler.name}/{claim.row.key}".encode("unicode_escape").decode()
        store, namespace = self.stores.blobs, self.settings.namespace
        if lock is None:
            return Blobs(store, namespace, owner, claim.row.token, claim.check, self.clock)
        token = LockToken(self.registry, lock, claim.check)
        return Blobs(store, namespace, owner, token, claim.check, self.clock, owner=f"runonce-lock/{lock}")

    def _start(self, working: Working, lock: str | None, turn: Turn | None) -> Working | Settlement:
        handler, claim, stop = working.handler, working.claim, working.stop
        give_up = weakref.WeakMethod(self._give_up)  # a host that is gone leaves no heartbeats behind
        self.heartbeats.watch(
            claim, stop, lambda: working.terms, lambda: (known := give_up()) and known(working)
        )
        if claim.row.outbox:  # of an earlier attempt's checkpoints
            trouble = send_kept(self._sender, handler, working.delivery, claim.row)
            if trouble is not None:
                return self._back(working, trouble)
            claim.sent()
        if lock is not None:
            try:
                working.lock = claim.lock = take_lock(
                    self.stores.leases,
                    lock_path(self.settings.namespace, lock),
                    self.settings.lease,
                    self.clock,
                    wait=handler.lock_wait,
                    stop=stop,
                    turn=turn,
                )
            except StoreError as error:
                return self._back(working, f"its lock was out of reach: {error}")
            if working.lock is None:
                return self._back(working, f"its lock was held elsewhere for {handler.lock_wait:g} s")
            working.lock.keep(stop.set)
        if turn is not None:
            turn.take_back()
        # This process was paused, or the table slow, or another's turn long: somebody else may have begun.
        if not claim.held or not (working.lock is None or working.lock.held):
            return self._back(working, "its claim took too long to make")
        working.terms = terms(handler.max_runtime, self.settings.shutdown_timeout, self.clock.elapsed())
        if working.lock is not None:
            working.lock.renew_until(working.terms.let_go)
        return working

    def _back(self, working: Working, why: str | Reschedule | DeadLetter) -> Settlement:
        """Give a claimed message back unrun; that is no failure of it, unless it is to be put aside."""
        settlement = Reschedule(backoff(working.delivery.reschedules), why) if isinstance(why, str) else why
        working.claim.lock = None
        try:
            if isinstance(settlement, DeadLetter):
                working.claim.fail(shortened(settlement.description))
            else:
                retry_at = self.clock.now() + timedelta(seconds=settlement.delay)
                working.claim.release(retry_at, settlement.reason, failed=False)
        except (RunonceError, RunInterrupted) as error:
            log.warning("handler %s: not released, its claim ends by itself: %s", working.handler.name, error)
        finally:
            self._let_go(working)
        telling.put_aside(self.registry, working.claim.row, settlement)
        return named(working.handler, working.delivery, settlement)

    def _let_go(self, working: Working) -> None:
        working.claim.let_go()
        working.stop.detach()
        if working.lock is not None:
            working.lock.release()

    # -- finish ---------------------------------------------------------------------------------------------

    def finish(self, working: Working, result: Any, error: BaseException | None) -> Settlement:
        """Finish the claim by what came of the handler, and how to settle the message; only the first time counts."""
        return self._finish(working, result, error) if self._is_first(working) else _waited_for(working)

    def finish_all(
        self, works: Sequence[Working], result: Any, error: BaseException | None
    ) -> list[Settlement]:
        """The same for the messages of one call; those that are done are marked so together."""
        told = any(working.stop.told for working in works)
        mine = [working for working in works if self._is_first(working)]
        good: dict[MessageClaim, Sequence[Mapping[str, Any]]] = {}
        for working in mine:
            working.stop.told |= told  # a call that ends because of one has not come to all others
            if is_done(working, error):
                good[working.claim] = working.rights.outbox
        done_all(self.registry, works[0].handler, good)
        return [
            working.within(partial(self._finish, working, result, error))
            if working in mine
            else _waited_for(working)
            for working in works
        ]

    def _is_first(self, working: Working) -> bool:
        """Whether nobody has begun to finish it."""
        if not working.ending.acquire(blocking=False):
            return False
        if self.clock.elapsed() >= working.terms.deadline:  # the heartbeat that tells it may be late
            over_its_time(working.claim, working.stop)
        working.claim.lock = (
            None  # the handler has ended: what it did is recorded, whoever has its lock by now
        )
        return True

    def _finish(self, working: Working, result: Any, error: BaseException | None) -> Settlement:
        error = working.rights.failure or error
        try:
            settlement = finished(working, result, error)
        except (LeaseLost, Fenced) as lost:
            settlement = Reschedule(backoff(working.delivery.reschedules), str(lost))
        except StoreError as trouble:
            settlement = unrecorded(working, error, trouble)
        except Exception as trouble:  # noqa: BLE001 - it is told in the log
            settlement = escaped(working.handler, working.delivery, trouble)
        finally:
            self._let_go(working)
            self._inflight.remove(working)
        settlement = named(working.handler, working.delivery, settlement)
        working.settled.set_result(settlement)
        say(working, settlement, error)
        telling.ended(working, settlement, error)
        return settlement

    def _give_up(self, working: Working) -> None:
        """Wait no longer for a handler that goes on after it was told to stop: what it holds is for others."""
        working.is_given_up = True
        working.rights.log.error(
            "did not end within %g s of being told to; its message, its lock and its slot are given up, while its code "
            "may go on here. Give what it waits for a time-out",
            self.settings.shutdown_timeout,
        )
        working.given_up(self.finish(working, None, working.stop.cause))
        with contextlib.suppress(InvalidStateError):
            working.ended.set_result((None, working.stop.cause))


def _waited_for(working: Working) -> Settlement:
    """What somebody else is making of it."""
    try:
        return working.settled.result(LONGEST_ENDING)
    except TimeoutError:  # its claim tells whoever gets it next
        return Reschedule(WHEN_STOPPING, "its end is being recorded")
