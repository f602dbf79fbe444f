"""A Functions app whose messages are in Storage queues, with that host's own moves around the toolkit's own code.

Whoever has the latest receipt of a message may hide, show or delete it. The host hides what it receives for ten
minutes, and anew after five; it deletes what its function returned from, lets come again what failed, and puts that
aside after five deliveries. Nothing of that happens any more once it was killed: then other workers show what the
worker wrote down.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from runonce.errors import StoreError, TransportError
from runonce.execution.registry import Registry
from runonce.hosts.functions import handlers
from runonce.hosts.functions.in_hand import InHand
from runonce.transports.envelope import unwrap
from runonce.transports.protocols import Outgoing, Receipt, Received
from runonce.transports.storage import POISON
from simulation.baton import simulator
from simulation.broker import Broker, Held, SimLink, SimTransport
from simulation.functions import AGAIN, DELIVERIES, HIDDEN, FunctionsMessageHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import SimpleNamespace

    from runonce.execution.turns import Turns
    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Delivery
    from simulation.functions import Invocation

RENEWED = 300.0
"""Seconds after which the host hides anew what its function is still running for."""


class StorageQueues(Broker):
    """The server: no duplicate detection, no locks, and nothing is put aside but by whoever handles it."""

    most = math.inf

    def update(self, queue: str, receipt: Receipt, hidden: float | None) -> str | None:
        """Hide a message anew, or delete it: its new receipt; None when this one is not the latest."""
        waiting = self.queues.get(queue, [])
        held = next((one for one in waiting if str(one.number) == receipt.message_id), None)
        if held is None or str(held.receipt) != receipt.pop_receipt:
            return None
        held.receipt += 1
        if hidden is None:
            waiting.remove(held)
        else:
            held.visible_at = self.clock.elapsed() + hidden
            self._shows(queue, held.visible_at)
        return str(held.receipt)

    def bury(self, queue: str, message: Outgoing, reason: str = "", description: str = "") -> None:
        """Put a message into the poison queue."""
        self._numbers += 1
        held = Held(message, self._numbers, self.clock.now(), self.clock.elapsed())
        held.reason, held.description = reason, description
        self.dead.setdefault(queue, []).append(held)

    def _check(self, held: Held, receipt: int) -> None:
        if held.receipt != receipt:
            raise TransportError("The receipt is not the latest.")


def _poison(of: Delivery) -> Outgoing:
    """What the host puts into the poison queue."""
    return Outgoing(of.body, of.message_id, reschedules=of.reschedules, sent_as=of.sent_as)


class StorageTransport(SimTransport):
    """A host's way to them."""

    broker: StorageQueues

    def sender(self) -> StorageLink:
        return StorageLink(self)

    def inbox(self, handler: Handler) -> StorageLink:
        return StorageLink(self, handler)


class StorageLink(SimLink):
    """What the toolkit asks of its sender for Storage queues, and the host of its own."""

    _broker: StorageQueues

    def _received(self, held: Held, receipt: int, delivery: Delivery) -> Received:
        worker, host = (Receipt(str(held.number), str(receipt)) for _ in range(2))
        return Received(replace(delivery, receipt=worker, sequence=""), host)

    def put(self, entity: str, text: str) -> None:
        delivery, told = unwrap(text, message_id="", delivery_count=1, enqueued_at=None)
        message = Outgoing(
            delivery.body,
            delivery.message_id,
            reschedules=delivery.reschedules,
            sent_as=delivery.sent_as,
        )
        why = str(told.get("reason", "")), str(told.get("description", ""))
        self._call("put aside", lambda: self._broker.bury(entity.removesuffix(POISON), message, *why))

    def put_aside(self, received: Received) -> None:
        """As the host does after the last delivery."""
        self._call("put aside by the host", lambda: self._broker.bury(self.queue, _poison(received.delivery)))

    def remove(self, queue: str, receipt: Receipt) -> bool:
        return self._call("delete message", lambda: self._broker.update(queue, receipt, None)) is not None

    def show(self, queue: str, receipt: Receipt, after: float) -> bool:
        shown = self._call("show", lambda: self._broker.update(queue, receipt, math.ceil(max(0.0, after))))
        if shown is not None:
            receipt.pop_receipt, receipt.is_ours = shown, True
        return shown is not None


class StorageHost(FunctionsMessageHost):
    """An instance with a function for each handler, on Storage queues."""

    kind = "storage"

    def _function(self, handler: Handler, turns: Turns) -> Callable[..., None]:
        return handlers._function(
            self._runtime, handler, turns, lambda received: received.delivery, self._in_hand, DELIVERIES
        )

    def start(self) -> None:
        self._in_hand = InHand(self._runtime)
        super().start()
        self.spawn(self._in_hand.run, "in hand")

    @property
    def hand(self) -> str:
        """The key of its row of what it has in hand."""
        return self._in_hand._row.key

    def _parts(self) -> SimpleNamespace:
        parts, settings = super()._parts(), self.world.settings
        parts.host, parts.clock = self.name, self.deliverer.clock
        parts.settings.claim_lease = settings.claim_lease
        parts.runs = Registry(self.deliverer.stores.runs, settings.namespace, parts.clock, self.name)
        return parts

    def _give_back(self) -> None:
        super()._give_back()
        with suppress(StoreError):  # what was given back may come once more
            self._in_hand.leave()

    def _invoke(self, one: Invocation, handle: Callable[..., None]) -> None:
        if one.received.delivery.delivery_count <= DELIVERIES:
            super()._invoke(one, handle)
            return
        with suppress(TransportError):  # it comes again
            one.link.put_aside(one.received)
            one.link.remove(one.link.queue, one.received.native)

    def _renew(self, one: Invocation) -> None:
        while not one.ended:
            simulator().sleep(RENEWED)
            with suppress(TransportError):
                if one.ended or not one.link.show(one.link.queue, one.received.native, HIDDEN):
                    return

    def _settle(self, one: Invocation, error: BaseException | None) -> None:
        if one.ended:
            return
        one.ended = True
        with suppress(TransportError):  # it comes again
            if error is not None and one.received.delivery.delivery_count < DELIVERIES:
                one.link.show(one.link.queue, one.received.native, AGAIN)
                return
            if error is not None:
                one.link.put_aside(one.received)
            one.link.remove(one.link.queue, one.received.native)

    def _fail(self, one: Invocation) -> None:
        queues, delivery = cast("StorageQueues", self.world.broker), one.received.delivery
        is_last = delivery.delivery_count >= DELIVERIES
        settled = queues.update(one.link.queue, one.received.native, None if is_last else AGAIN)
        if is_last and settled is not None:
            queues.bury(one.link.queue, _poison(delivery))
