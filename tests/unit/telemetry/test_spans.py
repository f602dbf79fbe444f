"""Spans of runs and messages, as the SDK's in-memory exporter has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from support.flows import AFTER_LEASE, at, die, replica, start
from support.messages import delivery, handling, silence
from support.telemetry import Recorded, id_of, parent_of

from runonce.errors import LeaseLost, PermanentError
from runonce.messages.sending import outgoing, send_all
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.testing import Complete, MemorySender, Workbench
from runonce.testing.faults import PassingClock
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.runs.run import Run
    from runonce.transports.protocols import Outgoing

T = at(3)


class Keeps(MemorySender):
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing: list[Outgoing] = []

    def send(self, _: str, messages: Sequence[Outgoing]) -> None:
        self.outgoing += messages

    def deliveries(self) -> list[Delivery]:
        """The messages as their handler gets them."""
        return [Delivery(one.body, one.message_id, properties=one.properties) for one in self.outgoing]


def nightly(body: Callable[[Run], Any], **options: Any) -> ScheduledJob:
    def call(run: Run) -> None:
        body(run)

    return scheduled("0 0 3 * * *", name="nightly", **options)(call)


def bench_of(*jobs: ScheduledJob) -> Workbench:
    bench = Workbench(*jobs, clock=PassingClock())
    silence(bench.deliverer)
    bench.clock.advance(3 * 3600)
    return bench


def test_a_run_is_a_tick_with_lease_claim_and_run(recorded: Recorded) -> None:
    """One trace: the tick from the call for the lease to the end, in it lease and claim, then the run."""
    job = nightly(lambda _: None)
    bench_of(job).dispatcher.tick(job)
    assert recorded.names() == {"tick nightly", "lease nightly", "claim nightly", "run nightly"}
    tick = recorded.span("tick nightly")
    assert parent_of(tick) is None
    for name in ("lease nightly", "claim nightly", "run nightly"):
        assert parent_of(recorded.span(name)) == id_of(tick)
    about = dict(recorded.span("run nightly").attributes or {})
    assert about == {
        "runonce.namespace": "test",
        "runonce.host": "test",
        "runonce.attempt": 1,
        "runonce.fencing_token": 1,
        "runonce.job": "nightly",
        "runonce.fire_time": "2026-01-01T03:00:00Z",
        "runonce.by": "timer",
        "runonce.outcome": "succeeded",
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("own_loop", [False, True], ids=["in a thread", "on a loop"])
def test_the_codes_own_spans_are_below_the_run(recorded: Recorded, *, is_async: bool, own_loop: bool) -> None:
    """The run's span is the current one while the code works, so what the code traces is part of it."""
    tracer = trace.get_tracer("mine", tracer_provider=recorded.tracers)

    def sync_body(_: Run) -> None:
        with tracer.start_as_current_span("mine"):
            pass

    async def async_body(run: Run) -> None:
        await asyncio.sleep(0)
        sync_body(run)

    job = scheduled("0 0 3 * * *", name="nightly")(async_body if is_async else sync_body)
    bench = bench_of(job)
    if own_loop:
        asyncio.run(bench.dispatcher.execute_async(job, T, by="timer"))
    else:
        bench.dispatcher.execute(job, T, by="timer")
    assert parent_of(recorded.span("mine")) == id_of(recorded.span("run nightly"))
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_failure_has_its_type_and_no_text(recorded: Recorded) -> None:
    """The status is an error and `error.type` says which; what the error says may be private."""

    def body(_: Run) -> None:
        raise PermanentError("card 4111-1111")

    job = nightly(body)
    bench_of(job).dispatcher.tick(job)
    span = recorded.span("run nightly")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "runonce.errors.PermanentError"
    assert (span.attributes or {})["runonce.outcome"] == "failed"
    assert "4111" not in "".join(one.to_json() for one in recorded.spans())


def test_a_takeover_says_how_long_nobody_worked(recorded: Recorded) -> None:
    """The second attempt knows when the dead one wrote last; the dead one's span never ends, so it is not there."""
    job = nightly(lambda _: None)
    bench = bench_of(job)
    die(start(bench.dispatcher, job, T))
    bench.clock.advance(AFTER_LEASE)
    replica(bench).execute(job, T, by="request")
    about = dict(recorded.span("run nightly").attributes or {})
    assert (about["runonce.takeover.seconds"], about["runonce.attempt"]) == (AFTER_LEASE, 2)


