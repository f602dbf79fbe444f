"""The random walk once more on the real things: the local Service Bus with duplicate detection on, and Azurite.

Two subscribers consume at the same time, under locks they share, while calls to storage and sends go unanswered and
some handlers hang; what is put aside is replayed. Then every body that was sent is an effect of each subscriber's, or
among its dead letters, and each effect has its one follow-up.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.messages import handling
from support.service_bus import broker_fixture, sdk_forgets_sockets

from runonce.clock import SystemClock
from runonce.errors import PermanentError, StoreError, TransportError
from runonce.execution.registry import Registry
from runonce.execution.threads import in_thread
from runonce.messages.consumer import Consumer
from runonce.messages.dead_letters import replay
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.sending import outgoing
from runonce.settings import ServiceBusConnection
from runonce.stores.azure.stores import azure_stores
from runonce.testing.faults import Boundary, Fault
from runonce.transports.servicebus import ServiceBusTransport
from servicebus.launcher import Queue, Subscription, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.settings import Settings
    from runonce.transports.protocols import Outgoing
    from servicebus.launcher import Broker

pytestmark = [sdk_forgets_sockets]

NAMES = ("billing", "shipping")
KEYS = "ABCDEFGH"
ROUNDS = 4
SENT_IN_A_ROUND = 25
FAULTY = 0.06
"""Part of the calls that go unanswered."""
broker = broker_fixture(
    Topic("orders", tuple(Subscription(n, forward=f"orders.{n}") for n in NAMES), lock=10, dedup=600),
    *(
        Queue(name, lock=10, max_delivery=10, dedup=600)
        for name in ("mails", *(f"orders.{n}" for n in NAMES))
    ),
)


class Unanswering(Boundary):
    """Leaves some of the calls unanswered, carried out or not, in an order of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.calm = False

    def cross(self, method: str, carry_out: Callable[[], Any], *unknown: Any) -> Any:
        if not self.calm and self.random.random() < FAULTY:
            self.next(method, self.random.choice((Fault.LOST_REQUEST, Fault.LOST_REPLY)))
        return super().cross(method, carry_out, *unknown)


class Sender:
    """The real sender, some of whose sends go unanswered."""

    def __init__(self, sender: Any, boundary: Unanswering) -> None:
        self._sender, self._boundary = sender, boundary

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        self._boundary.cross("send", lambda: self._sender.send(entity, messages), TransportError)

    def close(self) -> None:
        self._sender.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_every_message_is_an_effect_or_a_dead_letter(
    settings: Settings, broker: Broker, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Keys are shared, bodies corrected and sent twice, dead letters replayed, and nothing is lost or done twice."""
    caplog.set_level(logging.CRITICAL, "runonce")
    chance, boundary = random.Random(seed), Unanswering(seed)
    settings = replace(settings, claim_lease=5, shutdown_timeout=0.5)
    transport = ServiceBusTransport(ServiceBusConnection(broker.connection_string))
    real, stores = transport.sender(), azure_stores(settings)

    hung: list[float] = []

    def body(message: Message) -> None:
        if message.json["bad"]:
            raise PermanentError("no such customer")
        if not boundary.calm:
            _go_wrong(chance, hung)
        message.enqueue(mail, {"to": f"{message.handler}/{message.key}/{message.json['n']}"})
        message.commit({f"took-{message.json['n']}": {"n": message.json["n"]}})

    mail = handling(lambda m: m.commit({"sent": {"n": 1}}), queue="mails", name="mail", key="to")
    options: dict[str, Any] = {"retries": 3, "retry_delay": 0.2, "max_runtime": 1}
    options |= {"lock": "customer:{id}", "lock_wait": 2}
    handlers = [handling(body, queue=None, topic="orders", subscription=n, name=n, **options) for n in NAMES]

    def consume(one: Handler, max_wait: float) -> int:
        clock = SystemClock()
        sender = Sender(real, boundary)
        host = Deliverer(boundary.around(stores), sender, settings, clock, host=one.name)
        return Consumer(host, transport, one).run(max_wait=max_wait)

    def consume_all(max_wait: float) -> None:
        both = [in_thread(lambda one=one: consume(one, max_wait)) for one in (*handlers, mail)]  # type: ignore[misc]
        for ended in both:
            ended.result(120)

    registry = Registry(stores.claims, settings.namespace, SystemClock(), "operator")
    sent: dict[bytes, tuple[str, int]] = {}
    for _ in range(ROUNDS):
        real.send("orders", _some(chance, handlers[0], sent))
        consume_all(1.0)
        for one in handlers:
            _replay_some(transport, registry, one, chance)
    boundary.calm = True
    consume_all(12.0)  # longer than a claim that was left, its message's lock, and a lock that was
    told: list[str] = []
    for one in handlers:
        rows = read_effects(stores.claims, settings.namespace, one.name)
        effects = [(str(row["key"]), int(row["n"])) for row in rows]
        told += [f"{one.name}/{key}/{n}" for key, n in effects]
        assert len({key for key, _ in effects}) == len(effects) > 0, effects
        dead = _dead_bodies(transport, one)
        lost = [which for it, which in sent.items() if which not in effects and it not in dead]
        assert lost == [], (one.name, effects)
        assert sum(broker.counts(one.queue).values()) == 0
    consume(mail, 2.0)
    mails = [str(row["key"]) for row in read_effects(stores.claims, settings.namespace, mail.name)]
    assert sorted(mails) == sorted(told)
    assert _dead_bodies(transport, mail) == set()
    assert hung, "none was given up"
    real.close()


def _go_wrong(chance: random.Random, hung: list[float]) -> None:
    """Raise now and then, and now and then hang for longer than anybody waits, and then go on."""
    if (drawn := chance.random()) < 0.2:
        raise ConnectionError("the provider hung up")
    if drawn < 0.25:
        hung.append(drawn)
        threading.Event().wait(3)


def _some(chance: random.Random, to: Handler, sent: dict[bytes, tuple[str, int]]) -> list[Outgoing]:
    """Messages of a few keys: again, corrected, or new; `sent` has key and number of each body."""
    messages = []
    for _ in range(SENT_IN_A_ROUND):
        key, n = chance.choice(KEYS), chance.randint(1, 3)
        message = outgoing(to, {"id": key, "n": n, "bad": chance.random() < 0.3 and n < 3})
        sent[message.body] = (key, n)
        messages.append(message)
    return messages


def _dead_bodies(transport: ServiceBusTransport, one: Handler) -> set[bytes]:
    letters = transport.dead_letters(one)
    found = {letter.delivery.body for letter in letters.peek(1000)}
    letters.close()
    return found


def _replay_some(
    transport: ServiceBusTransport, registry: Registry, one: Handler, chance: random.Random
) -> None:
    letters, sender = transport.dead_letters(one), transport.sender()
    for dead in letters.take(20):
        try:
            if chance.random() < 0.5:
                replay(registry, sender, one, letters, dead)
                continue
        except StoreError:  # it is done by now
            pass
        letters.put_back(dead)
    letters.close()
    sender.close()
