"""Messages in a simulated world: a topic with two subscriptions, their follow-ups, and the operator of dead letters."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from runonce.errors import PermanentError, StoreError, TransportError
from runonce.hosts.functions.in_hand import FIRST
from runonce.messages.consumer import Consumer
from runonce.messages.dead_letters import let_expire, may_have_happened, replay
from runonce.messages.definition import handler
from runonce.messages.deliver import Deliverer
from runonce.messages.lock import lock_path
from runonce.messages.sending import outgoing
from runonce.runs.presence import partition
from simulation.baton import Task, simulator
from simulation.broker import Broker, SimTransport
from simulation.message_checks import MessageChecks
from simulation.server import Server
from simulation.world import SimHost, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import Dead
    from simulation.baton import Waiting
    from simulation.case import Fault, MessageCase

TOPIC = "orders"


class MessageHost(SimHost):
    """A process of the toolkit: one consumer for each handler."""

    world: MessageWorld

    def __init__(self, world: MessageWorld, name: str, skew: float) -> None:
        super().__init__(world, name, skew)
        self.wire.awaited = world.awaited
        self.wire.before = lambda call, given: world.checks.sent(self, call, given)
        self.transport = world.way(world.broker, self.wire, self.clock, any_thread=world.case.any_thread)
        self.deliverer = Deliverer(
            self.wire.stores(world.server.stores),
            self.transport.sender(),
            world.settings,
            self.clock,
            host=name,
        )
        self.wire.stopping = self.deliverer.stop.event.waiting  # type: ignore[attr-defined]
        self._consuming: list[Task] = []

    @property
    def flow(self) -> Deliverer:
        return self.deliverer

    def start(self) -> None:
        self.world.note(self.name, f"starts, {self.clock.skew:+.0f} s")
        for one in self.world.handlers.values():
            consumer = Consumer(self.deliverer, self.transport, one)
            self._consuming.append(
                self.world.sim.spawn(consumer.run_for_ever, self, f"consumer of {one.name}")
            )

    def stop(self) -> None:
        self.world.note(self.name, "is told to stop")

        def leave() -> None:
            sim = simulator()
            give_up_at = sim.now + self.world.settings.shutdown_timeout
            self.deliverer.drain(self.world.settings.shutdown_timeout)
            for task in self._consuming:
                if not task.done and sim.now < give_up_at:
                    sim.wait(task.ended, give_up_at - sim.now)
            self.leaves()

        self.spawn(leave, "stop")


class MessageWorld(World["MessageCase", MessageHost]):
    """Everything of one case of messages."""

    checks: MessageChecks

    def __init__(self, case: MessageCase) -> None:
        checks = MessageChecks()
        super().__init__(case, checks)
        self.server = Server(self.clock, checks)
        billing = self._handler("billing", topic=TOPIC, key="order", lock="tenant:{tenant}")
        asks = (
            {"reconcile": lambda message: checks.has_effect(message.key)}
            if case.on_abandoned == "hold"
            else {}
        )
        shipping = self._handler("shipping", topic=TOPIC, key="order", **asks)
        mail = self._handler("mail", queue="mail", key="mail")
        self.handlers = {one.name: one for one in (billing, shipping, mail)}
        self.awaited: dict[str, Waiting] = {}
        """Who waits for a message, by queue."""
        topics = {TOPIC: (billing.queue, shipping.queue)}
        self.way: Callable[..., SimTransport] = SimTransport
        self.broker = Broker(self.clock, topics, case.window, shows=self._shows)
        if case.functions and case.storage:
            from simulation.storage import StorageQueues, StorageTransport  # noqa: PLC0415 - it builds on this module

            self.way = StorageTransport
            self.broker = StorageQueues(self.clock, topics, 0.0, lock=600.0, shows=self._shows)
        self.operator = MessageHost(self, "operator", 0.0)
        self.producer = MessageHost(self, "producer", 0.0)
        self.sent: dict[int, dict[bytes, None]] = {}
        """Bodies that the topic has taken, by order."""
        self.in_hand: dict[Task, Message] = {}
        """What a task is handling."""
        self.purged: set[tuple[str, bytes]] = set()
        """Handlers, and bodies that their operator has removed."""
        self._rng = random.Random(f"{case.seed} orders")

    def _handler(self, name: str, *, topic: str | None = None, **options: Any) -> Handler:
        case = self.case
        return handler(
            name=name,
            topic=topic,
            subscription=None if topic is None else name,
            retries=case.retries,
            retry_delay=5,
            concurrency=case.concurrency,
            max_runtime=30 + 6 * case.items * case.item_seconds,
            on_abandoned=case.on_abandoned,
            **options,
        )(_body)

    def _shows(self, queue: str, at: float) -> None:
        def look() -> None:
            if self.broker.waits(queue):
                self.sim.wake(self.awaited.get(queue, []))

        self.sim.at(at, look)

    def left_in_hand(self) -> set[str]:
        """Rows of what workers of a Functions app have in hand, where nobody has looked after those that are gone."""
        if not (self.case.functions and self.case.storage):
            return set()
        self.checks.checked["what a killed worker had is shown"] += 1
        rows = self.server.table.rows(partition(self.settings.namespace))
        theirs = {host.hand for host in self.alive()}  # type: ignore[attr-defined]
        return {key for key in rows if key.startswith(FIRST)} - theirs

    def make_host(self, name: str, skew: float) -> MessageHost:
        if not self.case.functions:
            return MessageHost(self, name, skew)
        from simulation.functions import FunctionsMessageHost  # noqa: PLC0415 - they build on this module
        from simulation.storage import StorageHost  # noqa: PLC0415

        return (StorageHost if self.case.storage else FunctionsMessageHost)(self, name, skew)

    @property
    def verbs(self) -> Mapping[str, Callable[[MessageWorld, Fault], None]]:
        return MESSAGE_VERBS

    @property
    def work(self) -> float:
        case = self.case
        return (case.items * case.item_seconds + 15.0) * case.orders

    def begin(self) -> None:
        at = 0.0
        for order in range(self.case.orders):
            at = min(
                at + self._rng.expovariate(1 / self.case.apart) if self.case.apart else at, self.case.lasts
            )
            self._order(order, at)

    def _order(self, number: int, at: float) -> None:
        """Send an order, perhaps more than once, perhaps first in a form that can have no effect."""
        case, rng = self.case, self._rng
        order: dict[str, int | None] = {"order": number, "tenant": number % case.tenants, "amount": 1}
        bodies = [(at, order)]
        if rng.random() < case.bad:
            bodies = [(at, order | {"amount": None}), (rng.uniform(at, case.lasts), order)]
        if rng.random() < case.twice:
            bodies += [(rng.uniform(at, case.lasts), bodies[0][1])] * rng.choice((1, 3))
        if rng.random() < case.reused:
            bodies.append((rng.uniform(at, case.lasts), order | {"amount": 2}))
        for when, body in bodies:
            self.sim.at(when, lambda body=body: self.producer.spawn(lambda: self._send(body), "order"))  # type: ignore[misc]

    def _send(self, order: dict[str, Any]) -> None:
        """As a producer does: again under the same id until it is taken."""
        message = outgoing(self.handlers["billing"], json.dumps(order))
        self.checks.tried(order["order"], message.body)
        while True:
            try:
                self.producer.transport.sender().send(TOPIC, [message])
            except TransportError:
                simulator().sleep(1.0)
            else:
                break
        self.sent.setdefault(order["order"], {})[message.body] = None

    def whole(self) -> None:
        self.producer.wire.cut, self.producer.wire.fault_rate = False, 0.0


def _body(message: Message) -> None:
    """A handler of a few items; one of each kind of effect."""
    sim = simulator()
    assert sim.task is not None  # noqa: S101 - bodies run in tasks
    host = sim.task.process
    assert isinstance(host, MessageHost)  # noqa: S101 - of hosts
    world, case = host.world, host.world.case
    who = f"{message.handler} {message.key} #{message.attempt}, token {message.fencing_token}"
    world.note(host.name, f"begins {who}")
    world.checks.begins(message, host)
    world.in_hand[sim.task] = message
    try:
        order = message.json
        if order.get("amount", 1) is None:
            raise PermanentError("it has no amount")  # noqa: TRY301 - a message that can have no effect
        for (item,) in message.batches(range(case.items), size=1):
            deaf = host.rng.random() < case.deaf
            sim.sleep(70.0 if deaf else host.rng.uniform(0.0, 2 * case.item_seconds))
            if host.wire.fault_rate and host.rng.random() < case.failing:
                raise ValueError("it fails")  # noqa: TRY301 - a handler that fails
            if message.handler == "billing":
                message.enqueue(world.handlers["mail"], {"mail": f"{order['order']}-{item}"})
        if message.handler == "billing":
            message.blobs.write(f"latest-{order['tenant']}", message.key)
        if message.handler == "shipping":
            message.commit({"shipped": {"order": order["order"]}})
    except BaseException as error:
        world.note(host.name, f"leaves {who}: {type(error).__name__}: {error}")
        raise
    finally:
        world.in_hand.pop(sim.task, None)
    world.note(host.name, f"returns from {who}")


# -- what its operator does -------------------------------------------------------------------------------------


def _each_dead(world: MessageWorld, fault: Fault, act: Callable[[Handler, Any, Dead], None]) -> None:
    """Act on some of the dead letters of one handler, or of each."""
    for one in list(world.handlers.values()) if fault.dice < 0.7 else [world.handlers["billing"]]:
        letters = world.operator.transport.dead_letters(one)
        for dead in letters.take(5):
            try:
                act(one, letters, dead)
            except (StoreError, TransportError) as error:
                world.note("operator", f"{one.name} {dead.delivery.message_id}: {error}")
                with suppress(TransportError):
                    letters.put_back(dead)


def _replay(world: MessageWorld, fault: Fault) -> None:
    deliverer, sender = world.operator.deliverer, world.operator.transport.sender()

    def act(one: Handler, letters: Any, dead: Dead) -> None:
        if fault.dice < 0.5 and may_have_happened(deliverer.registry, one, dead):
            letters.put_back(dead)
            return
        sent = replay(deliverer.registry, sender, one, letters, dead)
        world.note("operator", f"replays {one.name} {dead.delivery.body!r} as {sent}")

    _each_dead(world, fault, act)


def _purge(world: MessageWorld, fault: Fault) -> None:
    def act(one: Handler, letters: Any, dead: Dead) -> None:
        world.purged.add((one.name, dead.delivery.body))
        letters.remove(dead)
        let_expire(world.operator.deliverer.registry, one, dead)

    _each_dead(world, fault, act)


def _break_lock(world: MessageWorld, fault: Fault) -> None:
    name = f"tenant%3A{int(fault.dice * 100) % world.case.tenants}"
    world.operator.deliverer.stores.leases.break_lease(lock_path(world.settings.namespace, name))


def _lose_locks(world: MessageWorld, fault: Fault) -> None:  # noqa: ARG001 - one shape for all
    world.broker.lose_locks()


def _complete_nothing(world: MessageWorld, fault: Fault) -> None:
    host = world.alive()[int(fault.dice * 997) % len(world.alive())] if world.alive() else world.operator
    host.transport.gives_back = True
    world.sim.at(world.sim.now + fault.seconds, lambda: setattr(host.transport, "gives_back", False))


MESSAGE_VERBS: dict[str, Callable[[MessageWorld, Fault], None]] = {
    "replay dead letters": _replay,
    "purge dead letters": _purge,
    "break lock": _break_lock,
    "locks lost": _lose_locks,
    "completes nothing": _complete_nothing,
}
