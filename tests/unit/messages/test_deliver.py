"""Every outcome of a delivery, and the settlement it ends in."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import RootModel
from support.hooks import hearing
from support.messages import AFTER_CLAIM, KEY, begun, delivery, handling, host_of, raw_row, row_of, silence

from runonce.errors import (
    AlreadyRecordedError,
    Fenced,
    HostStopping,
    InputError,
    LeaseLost,
    PermanentError,
    StoreError,
    TimeLimitExceeded,
    TransportError,
    TransportRefusedError,
)
from runonce.execution.lease import Lease
from runonce.execution.options import MAX_ABANDONED
from runonce.execution.stop import StopSignal
from runonce.execution.turns import Turns
from runonce.messages.ended import Working
from runonce.messages.heartbeat import Heartbeats
from runonce.messages.rows import State
from runonce.testing import Complete, DeadLetter, MemorySender, Reschedule, Workbench
from runonce.testing.faults import Boundary, Fault, PassingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.definition import Handler
    from runonce.messages.message import Message
    from runonce.transports.protocols import Outgoing

BODY = {"id": KEY}


@pytest.fixture
def bench() -> Workbench:
    """A bench on whose clock waiting passes the time."""
    made = Workbench(clock=PassingClock())
    silence(made.deliverer)
    return made


class Doing:
    """A handler's body: notes its calls, and does what it is told, one thing after the other."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.calls: list[Message] = []

    def __call__(self, message: Message) -> Any:
        self.calls.append(message)
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, BaseException):
            raise step
        return step(message) if callable(step) else step


def rescheduled(settlement: Any) -> Reschedule:
    """A settlement that brings the message again."""
    assert isinstance(settlement, Reschedule), settlement
    return settlement


def dead(settlement: Any) -> DeadLetter:
    """A settlement that puts the message aside."""
    assert isinstance(settlement, DeadLetter), settlement
    return settlement


# -- done, and duplicates -----------------------------------------------------------------------------------


def test_a_handled_message_is_completed(bench: Workbench) -> None:
    """A message that was handled is done, and its settlement has what the handler returned."""
    body = Doing(42)
    one = handling(body)
    assert bench.deliver(one, BODY) == Complete(result=42)
    assert row_of(bench, one).state is State.DONE
    message = body.calls[0]
    assert (message.key, message.attempt, message.fencing_token, message.delivery_count) == (KEY, 1, 1, 1)
    assert message.idempotency_key.startswith("send_invoice:")


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_duplicate_is_completed_unrun(bench: Workbench, count: int) -> None:
    """A message that comes again after it is done is completed without running, whatever its delivery count."""
    body = Doing()
    one = handling(body)
    bench.deliver(one, BODY)
    assert bench.deliver(one, BODY, delivery_count=count) == Complete(duplicate=True)
    assert len(body.calls) == 1


@pytest.mark.parametrize("again", [{"count": 2}, {"reschedules": 1}], ids=["redelivered", "a copy"])
def test_a_message_that_came_before_is_looked_up_first(bench: Workbench, again: dict[str, Any]) -> None:
    """A delivery that says it came before reads its claim first, so finished work costs one call."""
    one, boundary = handling(Doing()), Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))
    host.deliver(one, delivery())
    assert boundary.calls == ["commit", "commit"]
    boundary.calls.clear()
    assert host.deliver(one, delivery(**again)) == Complete(duplicate=True)
    assert boundary.calls == ["get"]


def test_two_keys_are_two_messages(bench: Workbench) -> None:
    """Messages with different keys, and of different handlers, do not know each other."""
    body = Doing()
    first, second = handling(body), handling(body, name="other")
    for one in (first, second):
        bench.deliver(one, BODY)
        bench.deliver(one, {"id": "B"})
    assert len(body.calls) == 4


@pytest.mark.parametrize("result", [None, 0, False, "", [], {"invoice": 7}, object(), "x" * 40_000])
def test_a_result_is_shown_once_and_not_stored(bench: Workbench, result: Any) -> None:
    """What a handler returns, whatever it is, is its caller's to see; nothing of it is kept for a duplicate."""
    one = handling(Doing(result))
    assert bench.deliver(one, BODY) == Complete(result=result)
    stored = raw_row(bench, one)
    assert stored is not None
    assert "result" not in stored.values
    assert bench.deliver(one, BODY) == Complete(duplicate=True)


# -- busy, takeover, death ----------------------------------------------------------------------------------


def test_a_message_in_progress_comes_again(bench: Workbench) -> None:
    """A duplicate of a message that is being handled elsewhere comes again later; it neither runs nor raises."""
    one = handling(Doing())
    working = begun(host_of(bench), one)
    settlement = rescheduled(bench.deliver(one, BODY, message_id="m-1"))
    assert "in progress on other" in settlement.reason
    assert 0.8 <= settlement.delay <= 1.2
    bench.deliverer.finish(working, None, None)
    assert bench.deliver(one, BODY, reschedules=1) == Complete(duplicate=True)


def test_waits_grow_while_it_stays_busy(bench: Workbench) -> None:
    """The more often a message came back, the longer it stays away."""
    one = handling(Doing())
    begun(host_of(bench), one)
    delays = [rescheduled(bench.deliver(one, BODY, reschedules=n)).delay for n in (0, 3, 5, 9)]
    assert delays == sorted(delays)
    assert delays[-1] <= 72


def test_an_abandoned_message_is_taken_over(bench: Workbench) -> None:
    """When a host dies while handling, the message is run again with a higher token and the same idempotency key."""
    body = Doing()
    one = handling(body)
    dying = begun(host_of(bench), one)
    bench.clock.advance(AFTER_CLAIM)
    assert bench.deliver(one, BODY, delivery_count=2) == Complete()
    assert (body.calls[0].attempt, body.calls[0].fencing_token) == (2, 2)
    assert body.calls[0].idempotency_key == dying.message.idempotency_key
    assert row_of(bench, one).abandoned == 1


def test_a_paused_host_that_was_replaced_settles_nothing(bench: Workbench) -> None:
    """A paused host that wakes after a takeover records nothing and lets its delivery come again."""
    one = handling(Doing())
    other = host_of(bench)
    paused = begun(other, one)
    bench.clock.advance(AFTER_CLAIM)
    bench.deliver(one, BODY, delivery_count=2)
    settlement = rescheduled(other.finish(paused, None, None))
    assert "the write was refused" in settlement.reason
    assert row_of(bench, one).token == 2


def test_a_paused_commit_is_rolled_back(bench: Workbench) -> None:
    """Rows that a paused host commits after a takeover are not written, and its handler hears of it."""
    one = handling(Doing(lambda m: m.commit({"row": {"by": "heir"}})))
    other = host_of(bench)
    paused = begun(other, one)
    bench.clock.advance(AFTER_CLAIM)
    bench.deliver(one, BODY, delivery_count=2)
    with pytest.raises(Fenced, match="refused") as caught:
        paused.message.commit({"row": {"by": "paused"}})
    rescheduled(other.finish(paused, None, caught.value))
    assert [row["by"] for row in bench.effects(one)] == ["heir"]


def test_a_message_that_kills_its_hosts_is_put_aside(bench: Workbench) -> None:
    """A message whose hosts keep dying is dead-lettered in the end, and stays so."""
    body = Doing()
    one = handling(body)
    for n in range(MAX_ABANDONED):
        begun(host_of(bench), one, delivery(count=n + 1))
        bench.clock.advance(AFTER_CLAIM)
    settlement = dead(bench.deliver(one, BODY, delivery_count=9))
    assert settlement.reason == "Abandoned"
    assert body.calls == []
    assert dead(bench.deliver(one, BODY, delivery_count=10)).description == settlement.description


