"""What tests of handlers share: a handler of any body, a delivery, further hosts, a look at the claim's row."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from runonce.execution.registry import Registry
from runonce.messages.definition import handler
from runonce.messages.deliver import Deliverer, Working
from runonce.messages.rows import decode_message, place
from runonce.testing import MemorySender, Workbench
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.execution.stop import StopSignal
    from runonce.messages.claim import MessageClaim
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.messages.rows import MessageRow
    from runonce.stores.protocols import Row, Stores
    from runonce.testing import ManualClock
    from runonce.transports.protocols import Sender

LEASE = 60
"""Seconds of a claim's lease by default."""
AFTER_CLAIM = LEASE + 2.5
"""Seconds after which a claim that shows no sign of life may be taken over."""
KEY = "A-17"


def handling(body: Callable[[Message], Any] = lambda _: None, **options: Any) -> Handler:
    """A handler of the queue "invoices" with that body, sync or async as that is."""
    settings = {"queue": "invoices", "key": "id", "name": "send_invoice", **options}
    if inspect.iscoroutinefunction(body):

        async def handle_async(message: Message) -> Any:
            return await body(message)

        return handler(**settings)(handle_async)

    def handle(message: Message) -> Any:
        return body(message)

    return handler(**settings)(handle)


def delivery(body: Any = None, *, message_id: str = "m-1", count: int = 1, **more: Any) -> Delivery:
    """A delivery of a body: bytes, or something to be JSON; by default one with the key `KEY`."""
    content = {"id": KEY} if body is None else body
    data = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
    return Delivery(data, message_id, count, **more)


def host_of(
    bench: Workbench,
    *,
    name: str = "other",
    stores: Stores | None = None,
    clock: ManualClock | None = None,
    sender: Sender | None = None,
    stop: StopSignal | None = None,
) -> Deliverer:
    """Another host on the bench's stores. It gives no signs of life by itself: a test says when."""
    made = Deliverer(
        stores or bench.stores,
        sender or MemorySender(),
        bench.settings,
        clock or bench.clock,
        host=name,
        stop=stop,
    )
    silence(made)
    return made


def silence(deliverer: Deliverer) -> None:
    """No heartbeats from a thread, so that a test's storage calls are its own."""
    deliverer.heartbeats.watch = lambda *_: None  # type: ignore[method-assign]


def ownership(bench: Workbench, *, host: str = "test", stores: Stores | None = None) -> Registry:
    """What a claim is made with."""
    return Registry((stores or bench.stores).claims, bench.settings.namespace, bench.clock, host)


def begun(deliverer: Deliverer, one: Handler, of: Delivery | None = None) -> Working:
    """Begin a message, which must succeed."""
    working = deliverer.begin(one, of or delivery())
    assert isinstance(working, Working), working
    return working


def raw_row(bench: Workbench, one: Handler, key: str = KEY) -> Row | None:
    """The claim's row as the table has it."""
    return bench.stores.claims.get(*place(bench.settings.namespace, one.entity, one.name, key))


def row_of(bench: Workbench, one: Handler, key: str = KEY) -> MessageRow:
    """The claim's row; it must be there."""
    read = raw_row(bench, one, key)
    assert read is not None
    return decode_message(read)


def count_calls(claim: MessageClaim) -> list[str]:
    """The storage calls of a claim from now on."""
    table, made = claim._registry.table, []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            made.append(name)
            return getattr(table, name)

    object.__setattr__(claim._registry, "table", Counting())
    return made
