"""What `crash_everywhere` runs: a fresh world in which hosts die at a call, and another goes on as hosts do."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from runonce.client import sending_by
from runonce.errors import TransportError
from runonce.execution.spread import evenly
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.heartbeat import Heartbeats
from runonce.runs.recovery import recover
from runonce.runs.requests import ASK_AGAIN
from runonce.runs.rows import Outcome, key_range
from runonce.runs.table import read_job, read_run
from runonce.schedules.schedule import Schedule
from runonce.testing.faults import Boundary, Died, PassingClock
from runonce.testing.workbench import DEFAULT_START, Workbench, first_delivery, instant
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.deliver import Deliverer
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher
    from runonce.transports.protocols import Delivery, Outgoing
    from runonce.transports.settlement import Settlement

ROUNDS = 20
"""Recovery ticks, each after twice the time of the one before, or deliveries, until a world counts as stuck."""
LONGEST_ROUND = 10
"""From this tick on they are equally far apart: a day and a half."""
SHOWN = 60
"""Characters of a message's body in its effect's name."""
COMPLETED = "completed"


class Marks:
    """What takes effect where the toolkit cannot see it: put it in the place of the call that does it.

    Called with the effect's name, such as "charge 1001", it notes that the effect took place once more.
    """

    def __init__(self) -> None:
        self.taken: list[str] = []
        """The effects of the world that was looked at last, in order."""
        self.host = Boundary()
        """Of the process that runs now."""

    def __call__(self, effect: str) -> None:
        """Note an effect; in a process that has died nothing happens any more."""
        if not self.host.dead:
            self.taken.append(effect)
            self.host.noted.add(len(self.host.calls))


@dataclass(slots=True)
class Seen:
    """What there was in the end of a world."""

    outcome: str
    error: BaseException | None
    """What a job's first attempt raised."""
    effects: Counter[str] = field(default_factory=Counter)
    contents: dict[str, Any] = field(default_factory=dict)
    """Of blobs, rows and ledger entries, by effect."""

    def add(self, effect: str, content: Any) -> None:
        """An effect that cannot take place twice, with its content."""
        self.effects[effect] += 1
        self.contents[effect] = content


class Scene(Protocol):
    """Something to be killed: played once for each death, in a world of its own."""

    def play(self, *hosts: Boundary) -> Seen:
        """Run it on a host with the first storage calls; when that one dies, on one with the next, or a healthy one."""
        ...


class World:
    """Fresh stores with their clock, and hosts whose storage calls are counted."""

    def __init__(self, prepare: Callable[[Workbench], object], marks: Marks, start: datetime) -> None:
        self.clock = PassingClock(start)
        self.bench = Workbench(clock=self.clock)
        prepare(self.bench)
        marks.taken = []
        self._marks = marks
        self._written: dict[str, set[bytes]] = {}
        self._stores = replace(self.bench.stores, blobs=_Noted(self.bench.stores.blobs, self._written))

    def host(self, name: str, calls: Boundary, found: Discovered | None = None) -> Runtime:
        """Another process on these stores."""
        return Runtime(
            self.bench.settings,
            found=found or Discovered({}),
            stores=calls.around(self._stores, _called),
            clock=self.clock,
            sender=_Crossing(self.bench.sender, calls),
            host=name,
        )

    @contextlib.contextmanager
    def run_by(self, calls: Boundary) -> Iterator[None]:
        """The process with these calls runs: its effects take place, also what it sends by `enqueue`, until it dies."""
        self._marks.host = calls
        with evenly(), sending_by(_Crossing(self.bench.sender, calls)), contextlib.suppress(Died):
            yield

    def seen(self, outcome: str, error: BaseException | None = None) -> Seen:
        """What there is."""
        seen = Seen(outcome, error, Counter(self._marks.taken))
        prefix = f"{self.bench.settings.namespace}/"
        for path, contents in self._written.items():
            name = path.removeprefix(prefix)
            seen.effects[f"blob {name}"] = len(contents)
            seen.contents[f"blob {name}"] = self.bench.blobs().get(name)
        ids: dict[str, set[str]] = {}
        for sent in self.bench.sent:
            body = sent.body.decode("utf-8", "replace")[:SHOWN]
            ids.setdefault(f"message to {sent.queue} {body}", set()).add(sent.message_id)
        seen.effects.update({effect: len(found) for effect, found in ids.items()})
        return seen


