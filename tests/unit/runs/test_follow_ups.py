"""What a run sends: with its batch or its end or not at all, under ids that are the same in every attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.flows import AFTER_LEASE, at, die, job_row, recovered, replayed, replica, run_row, start

from runonce.errors import InputError, TransportError
from runonce.execution.registry import Registry
from runonce.messages.definition import handler
from runonce.messages.of_jobs import JobsMessages
from runonce.runs.decide import Which, cancel
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.rows import Outcome
from runonce.testing import MemorySender, Workbench
from runonce.testing.faults import Boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runonce.messages.message import Message
    from runonce.runs.run import Run
    from runonce.transports.protocols import Outgoing

T = at(3)


@handler(queue="mails", key="n")
def mail(message: Message) -> None: ...


class Failing(MemorySender):
    """A broker that is away for the first calls."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Note them, or be away."""
        self.times -= 1
        if self.times >= 0:
            raise TransportError("the broker is away")
        super().send(entity, messages)


class Died(BaseException):
    """The host's process is gone."""


class Dying(MemorySender):
    """The host dies where it would send."""

    def send(self, entity: str, messages: Sequence[Outgoing]) -> None:
        """Be gone."""
        raise Died(entity, len(messages))


def made(body: Callable[[Run], Any], **options: Any) -> tuple[Workbench, ScheduledJob]:
    """A bench three hours on, and a job."""

    def nightly(run: Run) -> None:
        body(run)

    job = scheduled("0 0 3 * * *", **options)(nightly)
    bench = Workbench(job)
    bench.clock.advance(3 * 3600)
    return bench, job


def host_of(bench: Workbench, job: ScheduledJob, sender: MemorySender, **options: Any) -> Dispatcher:
    """A host that sends by this sender."""
    return Dispatcher(
        {job.name: job},
        options.pop("stores", bench.stores),
        bench.settings,
        bench.clock,
        host="other",
        follow_ups=JobsMessages(
            lambda: sender, Registry(bench.stores.claims, "test", bench.clock, "other"), {}
        ),
    )


def test_follow_ups_go_with_the_batch_and_with_the_end() -> None:
    """Those of a batch are sent when it is committed, the others after the success is recorded, once each."""
    seen: list[int] = []

    def work(run: Run) -> None:
        for (number,) in run.batches(range(3), size=1):
            seen.append(len(bench.sent))
            run.enqueue(mail, {"n": number})
        run.enqueue(mail, {"n": "last"})

    bench, job = made(work)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    assert [sent.json["n"] for sent in bench.sent] == [0, 1, 2, "last"]
    assert {sent.queue for sent in bench.sent} == {"mails"}
    assert seen == [0, 1, 2]
    assert job_row(bench, job).pending == {}


def test_what_was_not_committed_is_not_sent() -> None:
    """A body that raises sends nothing of the batch it was in; its next attempt sends it, under the same ids."""

    def work(run: Run) -> None:
        for (number,) in run.batches(range(3), size=1):
            run.enqueue(mail, {"n": number})
            if number == 1 and run.attempt == 1:
                raise OSError

    bench, job = made(work, retries=1)
    other, plain = made(lambda run: [run.enqueue(mail, {"n": number}) for number in range(3)])
    assert bench.run(job, T).outcome is Outcome.RETRYING
    assert [sent.json["n"] for sent in bench.sent] == [0]
    recovered(host_of(bench, job, bench.sender), bench.clock)
    assert {sent.json["n"] for sent in bench.sent} == {0, 1, 2}
    other.run(plain, T)
    ids = {sent.json["n"]: sent.message_id for sent in bench.sent}
    assert ids == {sent.json["n"]: sent.message_id for sent in other.sent}
    assert len({sent.message_id for sent in bench.sent}) == 3


