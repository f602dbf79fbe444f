"""What a death at any storage call repeats, as users ask for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from runonce import Message, PermanentError, Run, enqueue, handler, scheduled
from runonce.errors import InputError
from runonce.testing import Marks, Workbench, crash_everywhere

if TYPE_CHECKING:
    from runonce.runs.definition import ScheduledJob

AT = "2026-11-29T03:00:00+03:00"


def orders(bench: Workbench) -> None:
    bench.put("orders.csv", "a\nb\n")


def charging(marks: Marks, schedule: str = "0 0 3 * * *", **options: int) -> ScheduledJob:
    """A job that charges each order of a blob, with a batch for each."""

    @scheduled(schedule, name="charge_all", **options)  # type: ignore[arg-type]
    def charge_all(run: Run) -> None:
        for (order,) in run.batches(run.blobs.read_text("orders.csv").splitlines(), size=1):
            marks(f"charge {order}")
            run.ledger.record(order)
        run.blobs.write("report.csv", "a,b")

    return charge_all


@handler(queue="mails", key="n")
def mail(message: Message) -> None:
    """Has a queue to send to."""


@handler(queue="news")
def told(message: Message) -> None:
    """Has no key."""


@pytest.mark.slow
def test_an_effect_elsewhere_repeats_for_a_death_before_it_is_recorded() -> None:
    """A charge is made twice by a death right before the commit of its batch, and by no other; nothing is lost."""
    marks = Marks()
    report = crash_everywhere(charging(marks), at=AT, prepare=orders, marks=marks)
    assert report.repeated == {"charge a": ["before 5 runs.commit"], "charge b": ["before 6 runs.commit"]}
    assert report.effects == {
        "charge a": 1,
        "charge b": 1,
        "blob report.csv": 1,
        "ledger a": 1,
        "ledger b": 1,
    }
    assert [crash.outcome for crash in report.crashes] == ["completed"] * 20
    with pytest.raises(AssertionError, match=r"before 5 runs\.commit: charge a: 2 times\n"):
        report.check()
    with pytest.raises(AssertionError, match="charge b: 2 times"):
        report.check(may_repeat=["charge a"])
    report.check(may_repeat=["charge a", "charge b"])


@pytest.mark.slow
def test_a_job_that_keeps_its_effects_in_the_ledger_repeats_nothing() -> None:
    """Ledger and blobs alone are the same after every death, also where fire times are seconds apart.

    Dozens of dead hosts leave none of their threads behind.
    """
    before = set(threading.enumerate())
    job = charging(Marks(), "*/5 * * * * *")
    crash_everywhere(job, prepare=orders).check()
    for thread in set(threading.enumerate()) - before:
        if thread.name != "runonce-bodies" and not isinstance(thread, threading.Timer):  # of no host
            thread.join(5)
            assert not thread.is_alive(), thread


@pytest.mark.slow
def test_a_blob_that_grows_with_every_attempt_is_seen() -> None:
    """A job that appends to a blob writes its line twice, and the report says at which deaths."""

    @scheduled("0 0 3 * * *")
    def append(run: Run) -> None:
        before = run.blobs.read_text("log") if run.blobs.exists("log") else ""
        run.blobs.write("log", before + "ran\n")

    report = crash_everywhere(append)
    assert list(report.repeated) == ["blob log"]
    (twice, _) = (crash for crash in report.crashes if crash.repeated)
    assert (twice.name, twice.applied, twice.changed) == ("blobs.write log", True, ["blob log"])


@pytest.mark.slow
def test_work_that_is_skipped_after_a_death_is_missing() -> None:
    """A checkpoint saved before the work it tells of loses that work, and the report says so."""
    marks = Marks()

    @scheduled("0 0 3 * * *")
    def forgetful(run: Run) -> None:
        done = run.checkpoint.load()
        run.checkpoint.save("done")
        if done is None:
            marks("charge")

    report = crash_everywhere(forgetful, marks=marks)
    assert not report.repeated
    lost = [(crash.name, crash.applied) for crash in report.crashes if crash.missing == ["charge"]]
    assert ("runs.commit", True) in lost
    with pytest.raises(AssertionError, match="charge: missing"):
        report.check()


@pytest.mark.slow
def test_work_that_a_second_death_loses_is_missing() -> None:
    """A resumed run that says so before its work loses that work to a second death, and to no single one."""
    marks = Marks()

    @scheduled("0 0 3 * * *")
    def resumes_once(run: Run) -> None:
        if run.checkpoint.load() == "resumed":
            return
        if run.attempt > 1:
            run.checkpoint.save("resumed")
        marks("charge")

    report = crash_everywhere(resumes_once, marks=marks)
    assert [crash.missing for crash in report.crashes if crash.missing] == []
    lost = [crash.where for crash in report.second if crash.missing == ["charge"]]
    assert lost
    with pytest.raises(AssertionError, match=r"\n  after 3 runs\.commit, then after .*: charge: missing"):
        report.check(may_repeat=["charge"])


def test_a_handlers_second_death_is_tried_too() -> None:
    """A redelivered message whose host dies again has its row once, and the report counts the pairs."""

    @handler(queue="orders", key="order")
    def place(message: Message) -> None:
        message.commit({"order": {"n": 1}})

    report = crash_everywhere(place, {"order": 1})
    report.check()
    assert 0 < len(report.second) <= report.pairs
    assert {crash.outcome for crash in report.second} == {"completed"}
    assert str(report).splitlines()[-1].endswith("pairs of deaths: nothing new")


@pytest.mark.slow
def test_how_a_run_ends_after_a_death_is_part_of_the_report() -> None:
    """A job that is held once its host died has not completed, and the check says how it ended."""

    @scheduled("0 0 3 * * *", on_abandoned="hold")
    def held(run: Run) -> None:
        run.check()

    report = crash_everywhere(held)
    with pytest.raises(AssertionError, match="ended as unknown"):
        report.check()
    assert str(report).endswith("nothing new")


@pytest.mark.slow
def test_a_handler_is_killed_at_its_sends_and_its_settlement_too() -> None:
    """Rows and follow-ups are there once whatever dies; a call outside repeats before the claim says it is done."""
    marks = Marks()

    @handler(queue="orders", key="order", lock="shop")
    async def place(message: Message) -> None:
        marks("call")
        message.enqueue(mail, {"n": 1})
        message.commit({"order": {"n": 1}})

    report = crash_everywhere(place, {"order": 1}, marks=marks)
    assert {"send to mails", "complete", "leases.acquire"} <= {crash.name for crash in report.crashes}
    assert set(report.effects) == {"call", "row order", 'message to mails {"n":1}'}
    assert [(crash.name, crash.applied) for crash in report.crashes if crash.repeated] == [
        ("claims.commit", False)
    ]
    report.check(may_repeat=["call"])


def test_a_handler_that_fails_at_first_is_followed_to_its_end() -> None:
    """Retries are part of what is killed: a death at the rescheduling changes nothing."""

    @handler(queue="orders", key="order", retries=3, retry_delay=30)
    def flaky(message: Message) -> None:
        if message.attempt == 1:
            raise ConnectionError
        message.commit({"order": {}})

    report = crash_everywhere(flaky, {"order": 1})
    assert "reschedule" in {crash.name for crash in report.crashes}
    report.check()


def test_a_job_that_fails_by_itself_is_an_error_with_the_remedy() -> None:
    """Without its input nothing can be said about deaths; the error names the job, the reason and what to do."""
    with pytest.raises(ValueError, match=r"charge_all does not succeed .*orders\.csv.*prepare=") as raised:
        crash_everywhere(charging(Marks()))
    assert isinstance(raised.value.__cause__, InputError)

    @handler(queue="orders", key="order")
    def refuses(message: Message) -> None:
        raise PermanentError(message.text)

    with pytest.raises(ValueError, match=r"refuses does not succeed .*dead-lettered"):
        crash_everywhere(refuses, {"order": 1})


@pytest.mark.slow
def test_a_message_that_is_sent_at_once_repeats() -> None:
    """What a job sends by `enqueue` gets another id each time, so it repeats where a follow-up does not."""

    @scheduled("0 0 3 * * *")
    def tells(run: Run) -> None:
        enqueue(told, {"n": 1})
        run.enqueue(mail, {"n": 1})

    report = crash_everywhere(tells)
    assert list(report.repeated) == ['message to news {"n":1}']
    assert report.effects == {'message to news {"n":1}': 1, 'message to mails {"n":1}': 1}


@pytest.mark.slow
def test_the_dead_do_nothing_more() -> None:
    """What a job does on its way out after its death, in a finally or a thread of its own, counts for nothing."""
    marks = Marks()

    def quietly() -> None:
        marks("thread")

    @scheduled("0 0 3 * * *")
    def tidy(run: Run) -> None:
        try:
            run.ledger.record("done")
            run.checkpoint.save(1)
        finally:
            thread = threading.Thread(target=quietly)
            thread.start()
            thread.join()
            marks("closed")

    report = crash_everywhere(tidy, marks=marks)
    assert report.effects == {"thread": 1, "closed": 1, "ledger done": 1}
    deaths = [crash for crash in report.crashes if crash.name == "runs.commit" and not crash.applied]
    assert [crash.repeated for crash in deaths] == [{}, {}, {"thread": 2, "closed": 2}]
