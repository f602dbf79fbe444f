"""Metrics of runs and messages, as the SDK's reader in memory has them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from support.flows import AFTER_LEASE, at, die, replica, start
from support.messages import AFTER_CLAIM, begun, delivery, handling, host_of, silence

from runonce.errors import LeaseLost, PermanentError
from runonce.messages.sending import outgoing, send_all
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.testing import MemorySender, Workbench
from runonce.testing.faults import PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.telemetry import Recorded

    from runonce.runs.run import Run

T = at(3)


def nightly(body: Callable[[Run], Any] = lambda _: None) -> ScheduledJob:
    def call(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly")(call)


def bench_of(*jobs: ScheduledJob) -> Workbench:
    bench = Workbench(*jobs, clock=PassingClock())
    silence(bench.deliverer)
    bench.clock.advance(3 * 3600)
    return bench


def test_runs_are_counted_by_outcome_with_duration_and_lateness(recorded: Recorded) -> None:
    """A run that takes twenty seconds and began two seconds late, and one that fails."""
    errors: list[BaseException | None] = [None, PermanentError("no")]

    def body(_: Run) -> None:
        bench.clock.advance(20)
        if (error := errors.pop(0)) is not None:
            raise error

    job = nightly(body)
    bench = bench_of(job)
    bench.clock.advance(2)
    bench.dispatcher.tick(job)
    bench.clock.advance(24 * 3600 - 22)
    bench.dispatcher.tick(job)
    points = recorded.points()
    well = {"runonce.job": "nightly", "runonce.outcome": "succeeded"}
    failed = {
        "runonce.job": "nightly",
        "runonce.outcome": "failed",
        "error.type": "runonce.errors.PermanentError",
    }
    assert points["runonce.runs"] == [(well, 1), (failed, 1)]
    assert points["runonce.run.duration"] == [(well, 20.0), (failed, 20.0)]
    assert points["runonce.run.lateness"] == [({"runonce.job": "nightly"}, 2.0)]
    assert points["runonce.incidents"] == [({"runonce.name": "nightly", "runonce.kind": "failed"}, 1)]
    assert ({"runonce.name": "nightly", "runonce.outcome": "claimed"}, 2) in points["runonce.claims"]


def test_what_is_not_run_is_counted_by_why(recorded: Recorded) -> None:
    """A losing replica and a late one."""
    job = nightly()
    bench = bench_of(job)
    started = start(bench.dispatcher, job, T)
    other = replica(bench)
    other.execute(job, T, by="timer")
    bench.dispatcher.finish(started, None)
    other.execute(job, T, by="timer")
    assert recorded.points()["runonce.claims"] == [
        ({"runonce.name": "nightly", "runonce.outcome": "claimed"}, 1),
        ({"runonce.name": "nightly", "runonce.outcome": "held elsewhere"}, 1),
        ({"runonce.name": "nightly", "runonce.outcome": "turned away"}, 1),
    ]


def test_takeovers_and_lost_leases_are_there(recorded: Recorded) -> None:
    """Of runs and of messages."""

    def body(run: Run) -> None:
        run._stop.set(LeaseLost("gone"))
        run.check()

    job, one = nightly(body), handling()
    bench = bench_of(job)
    die(start(bench.dispatcher, job, T))
    bench.clock.advance(AFTER_LEASE)
    replica(bench).execute(job, T, by="request")
    begun(bench.deliverer, one)
    bench.clock.advance(AFTER_CLAIM)
    host_of(bench).deliver(one, delivery(count=2))
    points = recorded.points()
    assert points["runonce.lease.lost"] == [({"runonce.name": "nightly"}, 1)]
    assert points["runonce.takeover.duration"] == [
        ({"runonce.name": "nightly"}, AFTER_LEASE),
        ({"runonce.name": "send_invoice"}, AFTER_CLAIM),
    ]
    assert points["runonce.lease.renewal.lateness"] == [({"runonce.job": "nightly"}, 0.0)]


def test_messages_have_the_conventions_instruments(recorded: Recorded) -> None:
    """Sent, consumed, how long each took, and how old it was."""
    one = handling()
    bench = bench_of()
    send_all(MemorySender(), one, [outgoing(one, {"id": str(n)}) for n in range(3)])
    came = delivery(enqueued_at=bench.clock.now() - timedelta(seconds=90))
    bench.deliverer.deliver(one, came)
    bench.deliverer.deliver(one, delivery(count=2))
    points = recorded.points()
    about = {"messaging.system": "azure_storage_queue", "messaging.destination.name": "invoices"}
    process = {**about, "messaging.operation.name": "process"}
    assert points["messaging.client.sent.messages"] == [({**about, "messaging.operation.name": "send"}, 3)]
    assert points["messaging.client.consumed.messages"] == [(process, 1)]
    assert points["runonce.message.age"] == [({"runonce.handler": "send_invoice"}, 90.0)]
    ((labels, _),) = points["messaging.process.duration"]
    assert labels == {**process, "runonce.handler": "send_invoice", "runonce.outcome": "done"}
    assert ({"runonce.name": "send_invoice", "runonce.outcome": "duplicate"}, 1) in points["runonce.claims"]