@pytest.mark.parametrize("how", ["broker away", "host dies"])
def test_a_success_whose_follow_ups_were_not_sent_sends_them_later(how: str) -> None:
    """The success stands, nothing runs again, and recovery sends what the record has."""
    ran: list[int] = []

    def work(run: Run) -> None:
        ran.append(run.attempt)
        run.enqueue(mail, {"n": 1})

    bench, job = made(work)
    if how == "broker away":
        host = host_of(bench, job, Failing(1))
        assert host.execute(job, T, by="timer").outcome is Outcome.SUCCEEDED
    else:  # between the record and the broker
        host = host_of(bench, job, Dying())
        started = start(host, job, T)
        work(started.run)
        with pytest.raises(Died):
            host.finish(started, None)
        die(started)
        bench.clock.advance(AFTER_LEASE)
    assert job_row(bench, job).pending[T].why == "unsent"
    recovered(host_of(bench, job, bench.sender), bench.clock)
    assert [sent.json["n"] for sent in bench.sent] == [1]
    assert ran == [1]
    assert job_row(bench, job).pending == {}
    assert run_row(bench, job, T).outcome is Outcome.SUCCEEDED


def test_a_death_after_the_commit_sends_them_with_the_next_attempt() -> None:
    """What a batch had committed and could not send is sent before the run's own end."""

    def work(run: Run) -> None:
        run.checkpoint.save("again")

    bench, job = made(work)
    host = host_of(bench, job, Failing(1))
    started = start(host, job, T)
    started.run.enqueue(mail, {"n": 1})
    started.run.checkpoint.save("committed")
    die(started)
    bench.clock.advance(AFTER_LEASE)
    recovered(host_of(bench, job, bench.sender), bench.clock)
    assert [sent.json["n"] for sent in bench.sent] == [1]


def test_a_failure_sends_what_its_batches_had_committed() -> None:
    """A broker that was away while the batches were done gets theirs after the run has failed for good."""

    def work(run: Run) -> None:
        for (number,) in run.batches(range(3), size=1):
            if number == 2:
                raise ValueError("row 2")
            run.enqueue(mail, {"n": number})

    bench, job = made(work)
    assert host_of(bench, job, Failing(3)).execute(job, T, by="timer").outcome is Outcome.FAILED
    recovered(host_of(bench, job, bench.sender), bench.clock)
    assert [sent.json["n"] for sent in bench.sent] == [0, 1]
    assert job_row(bench, job).pending == {}


def test_a_replay_sends_its_own() -> None:
    """Another generation's messages have other ids, so that a broker drops none of them as repeated."""
    bench, job = made(lambda run: run.enqueue(mail, {"n": 1}))
    bench.run(job, T)
    replayed(bench.dispatcher, job, T)
    assert len({sent.message_id for sent in bench.sent}) == 2


def test_a_run_without_follow_ups_costs_nothing_more() -> None:
    """No call beside those of any run; with some at its end, one more read and write that say they are sent."""
    counts = []
    for body in (lambda run: run.check(), lambda run: run.enqueue(mail, {"n": 1})):
        bench, job = made(body)
        bench.run(job, at(3))
        bench.clock.advance(86_400)
        boundary = Boundary()
        host_of(bench, job, bench.sender, stores=boundary.around(bench.stores)).execute(
            job, at(3, day=2), by="timer"
        )
        counts.append(boundary.calls)
    assert counts[0] == ["acquire", "get", "commit", "commit", "release"]
    assert counts[1] == ["acquire", "get", "commit", "commit", "get", "commit", "release"]


def test_a_success_that_is_only_to_be_sent_cannot_be_cancelled() -> None:
    """It has happened; cancelling it would say that it had not."""
    bench, job = made(lambda run: run.enqueue(mail, {"n": 1}))
    host_of(bench, job, Failing(99)).execute(job, T, by="timer")
    with pytest.raises(InputError, match="has ended as succeeded"):
        cancel(bench.dispatcher, Which(job.name, T))


def test_what_cannot_be_sent_is_refused_where_it_is_enqueued() -> None:
    """A body that is no JSON, too much for the row, and a host without a transport."""

    def work(run: Run) -> None:
        with pytest.raises(InputError, match="not a JSON value"):
            run.enqueue(mail, {"n": object()})
        with pytest.raises(InputError, match="put the data in a blob"):
            run.enqueue(mail, {"n": 1, "text": "x" * 40_000})

    bench, job = made(work)
    assert bench.run(job, T).outcome is Outcome.SUCCEEDED
    bench.clock.advance(86_400)
    bare = start(replica(bench), job, at(3, day=2))
    with pytest.raises(InputError, match="without a transport"):
        bare.run.enqueue(mail, {"n": 1})
    replica(bench).finish(bare, None)