def test_a_host_too_slow_to_claim_does_not_begin(bench: Workbench) -> None:
    """A host that was paused between its claim and its handler gives the message back instead of starting late."""
    body = Doing()
    one = handling(body)
    boundary = Boundary()
    boundary.meanwhile("commit", lambda: bench.clock.advance(50))
    slow = host_of(bench, stores=boundary.around(bench.stores))
    assert rescheduled(slow.deliver(one, delivery())).reason == "its claim took too long to make"
    assert body.calls == []
    assert row_of(bench, one).failures == 0


# -- hold, unknown, reconcile -------------------------------------------------------------------------------


def held(bench: Workbench, body: Doing, hook: Callable[[Message], bool | None] | None) -> Handler:
    """A handler with on_abandoned="hold" whose host died while handling a message."""
    one = handling(body, on_abandoned="hold", reconcile=hook)
    begun(host_of(bench, name="dead-host"), one)
    bench.clock.advance(AFTER_CLAIM)
    return one


def test_a_held_message_is_unknown(bench: Workbench) -> None:
    """Without a hook nobody knows, so the message is put aside as unknown and never run by itself."""
    body = Doing()
    one = held(bench, body, None)
    for count in (2, 3):
        settlement = dead(bench.deliver(one, BODY, delivery_count=count))
        assert settlement.reason == "Unknown"
        assert "dead-host" in settlement.description
    assert body.calls == []
    assert row_of(bench, one).state is State.UNKNOWN


def test_reconcile_true_completes(bench: Workbench) -> None:
    """A hook that finds the effect completes the message unrun."""
    body = Doing()
    one = held(bench, body, lambda _: True)
    assert bench.deliver(one, BODY, delivery_count=2) == Complete(duplicate=True)
    assert body.calls == []
    assert row_of(bench, one).state is State.DONE


def test_reconcile_false_runs_it(bench: Workbench) -> None:
    """A hook that finds no effect lets the message be handled."""
    body = Doing()
    one = held(bench, body, lambda _: False)
    assert bench.deliver(one, BODY, delivery_count=2) == Complete()
    assert len(body.calls) == 1


def test_reconcile_none_stays_unknown_until_it_knows(bench: Workbench) -> None:
    """A hook that does not know yet leaves the message unknown; it is asked again when the message comes again."""
    answers = [None, True]
    one = held(bench, Doing(), lambda _: answers.pop(0))
    assert dead(bench.deliver(one, BODY, delivery_count=2)).reason == "Unknown"
    assert isinstance(bench.deliver(one, BODY, delivery_count=3), Complete)


