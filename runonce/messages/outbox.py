"""The follow-ups of a message: kept on its claim's row, sent once it has them, and what it means if they cannot be.

A broker that does not answer is no failure of the handler's: the message comes back and goes on from its last
checkpoint. One that refuses for good makes a dead letter of the message that sends them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from runonce.errors import HostStopping, TransportError, TransportRefusedError
from runonce.messages.backoff import backoff
from runonce.messages.message import BadMessageError
from runonce.messages.rows import check_outbox
from runonce.messages.sending import send_outbox
from runonce.transports.settlement import DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.execution.checkpoint import Save
    from runonce.messages.definition import Handler
    from runonce.messages.rights import Rights
    from runonce.messages.rows import MessageRow
    from runonce.transports.protocols import Delivery, Sender

log = logging.getLogger("runonce.deliver")


class FollowUpsWait(HostStopping):
    """The broker takes no follow-ups; the message comes again and goes on from its last checkpoint."""


def send_kept(
    sender: Sender, handler: Handler, delivery: Delivery, row: MessageRow
) -> Reschedule | DeadLetter | None:
    """Send what the row has; None when there is nothing left to send, else what is to become of its message."""
    if not row.outbox:
        return None
    try:
        send_outbox(sender, row.outbox, delivery.correlation_id)
    except TransportRefusedError as error:
        return DeadLetter(
            "FollowUpRefused",
            f"Handler {handler.name}, message {row.message_id} ({row.state}): its follow-ups can never be sent as they "
            f"are: {error} Correct that, then `runonce dead-letters replay {handler.name}` sends them.",
            on_claim=False,
        )
    except TransportError as error:
        log.warning(
            "handler %s: its follow-ups are sent when the message is redelivered: %s", handler.name, error
        )
        return Reschedule(backoff(delivery.reschedules), "its follow-up messages could not be sent")
    return None


def saver(sender: Sender, handler: Handler, delivery: Delivery, of: Callable[[], Rights]) -> Save:
    """How a checkpoint is kept with the follow-ups so far, which are sent before the work goes on.

    Where they cannot be, it ends there: nothing of it has to be done again.
    """

    def send(rights: Rights) -> None:
        row = rights.claim.row  # a sign of life may read another one meanwhile
        trouble = send_kept(sender, handler, delivery, row)
        if isinstance(trouble, DeadLetter):
            raise BadMessageError(trouble.reason, trouble.description)
        if trouble is not None:
            cause = FollowUpsWait(f"{trouble.reason}; it goes on from its last checkpoint")
            rights.stop.set(cause)
            raise cause
        rights.sent(row.outbox)

    def save(checkpoint: str, progress: Mapping[str, int], steps: Mapping[str, Any], _: object) -> None:
        rights = of()
        if rights.claim.row.outbox:  # it was told to end, and went on
            send(rights)
        outbox, follow_ups = rights.noted()
        check_outbox(handler.name, outbox)
        rights.claim.save(checkpoint, progress, steps=steps, outbox=outbox, follow_ups=follow_ups)
        if outbox:
            send(rights)

    return save
