"""Every boundary of a message's flow is a place to lose a request, lose a reply, or die: all of them are tried.

The flow of one message runs once to name its boundaries: the table's, the lock's and the broker's. Then, for each
of them and each fault, it runs in a fresh world up to there, and another host works the queue off to its end (in
the second part, with a fault of its own at each of *its* boundaries, and a third host after it). Whatever
happened, the outcome table of the handlers must hold.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from support.broker import BrokerInbox, BrokerSender, MemoryBroker
from support.messages import AFTER_CLAIM, handling, silence

from runonce.errors import PermanentError, StoreUnavailableError, TransportError
from runonce.execution.lease import Lease
from runonce.messages.deliver import Deliverer
from runonce.messages.effects import read_effects
from runonce.messages.rows import SHARDS, MessageRow, State, decode_message, partition
from runonce.messages.sending import outgoing
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing.faults import Boundary, Died, Fault, PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.errors import RunonceError
    from runonce.messages.definition import Handler
    from runonce.messages.message import Message

ROUNDS = 200
NAMESPACE = "explored"

Plan = tuple[int, Fault]


@pytest.fixture(autouse=True)
def quietly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread crosses a boundary at a time of its own, for they are counted; thousands of faults are not logged."""
    monkeypatch.setattr(Lease, "keep", lambda *_: None)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def mail_body(message: Message) -> None:
    """The follow-up's effect: a row."""
    message.commit({"mail": {"n": message.json["n"]}})


MAIL = handling(mail_body, name="mail", queue="mails", key=None)


@dataclass
class World:
    """One message, its broker and its stores, and what took effect outside of them."""

    flow: Flow
    window: float = 600.0
    outside: list[str] = field(default_factory=list)
    """Idempotency keys handed to something that keeps no record for us."""
    failed: bool = False
    in_doubt: int = 0
    """Deaths between an effect outside and the record of it: the one window that cannot be closed."""

    def __post_init__(self) -> None:
        self.clock = PassingClock()
        self.stores = memory_stores(self.clock)
        self.broker = MemoryBroker(self.clock, self.window)
        self.settings = Settings(NAMESPACE, StorageConnection("UseDevelopmentStorage=true"))
        self.handler = self.flow.handler(self)
        self.broker.put(self.handler.queue, [outgoing(self.handler, {"id": "A-17"})])

    def host(self, name: str, plan: Plan | None = None, boundary: Boundary | None = None) -> Boundary:
        """A host that works the queues off until they are empty, or dies before."""
        boundary = boundary or Boundary()
        if plan is not None:
            boundary.at(*plan)
        sender = BrokerSender(self.broker, boundary)
        deliverer = Deliverer(boundary.around(self.stores), sender, self.settings, self.clock, host=name)
        silence(deliverer)
        before = len(self.outside)
        with contextlib.suppress(Died):
            self._work(deliverer, boundary)
        if boundary.dead and len(self.outside) > before and self.row.state is not State.DONE:
            self.in_doubt += 1
        return boundary

    def _work(self, deliverer: Deliverer, boundary: Boundary) -> None:
        inboxes = [(one, BrokerInbox(self.broker, boundary, one)) for one in (self.handler, MAIL)]
        for _, (one, inbox) in zip(range(ROUNDS), itertools.cycle(inboxes), strict=False):
            if self.broker.is_empty:
                return
            try:
                for received in inbox.receive(1, 0):
                    inbox.settle(received, deliverer.deliver(one, received.delivery))
            except TransportError:
                pass
            if not any(m.visible_at <= self.clock.elapsed() for m in self.waiting):
                self.clock.advance(5)

    @property
    def waiting(self) -> list[Any]:
        """Messages not settled yet."""
        return [message for messages in self.broker.waiting.values() for message in messages]

    @property
    def row(self) -> MessageRow:
        """The message's claim; a fresh one when there is none."""
        rows = [row for row in self._rows(self.handler) if row.key == "A-17"]
        return rows[0] if rows else MessageRow(self.handler.name, self.handler.entity, "A-17")

    def _rows(self, one: Handler) -> Iterator[MessageRow]:
        for shard in range(SHARDS):
            for row in self.stores.claims.scan(partition(NAMESPACE, one.name, shard), "claim:", "claim;"):
                yield decode_message(row)

    def rows_of(self, one: Handler) -> list[dict[str, Any]]:
        """The effects that were committed."""
        return list(read_effects(self.stores.claims, NAMESPACE, one.name))

    @property
    def states(self) -> list[str]:
        """Of every claim."""
        return [str(row.state) for one in (self.handler, MAIL) for row in self._rows(one)]

    def settled(self) -> None:
        """What holds whatever happened: every message is settled, and follow-ups arrived once by their ids."""
        assert self.waiting == []
        mails = [message.message_id for entity, message in self.broker.sent if entity == "mails"]
        own = {message_id.partition("~")[0] for message_id in mails}
        assert len(own) <= 1, "a follow-up has one id however often it is sent"
        assert len(self.rows_of(MAIL)) == (1 if own else 0)
        assert "claimed" not in self.states
        assert "released" not in self.states