class JobScene:
    """One fire time of a scheduled job, whose other fire times are a year away."""

    def __init__(
        self,
        job: ScheduledJob,
        at: datetime | str | None,
        prepare: Callable[[Workbench], object],
        marks: Marks,
    ) -> None:
        when = job.schedule.next(DEFAULT_START) if at is None else instant(job, at)
        if when is None:
            raise ValueError(
                f"Job {job.name}: its schedule {job.schedule.expression!r} never comes; give at=."
            )
        self._fire_time = when.replace(microsecond=0)
        once = Schedule.parse(f"{self._fire_time:%S %M %H %d %m} *")
        self._job = replace(job, schedule=once)
        self._prepare = prepare
        self._marks = marks

    def play(self, *hosts: Boundary) -> Seen:
        """A timer ticks; other replicas recover what is left of it."""
        second = timedelta(seconds=1)
        first, *others = hosts
        world = World(self._prepare, self._marks, self._fire_time - second)
        looks = self._dispatcher(world, "onlooker", Boundary())
        recover(looks)  # the job is known: a fire time of it can be missed
        world.clock.advance(second.total_seconds())
        host, error = self._dispatcher(world, "first", first), None
        with world.run_by(first):
            error = host.execute(self._job, self._fire_time, by="timer").error
        self._end_threads(host)
        for calls in [*others, Boundary()]:
            heir = self._dispatcher(world, "heir", calls)
            with world.run_by(calls):
                self._recover(world, heir, looks)
            self._end_threads(heir)
        return self._seen(world, looks, error)

    def _recover(self, world: World, heir: Dispatcher, looks: Dispatcher) -> None:
        for n in range(ROUNDS):
            if self._is_over(looks):
                break
            world.clock.advance(ASK_AGAIN.total_seconds() * 2 ** min(n, LONGEST_ROUND) + 1)
            recover(heir)
            while (item := heir.stores.requests.receive(visibility=30)) is not None:
                heir.stores.requests.delete(item)
                heir.handle_request(item.body)

    @staticmethod
    def _end_threads(host: Dispatcher) -> None:
        for started in host.running:
            started.over.set()
            with contextlib.suppress(Died):
                started.lease.release()

    def _dispatcher(self, world: World, name: str, calls: Boundary) -> Dispatcher:
        dispatcher = world.host(name, calls, Discovered({self._job.name: self._job})).dispatcher
        dispatcher.jobs = {self._job.name: self._job}  # without the toolkit's own
        return dispatcher

    def _is_over(self, looks: Dispatcher) -> bool:
        found = read_run(looks.registry, self._job.name, self._fire_time)
        waiting = read_job(looks.registry, self._job.name)[0].pending
        return found is not None and found[0].outcome.is_final and self._fire_time not in waiting

    def _seen(self, world: World, looks: Dispatcher, error: BaseException | None) -> Seen:
        found = read_run(looks.registry, self._job.name, self._fire_time)
        outcome = "not run"
        if found is not None:
            outcome = str(found[0].outcome) + (f" ({found[0].reason})" if found[0].reason else "")
        seen = world.seen(COMPLETED if outcome == Outcome.SUCCEEDED else outcome, error)
        first, last = key_range("entry", self._job.name)
        for row in looks.registry.table.scan(looks.registry.namespace, first, last):
            seen.add(f"ledger {row.values['key']}", dict(row.values))
        return seen


