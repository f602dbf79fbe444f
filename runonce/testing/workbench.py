"""A workbench for jobs and handlers: stores in memory, a clock that is moved by hand, and what was sent."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from runonce.client import sending_by
from runonce.errors import InputError, PermanentError
from runonce.execution.body import Steps
from runonce.execution.spread import evenly
from runonce.hosts.calls import calling_by
from runonce.hosts.discover import Discovered
from runonce.hosts.runtime import Runtime
from runonce.messages.batch import deliver_batch
from runonce.messages.calls import Calls
from runonce.messages.definition import Handler
from runonce.messages.effects import read_effects
from runonce.messages.sending import body_bytes, outgoing
from runonce.runs import recovery
from runonce.schedules.zones import zone
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.transports.ids import fingerprint
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from runonce.messages.deliver import Deliverer
    from runonce.runs.definition import ScheduledJob
    from runonce.runs.dispatch import Dispatcher, Started
    from runonce.runs.result import Result
    from runonce.stores.protocols import Value
    from runonce.transports.protocols import Outgoing
    from runonce.transports.settlement import Settlement

DEFAULT_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A clock that stands still until it is told to go on; wall and elapsed time move together."""

    def __init__(self, start: datetime = DEFAULT_START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._moved = threading.Condition()

    def now(self) -> datetime:
        """The wall clock."""
        return self._start + timedelta(seconds=self._elapsed)

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever waits for it wakes."""
        with self._moved:
            self._elapsed += seconds
            self._moved.notify_all()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the clock has advanced so far."""
        until = self._elapsed + seconds
        with self._moved:
            while not event.is_set() and self._elapsed < until:
                # The event has no way to wake this condition, so it is looked at now and then.
                self._moved.wait(0.005)
        return event.is_set()


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent."""

    queue: str
    """The queue or topic it went to."""
    message_id: str
    body: bytes
    at: datetime | None
    """When it shall be there; None is at once."""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class MemorySender:
    """Keeps what is sent, in order."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Note the messages."""
        self.sent += [Sent(entity, m.message_id, m.body, m.at) for m in messages]

    def close(self) -> None:
        """Nothing is open."""


class Workbench:
    """A dispatcher and a deliverer over stores in memory, with the clock and the namespace of a test."""

    def __init__(self, *jobs: ScheduledJob | Handler, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.stores = memory_stores(self.clock)
        self.settings = Settings("test", StorageConnection("UseDevelopmentStorage=true"))
        self.sender = MemorySender()
        self._runtime = Runtime(
            self.settings,
            found=Discovered(
                {job.name: job for job in jobs if not isinstance(job, Handler)},
                {one.name: one for one in jobs if isinstance(one, Handler)},
            ),
            stores=self.stores,
            clock=self.clock,
            sender=self.sender,
            host="test",
        )
        self.stop = self._runtime.stop
        self._calls = Calls(self._runtime.claims, self.settings.claim_lease)

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs scheduled jobs, as a host would."""
        return self._runtime.dispatcher

    @property
    def deliverer(self) -> Deliverer:
        """What handles messages, as a host would."""
        return self._runtime.deliverer

    def run(self, job: ScheduledJob, at: datetime | str) -> Result:
        """Run one fire time as its timer would; the clock goes there first.

        Args:
            job: The job.
            at: A datetime, or ISO 8601 text; without an offset it is meant in the job's own time zone.
        """
        fire_time = self._go_to(job, at)
        with self.inside():
            return self.dispatcher.execute(job, fire_time, by="timer")

    def kill(self, job: ScheduledJob, at: datetime | str) -> None:
        """Run one fire time on a host that dies as the function ends: it has done all it does, and nobody noted that.

        The clock goes on until the dead host's lease has ended, so that `recover` takes the run over.

        Raises:
            InputError: It did not begin, for the reason that `run` gives.
        """
        fire_time = self._go_to(job, at)
        dead = Runtime(
            self.settings,
            found=self._runtime.found,
            stores=self.stores,
            clock=self.clock,
            sender=self.sender,
            host="dead",
        )

        def die(begun: Started, _returned: object, _raised: BaseException | None) -> Result | None:
            begun.lease.renew_until(self.clock.elapsed())
            return None

        with self.inside():
            refused = Steps(lambda: dead.dispatcher.begin(job, fire_time, by="timer"), die).run()
        if refused is not None:
            raise InputError(f"Job {job.name}, fire time {fire_time}: it did not begin: {refused.reason}")
        self.clock.advance(self.settings.lease.duration + 1)

    def recover(self) -> list[Result]:
        """Do what hosts do each minute: run what is unfinished and due, until nothing more is; what came of each."""
        results = []
        with self.inside():
            recovery.recover(self.dispatcher)
            while (item := self.stores.requests.receive(visibility=30)) is not None:
                self.stores.requests.delete(item)
                if (result := self.dispatcher.handle_request(item.body)) is not None:
                    results.append(result)
        return results

    def _go_to(self, job: ScheduledJob, at: datetime | str) -> datetime:
        self._runtime.jobs[job.name] = job
        fire_time = instant(job, at)
        if fire_time > self.clock.now():
            self.clock.advance((fire_time - self.clock.now()).total_seconds())
        return fire_time

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block, in all threads, `enqueue` sends to this bench and calls under `@once` are claimed in it.

        Jobs and handlers that run on the bench are inside anyway.
        """
        with evenly(), sending_by(self.sender), calling_by(self._calls):  # no delay is random
            yield

    def deliver(
        self,
        handler: Handler,
        body: Any,
        *,
        message_id: str | None = None,
        delivery_count: int = 1,
        reschedules: int = 0,
        correlation_id: str = "",
        properties: Mapping[str, Any] | None = None,
    ) -> Settlement:
        """Deliver a message to a handler, sync or async, and say what its host would do to it.

        The same body delivered again is the same message. What the handler raises is not raised here: it
        becomes `Reschedule` while there are retries left (let the clock go on by its `delay` before the next
        delivery), and `DeadLetter` after that or for a `PermanentError`.

        Args:
            handler: Whom it is for; what `@handler` made of the function.
            body: bytes and text as they are; anything else as JSON.
            message_id: Default: as `enqueue` makes it, from the handler's key; of a handler without one, from the body.
            delivery_count: 1 on the first delivery. A host that says 2 has delivered the message before.
            reschedules: How often the toolkit sent the message back with a delay.
            correlation_id: As its sender set it.
            properties: Application properties.

        Returns:
            `Complete`, with what the handler returned; `Reschedule`; or `DeadLetter`.
        """
        delivery = replace(
            first_delivery(handler, body, self.clock.now(), message_id),
            delivery_count=delivery_count,
            correlation_id=correlation_id,
            properties=properties or {},
            reschedules=reschedules,
        )
        with self.inside():
            return self.deliverer.deliver(handler, delivery)

    def deliver_batch(self, handler: Handler, bodies: Sequence[Any]) -> list[Settlement]:
        """Deliver messages together, for the first time each, to a handler with `batch=`; what their host would do.

        One that comes again comes alone, as by `deliver`.
        """
        settled: dict[int, Settlement] = {}
        now = self.clock.now()
        with self.inside():
            deliver_batch(
                self.deliverer,
                handler,
                [first_delivery(handler, body, now) for body in bodies],
                settled.setdefault,  # type: ignore[arg-type]
            )
        return [settled[number] for number in range(len(bodies))]

    @property
    def sent(self) -> list[Sent]:
        """Every message sent so far: follow-ups, and what jobs and handlers sent by `enqueue`."""
        return self.sender.sent

    def effects(self, handler: Handler) -> list[dict[str, Value]]:
        """Every row a handler wrote with `message.commit`."""
        return list(read_effects(self.stores.claims, self.settings.namespace, handler.name))

    def put(self, name: str, data: bytes | str) -> None:
        """Put a blob for a job to read."""
        content = data.encode() if isinstance(data, str) else data
        path = f"{self.settings.namespace}/{name}"
        current = self.stores.blobs.head(path)
        etag = current.etag if current else None
        self.stores.blobs.write(path, content, {}, etag=etag, content_type="application/octet-stream")

    def blobs(self) -> dict[str, bytes]:
        """Every blob by name."""
        prefix = f"{self.settings.namespace}/"
        items = {name: self.stores.blobs.read(name) for name in self.stores.blobs.names(prefix)}
        return {name.removeprefix(prefix): item.data for name, item in items.items() if item is not None}


def instant(job: ScheduledJob, at: datetime | str) -> datetime:
    """A datetime or ISO 8601 text in UTC; without an offset it is meant in the job's own time zone."""
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone(job.schedule.time_zone))
    return when.astimezone(UTC)


def first_delivery(handler: Handler, body: Any, now: datetime, message_id: str | None = None) -> Delivery:
    """A message as it first arrives; without an id, as `enqueue` or the body gives it one."""
    data, known = body_bytes(handler.name, body), ""
    if message_id is None:
        message_id, known = _ids(handler, data)
    return Delivery(body=data, message_id=message_id, delivery_count=1, enqueued_at=now, sent_as=known)


def _ids(handler: Handler, body: bytes) -> tuple[str, str]:
    """The broker's id of a message and the one it is known by."""
    if handler.key is None:
        return fingerprint(body), ""
    try:
        sent = outgoing(handler, body)
    except PermanentError:  # without its key, which the handler is to refuse
        return str(uuid.uuid4()), ""
    return sent.message_id, sent.sent_as