@dataclass(frozen=True)
class Flow:
    """One kind of handler, and what must hold of it in the end."""

    name: str
    body: Callable[[World, Message], None]
    judge: Callable[[World], None]
    options: Callable[[World], dict[str, Any]] = lambda _: {}

    def handler(self, world: World) -> Handler:
        """The handler, in a world."""

        def handle(message: Message) -> None:
            self.body(world, message)

        return handling(handle, retries=3, **self.options(world))


def commits(_: World, message: Message) -> None:
    message.enqueue(MAIL, {"n": 1})
    message.commit({"invoice": {"attempt": message.attempt}})


def calls_out(world: World, message: Message) -> None:
    world.outside.append(message.idempotency_key)
    message.enqueue(MAIL, {"n": 1})


def calls_out_only(world: World, message: Message) -> None:
    world.outside.append(message.idempotency_key)


def fails_first(world: World, message: Message) -> None:
    if not world.failed:
        world.failed = True
        raise ValueError("the first time")
    calls_out(world, message)


def fails_for_good(_: World, message: Message) -> None:
    message.enqueue(MAIL, {"n": 1})
    raise PermanentError("no such customer")


def keeps_a_checkpoint(world: World, message: Message) -> None:
    if message.checkpoint.load() is None:
        message.checkpoint.save("half")
    calls_out(world, message)


def exactly_once(world: World) -> None:
    """Committed with the claim: one row, whatever happened, and one follow-up."""
    assert len(world.rows_of(world.handler)) == 1
    assert len(world.rows_of(MAIL)) == 1
    assert world.row.state is State.DONE
    assert world.broker.dead == []


def once_but_for_the_window(world: World) -> None:
    """Outside: once, and once more only for a death between the effect and its record; always with one key."""
    assert len(world.outside) == 1 + world.in_doubt
    assert len(set(world.outside)) == 1
    assert len(world.rows_of(MAIL)) == 1
    assert world.row.state is State.DONE
    assert world.broker.dead == []


def never_twice(world: World) -> None:
    """Held: at most once; done with its follow-up, or put aside as unknown where a person sees it."""
    assert len(world.outside) <= 1
    if world.row.state is State.DONE:
        assert len(world.outside) == 1
        assert len(world.rows_of(MAIL)) == 1
        assert world.broker.dead == []
    else:
        assert world.row.state is State.UNKNOWN
        assert {reason for _, reason, _ in world.broker.dead} == {"Unknown"}


def once_by_asking(world: World) -> None:
    """Held with a hook that can find out: exactly once, and never unknown."""
    assert len(world.outside) == 1
    assert world.row.state is State.DONE
    assert world.broker.dead == []


def put_aside(world: World) -> None:
    """Failed for good: put aside with its reason, without follow-ups; a copy that was in the queue beside it, too."""
    assert world.row.state is State.FAILED
    assert {reason for _, reason, _ in world.broker.dead} == {"Failed"}
    assert all("no such customer" in description for _, _, description in world.broker.dead)
    assert world.rows_of(MAIL) == []


def asking(world: World) -> dict[str, Any]:
    """Hold, and find out by the idempotency key, as one would ask a payment provider."""
    return {"on_abandoned": "hold", "reconcile": lambda m: m.idempotency_key in world.outside}


FLOWS = [
    Flow("commits", commits, exactly_once),
    Flow("calls out", calls_out, once_but_for_the_window),
    Flow("holds", calls_out, never_twice, lambda _: {"on_abandoned": "hold"}),
    Flow("asks", calls_out_only, once_by_asking, asking),
    Flow("fails first", fails_first, once_but_for_the_window),
    Flow("fails for good", fails_for_good, put_aside),
    Flow("locks", calls_out, once_but_for_the_window, lambda _: {"lock": "customer:{id}", "lock_wait": 1}),
    Flow("keeps a checkpoint", keeps_a_checkpoint, once_but_for_the_window),
]
BY_NAME = {flow.name: flow for flow in FLOWS}


def explored(flow: Flow, *plans: Plan, window: float = 600.0) -> tuple[World, list[Boundary]]:
    """Hosts with these faults, one after the other, and a healthy one at last."""
    world = World(flow, window)
    boundaries = [world.host(f"host-{n}", plan) for n, plan in enumerate((*plans, None))]
    world.settled()
    flow.judge(world)
    return world, boundaries


