"""A random walk over two subscribers of a topic, with duplicate detection on: nothing that was sent is lost.

Messages share keys and locks, are corrected, sent twice, sent without an id, sent back, dead-lettered and replayed;
handlers send follow-ups, take too long, and hang; calls to the broker and the table go unanswered. Whatever happened,
each message is then an effect of each subscriber's, or among its dead letters, and each effect has its one follow-up.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import BrokerInbox, BrokerSender, MemoryBroker
from support.messages import handling

from runonce.errors import PermanentError, StoreError, TransportError
from runonce.execution.lease import Lease
from runonce.execution.registry import Registry
from runonce.messages.dead_letters import replay
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.lock import lock_path
from runonce.messages.sending import outgoing
from runonce.settings import LeaseTerms, Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing.faults import Boundary, Fault, PassingClock
from runonce.transports.protocols import Dead, Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import Outgoing, Received
    from runonce.transports.settlement import Settlement

SEEDS = range(25)
STEPS = 120
KEYS = "ABCDEF"
QUEUES = ("orders.billing", "orders.shipping")
MAILS = "mails"
LIMIT = 5
"""Seconds of max_runtime."""
FAULTS = (Fault.LOST_REQUEST, Fault.LOST_REPLY)


@pytest.fixture(autouse=True)
def quietly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread of its own for a lease, and no log of thousands of faults."""
    monkeypatch.setattr(Lease, "keep", lambda *_: None)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclass
