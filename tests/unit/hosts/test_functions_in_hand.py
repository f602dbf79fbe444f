"""What a Functions worker has in hand is written down, and shown again by others when it is missed."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from runonce.clock import SystemClock
from runonce.errors import TransportError
from runonce.execution.threads import start_thread
from runonce.execution.turns import Turns
from runonce.hosts.functions.handlers import _function
from runonce.hosts.functions.in_hand import FIRST, HIDDEN, LAST, RENEW, InHand
from runonce.hosts.runtime import Runtime
from runonce.runs.presence import CHECK_IN, MISSED, partition
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock, MemorySender
from runonce.transports.protocols import Receipt
from tests.support.messages import delivery, handling
from tests.support.namespaces import fresh_settings

if TYPE_CHECKING:
    from runonce.messages.message import Message
    from runonce.stores.protocols import Stores

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
MISSED_BY_NOW = MISSED + timedelta(seconds=1)


class Shows(MemorySender):
    """Notes what is shown again; the first tries may fail."""

    def __init__(self, away: int = 0) -> None:
        super().__init__()
        self.away = away
        self.shown: list[tuple[str, tuple[str, str], float]] = []
        self.is_latest = True

    def show(self, queue: str, receipt: Receipt, after: float) -> bool:
        if self.away:
            self.away -= 1
            raise TransportError
        self.shown.append((queue, (receipt.message_id, receipt.pop_receipt), after))
        receipt.pop_receipt += "'"
        return self.is_latest


class Bench:
    """Two workers on one storage and one clock."""

    def __init__(self, away: int = 0) -> None:
        self.clock = ManualClock(NOW)
        self.stores: Stores = memory_stores(self.clock)
        self.settings = fresh_settings("UseDevelopmentStorage=true")
        self.sender = Shows(away)
        self.one, self.other = self.worker(), self.worker()  # of one instance

    def worker(self) -> InHand:
        return InHand(
            Runtime(self.settings, stores=self.stores, clock=self.clock, sender=self.sender, host="shop/0123")  # type: ignore[arg-type]
        )

    def rows(self) -> list[list[str]]:
        rows = self.stores.runs.scan(partition(self.settings.namespace), FIRST, LAST)
        return [str(row.values["messages"]).splitlines() for row in rows]


def test_only_what_lasts_is_written_down() -> None:
    """A message is on the row from the second look on, and goes from it when it has ended; short ones cost no call."""
    bench = Bench()
    with bench.one.having("orders", Receipt("a", "r1")):
        bench.one.keep(alive=False)
    bench.one.keep(alive=False)
    assert bench.rows() == []
    with ExitStack() as long:
        long.enter_context(bench.one.having("orders", Receipt("b", "r2")))
        long.enter_context(bench.one.having("orders", None))  # of Service Bus, or run by hand
        for _ in range(2):
            bench.one.keep(alive=False)
        assert bench.rows() == [["orders b r2"]]
        assert not bench.one.keep(alive=False)  # nothing new
        assert bench.one.keep(alive=True)  # a sign of life
    assert bench.one.keep(alive=False)
    assert bench.rows() == []
    assert not bench.one.keep(alive=True)  # an idle worker writes nothing


def test_a_missed_workers_messages_are_shown_when_their_claims_have_ended() -> None:
    """Each once, for the rest of a claim's lease, and the row is gone; a worker that lives is left alone."""
    bench = Bench()
    with bench.one.having("orders", Receipt("a", "r1")), bench.one.having("mail", Receipt("b", "r2")):
        for _ in range(2):
            bench.one.keep(alive=False)
        assert bench.other.look()
        assert bench.sender.shown == []
        bench.clock.advance(MISSED_BY_NOW.total_seconds())
        assert bench.other.look()
    left = bench.settings.claim_lease + 2 - MISSED_BY_NOW.total_seconds()
    assert sorted(bench.sender.shown) == [("mail", ("b", "r2"), left), ("orders", ("a", "r1"), left)]
    assert not bench.other.look()
    assert len(bench.sender.shown) == 2