def boundaries_of(flow: Flow) -> list[str]:
    """The boundaries that the flow crosses when nothing goes wrong."""
    return explored(flow)[1][0].calls


EXPECTED = {
    "commits": ["receive", "commit", "commit", "send", "complete", "receive", "commit", "commit", "complete"],
    "fails for good": ["receive", "commit", "commit", "dead-letter"],
    "holds": ["receive", "commit", "commit", "send", "complete", "receive", "commit", "commit", "complete"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_flow_has_the_boundaries_it_should(name: str) -> None:
    """The explorer sees each call to table and broker: two writes for a first delivery, and one for each settlement."""
    assert boundaries_of(BY_NAME[name]) == EXPECTED[name]


@pytest.mark.parametrize("window", [600.0, 0.0], ids=["duplicates dropped", "duplicates delivered"])
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_fault_at_every_boundary(flow: Flow, fault: Fault, window: float) -> None:
    """One fault, at each boundary in turn, leaves what the outcome table says, with and without duplicate detection."""
    for call, name in enumerate(boundaries_of(flow), 1):
        try:
            explored(flow, (call, fault), window=window)
        except AssertionError as error:
            error.add_note(f"{fault} at call {call}, {name}")
            raise


@pytest.mark.parametrize("second", list(Fault))
@pytest.mark.parametrize("first", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.LOST_REPLY])
@pytest.mark.parametrize("name", ["commits", "calls out", "holds", "fails for good"])
def test_a_fault_of_the_next_host_as_well(name: str, first: Fault, second: Fault) -> None:
    """A second host that has a fault of its own, at each of its boundaries, changes nothing of that."""
    flow = BY_NAME[name]
    for call in range(1, len(boundaries_of(flow)) + 1):
        theirs = explored(flow, (call, first))[1][1].calls
        for then in range(1, len(theirs) + 1):
            try:
                explored(flow, (call, first), (then, second))
            except AssertionError as error:
                error.add_note(f"{first} at call {call}, then {second} at call {then}, {theirs[then - 1]}")
                raise


def test_the_window_is_one_boundary_wide() -> None:
    """An effect outside repeats for a death at one boundary only: before the record of it is written."""
    flow = BY_NAME["calls out"]
    repeated = [
        (call, name, fault)
        for call, name in enumerate(boundaries_of(flow), 1)
        for fault in Fault
        if len(explored(flow, (call, fault))[0].outside) > 1
    ]
    assert repeated == [(3, "commit", Fault.DEATH_BEFORE)]


class Pausing(Boundary):
    """A host that is paused at one of its calls, before it is carried out or after, while another one works."""

    def __init__(self, call: int, meanwhile: Callable[[], object], *, after: bool) -> None:
        super().__init__()
        self._pause_at = call
        self._meanwhile = meanwhile
        self._after = after

    def cross(
        self, method: str, carry_out: Callable[[], Any], unknown: type[RunonceError] = StoreUnavailableError
    ) -> Any:
        """One call, with the pause if it is the one."""
        now = len(self.calls) + 1 == self._pause_at

        def paused() -> Any:
            if now and not self._after:
                self._meanwhile()
            answer = carry_out()
            if now and self._after:
                self._meanwhile()
            return answer

        return super().cross(method, paused, unknown)


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_pause_at_every_boundary(flow: Flow, *, after: bool) -> None:
    """A host that is paused at a boundary until another has done all the work wakes, and changes nothing of it."""
    for call, name in enumerate(boundaries_of(flow), 1):
        world = World(flow)

        def meanwhile(world: World = world) -> None:
            waiting = world.row.state is State.CLAIMED and bool(world.outside)
            world.clock.advance(AFTER_CLAIM)
            world.host("heir")
            world.in_doubt += waiting and len(world.outside) > 1

        world.host("paused", boundary=Pausing(call, meanwhile, after=after))
        world.host("last")
        try:
            world.settled()
            flow.judge(world)
        except AssertionError as error:
            error.add_note(f"paused at call {call}, {name}")
            raise


def test_an_outage_at_every_boundary() -> None:
    """When every request is lost for a while, from each boundary on, nothing is lost and nothing put aside."""
    for flow in (BY_NAME["commits"], BY_NAME["calls out"]):
        for call in range(1, len(boundaries_of(flow)) + 1):
            world = World(flow)
            boundary = Boundary()
            for n in range(call, call + 12):
                boundary.at(n, Fault.LOST_REQUEST)
            sender = BrokerSender(world.broker, boundary)
            deliverer = Deliverer(
                boundary.around(world.stores), sender, world.settings, world.clock, host="host"
            )
            silence(deliverer)
            world._work(deliverer, boundary)
            world.settled()
            flow.judge(world)
