"""A batch: one call of a handler for several messages, each with a claim and an end of its own.

What comes for the first time goes together. What comes again comes alone: a message that fails a call, or kills its
host, is so parted from those that it came with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from runonce.errors import TimeLimitExceeded
from runonce.execution.body import Begun, Steps
from runonce.execution.stop import StopSignal
from runonce.messages import telling
from runonce.messages.ended import Working

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.errors import RunInterrupted
    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.transports.protocols import Delivery
    from runonce.transports.settlement import Settlement


def deliver_batch(
    deliverer: Deliverer,
    handler: Handler,
    deliveries: Sequence[Delivery],
    end: Callable[[int, Settlement], None],
) -> None:
    """Handle deliveries of a handler that takes lists, to their ends in this thread.

    `end` is called with each one's number and how it is to be settled, as soon as that is known; a second time where
    its call goes on after it was given up.
    """
    new = [n for n, one in enumerate(deliveries) if one.delivery_count <= 1 and not one.reschedules]

    def end_new(number: int, settlement: Settlement) -> None:
        end(new[number], settlement)

    if new:
        for number, settlement in enumerate(
            _together(deliverer, handler, [deliveries[number] for number in new], end_new)
        ):
            end_new(number, settlement)
    for number, one in enumerate(deliveries):
        if number not in new:
            end(number, deliverer.deliver(handler, one, None, partial(end, number)))


@dataclass(eq=False, slots=True, kw_only=True)
class _Batch(Begun):
    """What one call works on."""

    all: list[Working | Settlement]
    """For each message that came, its work, or how it is settled without."""
    parts: list[Working]


def _together(
    deliverer: Deliverer,
    handler: Handler,
    deliveries: Sequence[Delivery],
    given_up: Callable[[int, Settlement], None],
) -> list[Settlement]:
    def begin() -> _Batch | list[Settlement]:
        begun = [
            telling.not_run(deliverer.registry, handler, delivery, one)
            for delivery, one in zip(
                deliveries, deliverer.begin_all(handler, deliveries, None, given_up), strict=True
            )
        ]
        parts = [one for one in begun if isinstance(one, Working)]
        if not parts:
            return [one for one in begun if not isinstance(one, Working)]
        return _of(deliverer, handler, begun, parts)

    def finish(batch: _Batch, result: Any, error: BaseException | None) -> list[Settlement]:
        batch.stop.detach()
        if batch.stop.told:  # its task was cancelled
            for part in batch.parts:
                part.stop.told = True
        ends = iter(deliverer.finish_all(batch.parts, result, error))
        return [next(ends) if isinstance(one, Working) else one for one in batch.all]

    return Steps(begin, finish).run()


def _of(
    deliverer: Deliverer, handler: Handler, begun: list[Working | Settlement], parts: list[Working]
) -> _Batch:
    """The call, which has to end when its host stops, when its time is up, or when it has lost all its messages."""
    batch = _Batch(
        who=f"Handler {handler.name}",
        body=handler.body,
        arguments=([part.message for part in parts],),
        stop=StopSignal(deliverer.stop),
        ended=parts[0].ended,  # which is set when they are given up
        all=begun,
        parts=parts,
    )

    def told(cause: RunInterrupted) -> None:
        if isinstance(cause, TimeLimitExceeded) or all(part.stop.cause for part in parts):
            batch.stop.set(cause)

    for part in parts:
        part.with_others = len(parts) > 1
        part.stop.listen(told)
    return batch