def test_a_worker_that_was_only_paused_goes_on() -> None:
    """One that was missed by mistake writes its row anew; its own row it never looks after."""
    bench = Bench()
    with bench.one.having("orders", Receipt("a", "r1")):
        for _ in range(2):
            bench.one.keep(alive=False)
        bench.clock.advance(MISSED_BY_NOW.total_seconds())
        assert not bench.one.look()
        bench.other.look()
        assert bench.rows() == []
        assert not bench.one.keep(alive=True)
        assert bench.one.keep(alive=True)
        assert bench.rows() == [["orders a r1"]]
    bench.one.leave()
    assert bench.rows() == []


def test_what_could_not_be_shown_is_shown_at_the_next_look() -> None:
    """While the queue does not answer, the row stays."""
    bench = Bench(away=1)
    with bench.one.having("orders", Receipt("a", "r1")):
        for _ in range(2):
            bench.one.keep(alive=False)
    bench.clock.advance(MISSED_BY_NOW.total_seconds())
    with pytest.raises(TransportError):
        bench.other.look()
    bench.other.look()
    assert [one[:2] for one in bench.sender.shown] == [("orders", ("a", "r1"))]


def test_what_is_in_hand_for_long_is_hidden_by_the_worker() -> None:
    """Before the host does it, under a receipt that is then written down; what somebody else has is left to them."""
    bench = Bench(away=1)
    with bench.one.having("orders", Receipt("a", "r1")):
        bench.one.renew()
        assert bench.sender.shown == []
        bench.clock.advance(RENEW)
        with pytest.raises(TransportError):
            bench.one.renew()
        bench.one.renew()  # not at once
        assert bench.sender.shown == []
        bench.clock.advance(CHECK_IN)
        bench.one.renew()
        assert bench.sender.shown == [("orders", ("a", "r1"), HIDDEN)]
        for _ in range(2):
            bench.one.keep(alive=False)
        assert bench.rows() == [["orders a r1'"]]
        bench.sender.is_latest = False
        for _ in range(3):
            bench.clock.advance(RENEW)
            bench.one.renew()
        assert len(bench.sender.shown) == 2


class Slow(Shows):
    """Whose new receipt takes a while to come."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.removed = threading.Event(), list[str]()

    def show(self, queue: str, receipt: Receipt, after: float) -> bool:
        self.asked.set()
        threading.Event().wait(0.1)
        receipt.is_ours = True
        return super().show(queue, receipt, after)

    def remove(self, queue: str, receipt: Receipt) -> bool:
        assert queue == "invoices"
        self.removed.append(receipt.pop_receipt)
        return True


def test_a_message_that_ends_while_it_is_hidden_anew_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function waits for the new receipt, without which nobody could delete it; afterwards nothing hides it."""
    monkeypatch.setattr("runonce.hosts.functions.in_hand.RENEW", 0.0)
    clock, sender, settings = SystemClock(), Slow(), fresh_settings("UseDevelopmentStorage=true")
    runtime = Runtime(settings, stores=memory_stores(clock), clock=clock, sender=sender, host="shop/0123")  # type: ignore[arg-type]
    hand = InHand(runtime)

    def body(_: Message) -> None:
        start_thread(hand.renew, "renewing")
        assert sender.asked.wait(10)

    handle = _function(runtime, handling(body), Turns(1, runtime.stop), lambda message: message, hand, 5)
    receipt = Receipt("id-1", "r1")
    handle(delivery(receipt=receipt))
    assert sender.removed == ["r1'"]
    with hand.having("invoices", receipt):  # as where its code has not ended yet
        hand.renew()
    assert len(sender.shown) == 1


def test_more_than_a_row_takes_is_left_out() -> None:
    """Some hundreds of messages fit; the others come when the host's hiding of them ends."""
    bench, many = Bench(), ExitStack()
    with many:
        for n in range(1000):
            many.enter_context(bench.one.having("q" * 55, Receipt(f"{n:036d}", "r" * 40)))
        for _ in range(2):
            bench.one.keep(alive=False)
    assert 200 < len(bench.rows()[0]) < 1000
