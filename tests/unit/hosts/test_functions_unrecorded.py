"""On the Functions host an effect that could not be recorded is put aside at once, and is never repeated by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import delivery, handling, silence

from runonce.execution.turns import Turns
from runonce.hosts.functions.handlers import DeadLetteredError, _function
from runonce.hosts.runtime import Runtime
from runonce.settings import ServiceBusConnection
from runonce.stores.memory import memory_stores
from runonce.testing.faults import Boundary, Fault, PassingClock
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.transports.protocols import Outgoing


class Sends:
    """A sender that keeps the messages themselves."""

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []

    def send(self, _: str, messages: Any) -> None:
        self.messages += messages

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.slow
def test_done_but_not_recorded_is_dead_from_its_next_delivery_on() -> None:
    """The table is silent for a minute after the effect: one copy with the reason is sent, which never runs."""
    clock, boundary, sends, effects = PassingClock(), Boundary(), Sends(), []

    def pay(message: Message) -> None:
        effects.append(message.attempt)
        boundary.next("commit", *[Fault.LOST_REQUEST] * 60)
        boundary.next("get", *[Fault.LOST_REQUEST] * 60)

    bus = ServiceBusConnection("Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b")
    settings = replace(fresh_settings("UseDevelopmentStorage=true"), transport="servicebus", servicebus=bus)
    runtime = Runtime(
        settings, stores=boundary.around(memory_stores(clock)), clock=clock, sender=sends, host="functions"
    )
    silence(runtime.deliverer)
    one = handling(pay)
    function = _function(runtime, one, Turns(1, runtime.stop), lambda message: message)
    function(delivery())
    [copy] = sends.messages
    assert copy.dead is not None
    assert copy.dead[0] == "DoneButNotRecorded"
    boundary._of.clear()  # the table answers again
    clock.advance(600)  # and its claim has long ended
    for count in (1, 2):
        with pytest.raises(DeadLetteredError, match="DoneButNotRecorded"):
            function(delivery(message_id=copy.message_id, count=count, reschedules=1, dead=copy.dead))
    assert (effects, len(sends.messages)) == ([1], 1)
