"""Fan-out and join: a handler that gets one message once all messages of a run are done."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.flows import at, job_row, run_row, stop_at, work_off
from support.messages import host_of as messages_of

from runonce.errors import DefinitionError, PermanentError, TransportError
from runonce.execution.registry import Registry
from runonce.messages.definition import Handler, handler
from runonce.messages.of_jobs import JobsMessages
from runonce.messages.sending import outgoing
from runonce.runs import decide
from runonce.runs.definition import ScheduledJob, scheduled
from runonce.runs.dispatch import Dispatcher
from runonce.runs.joins import KEPT_JOINS, waiting
from runonce.runs.recovery import recover
from runonce.runs.rows import JobRow, RunRow
from runonce.runs.run import MAX_ENTRIES
from runonce.stores.columns import column_problem, encode
from runonce.stores.protocols import Replace
from runonce.testing import Complete, Workbench
from runonce.testing.faults import Boundary, Fault
from runonce.transports.protocols import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from runonce.messages.message import Message
    from runonce.runs.run import Run
    from runonce.testing import Sent

T = at(3)


class World:
    """A job that fans out, the handler of its messages, and one that waits for all of them."""

    def __init__(self, body: Callable[[Run, Handler], Any], **options: Any) -> None:
        self.failing: set[str] = set()

        @handler(queue="charges", name="charge", retries=0, **{"key": "id", **options})
        def charge(message: Message) -> None:
            if message.key in self.failing:
                raise PermanentError("no")

        @handler(queue="charged", after_all=charge)
        def charged(message: Message) -> None: ...

        def nightly(run: Run) -> None:
            body(run, charge)

        self.charge, self.charged = charge, charged
        self.job: ScheduledJob = scheduled("0 0 3 * * *", name="nightly", retries=3, retry_delay=1)(nightly)
        self.bench = Workbench(self.job, charge, charged)
        self.bench.clock.advance(3 * 3600)

    def run(self) -> None:
        assert self.bench.run(self.job, T).outcome == "succeeded"

    def to(self, queue: str) -> list[Sent]:
        return [sent for sent in self.bench.sent if sent.queue == queue]

    def handle(self, *numbers: int) -> None:
        """Handle those of the messages to `charge` with these places, in the order in which they were sent."""
        for number in numbers:
            sent = self.to("charges")[number]
            messages_of(self.bench).deliver(self.charge, Delivery(sent.body, sent.message_id))

    def tick(self) -> list[Any]:
        """A recovery tick; the bodies of what the waiting handler was sent so far."""
        recover(self.bench.dispatcher)
        return [sent.json for sent in self.to("charged")]

    def lists(self) -> int:
        return len(list(self.bench.stores.runs.scan("test", "join:", "join;")))


def fan_out(run: Run, charge: Handler) -> None:
    for number in range(4):
        run.enqueue(charge, {"id": f"{number}"})


def in_batches(run: Run, charge: Handler) -> None:
    for batch in run.batches(range(4), size=2):
        for number in batch:
            run.enqueue(charge, {"id": f"{number}"})


EXPECTED = {"job": "nightly", "fire_time": "2026-01-01T03:00:00Z", "handler": "charge", "count": 4}


@pytest.mark.parametrize("body", [fan_out, in_batches], ids=lambda body: body.__name__)
def test_the_waiting_handler_is_sent_one_message_once_all_are_done(
    body: Callable[[Run, Handler], None],
) -> None:
    """Not before the last one, whatever their order, and not twice."""
    world = World(body)
    world.run()
    assert world.tick() == []
    world.handle(3, 1, 0)
    assert world.tick() == []
    world.handle(2)
    assert world.tick() == [EXPECTED]
    assert world.tick() == [EXPECTED]
    assert (world.lists(), job_row(world.bench, world.job).joins) == (0, ())


def test_a_second_sending_is_the_same_message() -> None:
    """Where the tick dies after it has sent and before it has noted that, its message is sent again: a duplicate."""
    world = World(fan_out)
    world.run()
    world.handle(0, 1, 2, 3)
    before = job_row(world.bench, world.job).joins
    world.tick()
    follow_ups = world.bench.dispatcher.follow_ups
    assert follow_ups is not None
    follow_ups.join(run_row(world.bench, world.job, T))
    first, again = world.to("charged")
    assert (first.message_id, first.body) == (again.message_id, again.body)
    assert before == (("2026-01-01T03:00:00Z", ""),)
    ends = [
        messages_of(world.bench).deliver(world.charged, Delivery(one.body, one.message_id, count))
        for count, one in enumerate((first, again), start=1)
    ]
    assert ends == [Complete(), Complete(duplicate=True)]


def test_it_waits_for_a_dead_letter_until_its_replay_is_done() -> None:
    """What failed is not done; and what was done meanwhile is not looked at again."""
    world = World(fan_out)
    world.failing = {"1"}
    world.run()
    world.handle(0, 1, 2, 3)
    assert world.tick() == []
    assert job_row(world.bench, world.job).joins
    world.failing = set()
    corrected = outgoing(world.charge, {"id": "1", "corrected": True})
    end = messages_of(world.bench).deliver(world.charge, Delivery(corrected.body, corrected.message_id))
    assert end == Complete()
    assert world.tick() == [EXPECTED]


def test_two_messages_with_one_key_are_waited_for_as_one() -> None:
    """Their claim is one; it is done once."""

    def body(run: Run, charge: Handler) -> None:
        run.enqueue(charge, {"id": "1"})
        run.enqueue(charge, {"id": "1"})

    world = World(body)
    world.run()
    world.handle(0)
    assert world.tick() == [{**EXPECTED, "count": 2}]


def test_messages_of_a_handler_without_a_key_are_waited_for() -> None:
    """They are known by their ids."""
    world = World(fan_out, key=None)
    world.run()
    world.handle(0, 1, 2)
    assert world.tick() == []
    world.handle(3)
    assert world.tick() == [EXPECTED]


def test_a_run_that_goes_on_in_another_attempt_has_one_join() -> None:
    """What its earlier attempt kept counts, what that one did not keep is sent by the later one."""

    def body(run: Run, charge: Handler) -> None:
        for (number,) in run.batches(range(4), size=1):
            run.enqueue(charge, {"id": f"{number}"})
            if number == 2 and run.attempt == 1:
                stop_at(run)

    world = World(body)
    assert world.bench.run(world.job, T).outcome == "stopped"
    world.handle(0, 1)
    assert world.tick() == []
    work_off(world.bench.dispatcher)
    world.handle(*range(2, len(world.to("charges"))))
    assert world.tick() == [EXPECTED]


def test_a_run_that_fails_has_no_join_until_it_succeeds() -> None:
    """Its messages are sent as far as they were kept; nobody is told that all are done."""

    def body(run: Run, charge: Handler) -> None:
        in_batches(run, charge)
        if not world.failing:
            raise PermanentError("at the end")

    world = World(body)
    assert world.bench.run(world.job, T).outcome == "failed"
    world.handle(0, 1, 2, 3)
    assert world.tick() == []
    world.failing = {"nothing"}
    decide.resume_run(world.bench.dispatcher, decide.Which("nightly", T))
    world.bench.dispatcher.execute(world.job, T, by="hand")
    assert world.tick() == [EXPECTED]


def test_a_replay_has_a_join_of_its_own() -> None:
    """A run that is replayed sends other messages, and their join is another message."""
    world = World(fan_out, key=None)
    world.run()
    world.handle(0, 1, 2, 3)
    world.tick()
    decide.replay(world.bench.dispatcher, decide.Which("nightly", T))
    world.bench.dispatcher.execute(world.job, T, by="hand")
    assert len(world.tick()) == 1
    world.handle(4, 5, 6, 7)
    assert world.tick() == [EXPECTED, EXPECTED]
    assert len({sent.message_id for sent in world.to("charged")}) == 2


def test_a_broker_that_is_away_is_asked_again_at_the_next_tick() -> None:
    """The join stays until its message is sent."""
    world = World(fan_out)
    world.run()
    world.handle(0, 1, 2, 3)
    send, world.bench.sender.send = world.bench.sender.send, _away  # type: ignore[method-assign]
    assert world.tick() == []
    assert job_row(world.bench, world.job).joins
    world.bench.sender.send = send  # type: ignore[method-assign]
    assert world.tick() == [EXPECTED]


def _away(*_: object) -> None:
    raise TransportError("the broker is away")


def test_a_run_that_sends_nothing_is_followed_by_nothing() -> None:
    """No message, no join."""
    world = World(lambda *_: None)
    world.run()
    assert (world.tick(), job_row(world.bench, world.job).joins) == ([], ())


def _edited(world: World, first: str, last: str, change: dict[str, str]) -> dict[str, Any]:
    """Edit the one row of a range, as a person might; its columns before."""
    table = world.bench.stores.runs
    (row,) = table.scan("test", first, last)
    table.commit("test", [Replace(row.key, {**row.values, **change}, row.etag)])
    return dict(row.values)


@pytest.mark.parametrize(
    ("first", "last", "change"),
    [
        ("join:", "join;", {"members": "{"}),
        ("join:", "join;", {"members": '{"charge": 7}'}),
        ("job:nightly", "job:nightly;", {"joins": '[["soon", ""]]'}),
    ],
)
def test_what_cannot_be_read_is_told_and_waits(
    first: str, last: str, change: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A list, or an instant on the job's row, that was edited is told at each tick; mended it is followed."""
    world = World(fan_out)
    world.run()
    world.handle(0, 1, 2, 3)
    before = _edited(world, first, last, change)
    assert world.tick() == []
    assert "job nightly: what follows on the messages of" in caplog.text
    _edited(world, first, last, before)
    assert world.tick() == [EXPECTED]