class Topic(MemoryBroker):
    """A broker whose topic forwards to the subscribers' queues; each of the three detects duplicates."""

    put_aside: dict[str, list[Outgoing]] = field(
        default_factory=lambda: {queue: [] for queue in (*QUEUES, MAILS)}
    )

    def put(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """What the topic takes goes on to both queues."""
        super().put(entity, messages)
        for held in self.waiting.pop("orders", []):
            for queue in QUEUES:
                super().put(queue, [held.sent])

    def take(self, entity: str) -> Any:
        """A message with too many deliveries is put aside here."""
        return self._noting(entity, lambda: super(Topic, self).take(entity))

    def end(self, entity: str, *args: Any, **options: Any) -> None:
        """A dead letter stays with its queue."""
        self._noting(entity, lambda: super(Topic, self).end(entity, *args, **options))

    def _noting(self, entity: str, call: Callable[[], Any]) -> Any:
        before = len(self.dead)
        answer = call()
        self.put_aside[entity] += [sent for sent, *_ in self.dead[before:]]
        return answer


class Letters:
    """The dead letters of a queue, across a boundary."""

    def __init__(self, broker: Topic, queue: str, boundary: Boundary) -> None:
        self._broker, self._queue, self._boundary = broker, queue, boundary

    def remove(self, dead: Dead) -> None:
        """Remove it, if it is still there."""

        def carry_out() -> None:
            with contextlib.suppress(ValueError):
                self._broker.put_aside[self._queue].remove(dead.native)

        self._boundary.cross("remove", carry_out, TransportError)


class Walk:
    """One walk: what was sent, and what two hosts of two subscribers made of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = PassingClock()
        self.stores = memory_stores(self.clock)
        self.broker = Topic(self.clock)
        self.boundary = Boundary()
        self.sent: dict[bytes, tuple[str, int]] = {}
        settings = Settings("walked", StorageConnection("UseDevelopmentStorage=true"))
        sender = BrokerSender(self.broker, self.boundary)
        stores = self.boundary.around(self.stores)
        self.settings = settings
        self.deliverer = Deliverer(stores, sender, settings, self.clock, host="walker")
        self.give_up: Callable[[], object] = lambda: None
        # No thread gives signs of life, nor gives up what hangs: a handler that hangs has that done.
        self.deliverer.heartbeats.watch = self.watch  # type: ignore[method-assign]
        self.registry = Registry(stores.claims, settings.namespace, self.clock, "operator")
        self.mail = handling(self.send_mail, queue=MAILS, name="mail", key="to", retries=50, retry_delay=1)
        self.handlers = [
            handling(
                self.handle,
                queue=None,
                topic="orders",
                subscription=name,
                name=name,
                retries=2,
                retry_delay=1,
                lock="customer:{id}",
                lock_wait=2,
                max_runtime=LIMIT,
            )
            for name in ("billing", "shipping")
        ]
        self.inboxes = [
            (one, BrokerInbox(self.broker, self.boundary, one)) for one in (*self.handlers, self.mail)
        ]
        self.calm = False
        self.given_up = self.waited = 0

    def watch(self, *watched: Any) -> None:
        """What a heartbeat's thread would do once a handler has had all its time."""
        self.give_up = watched[-1]

    def handle(self, message: Message) -> None:
        """A body that is bad fails for good; any may fail now and then; else a row says which it was."""
        if message.json["bad"]:
            raise PermanentError("no such customer")
        if not self.calm and self.random.random() < 0.3:
            self.go_wrong()
        message.enqueue(self.mail, {"to": f"{message.handler}/{message.key}/{message.json['n']}"})
        message.commit({f"took-{message.json['n']}": {"n": message.json["n"]}})

    def go_wrong(self) -> None:
        """Raise, take too long and go on as if nothing were, or hang until nobody waits any more and then go on."""
        way = self.random.choice(["raises", "late", "hangs"])
        if way == "raises":
            raise ConnectionError("the provider hung up")
        self.clock.advance(LIMIT + 1)
        if way == "hangs":
            self.clock.advance(self.settings.shutdown_timeout)
            self.give_up()

    def send_mail(self, message: Message) -> None:
        """The follow-up: a row says that it was sent."""
        if not self.calm and self.random.random() < 0.2:
            raise ConnectionError("the mail server hung up")
        message.commit({"sent": {"n": 1}})

    def step(self) -> None:
        """One thing that somebody does, with a fault at one of its calls now and then."""
        if not self.calm and self.random.random() < 0.3:
            self.boundary.at(len(self.boundary.calls) + self.random.randint(1, 4), self.random.choice(FAULTS))
        acts = [self.send, self.work, self.replay, self.wait, self.hold]
        act = self.random.choices(acts, [3, 12, 2, 1, 1])[0]
        with contextlib.suppress(TransportError, StoreError):
            act()

    def send(self) -> None:
        """A message of one of a few keys: again, corrected, under no id, or new."""
        key, n = self.random.choice(KEYS), self.random.randint(1, 3)
        message = outgoing(self.handlers[0], {"id": key, "n": n, "bad": self.random.random() < 0.4 and n < 3})
        if self.random.random() < 0.2:
            message = replace(message, message_id="", sent_as="")
        self.sent[message.body] = (key, n)
        self.broker.put("orders", [message])

    def work(self) -> None:
        """One delivery of one subscriber's, or of a follow-up."""
        one, inbox = self.random.choice(self.inboxes)
        for received in inbox.receive(1, 0):
            early: list[Settlement] = []

            def given_up(settlement: Settlement, received: Received = received) -> None:
                early.append(settlement)  # noqa: B023 - called before this one has ended
                self.given_up += 1
                with contextlib.suppress(TransportError):
                    inbox.settle(received, settlement)

            settlement = self.deliverer.deliver(one, received.delivery, None, given_up)
            self.waited += "lock was held elsewhere" in getattr(settlement, "reason", "")
            if not early:
                inbox.settle(received, settlement)

    def hold(self) -> None:
        """Somebody else has a customer's lock for some seconds."""
        path = lock_path(self.settings.namespace, f"customer%3A{self.random.choice(KEYS)}")
        Lease.acquire(self.stores.leases, path, LeaseTerms(15, 5, 2), self.clock)

    def replay(self) -> None:
        """An operator sends one dead letter through once more."""
        one = self.random.choice(self.handlers)
        letters = self.broker.put_aside[one.queue]
        if not letters:
            return
        sent = self.random.choice(letters)
        came = Delivery(
            sent.body,
            sent.message_id,
            reschedules=sent.reschedules,
            sent_as=sent.sent_as,
            sequence=str(id(sent)),
        )
        dead = Dead(came, "Failed", "why", None, sent, str(id(sent)))
        to: Any = Letters(self.broker, one.queue, self.boundary)
        replay(self.registry, BrokerSender(self.broker, self.boundary), one, to, dead)

    def wait(self) -> None:
        """Time passes: locks end, retries fall due, and sometimes the window of duplicate detection."""
        self.clock.advance(self.random.choice([1, 5, 40, 700]))

    def settle_down(self) -> None:
        """Without further faults everything that waits is worked off."""
        self.calm = True
        for _ in range(2000):
            if self.broker.is_empty:
                return
            with contextlib.suppress(TransportError, StoreError):
                self.work()
            self.clock.advance(2)
        raise AssertionError(f"{self.broker.waiting} never ends")

    def mails(self) -> list[str]:
        """The follow-ups that had their effect, or are among the dead letters."""
        rows = read_effects(self.stores.claims, "walked", self.mail.name)
        dead = [json.loads(sent.body)["to"] for sent in self.broker.put_aside[MAILS]]
        return [*(str(row["key"]) for row in rows), *dead]

    def effects(self, one: Handler) -> list[tuple[str, int]]:
        """Key and number of each effect."""
        rows = read_effects(self.stores.claims, "walked", one.name)
        return [(str(row["key"]), int(row["n"])) for row in rows]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_an_effect_or_a_dead_letter(seed: int) -> None:
    """Both subscribers account for every body that was sent, no key has two effects, and each effect one follow-up."""
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.settle_down()
    for one in walk.handlers:
        effects = walk.effects(one)
        assert len({key for key, _ in effects}) == len(effects), effects
        dead = {sent.body for sent in walk.broker.put_aside[one.queue]}
        lost = [told for body, told in walk.sent.items() if told not in effects and body not in dead]
        assert lost == [], (one.name, effects)
    told = [f"{one.name}/{key}/{n}" for one in walk.handlers for key, n in walk.effects(one)]
    assert sorted(set(walk.mails())) == sorted(told) != []


def test_the_walk_comes_by_what_it_is_to_go_through() -> None:
    """Over some seeds handlers are given up and locks held elsewhere, or the sums would say nothing of them."""
    given_up = waited = 0
    for seed in range(5):
        walk = Walk(seed)
        for _ in range(STEPS):
            walk.step()
        given_up, waited = given_up + walk.given_up, waited + walk.waited
    assert given_up > 5
    assert waited > 5
