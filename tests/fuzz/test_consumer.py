"""A consumer whose queue holds whatever anybody sent: it goes on, and each message is handled or put aside."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from fuzz.messages import HANDLERS, TARGETS, body
from runonce.clock import SystemClock
from runonce.messages.consumer import Consumer
from runonce.messages.deliver import Deliverer
from runonce.stores.memory import memory_stores
from runonce.testing import Workbench
from runonce.transports.protocols import Delivery
from tests.fuzz.test_targets import changed, some
from tests.support.memory_transport import Held, MemoryTransport

if TYPE_CHECKING:
    from runonce.messages.definition import Handler

AT = datetime(2026, 11, 29, 3, tzinfo=UTC)
GOOD = b'{"id": "good", "order": {"id": "good"}}'


@some
@given(st.sampled_from(HANDLERS), st.lists(changed(TARGETS[body]), min_size=1, max_size=4))
def test_no_body_stops_a_consumer(handler: Handler, bodies: list[bytes]) -> None:
    """After any bodies a consumer still handles a good one; others are done, or dead with a reason: none is lost."""
    one = replace(handler, concurrency=1)
    clock = SystemClock()
    transport, stores = MemoryTransport(clock), memory_stores(clock)
    deliverer = Deliverer(stores, transport.sender(), Workbench().settings, clock, host="test")
    held = [Held(Delivery(data, f"m-{n}", 0, AT)) for n, data in enumerate([*bodies, GOOD])]
    transport.queues[one.queue] = list(held)
    Consumer(deliverer, transport, one).run(max_messages=len(held), max_wait=1.0)
    settled = [event.split()[1:] for event in transport.events if event.startswith("settle")]
    assert settled[-1] == [f"m-{len(bodies)}", "Complete"]
    dead = transport.queues.get(f"{one.queue}/dead", [])
    assert [how for _, how in settled].count("DeadLetter") == len(dead)
    assert all(letter.reason and letter.description for letter in dead)
    assert [name for name, _ in settled] == [letter.delivery.message_id for letter in held]
    assert transport.queues[one.queue] == []