def test_what_it_costs() -> None:
    """Nothing for the run; while it waits a tick's four calls; one read for each message, in all ticks together."""
    world, unawaited = World(fan_out), World(fan_out)
    boundary, other = Boundary(), Boundary()
    host = _host(world, boundary.around(world.bench.stores))
    assert host.execute(world.job, T, by="timer").outcome == "succeeded"
    unknown = _host(unawaited, other.around(unawaited.bench.stores), {})
    assert unknown.execute(unawaited.job, T, by="timer").outcome == "succeeded"
    assert boundary.calls == other.calls
    boundary.calls.clear()
    world.handle(0, 1, 2)
    recover(host)
    assert boundary.calls == ["scan", "get", "scan", *["get"] * 4, "commit"]
    boundary.calls.clear()
    recover(host)
    assert boundary.calls == ["scan", "get", "scan", "get"]
    world.handle(3)
    boundary.calls.clear()
    recover(host)
    assert boundary.calls == ["scan", "get", "scan", "get", "commit", "get", "commit"]
    boundary.calls.clear()
    recover(host)
    assert boundary.calls == ["scan"]


@pytest.mark.parametrize(
    "fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.DEATH_BEFORE, Fault.DEATH_AFTER], ids=str
)
@pytest.mark.parametrize("call", range(1, 13))
def test_a_fault_at_any_call_of_the_tick_loses_no_join_and_makes_no_second(call: int, fault: Fault) -> None:
    """Whatever is lost or dies on the way: the next ticks send the one message."""
    world = World(in_batches)
    world.run()
    world.handle(0, 1, 2, 3)
    boundary = Boundary()
    boundary.at(call, fault)
    host = _host(world, boundary.around(world.bench.stores))
    with contextlib.suppress(SystemExit):
        recover(host)
    world.tick()
    assert {sent.message_id for sent in world.to("charged")} == {world.to("charged")[0].message_id}
    assert world.tick()[0] == EXPECTED
    assert (world.lists(), job_row(world.bench, world.job).joins) == (0, ())


