"""What has to be known of a delivery to claim it: its key and body, read, or why it can never be handled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from runonce.errors import PermanentError
from runonce.messages import telling
from runonce.messages.claim import Delivered
from runonce.messages.message import BadMessageError, Message
from runonce.messages.reading import Prepared, prepare
from runonce.transports.settlement import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.registry import Registry
    from runonce.messages.definition import Handler
    from runonce.messages.rows import MessageRow
    from runonce.transports.protocols import Delivery

log = logging.getLogger("runonce.deliver")


class Known(NamedTuple):
    """A message that can be claimed."""

    prepared: Prepared
    delivered: Delivered


def known(registry: Registry, handler: Handler, delivery: Delivery, max_body: int) -> Known | DeadLetter:
    """Read a delivery; one that cannot be read is put aside, and the hooks are told."""
    try:
        prepared = prepare(handler, delivery, max_body)
    except PermanentError as bad:
        reason = bad.reason if isinstance(bad, BadMessageError) else type(bad).__name__
        log.error("%s", bad)  # noqa: TRY400 - the message says what is wrong with the other message
        settlement = DeadLetter(reason, str(bad))
        telling.unclaimed(registry, handler, delivery, settlement)
        return settlement
    message = prepared.message
    delivered = Delivered(
        key=message.key,
        message_id=message.message_id,
        fingerprint=prepared.fingerprint,
        redelivered=delivery.delivery_count > 1 or delivery.reschedules > 0,
        reschedules=delivery.reschedules,
        reconcile=_asking(handler, message),
    )
    return Known(prepared, delivered)


def _asking(handler: Handler, message: Message) -> Callable[[MessageRow], bool | None] | None:
    """The reconcile hook, which must not fail the delivery: a hook that raises does not know."""
    hook = handler.reconcile
    if hook is None:
        return None

    def ask(row: MessageRow) -> bool | None:
        message.show(row)
        try:
            return hook(message)
        except BaseException:
            log.exception(
                "handler %s, message %s: its reconcile hook failed", handler.name, message.message_id
            )
            return None

    return ask
