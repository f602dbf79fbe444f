"""Fan-out and join on a real table: lists of messages, their claims, and the one message that follows on all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runonce.clock import SystemClock
from runonce.execution.registry import Registry
from runonce.messages.definition import handler
from runonce.messages.deliver import Deliverer
from runonce.messages.of_jobs import JobsMessages
from runonce.runs.definition import scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.recovery import recover
from runonce.testing import Complete, MemorySender
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.runs.run import Run
    from runonce.settings import Settings
    from runonce.stores.protocols import Stores

T = datetime(2026, 1, 1, 3, tzinfo=UTC)


def test_all_messages_of_a_run_are_followed_by_one(settings: Settings, azure: Stores) -> None:
    """A run of two commits sends seven messages; after the last of them is done, one follows, and one only."""

    @handler(queue="charges", key="id")
    def charge(message: Message) -> None: ...

    @handler(queue="charged", after_all=charge)
    def charged(message: Message) -> None: ...

    @scheduled("0 0 3 * * *")
    def nightly(run: Run) -> None:
        for batch in run.batches(range(6), size=3):
            for number in batch:
                run.enqueue(charge, {"id": f"{number}"})
        run.enqueue(charge, {"id": "last"})

    clock, sender = SystemClock(), MemorySender()
    claims = Registry(azure.claims, settings.namespace, clock, "here")
    messages = JobsMessages(lambda: sender, claims, {one.name: one for one in (charge, charged)})
    host = Dispatcher({nightly.name: nightly}, azure, settings, clock, host="here", follow_ups=messages)
    worker = Deliverer(azure, sender, settings, clock, host="here")
    assert host.execute(nightly, T, by="hand").outcome == "succeeded"
    sent = list(sender.sent)
    assert len(sent) == 7
    for one in sent[:0:-1]:  # all but the first, which all others wait for
        assert worker.deliver(charge, Delivery(one.body, one.message_id)) == Complete()
    recover(host)
    assert len(sender.sent) == 7
    assert worker.deliver(charge, Delivery(sent[0].body, sent[0].message_id)) == Complete()
    for _ in range(2):
        recover(host)
    follows = sender.sent[7:]
    assert [one.json for one in follows] == [
        {"job": "nightly", "fire_time": "2026-01-01T03:00:00Z", "handler": "charge", "count": 7}
    ]
    assert worker.deliver(charged, Delivery(follows[0].body, follows[0].message_id)) == Complete()
    assert list(azure.runs.scan(settings.namespace, "join:", "join;")) == []