def _host(world: World, stores: Any, handlers: dict[str, Handler] | None = None) -> Dispatcher:
    """A host of its own that knows the handlers."""
    claims = Registry(stores.claims, "test", world.bench.clock, "other")
    known = {one.name: one for one in (world.charge, world.charged)} if handlers is None else handlers
    return Dispatcher(
        {world.job.name: world.job},
        stores,
        world.bench.settings,
        world.bench.clock,
        host="other",
        follow_ups=JobsMessages(lambda: world.bench.sender, claims, known),
    )


def test_a_commit_with_a_list_has_room_for_one_ledger_entry_less() -> None:
    """The list is a row of the same transaction, which takes a hundred; nothing is written of what is too much."""

    def body(run: Run, charge: Handler) -> None:
        run.enqueue(charge, {"id": "1"})
        for number in range(MAX_ENTRIES):
            run.ledger.record(f"{number}")
        run.checkpoint.save(1)

    world = World(body)
    result = world.bench.run(world.job, T)
    assert (result.outcome, "one ledger entry less" in result.reason) == ("failed", True)
    assert world.to("charges") == []


def test_what_waits_is_a_handler_of_another_one() -> None:
    """Anything else is refused when the file is loaded."""
    world = World(fan_out)

    def named(message: Message) -> None: ...

    with pytest.raises(DefinitionError, match="must be what @handler made"):
        handler(queue="q", after_all="charge")(named)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"leave key='id' out"):
        handler(queue="q", key="id", name="late", after_all=world.charge)(named)
    with pytest.raises(DefinitionError, match="another handler"):
        handler(queue="q", name="charge", after_all=world.charge)(named)


def test_a_run_marked_as_done_is_followed_as_one_that_succeeded() -> None:
    """A person's word counts: what was sent is waited for."""

    def body(run: Run, charge: Handler) -> None:
        in_batches(run, charge)
        raise PermanentError("at the end")

    world = World(body)
    world.bench.run(world.job, T)
    world.handle(0, 1, 2, 3)
    decide.mark(world.bench.dispatcher, decide.Which("nightly", T, why="looked"), "done")
    assert world.tick() == [EXPECTED]


def test_a_host_that_has_other_code_leaves_the_join_to_those_that_know_it() -> None:
    """An older version in the middle of a deployment, or another app of the namespace, drops nothing."""
    world = World(fan_out)
    world.run()
    world.handle(0, 1, 2, 3)
    recover(_host(world, world.bench.stores, {}))
    elsewhere = Dispatcher({}, world.bench.stores, world.bench.settings, world.bench.clock, host="app")
    recover(elsewhere)
    assert job_row(world.bench, world.job).joins
    assert world.tick() == [EXPECTED]


@pytest.mark.parametrize(("params", "kept"), [("", KEPT_JOINS), ("x" * 8000, 3)])
def test_no_more_runs_are_waited_for_than_the_row_keeps(params: str, kept: int) -> None:
    """Beyond that the oldest is given up, and the log says so; the run itself is recorded all the same."""
    row = JobRow("nightly")
    for minute in range(KEPT_JOINS + 5):
        fire_time = T + timedelta(minutes=minute)
        row = waiting(row, RunRow("nightly", fire_time, params=params, fanned_out={"charge": 1}))
    assert len(row.joins) == kept
    assert row.joins[-1][0] == "2026-01-01T08:04:00Z"
    assert [
        column_problem(name, value) for name, value in encode(row).items() if column_problem(name, value)
    ] == []