def test_a_lost_lease_is_an_event_of_the_run(recorded: Recorded) -> None:
    """It stands in the span of the run that lost it."""

    def body(run: Run) -> None:
        run._stop.set(LeaseLost("gone"))
        run.check()

    job = nightly(body)
    bench_of(job).dispatcher.tick(job)
    span = recorded.span("run nightly")
    assert [event.name for event in span.events] == ["lease lost"]
    assert span.status.status_code is StatusCode.ERROR


def test_a_messages_trace_goes_on_where_it_was_sent(recorded: Recorded) -> None:
    """The consumer's span is a child of the producer's, whose context the message carries."""
    one, sender = handling(), Keeps()
    bench = bench_of()
    tracer = trace.get_tracer("mine", tracer_provider=recorded.tracers)
    with tracer.start_as_current_span("order"):
        send_all(sender, one, [outgoing(one, {"id": "A-17"})])
    (came,) = sender.deliveries()
    assert bench.deliverer.deliver(one, came) == Complete()
    order, send, process = (recorded.span(name) for name in ("order", "send invoices", "process invoices"))
    assert (parent_of(send), parent_of(process)) == (id_of(order), id_of(send))
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert len({span.get_span_context().trace_id for span in (order, send, process)}) == 1
    about = dict(process.attributes or {})
    assert about["messaging.system"] == "azure_storage_queue"
    assert about["messaging.destination.name"] == "invoices"
    assert (about["messaging.operation.name"], about["messaging.operation.type"]) == ("process", "process")
    assert about["messaging.message.id"] == came.message_id
    assert about["runonce.outcome"] == "done"


def test_messages_of_a_batch_are_traces_of_their_own_with_a_link(recorded: Recorded) -> None:
    """A hundred messages are not one trace: each links to what sent them."""
    one, sender = handling(), Keeps()
    bench = bench_of()
    send_all(sender, one, [outgoing(one, {"id": str(n)}) for n in range(3)])
    for came in sender.deliveries():
        assert bench.deliverer.deliver(one, came) == Complete()
    send = recorded.span("send invoices")
    assert (send.attributes or {})["messaging.batch.message_count"] == 3
    processed = recorded.spans("process invoices")
    assert len({span.get_span_context().trace_id for span in (send, *processed)}) == 4
    assert [[link.context.span_id for link in span.links] for span in processed] == [[id_of(send)]] * 3
    assert [parent_of(span) for span in processed] == [None] * 3


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_follow_up_is_below_the_handler_that_sends_it(recorded: Recorded, *, is_async: bool) -> None:
    """What a handler enqueues is sent within its own span, sync and async."""
    to = handling(name="ship", queue="parcels")

    def sync_body(message: Any) -> None:
        message.enqueue(to, {"id": 1})

    async def async_body(message: Any) -> None:
        await asyncio.sleep(0)
        sync_body(message)

    one = handling(async_body if is_async else sync_body)
    bench = bench_of()
    assert bench.deliverer.deliver(one, delivery()) == Complete()
    assert parent_of(recorded.span("send parcels")) == id_of(recorded.span("process invoices"))


def test_a_message_of_somebody_elses_is_a_trace_of_its_own(recorded: Recorded) -> None:
    """Without a context, or with one that is none, it begins a trace."""
    one = handling()
    bench = bench_of()
    bench.deliverer.deliver(one, delivery())
    bench.deliverer.deliver(one, delivery({"id": "2"}, properties={"traceparent": "00-nonsense"}))
    assert [parent_of(span) for span in recorded.spans("process invoices")] == [None, None]


def test_a_send_that_fails_is_an_error(recorded: Recorded) -> None:
    """The producer's span has the error's type."""

    class Broken(MemorySender):
        def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
            raise OSError(entity, len(messages))

    one = handling()
    with pytest.raises(OSError):  # noqa: PT011 - of any text
        send_all(Broken(), one, [outgoing(one, {"id": "1"})])
    span = recorded.span("send invoices")
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "OSError")


def test_no_body_and_no_key_is_in_a_span(recorded: Recorded) -> None:
    """Whatever becomes of a message."""
    one, sender = handling(), Keeps()
    bench = bench_of()
    send_all(sender, one, [outgoing(one, {"id": "SECRET-KEY", "card": "4111-1111"}, key="m-1")])
    for came in (*sender.deliveries(), *sender.deliveries()):
        bench.deliverer.deliver(one, came)
    bench.deliverer.deliver(one, delivery({"card": "4111-1111"}))
    text = "".join(span.to_json() for span in recorded.spans())
    assert "4111" not in text
    assert "SECRET-KEY" not in text