@pytest.mark.parametrize("error", [ConnectionError("provider away"), SystemExit(3)], ids=repr)
def test_a_raising_hook_does_not_know(
    bench: Workbench, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """A hook that raises fails neither the delivery nor the host: the message is unknown and the error logged."""

    def hook(_: Message) -> bool:
        raise error

    one = held(bench, Doing(), hook)
    assert dead(bench.deliver(one, BODY, delivery_count=2)).reason == "Unknown"
    assert "reconcile hook failed" in caplog.text


def test_a_hook_knows_what_to_ask_for(bench: Workbench) -> None:
    """The hook's message has the idempotency key that the dead host's handler gave to the provider."""
    keys: list[str] = []

    def hook(message: Message) -> bool:
        keys.append(message.idempotency_key)
        return (message.attempt, message.fencing_token, message.key) == (1, 1, KEY)

    one = held(bench, Doing(), hook)
    assert isinstance(bench.deliver(one, BODY, delivery_count=2), Complete)
    assert keys == [row_of(bench, one).idempotency_key]


# -- errors -------------------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_later(bench: Workbench) -> None:
    """A handler that raises has its message back after the retry's delay, and until then not earlier."""
    body = Doing(ValueError("no luck"), "fine")
    one = handling(body, retries=2, retry_delay=10)
    first = rescheduled(bench.deliver(one, BODY))
    assert 8 <= first.delay <= 12
    assert first.reason == "ValueError: no luck"
    row = row_of(bench, one)
    assert (row.state, row.failures, row.reason) == (State.RELEASED, 1, first.reason)
    assert "Traceback" in row.error
    early = rescheduled(bench.deliver(one, BODY, reschedules=1))
    assert early.delay == pytest.approx(first.delay)
    bench.clock.advance(first.delay)
    assert bench.deliver(one, BODY, reschedules=2) == Complete(result="fine")
    assert body.calls[1].attempt == 2


def test_retries_wait_longer_each_time_and_are_used_up(bench: Workbench) -> None:
    """Each failure waits twice as long as the one before, and after the last the message is put aside."""
    body = Doing(*[ValueError(f"no {n}") for n in range(9)])
    one = handling(body, retries=3, retry_delay=10)
    delays: list[float] = []
    while isinstance(settlement := bench.deliver(one, BODY, reschedules=len(delays)), Reschedule):
        delays.append(settlement.delay)
        bench.clock.advance(settlement.delay)
    assert [round(delay / 10) for delay in delays] == pytest.approx([1, 2, 4], abs=1)
    assert dead(settlement).reason == "Failed"
    assert dead(settlement).description == "Handler send_invoice, message invoices:A-17: ValueError: no 3"
    assert (row_of(bench, one).state, row_of(bench, one).failures) == (State.FAILED, 4)
    assert len(body.calls) == 4


def test_without_retries_the_first_failure_is_the_last(bench: Workbench) -> None:
    """retries=0 means one attempt."""
    one = handling(Doing(ValueError("no")), retries=0)
    assert dead(bench.deliver(one, BODY)).reason == "Failed"


def test_a_permanent_error_fails_at_once(bench: Workbench) -> None:
    """A PermanentError is not tried again, and each further delivery is put aside unrun with the same reason."""
    body = Doing(PermanentError("no such customer"))
    one = handling(body, retries=5)
    first = dead(bench.deliver(one, BODY))
    assert first.reason == "Failed"
    assert "no such customer" in first.description
    again = dead(bench.deliver(one, BODY, delivery_count=2))
    assert "no such customer" in again.description
    assert len(body.calls) == 1


def test_a_handler_may_find_the_message_bad(bench: Workbench) -> None:
    """What message.bad makes keeps its own reason as the dead letter's."""
    body = Doing(lambda m: (_ for _ in ()).throw(m.bad("NoSuchCustomer", "its customer is unknown")))
    settlement = dead(bench.deliver(handling(body), BODY))
    assert settlement.reason == "NoSuchCustomer"
    assert "its customer is unknown" in settlement.description


@pytest.mark.parametrize("error", [HostStopping(), KeyboardInterrupt(), asyncio.CancelledError()])
def test_being_stopped_is_no_failure(bench: Workbench, error: BaseException) -> None:
    """A handler that ends because its host stops gives the message back, and nothing counts against it.

    Not at once: on Functions it goes back as a copy, which the same host would take again before it has ended.
    """
    one = handling(Doing())
    host = host_of(bench)
    working = begun(host, one)
    host.stop.set(HostStopping())
    settlement = rescheduled(host.finish(working, None, error))
    assert (settlement.delay, settlement.reason) == (1.0, "other was stopping")
    row = row_of(bench, one)
    assert (row.state, row.failures, row.retry_at) == (State.RELEASED, 0, None)
    assert host_of(bench).deliver(one, delivery(count=2)) == Complete()


def test_a_stopping_host_takes_nothing_on(bench: Workbench) -> None:
    """A host that was told to stop gives messages back without claiming them."""
    body = Doing()
    one = handling(body)
    bench.stop.set(HostStopping())
    assert bench.deliver(one, BODY) == Reschedule(1.0, "this host is stopping")
    assert body.calls == []
    assert host_of(bench).deliver(one, delivery()) == Complete()


def test_a_host_told_to_stop_while_claiming_does_not_begin(bench: Workbench) -> None:
    """A stop that comes between the claim and the handler gives the message back unrun."""
    body = Doing()
    one = handling(body)
    boundary, stop = Boundary(), StopSignal()
    boundary.meanwhile("commit", lambda: stop.set(HostStopping()))
    host = host_of(bench, stores=boundary.around(bench.stores), stop=stop)
    assert rescheduled(host.deliver(one, delivery())).delay == 1.0
    assert body.calls == []
    assert row_of(bench, one).state is State.RELEASED


def test_a_running_handler_hears_of_the_stop(bench: Workbench) -> None:
    """message.stopping and message.check tell a handler that its host stops; what it was doing goes on elsewhere."""
    seen: list[bool] = []

    def body(message: Message) -> None:
        seen.append(message.stopping)
        message.check()
        message.checkpoint.save({"line": 3})
        bench.stop.set(HostStopping())
        seen.append(message.stopping)
        message.check()

    one = handling(body)
    assert rescheduled(bench.deliver(one, BODY)).delay == 1.0
    assert seen == [False, True]
    loads: list[Any] = []
    again = handling(lambda m: loads.append(m.checkpoint.load()))
    host_of(bench).deliver(again, delivery(count=2))
    assert loads == [{"line": 3}]


@pytest.mark.parametrize("waited", [4, 8])
def test_waiting_for_a_lock_takes_none_of_a_handlers_time(bench: Workbench, waited: float) -> None:
    """A handler that is allowed 5 s has 5 s from when it has its lock, however long it was held elsewhere."""
    one = handling(Doing(lambda _: bench.clock.advance(2)), lock="index", lock_wait=10, max_runtime=5)
    host = host_of(bench)
    host.heartbeats = beats = Heartbeats(bench.clock)
    beats._thread = threading.current_thread()  # so that it starts none
    other = Lease.acquire(bench.stores.leases, lock_blob(bench, "index"), bench.settings.lease, bench.clock)
    assert other is not None
    free_at, wait = bench.clock.elapsed() + waited, bench.clock.wait

    def waiting(event: threading.Event, seconds: float) -> bool:
        stopped = wait(event, seconds)
        beats.beat_due()
        if bench.clock.elapsed() >= free_at:
            other.release()
        return stopped

    bench.clock.wait = waiting  # type: ignore[method-assign]
    assert host.deliver(one, delivery()) == Complete()
    working = begun(host, one, delivery({"id": "B"}))
    assert working.lock is not None
    assert working.lock._renew_until == working.terms.let_go  # which is for others after that
    bench.clock.advance(5)
    beats.beat_due()
    assert isinstance(working.stop.cause, TimeLimitExceeded)


def test_draining_waits_for_what_runs(bench: Workbench) -> None:
    """drain tells handlers to stop and returns True once they have ended, and False when one does not in time."""
    host = host_of(bench)
    working = begun(host, handling(Doing()))
    assert not host.drain(0)
    assert working.message.stopping
    host.finish(working, None, HostStopping())
    assert host.drain(0)


def test_over_its_time_a_handler_is_told(bench: Workbench) -> None:
    """A handler over its max_runtime is told once, and its ending then counts as a failure that is tried again."""
    one = handling(Doing(), max_runtime=30)
    bench.deliverer.__dict__.pop("heartbeats", None)
    host = host_of(bench)
    host.heartbeats = beats = Heartbeats(bench.clock)
    beats._thread = threading.current_thread()  # so that it starts none
    working = begun(host, one)
    bench.clock.advance(31)
    beats.beat_due()
    with pytest.raises(TimeLimitExceeded) as caught:
        working.message.check()
    settlement = rescheduled(host.finish(working, None, caught.value))
    assert "TimeLimitExceeded" in settlement.reason
    assert row_of(bench, one).failures == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_handler_that_does_not_end_is_given_up(
    bench: Workbench, caplog: pytest.LogCaptureFixture, *, has_ended: bool
) -> None:
    """Its message is settled by why it was told to stop, whoever waits for it is freed, and what it returns is late."""
    given: list[Any] = []
    host, one = host_of(bench), handling(Doing(), on_abandoned="hold")
    working = host.begin(one, delivery(), None, given.append)
    assert isinstance(working, Working)
    working.stop.set(HostStopping())
    if has_ended:
        working.ended.set_result((7, None))  # at the last instant
    host._give_up(working)
    assert given == [Reschedule(1.0, "other gave it up")]
    assert working.ended.result(0) == ((7, None) if has_ended else (None, working.stop.cause))
    assert host.finish(working, 7, None) == given[0]
    assert (row_of(bench, one).state, row_of(bench, one).reason) == (State.UNKNOWN, "other gave it up")
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage().endswith(
        "] did not end within 45 s of being told to; its message, its lock and its slot are "
        "given up, while its code may go on here. Give what it waits for a time-out"
    )


def test_whoever_waits_for_a_delivery_hears_that_it_was_given_up(bench: Workbench) -> None:
    """With what the delivery answers itself once its handler has ended after all."""
    given: list[Any] = []
    host = host_of(bench)

    def body(_: Message) -> None:
        (working,) = host._inflight.items()
        working.stop.set(HostStopping())
        host._give_up(working)

    assert [host.deliver(handling(body), delivery(), None, given.append)] == given
    assert given == [Reschedule(1.0, "other was stopping")]


def test_an_error_that_nobody_expects_fails_the_message(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again as after any failure, and the log has the error with its place."""
    host, error = host_of(bench), RuntimeError("no")
    working = begun(host, handling(Doing()))

    def done(**_: Any) -> None:
        raise error

    monkeypatch.setattr(working.claim, "done", done)
    assert rescheduled(host.finish(working, None, None)).reason == "the toolkit failed: RuntimeError"
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert said.getMessage() == "handler send_invoice, message m-1: failed in the toolkit"
    assert said.exc_info
    assert said.exc_info[1] is error


def test_what_a_handler_logs_and_is_refused_names_it(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message, attempt and holder are on each line, and an error of its checkpoint's begins with its name."""

    def body(message: Message) -> None:
        message.log.warning("hello")
        message.checkpoint.save({"n": object()})

    one = handling(Doing(body))
    host_of(bench).deliver(one, delivery())
    line: Any = caplog.records[0]
    assert (line.name, line.getMessage()) == (
        "runonce.jobs.send_invoice",
        "[send_invoice message m-1 #1] hello",
    )
    row = row_of(bench, one)
    assert (line.job, line.attempt, line.message_id, line.holder) == ("send_invoice", 1, "m-1", row.holder)
    assert row.reason.startswith("NotKeptError: Handler send_invoice: ")


@pytest.mark.parametrize("step", ["_read", "_working", "_start"])
def test_an_error_that_nobody_expects_before_the_handler_ends_a_message_too(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """It comes again as after any failure, and is put aside in the end; the log has the error, and hooks hear of it."""
    host, error = host_of(bench), RuntimeError("no")

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(host, step, fails)
    assert rescheduled(host.begin(handling(), delivery())).reason == "the toolkit failed: RuntimeError"
    (said,) = caplog.records
    assert said.getMessage() == "handler send_invoice, message m-1: failed in the toolkit"
    assert said.exc_info
    assert said.exc_info[1] is error
    with hearing() as heard:
        settlement = dead(host.begin(handling(retries=0), delivery({"id": "B"}, message_id="m-2")))
        (incident,) = heard.of("on_incident")
    assert settlement.description.startswith(
        "Handler send_invoice, message m-2: the toolkit failed with RuntimeError"
    )
    assert (incident.kind, incident.name, incident.namespace, incident.reason) == (
        *("dead_lettered", "send_invoice", bench.settings.namespace),
        settlement.description,
    )
    assert incident.message_id == "m-2"


def test_another_subscriptions_copy_is_no_work_here(bench: Workbench) -> None:
    """It is completed as a duplicate, and makes no claim."""
    one = handling(Doing())
    assert host_of(bench).deliver(one, delivery(only_for="other")) == Complete(duplicate=True)
    assert raw_row(bench, one) is None


def test_the_log_says_how_a_message_ended(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    """Done; or dead, with the error and its place."""
    caplog.set_level(logging.INFO)
    error = PermanentError("no")
    one = handling(Doing(None, error))
    bench.deliver(one, BODY)
    assert caplog.messages[-1].endswith("#1] done")
    settlement = dead(bench.deliver(one, {"id": "B"}))
    assert caplog.messages[-1].endswith(f"dead-lettered (Failed): {settlement.description}")
    assert caplog.records[-1].exc_info
    assert caplog.records[-1].exc_info[1] is error


def test_at_its_deadline_a_handler_is_over_its_time(bench: Workbench) -> None:
    """Also where the heartbeat that tells it comes late: what it returns then counts as a failure."""
    host, one = host_of(bench), handling(Doing())
    working = begun(host, one)
    working.terms = replace(working.terms, deadline=bench.clock.elapsed())
    host.finish(working, None, HostStopping())
    assert isinstance(working.stop.cause, TimeLimitExceeded)
    assert row_of(bench, one).failures == 1


def test_an_end_that_is_being_recorded_is_waited_for_only_so_long(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim tells whoever gets the message next, so it comes again soon."""
    monkeypatch.setattr("runonce.messages.deliver.LONGEST_ENDING", 0.01)
    host = host_of(bench)
    working = begun(host, handling(Doing()))
    working.ending.acquire()
    assert host.finish(working, None, None) == Reschedule(1.0, "its end is being recorded")


def test_an_unfinished_claim_is_let_go(bench: Workbench) -> None:
    """A claim that could not be finished is kept alive no longer, so that it ends by itself."""
    one = handling(Doing(), max_runtime=None)
    boundary = Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))
    working = begun(host, one)
    boundary.next("commit", *[Fault.LOST_REQUEST] * 99)
    boundary.next("get", *[Fault.LOST_REQUEST] * 99)
    rescheduled(host.finish(working, None, ValueError("no")))
    assert working.claim.finished
    assert working.claim.row.state is State.CLAIMED


# -- locks --------------------------------------------------------------------------------------------------


def lock_blob(bench: Workbench, name: str) -> str:
    return f"{bench.settings.namespace}/lock/{name}"


def test_a_lock_is_held_while_the_handler_runs(bench: Workbench) -> None:
    """A handler's lock is held during its body and free after it, under the body's own name."""
    held_then: list[bool] = []
    one = handling(
        Doing(lambda _: held_then.append(bench.stores.leases.held(lock_blob(bench, "customer%3AA-17")))),
        lock="customer:{id}",
    )
    assert bench.deliver(one, BODY) == Complete()
    assert held_then == [True]
    assert not bench.stores.leases.held(lock_blob(bench, "customer%3AA-17"))


def test_a_busy_lock_is_waited_for_only_so_long(bench: Workbench) -> None:
    """A lock held elsewhere is waited for, then the message goes back to the queue, which is no failure."""
    body = Doing()
    one = handling(body, lock="index", lock_wait=5)
    bench.stores.leases.acquire(lock_blob(bench, "index"), "somebody", 60)
    started = bench.clock.elapsed()
    settlement = rescheduled(bench.deliver(one, BODY))
    assert 5 <= bench.clock.elapsed() - started < 6
    assert "held elsewhere for 5 s" in settlement.reason
    assert (body.calls, row_of(bench, one).failures, row_of(bench, one).state) == ([], 0, State.RELEASED)
    due = bench.clock.now() + timedelta(seconds=settlement.delay)
    assert (row_of(bench, one).retry_at, row_of(bench, one).reason) == (due, settlement.reason)
    bench.stores.leases.release(lock_blob(bench, "index"), "somebody")
    bench.clock.advance(settlement.delay)
    assert bench.deliver(one, BODY, reschedules=1) == Complete()


def test_whoever_waits_for_a_lock_lets_others_have_its_turn(bench: Workbench) -> None:
    """It has one again when it begins."""
    turns, free = Turns(1, bench.stop), list[int]()
    one = handling(Doing(lambda _: free.append(turns.free)), lock="index", lock_wait=60)
    bench.stores.leases.acquire(lock_blob(bench, "index"), "somebody", 15)
    wait = bench.clock.wait

    def waiting(event: threading.Event, seconds: float) -> bool:
        free.append(turns.free)
        return wait(event, seconds)

    bench.clock.wait = waiting  # type: ignore[method-assign]
    assert bench.deliverer.deliver(one, delivery(), turns.take()) == Complete()
    assert set(free[:-1]) == {1}
    assert free[-1] == 0


def test_what_cannot_be_given_back_ends_by_itself(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    """Where the table does not answer the message still goes back to the queue, and the log says what of its claim."""
    one, boundary = handling(Doing(), lock="index", lock_wait=1), Boundary()
    bench.stores.leases.acquire(lock_blob(bench, "index"), "somebody", 60)
    silent = [Fault.LOST_REQUEST] * 99
    boundary.meanwhile("commit", lambda: (boundary.next("commit", *silent), boundary.next("get", *silent)))
    settlement = rescheduled(host_of(bench, stores=boundary.around(bench.stores)).deliver(one, delivery()))
    assert "held elsewhere for 1 s" in settlement.reason
    assert row_of(bench, one).state is State.CLAIMED
    said = "handler send_invoice: not released, its claim ends by itself: "
    assert [line for line in caplog.messages if line.startswith(said) and not line.endswith(": None")]


def test_a_lock_that_becomes_free_is_taken(bench: Workbench) -> None:
    """A lock that is given up while somebody waits for it is taken within the wait."""
    one = handling(Doing(), lock="index", lock_wait=60)
    bench.stores.leases.acquire(lock_blob(bench, "index"), "somebody", 15)
    assert bench.deliver(one, BODY) == Complete()


def test_one_at_a_time_across_handlers(bench: Workbench) -> None:
    """Handlers that name the same lock exclude each other, and other fields' values do not."""
    first = handling(Doing(), name="first", lock="tenant:{id}", lock_wait=1)
    second = handling(Doing(), name="second", lock="tenant:{id}", lock_wait=1)
    host = host_of(bench)
    working = begun(host, first)
    rescheduled(bench.deliver(second, BODY))
    assert bench.deliver(second, {"id": "B"}) == Complete()
    host.finish(working, None, None)


def test_a_stop_ends_the_wait_for_a_lock(bench: Workbench) -> None:
    """A stopping host does not wait for a lock to its end."""
    one = handling(Doing(), lock="index", lock_wait=600)
    boundary, stop = Boundary(), StopSignal()
    boundary.meanwhile("acquire", lambda: stop.set(HostStopping()))
    bench.stores.leases.acquire(lock_blob(bench, "index"), "somebody", 60)
    started = bench.clock.elapsed()
    rescheduled(host_of(bench, stores=boundary.around(bench.stores), stop=stop).deliver(one, delivery()))
    assert bench.clock.elapsed() - started < 1


def test_a_lock_store_out_of_reach_sends_the_message_back(bench: Workbench) -> None:
    """When the lock's store does not answer, the message comes again and nothing counts against it."""
    one = handling(Doing(), lock="index")
    boundary = Boundary()
    boundary.next("acquire", Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    host = host_of(bench, stores=boundary.around(bench.stores))
    assert "out of reach" in rescheduled(host.deliver(one, delivery())).reason
    assert row_of(bench, one).failures == 0


def test_a_lost_lock_ends_the_handler_and_refuses_its_commit(bench: Workbench) -> None:
    """Whoever lost its lock commits nothing, and its message is free for the next one at once."""
    one = handling(Doing(), lock="index")
    host = host_of(bench)
    working = begun(host, one)
    working.rights.stop.set(LeaseLost("The lease on index is lost."))
    with pytest.raises(LeaseLost, match="index") as caught:
        working.message.commit({"row": {"n": 1}})
    settlement = rescheduled(host.finish(working, None, caught.value))
    assert bench.effects(one) == []
    assert row_of(bench, one).state is State.RELEASED
    bench.clock.advance(settlement.delay)
    assert host.deliver(one, delivery(count=2)) == Complete()


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except LeaseLost:
        return True
    return False


@pytest.mark.parametrize("known", [False, True], ids=["asked", "told"])
def test_a_lost_lock_stops_every_write_at_once(bench: Workbench, known: bool) -> None:
    """Whose lock has run out writes no blob, checkpoint or rows, though nobody has told it and its claim holds."""
    one = handling(Doing(), lock="tenant:{id}")
    bench.put("search/acme.json", "new")
    working = begun(host_of(bench), one)
    message = working.message
    bench.clock.advance(30)
    working.claim.beat()
    bench.clock.advance(16)
    assert working.claim.held
    if known:
        working.rights.stop.set(LeaseLost("The lease is lost."))
    for call in (
        message.check,
        lambda: message.blobs.write("search/acme.json", b"old"),
        lambda: message.blobs.delete("search/acme.json"),
        lambda: message.checkpoint.save({"x": 1}),
        lambda: message.commit({"row": {"n": 1}}),
    ):
        assert refused(call), call
    assert message.stopping
    assert bench.blobs() == {"search/acme.json": b"new"}
    assert bench.effects(one) == []
    assert row_of(bench, one).checkpoint == ""


def test_blobs_written_under_a_lock_are_fenced_by_it(bench: Workbench) -> None:
    """A holder of the lock that was paused right before it wrote does not write over what the next holder wrote."""
    one = handling(Doing(), lock="index", key="id")
    other = handling(Doing(), lock="index", key="id", name="other", queue="others")
    old = begun(host_of(bench), one, delivery({"id": "a"}))
    old.message.blobs.write("index.json", b"first")
    assert old.lock is not None
    bench.clock.advance(30)
    old.claim.beat()
    bench.clock.advance(31)  # the store's lease has ended
    new = begun(host_of(bench), other, delivery({"id": "b"}))
    new.message.blobs.write("index.json", b"newer")
    old.claim.lock = None  # as if it were between having asked and writing
    old.claim.trusted_until = float("inf")
    with pytest.raises(Fenced, match=r"index\.json"):
        old.message.blobs.write("index.json", b"late")
    assert bench.blobs()["index.json"] == b"newer"


def test_blobs_written_without_a_lock_are_fenced_by_their_message(bench: Workbench) -> None:
    """A holder that was paused writes over nothing of its heir's; an error of theirs names handler and key."""
    one, boundary = handling(Doing()), Boundary()
    old = begun(host_of(bench), one)
    old.message.blobs.write("out.csv", b"first")
    bench.clock.advance(AFTER_CLAIM)
    new = begun(host_of(bench, stores=boundary.around(bench.stores)), one, delivery(count=2))
    new.message.blobs.write("out.csv", b"newer")
    old.claim.trusted_until = float("inf")
    with pytest.raises(Fenced, match=r"out\.csv"):
        old.message.blobs.write("out.csv", b"late")
    assert bench.blobs()["out.csv"] == b"newer"
    boundary.next("read", Fault.LOST_REQUEST)
    assert new.message.blobs.read("out.csv") == b"newer"
    with pytest.raises(InputError, match=f"send_invoice/{KEY}: there is no blob 'in.csv'"):
        new.message.blobs.read("in.csv")


def test_a_locks_token_is_asked_for_until_the_table_answers(bench: Workbench) -> None:
    """As every call of a handler is; an error of its blobs names handler and key, whoever else has the lock."""
    one, boundary = handling(Doing(), lock="index"), Boundary()
    working = begun(host_of(bench, stores=boundary.around(bench.stores)), one)
    boundary.next("get", Fault.LOST_REQUEST)
    working.message.blobs.write("out.csv", b"it")
    assert bench.blobs()["out.csv"] == b"it"
    with pytest.raises(InputError, match=f"send_invoice/{KEY}: there is no blob 'in.csv'"):
        working.message.blobs.read("in.csv")


def test_a_body_that_only_makes_a_generator_is_told_by_its_name(bench: Workbench) -> None:
    """Nothing of it has run, so the message fails, and the error says whose."""
    one = handling(lambda _: (number for number in ()), retries=0)
    assert (
        "Handler send_invoice: its function returned generator" in dead(bench.deliver(one, BODY)).description
    )


def test_a_lock_costs_no_more_calls_until_a_blob_is_written(bench: Workbench) -> None:
    """Under a lock a message takes its two calls of the table, and two more for the first blob that it writes."""
    boundary = Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))

    def writing(message: Message) -> None:
        message.blobs.write("a", b"1")
        message.blobs.write("b", b"2")

    host.deliver(handling(Doing(), lock="index"), delivery({"id": "1"}))
    assert sorted(boundary.calls) == ["acquire", "commit", "commit", "release"]
    boundary.calls.clear()
    host.deliver(handling(Doing(writing), lock="index"), delivery({"id": "2"}))
    calls = [call for call in boundary.calls if call not in ("head", "write", "acquire", "release")]
    assert calls == ["commit", "get", "commit", "commit"]


@pytest.mark.parametrize("value", ["a/b c#d?e", "ü" * 100, "🔑" * 120, "x" * 512])
def test_any_text_makes_a_lock(bench: Workbench, value: str) -> None:
    """A lock's field may hold anything a key may, however long its blob's name would be."""
    assert bench.deliver(handling(Doing(), lock="customer:{id}"), {"id": value}) == Complete()


# -- storage out of reach -----------------------------------------------------------------------------------


def test_a_table_out_of_reach_before_the_effect(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    """Without the table nothing runs, and the message comes again with growing waits instead of burning deliveries."""
    body = Doing()
    one = handling(body)
    boundary = Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))
    for times in range(4):
        boundary.next("commit", *[Fault.LOST_REQUEST] * 6)
        boundary.next("get", *[Fault.LOST_REQUEST] * 6)
        settlement = rescheduled(host.deliver(one, delivery(reschedules=times)))
        assert settlement.reason == "the claim table is out of reach"
        said = "handler send_invoice, message m-1: Handler send_invoice, message m-1: "
        assert caplog.messages[-1].startswith(said)
        assert settlement.delay >= 0.8 * 2**times
        boundary._of.clear()
    assert body.calls == []
    assert host.deliver(one, delivery(reschedules=4)) == Complete()


def test_a_table_that_refuses_is_told_by_its_own_words(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal that trying again will not change is told as it is, and the message still is not lost."""

    def refuse(*_: object) -> list[str]:
        raise StoreError("storage refused with 403.")

    bench.stores.claims.commit = refuse  # type: ignore[method-assign, assignment]
    settlement = rescheduled(bench.deliverer.deliver(handling(Doing()), delivery(reschedules=3)))
    assert settlement.reason == "storage refused with 403."
    assert 0.8 * 8 <= settlement.delay <= 1.2 * 8
    assert "handler send_invoice, message m-1: storage refused with 403." in caplog.messages


def test_a_table_out_of_reach_after_the_effect_is_waited_for(bench: Workbench) -> None:
    """After the effect the record is tried for a minute, so that a short outage costs only time."""
    body = Doing()
    one = handling(body)
    boundary = Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))
    working = begun(host, one)
    boundary.next("commit", Fault.LOST_REQUEST)
    boundary.next("get", *[Fault.LOST_REQUEST] * 20)
    assert host.finish(working, 7, None) == Complete(result=7)
    assert row_of(bench, one).state is State.DONE


def test_a_table_out_of_reach_for_long_after_the_effect(bench: Workbench) -> None:
    """An effect that could not be recorded is put aside with a reason that says it was done, and never released."""
    one = handling(Doing())
    boundary = Boundary()
    host = host_of(bench, stores=boundary.around(bench.stores))
    working = begun(host, one)
    boundary.next("commit", *[Fault.LOST_REQUEST] * 99)
    boundary.next("get", *[Fault.LOST_REQUEST] * 99)
    settlement = dead(host.finish(working, None, None))
    assert settlement.reason == "DoneButNotRecorded"
    for said in ("send_invoice", "m-1", "it was handled", "lost request", "Do not replay it unless"):
        assert said in settlement.description
    assert row_of(bench, one).state is State.CLAIMED


# -- effects and follow-ups ---------------------------------------------------------------------------------


def test_rows_are_committed_with_the_claim(bench: Workbench) -> None:
    """message.commit writes the handler's rows and the done mark together; what is returned after it stands."""
    one = handling(Doing(lambda m: m.commit({"line 1": {"cents": 5}, "line/2": {"cents": 7, "paid": True}})))
    assert bench.deliver(one, BODY) == Complete()
    assert sorted(bench.effects(one), key=str) == [
        {"name": "line 1", "key": KEY, "cents": 5},
        {"name": "line/2", "key": KEY, "cents": 7, "paid": True},
    ]
    assert row_of(bench, one).state is State.DONE


def test_what_is_raised_after_a_commit_changes_nothing(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that was committed is done whatever its handler raises after it, and that is logged."""

    def body(message: Message) -> None:
        message.commit({"row": {"n": 1}})
        raise ValueError("too late")

    with caplog.at_level(logging.WARNING):
        assert bench.deliver(handling(body), BODY) == Complete()
    assert "raised after its commit" in caplog.text


def test_a_commit_that_fails_writes_nothing(bench: Workbench) -> None:
    """A handler that raises instead of committing leaves no rows, and its next attempt writes them once."""

    def second(message: Message) -> None:
        message.commit({"row": {"attempt": message.attempt}})

    one = handling(Doing(ValueError("no"), second))
    bench.clock.advance(rescheduled(bench.deliver(one, BODY)).delay)
    assert bench.effects(one) == []
    bench.deliver(one, BODY, reschedules=1)
    assert [row["attempt"] for row in bench.effects(one)] == [2]


def test_an_unanswered_commit_that_was_carried_out_is_done(bench: Workbench) -> None:
    """A commit that got no answer for a minute but was carried out ends as done, with its follow-ups sent."""
    other = handling(name="mail", queue="mails")

    def body(message: Message) -> None:
        message.enqueue(other, {"id": 1})
        boundary.next("commit", Fault.LOST_REPLY)
        boundary.next("get", *[Fault.LOST_REQUEST] * 34)
        message.commit({"row": {"n": 1}})

    one, boundary, sender = handling(body), Boundary(), MemorySender()
    host = host_of(bench, stores=boundary.around(bench.stores), sender=sender)
    assert host.deliver(one, delivery()) == Complete()
    assert row_of(bench, one).state is State.DONE
    assert len(bench.effects(one)) == len(sender.sent) == 1


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "a hundred": ({str(n): {"n": n} for n in range(100)}, "at most 99"),
    "a column of None": ({"row": {"n": None}}, "NoneType"),
    "a column of a list": ({"row": {"n": [1]}}, "list"),
    "a long text": ({"row": {"n": "x" * 40_000}}, "32000 characters"),
    "a long number": ({"row": {"n": 2**63}}, "64 bits"),
    "a taken name": ({"row": {"Timestamp": 1}}, "keep that name"),
    "the toolkit's own": ({"row": {"key": 1}}, "keeps that name"),
    "a name with a dash": ({"row": {"invoice-id": 1}}, "letters, digits and _"),
    "a name of OData's": ({"row": {"odata.type": 1}}, "letters, digits and _"),
    "251 columns": ({"row": {f"c{n}": n for n in range(251)}}, "over 252"),
    "a row of 1 MiB": ({"row": {f"c{n}": "x" * 32_000 for n in range(17)}}, "over 1,048,576"),
    "rows of 4 MiB": (
        {str(n): {f"c{m}": "x" * 32_000 for m in range(12)} for n in range(10)},
        "in one commit, over",
    ),
    "half a character": ({"row": {"text": "\ud83d"}}, "not valid Unicode"),
    "a name that is no text": ({7: {"n": 1}}, "name: {column: value}"),
    "a row that has no columns": ({"row": [1]}, "name: {column: value}"),
    "rows without names": ([{"n": 1}], "commits a list"),
    "a row's own name": ({"\ud83d": {"text": ""}}, "not valid Unicode"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "said"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_cannot_be_kept_are_refused(bench: Workbench, rows: Any, said: str) -> None:
    """A row that a table cannot hold is refused with its name and the remedy, unwritten and not tried again."""
    raised: list[BaseException] = []

    def body(message: Message) -> None:
        try:
            message.commit(rows)
        except InputError as error:
            raised.append(error)
            raise

    one = handling(body)
    assert said in dead(bench.deliver(one, BODY)).description
    assert said in str(raised[0])
    assert bench.effects(one) == []


MAIL = handling(name="mail", queue="mails", key=None)


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


MISUSES: dict[str, Callable[[Message], object]] = {
    "a body that is no JSON": lambda m: m.enqueue(MAIL, {"n": float("nan")}),
    "a body that is no text": lambda m: m.enqueue(MAIL, b"\xff"),
    "a model that cannot be written": lambda m: m.enqueue(MAIL, RootModel(b"\xff")),
    "a checkpoint that is no JSON": lambda m: m.checkpoint.save({1}),
    "a checkpoint that has no end": lambda m: m.checkpoint.save(nested(100_000)),
    "a checkpoint too large": lambda m: m.checkpoint.save("x" * 40_000),
    "a blob's name": lambda m: m.blobs.write("../other", b""),
    "a blob's content type": lambda m: m.blobs.write("a", b"", content_type="text/\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_what_can_never_be_kept_or_sent_is_not_tried_again(bench: Workbench, misuse: Any) -> None:
    """A handler that asks for what no service takes fails at once: trying again would only repeat its effects."""
    body = Doing(misuse)
    one = handling(body)
    dead(bench.deliver(one, BODY))
    assert row_of(bench, one).state is State.FAILED
    assert len(body.calls) == 1


def test_a_checkpoint_with_half_an_emoji_can_be_kept(bench: Workbench) -> None:
    """A handler may keep its place by a text that its sender has cut, which no table takes but as an escape."""
    seen: list[Any] = []
    body = Doing(
        lambda m: (m.checkpoint.save({"last": "cut \ud83d"}), 1 / 0),
        lambda m: seen.append(m.checkpoint.load()),
    )
    one = handling(body)
    rescheduled(bench.deliver(one, BODY))
    assert row_of(bench, one).checkpoint.encode()  # which raises for half a character
    bench.clock.advance(60)
    assert isinstance(bench.deliver(one, BODY, delivery_count=2), Complete)
    assert seen == [{"last": "cut \ud83d"}]


def test_an_error_with_half_an_emoji_can_be_kept(bench: Workbench) -> None:
    """What a handler raises may hold half a character, which no table takes; the row has it spelt out."""
    one = handling(Doing(ValueError("cut \ud83d")), retries=0)
    dead(bench.deliver(one, BODY))
    row = row_of(bench, one)
    assert row.error.encode()  # which raises for half a character
    assert row.reason == "ValueError: cut \\ud83d"


def test_a_row_name_taken_by_an_earlier_generation(bench: Workbench) -> None:
    """After a replay a row of the same name is told apart by AlreadyRecordedError, so the handler can leave it out."""
    seen: list[type] = []

    def body(message: Message) -> None:
        try:
            message.commit({"row": {"n": 1}})
        except AlreadyRecordedError as error:
            seen.append(type(error))
            message.commit({})

    one = handling(body)
    bench.deliver(one, BODY)
    (rows,) = bench.stores.claims._rows.values()  # type: ignore[attr-defined]
    claim_row = next(row for key, row in rows.items() if key.startswith("claim:"))
    claim_row.values.update(state="released", generation=1)
    assert bench.deliver(one, BODY, reschedules=1) == Complete()
    assert seen == [AlreadyRecordedError]


def follow_ups(message: Message) -> None:
    for number in (1, 2):
        message.enqueue(MAIL, {"mail": number})


class FailingSender(MemorySender):
    """Fails the first times: before it sends, or after."""

    def __init__(self, *, before: int = 0, after: int = 0) -> None:
        super().__init__()
        self.before, self.after = before, after

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        if self.before:
            self.before -= 1
            raise TransportError
        super().send(entity, messages)
        if self.after:
            self.after -= 1
            raise TransportError


def test_follow_ups_are_sent_after_the_record(bench: Workbench) -> None:
    """Follow-ups go out once the message is done, in order, with ids that come from it."""
    one = handling(Doing(follow_ups))
    boundary = Boundary()
    sender = MemorySender()
    state_then: list[State] = []
    send = sender.send

    def look(entity: str, messages: Sequence[Outgoing]) -> None:
        state_then.append(row_of(bench, one).state)
        send(entity, messages)

    sender.send = look  # type: ignore[method-assign]
    host_of(bench, stores=boundary.around(bench.stores), sender=sender).deliver(one, delivery())
    assert state_then == [State.DONE]
    assert [sent.json for sent in sender.sent] == [{"mail": 1}, {"mail": 2}]
    assert {sent.queue for sent in sender.sent} == {"mails"}
    assert len({sent.message_id for sent in sender.sent}) == 2
    assert boundary.calls == ["commit", "commit"]


def test_follow_ups_of_a_failed_attempt_are_not_sent(bench: Workbench) -> None:
    """What an attempt enqueued before it raised is not sent; the next attempt's follow-ups are."""

    def failing(message: Message) -> None:
        message.enqueue(MAIL, {"mail": "never"})
        raise ValueError("no")

    one = handling(Doing(failing, follow_ups))
    bench.clock.advance(rescheduled(bench.deliver(one, BODY)).delay)
    assert bench.sent == []
    bench.deliver(one, BODY, reschedules=1)
    assert [sent.json["mail"] for sent in bench.sent] == [1, 2]


@pytest.mark.parametrize("failing", [{"before": 1}, {"after": 1}], ids=["not sent", "sent, unanswered"])
def test_follow_ups_are_sent_again_with_the_same_ids(bench: Workbench, failing: dict[str, int]) -> None:
    """When sending fails the message comes again, and its follow-ups are sent then, under the same ids."""
    body = Doing(follow_ups)
    one, sender = handling(body), FailingSender(**failing)
    host = host_of(bench, sender=sender)
    settlement = rescheduled(host.deliver(one, delivery()))
    assert "follow-up" in settlement.reason
    assert isinstance(host.deliver(one, delivery(reschedules=1)), Complete)
    ids = [sent.message_id for sent in sender.sent]
    assert len(set(ids)) == 2
    assert ids[:2] == ids[-2:]
    assert len(body.calls) == 1


def test_follow_ups_survive_a_crash(bench: Workbench) -> None:
    """A host that dies after the record and before sending leaves its follow-ups to whoever gets the message next."""
    one = handling(Doing(follow_ups))
    dying = host_of(bench, sender=FailingSender(before=1))
    rescheduled(dying.deliver(one, delivery()))  # and its copy is never sent
    assert bench.deliver(one, BODY, delivery_count=2) == Complete(duplicate=True)
    expected = [sent.message_id for sent in bench.sent]
    assert len(expected) == 2
    bench.deliver(one, BODY, delivery_count=3)
    assert [sent.message_id for sent in bench.sent] == expected * 2


class RefusingSender(MemorySender):
    """Refuses for good."""

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        raise TransportRefusedError(f"{entity} takes no {len(messages)}.")


def test_what_a_message_in_progress_has_to_send_is_left_to_its_holder(bench: Workbench) -> None:
    """Whoever gets it meanwhile gives it back and sends nothing of it."""
    one, sender = handling(Doing()), MemorySender()
    working = begun(host_of(bench, sender=FailingSender(before=1)), one)
    follow_ups(working.message)
    with pytest.raises(HostStopping):
        working.message.checkpoint.save({"n": 1})
    assert "in progress" in rescheduled(host_of(bench, sender=sender).deliver(one, delivery(count=2))).reason
    assert sender.sent == []


def test_what_a_finished_message_can_never_send_is_said(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """It was done, and its follow-ups are refused for good when it comes again: a dead letter, and logged."""
    one = handling(Doing(follow_ups))
    rescheduled(host_of(bench, sender=FailingSender(before=1)).deliver(one, delivery()))
    settlement = dead(host_of(bench, sender=RefusingSender()).deliver(one, delivery(count=2)))
    assert settlement.description.startswith(
        "Handler send_invoice, message m-1 (done): its follow-ups can never be"
    )
    assert f"handler send_invoice, message m-1: {settlement.description}" in caplog.messages


def test_what_an_earlier_attempt_had_to_send_is_put_aside_where_it_never_can_be(bench: Workbench) -> None:
    """The message is dead with that reason, on its claim and for the hooks as well, and its handler is not run."""
    body = Doing()
    one = handling(body)
    working = begun(host_of(bench, sender=FailingSender(before=1)), one)
    follow_ups(working.message)
    with pytest.raises(HostStopping):
        working.message.checkpoint.save({"n": 1})
    bench.clock.advance(AFTER_CLAIM)
    with hearing() as heard:
        settlement = dead(host_of(bench, sender=RefusingSender()).deliver(one, delivery(count=2)))
        (incident,) = heard.of("on_incident")
    assert settlement.reason == "FollowUpRefused"
    assert settlement.description.startswith(
        f"Handler {one.name}, message m-1 (claimed): its follow-ups can never be"
    )
    row = row_of(bench, one)
    assert (row.state, row.reason, body.calls) == (State.FAILED, settlement.description, [])
    assert (incident.kind, incident.reason) == ("dead_lettered", settlement.description)
    assert incident.namespace == bench.settings.namespace


def test_a_rerun_sends_the_same_ids(bench: Workbench) -> None:
    """A handler that is run again after a death sends its follow-ups under the ids the first run would have used."""
    one, other = handling(Doing(follow_ups, follow_ups)), MemorySender()
    dying = host_of(bench, sender=other)
    working = begun(dying, one)
    follow_ups(working.message)
    first_ids = [item["id"] for item in working.rights.outbox]
    bench.clock.advance(AFTER_CLAIM)
    bench.deliver(one, BODY, delivery_count=2)
    assert [sent.message_id for sent in bench.sent] == first_ids


def test_follow_ups_made_during_a_save_are_sent_too(bench: Workbench) -> None:
    """What a handler enqueues while its checkpoint's follow-ups are being sent is sent with what comes next."""

    class Meanwhile(MemorySender):
        def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
            if not self.sent:
                body.calls[0].enqueue(MAIL, {"mail": "meanwhile"})
            super().send(entity, messages)

    def steps(message: Message) -> None:
        message.enqueue(MAIL, {"mail": "first"})
        message.checkpoint.save(1)
        message.enqueue(MAIL, {"mail": "last"})

    body, sender = Doing(steps), Meanwhile()
    assert isinstance(host_of(bench, sender=sender).deliver(handling(body), delivery()), Complete)
    assert [sent.json["mail"] for sent in sender.sent] == ["first", "meanwhile", "last"]
    assert len({sent.message_id for sent in sender.sent}) == 3


def test_follow_ups_are_numbered_on_from_the_checkpoint(bench: Workbench) -> None:
    """What a later attempt sends has other ids than what the earlier ones sent."""

    def sends_and_fails(message: Message) -> None:
        follow_ups(message)
        message.checkpoint.save({"n": 1})
        raise ValueError

    one = handling(Doing(sends_and_fails, follow_ups))
    bench.clock.advance(rescheduled(bench.deliver(one, BODY)).delay)
    assert bench.deliver(one, BODY, reschedules=1) == Complete()
    assert len({sent.message_id for sent in bench.sent}) == len(bench.sent) == 4


def test_too_many_follow_ups_are_told(bench: Workbench) -> None:
    """Follow-ups that do not fit on the row fail the handler with the remedy, and leave no claim behind."""
    one = handling(Doing(lambda m: m.enqueue(MAIL, "x" * 31_000)), retries=0)
    settlement = dead(bench.deliver(one, BODY))
    assert "put the data in a blob" in settlement.description
    assert row_of(bench, one).state is State.FAILED
    assert bench.sent == []


def test_a_follow_up_after_the_commit_is_refused(bench: Workbench) -> None:
    """message.enqueue after message.commit would be lost, so it raises."""
    raised: list[str] = []

    def body(message: Message) -> None:
        message.commit({})
        try:
            message.enqueue(MAIL, {"mail": 1})
        except InputError as error:
            raised.append(str(error))

    bench.deliver(handling(body), BODY)
    assert "swap the two" in raised[0]


# -- keys and bodies ----------------------------------------------------------------------------------------


def test_a_key_with_another_body_is_put_aside(bench: Workbench) -> None:
    """One key with two bodies is refused visibly and has no second effect."""
    body = Doing()
    one = handling(body)
    bench.deliver(one, {"id": KEY, "cents": 5})
    settlement = dead(bench.deliver(one, {"id": KEY, "cents": 6}))
    assert settlement.reason == "KeyReused"
    assert len(body.calls) == 1
    assert bench.deliver(one, {"id": KEY, "cents": 5}) == Complete(duplicate=True)


def test_a_copy_is_the_same_message(bench: Workbench) -> None:
    """A copy that the toolkit sent has an id of its own, and for a handler without a key is still the same message."""
    body = Doing(ValueError("no"))
    one = handling(body, key=None, retries=3)
    settlement = rescheduled(bench.deliverer.deliver(one, delivery(message_id="m-1")))
    bench.clock.advance(settlement.delay)
    copy = delivery(message_id="m-1~r1", reschedules=1, sent_as="m-1")
    assert bench.deliverer.deliver(one, copy) == Complete()
    assert [m.attempt for m in body.calls] == [1, 2]
    assert [m.message_id for m in body.calls] == ["m-1", "m-1"]


def test_nothing_of_a_body_is_logged(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    """A message's whole life logs its handler and ids, and nothing of its body."""
    one = handling(Doing(), key=lambda m: m.message_id)
    with caplog.at_level(logging.DEBUG):
        bench.deliver(one, {"id": KEY, "iban": "hunter2"}, message_id="m-9")
        bench.deliver(one, {"id": KEY, "iban": "hunter3"}, message_id="m-9")
        bench.deliver(handling(), b'{"iban": "hunter2"}', message_id="m-10")
    assert "m-9" in caplog.text
    assert "hunter" not in caplog.text


# -- async --------------------------------------------------------------------------------------------------


def test_an_async_handler_has_the_same_outcomes(bench: Workbench) -> None:
    """An async handler completes, is recognised, fails, and is dead-lettered, as a plain one does."""
    steps: list[Any] = [7, ValueError("no"), PermanentError("never")]

    async def body(_: Message) -> Any:
        await asyncio.sleep(0)
        step = steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    one = handling(body)
    assert bench.deliver(one, BODY) == Complete(result=7)
    assert bench.deliver(one, BODY) == Complete(duplicate=True)
    rescheduled(bench.deliver(one, {"id": "B"}))
    assert dead(bench.deliver(one, {"id": "C"})).reason == "Failed"


def test_twenty_duplicates_at_once_have_one_effect(bench: Workbench) -> None:
    """Twenty deliveries of a message at the same instant run it once; nobody raises, and all come again or are done."""
    start = threading.Barrier(20)
    body = Doing()
    one = handling(body)
    hosts = [host_of(bench, name=f"h{n}") for n in range(20)]

    def race(n: int) -> Any:
        start.wait()
        return hosts[n].deliver(one, delivery())

    with ThreadPoolExecutor(20) as pool:
        settlements = list(pool.map(race, range(20)))
    assert len(body.calls) == 1
    assert settlements.count(Complete()) == 1
    assert all(isinstance(s, Complete | Reschedule) for s in settlements)