class MessageScene:
    """One message of a handler, which its broker delivers until it is settled."""

    def __init__(
        self, handler: Handler, body: Any, prepare: Callable[[Workbench], object], marks: Marks
    ) -> None:
        self._handler = handler
        self._body = body
        self._prepare = prepare
        self._marks = marks

    def play(self, *hosts: Boundary) -> Seen:
        """A host handles the message; when it dies another is given it, once the claim has ended."""
        world = World(self._prepare, self._marks, DEFAULT_START)
        arrival = _Arrival(first_delivery(self._handler, self._body, world.clock.now()))
        settings, (calls, *others) = world.bench.settings, hosts
        host = self._deliverer(world, "first", calls)
        for _ in range(ROUNDS):
            with world.run_by(calls):
                settlement = host.deliver(self._handler, arrival.delivery)
                calls.cross(SETTLING[type(settlement)], arrival.settle(settlement))
            if calls.dead:
                for working in host.running:  # its threads end with it
                    if working.lock is not None:
                        with contextlib.suppress(Died):
                            working.lock.release()
                calls = others.pop(0) if others else Boundary()
                host = self._deliverer(world, "heir", calls)
                arrival.come_again()
                world.clock.advance(max(settings.claim_lease, settings.lease.duration) + 3)
            if arrival.is_over:
                break
            world.clock.advance(arrival.pause)
        seen = world.seen(arrival.outcome)
        for row in world.bench.effects(self._handler):
            seen.add(f"row {row['name']}", row)
        return seen

    def _deliverer(self, world: World, name: str, calls: Boundary) -> Deliverer:
        deliverer = world.host(name, calls).deliverer
        deliverer.heartbeats = _Silent(world.clock)
        return deliverer


SETTLING = {Complete: "complete", Reschedule: "reschedule", DeadLetter: "dead-letter"}


class _Arrival:
    """A message at its broker."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.outcome = "not settled"
        self.is_over = False
        self.pause = 0.0
        self._came_back = False

    def settle(self, settlement: Settlement) -> Callable[[], None]:
        """What the broker does when it hears of it."""

        def carry_out() -> None:
            if isinstance(settlement, Reschedule):
                self.pause = settlement.delay
                self.delivery = replace(
                    self.delivery, delivery_count=1, reschedules=self.delivery.reschedules + 1
                )
                self._came_back = True
                return
            self.is_over = True
            self.outcome = (
                COMPLETED if isinstance(settlement, Complete) else f"dead-lettered ({settlement.description})"
            )

        self._came_back = False
        return carry_out

    def come_again(self) -> None:
        """Whoever had it is gone: it is redelivered, unless it came back another way."""
        if not self._came_back:
            self.delivery = replace(self.delivery, delivery_count=self.delivery.delivery_count + 1)


class _Silent(Heartbeats):
    """Gives no signs of life by itself, so that storage calls come in the same order in every world."""

    def watch(self, *_: object) -> None:
        """Do nothing."""


class _Crossing:
    """A sender whose sends are calls at which its process may die."""

    def __init__(self, sender: Any, calls: Boundary) -> None:
        self._sender = sender
        self._calls = calls

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Send."""
        self._calls.cross(f"send to {entity}", lambda: self._sender.send(entity, messages), TransportError)

    def close(self) -> None:
        """Nothing is open."""


class _Noted:
    """Blobs that keep every content each of them had."""

    def __init__(self, blobs: Any, written: dict[str, set[bytes]]) -> None:
        self._blobs = blobs
        self._written = written

    def __getattr__(self, method: str) -> Any:
        return getattr(self._blobs, method)

    def write(self, name: str, data: bytes, *rest: Any, **options: Any) -> str:
        """Write, and note it."""
        etag: str = self._blobs.write(name, data, *rest, **options)
        self._written.setdefault(name, set()).add(data)
        return etag


def _called(store: str, method: str, arguments: tuple[Any, ...]) -> str:
    """What a call is called in a report; only blobs have names that are the job's own."""
    return f"blobs.{method} {arguments[0].partition('/')[2]}" if store == "blobs" else f"{store}.{method}"
